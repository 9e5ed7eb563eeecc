//! The flags of what a model runs over: a text or prompts, and how they become windows.

use std::path::PathBuf;

use clap::value_parser;
use kl_formats::MAX_N_CTX;

use super::INPUT;
use super::values::{input, input_or_stdin};
use crate::input::ScoreFrom;

/// The flags for a text or prompts, and the windows of them.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = INPUT)]
pub struct InputArgs {
    /// Text to run the reference model over; '-' reads stdin
    ///
    /// As NAME=PATH it may repeat: windows of several texts, whose groups of these names are
    /// reported apart. No window holds parts of two texts. A file that is named so is a path.
    #[arg(short, long, value_name = "PATH", value_parser = input_or_stdin())]
    pub text_path: Vec<PathBuf>,

    /// Prompts to run it over, instead of a text; '-' reads stdin
    ///
    /// One prompt per line, or JSONL with "prompt" or "messages" in each line, and if you like
    /// "group".
    #[arg(
        long, value_name = "PATH", hide_short_help = true, value_parser = input_or_stdin(),
        conflicts_with_all = ["text_path", "stride"]
    )]
    pub prompts_file: Option<PathBuf>,

    /// With --prompts-file, tokenize prompts as they are, without a chat template
    #[arg(long, hide_short_help = true)]
    pub no_chat_template: bool,

    /// With --prompts-file, use this chat template (Jinja) instead of the model's own
    #[arg(
        long, value_name = "PATH", hide_short_help = true,
        value_parser = input(), conflicts_with = "no_chat_template"
    )]
    pub chat_template_file: Option<PathBuf>,

    /// With --prompts-file, generate N tokens after each prompt, greedily, and score those
    ///
    /// The reference model generates them. With --score all, the prompt's own tokens are scored too.
    #[arg(
        long, value_name = "N", hide_short_help = true,
        value_parser = value_parser!(u32).range(1..=i64::from(MAX_N_CTX))
    )]
    pub generate: Option<u32>,

    /// Tokens from one window's start to the next's [default: no overlap]
    ///
    /// With a stride shorter than a window, windows overlap, and more of the text is scored with a
    /// long context.
    #[arg(
        long, value_name = "N", hide_short_help = true,
        value_parser = value_parser!(u32).range(1..)
    )]
    pub stride: Option<u32>,

    /// Use only the first N windows, or prompts [default: all]
    ///
    /// With several texts, the first N windows of each.
    #[arg(
        long, value_name = "N", hide_short_help = true,
        value_parser = value_parser!(u32).range(1..)
    )]
    pub max_windows: Option<u32>,

    /// First position of each window that is scored
    ///
    /// [default: the first that has seen text: 1 after a BOS, else 0]
    ///
    /// - all:  every position, that of the BOS too
    /// - half: the second half of the window, as llama-perplexity does
    /// - new:  with --stride, only what no earlier window has scored
    /// - N:    from position N on
    #[arg(
        long,
        value_name = "all|half|new|N",
        hide_short_help = true,
        verbatim_doc_comment
    )]
    pub score: Option<ScoreFrom>,

    /// Parse special tokens in the text; in a chat template's output they always are
    #[arg(long, hide_short_help = true)]
    pub parse_special: bool,
}
