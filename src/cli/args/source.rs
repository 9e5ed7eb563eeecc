//! The flags for what models run over: texts or prompts, and how they become windows.

use std::path::PathBuf;

use clap::{ValueHint, value_parser};
use kl_formats::MAX_N_CTX;

use super::headings::INPUT;
use super::paths::{input, input_or_stdin, named_text};
use super::values::{min_p, temperature, top_p};
use crate::input::{NamedText, ScoreFrom, Source, SpanRule};

/// The flags for the texts or the prompts that a reference model runs over, and for the windows of them.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = INPUT)]
pub struct SourceArgs {
    /// Text to run over: a file, '-' for stdin, or 'starter'
    ///
    /// As NAME=PATH it may repeat: windows of several texts, whose groups of these names are
    /// reported apart. No window holds parts of two texts. A file that is named so is a path.
    /// 'starter' stands for 90 KB that come with kl, in six such groups: prose, technical, code,
    /// dialogue, languages, tables. A file of that name is ./starter.
    #[arg(short, long, value_name = "PATH", value_parser = named_text(), value_hint = ValueHint::FilePath)]
    pub text_path: Vec<NamedText>,

    /// Prompts to run it over, instead of a text: a file, '-' for stdin, or 'starter'
    ///
    /// One prompt per line, or JSONL with "prompt" or "messages" in each line, and if you like
    /// "group". 'starter' stands for 200 prompts that come with kl; a file of that name is
    /// ./starter.
    #[arg(
        long, value_name = "PATH", value_parser = input_or_stdin(), alias = "prompts-file",
        conflicts_with_all = ["text_path", "stride"]
    )]
    pub prompts: Option<PathBuf>,

    /// With --prompts, tokenize prompts as they are, without a chat template
    #[arg(long, conflicts_with = "text_path")]
    pub no_chat_template: bool,

    /// With --prompts, use this chat template (Jinja) instead of the model's own
    #[arg(
        long, value_name = "PATH", value_parser = input(),
        conflicts_with_all = ["no_chat_template", "text_path"]
    )]
    pub chat_template_file: Option<PathBuf>,

    /// With --prompts, let the model answer each with at most N tokens, and score those
    ///
    /// The reference model answers, greedily, until it ends its answer. With --score all, the
    /// prompt's own tokens are scored too.
    #[arg(
        long, value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(MAX_N_CTX)),
        conflicts_with = "text_path"
    )]
    pub generate: Option<u32>,

    /// With --generate, choose tokens by chance, at this temperature [default: 0, greedily]
    ///
    /// With --top-k N, one of the N most probable tokens is chosen.
    #[arg(long, value_name = "T", value_parser = temperature, alias = "temperature", requires = "generate")]
    pub temp: Option<f32>,

    /// With --temp, choose among the most probable tokens that have probability P together
    /// [default: 1, all]
    #[arg(long, value_name = "P", value_parser = top_p, requires = "temp")]
    pub top_p: Option<f32>,

    /// With --temp, leave out tokens that are less than P times as probable as the top token
    /// [default: 0, none]
    #[arg(long, value_name = "P", value_parser = min_p, requires = "temp")]
    pub min_p: Option<f32>,

    /// With --temp, the seed of the random numbers [default: 123]
    ///
    /// The same seed gives the same answers. With any -np they are the same to the bit where an f16, bf16
    /// or f32 model runs on the CPU with flash attention.
    #[arg(long, value_name = "N", requires = "temp")]
    pub seed: Option<u32>,

    /// Report this part of answers apart: 'NAME=OPEN..CLOSE'; may repeat
    ///
    /// It is the text from OPEN to CLOSE, both included; without CLOSE, to the answer's end. Code, and
    /// reasoning and tool calls in the markers of well-known chat templates, are found without it.
    #[arg(long, value_name = "NAME=OPEN..CLOSE", conflicts_with = "text_path")]
    pub span: Vec<SpanRule>,

    /// Tokens from one window's start to the next's [default: no overlap]
    ///
    /// With a stride shorter than a window, windows overlap, and more of the text is scored with a
    /// long context.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub stride: Option<u32>,

    /// Use only the first N windows, or prompts [default: all]
    ///
    /// With several texts, the first N windows of each.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub max_windows: Option<u32>,

    /// First position of each window that is scored
    ///
    /// [default: the first that has seen text: 1 after a BOS, else 0]
    ///
    /// - all:  every position, that of the BOS too
    /// - half: the second half of the window, as llama-perplexity does
    /// - new:  with --stride, only what no earlier window has scored
    /// - answers: what the assistant says in the conversations of --prompts
    /// - N:    from position N on
    #[arg(long, value_name = "all|half|new|answers|N", verbatim_doc_comment)]
    pub score: Option<ScoreFrom>,

    /// Parse special tokens in the text; in a chat template's output they always are
    #[arg(long)]
    pub parse_special: bool,
}

/// The input that these flags decide alone.
impl From<SourceArgs> for Source {
    fn from(args: SourceArgs) -> Self {
        Self {
            texts: args.text_path,
            prompts: args.prompts,
            no_chat_template: args.no_chat_template,
            chat_template_file: args.chat_template_file,
            generate: args.generate,
            temp: args.temp,
            top_p: args.top_p,
            min_p: args.min_p,
            seed: args.seed,
            spans: args.span,
            stride: args.stride,
            max_windows: args.max_windows,
            score: args.score,
            parse_special: args.parse_special,
            n_ctx: None,
            top_k: None,
        }
    }
}
