//! The flags of what a reference model runs over: texts or prompts, and how they become windows.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{ValueHint, value_parser};
use kl_formats::{MAX_N_CTX, Sampling};

use super::flags::{input, input_or_stdin, min_p, named_text, temperature, top_p};
use super::starter::STARTER;
use super::{ScoreFrom, SpanRule};
use crate::pipeline::DEFAULT_SEED;

/// The heading of these flags in the help.
pub const INPUT_HEADING: &str = "Input";

/// The window of a text where neither the user nor a reference gives one: llama.cpp's default.
pub const DEFAULT_N_CTX: u32 = 512;

/// Texts or prompts, and the windows of them. The command line checks what the flags mean together.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = INPUT_HEADING)]
pub struct Source {
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

    /// Tokens in a window, a BOS included; `None` for prompts: as many as the longest prompt has.
    #[arg(skip)]
    pub n_ctx: Option<u32>,

    /// The number of most probable tokens among which those of answers are chosen: the `--top-k` of
    /// other commands lists tokens.
    #[arg(skip)]
    pub top_k: Option<u32>,
}

impl Source {
    /// A text without a group, cut into windows of `n_ctx` tokens.
    pub fn one_text(path: &Path, n_ctx: u32) -> Self {
        Self {
            text_path: vec![NamedText {
                group: None,
                path: path.to_owned(),
            }],
            n_ctx: Some(n_ctx),
            ..Self::default()
        }
    }

    /// The files, `-` for standard input; none for the text and the prompts that come with `kl`.
    pub fn paths(&self) -> Vec<&Path> {
        let texts = self.text_path.iter().filter_map(NamedText::file);
        texts.chain(self.prompt_file()).collect()
    }

    /// Those files, and the chat template's.
    pub fn files(&self) -> Vec<&Path> {
        let mut files = self.paths();
        files.extend(self.chat_template_file.as_deref());
        files
    }

    /// The file of prompts, `-` for standard input; `None` for the prompts that come with `kl`.
    pub fn prompt_file(&self) -> Option<&Path> {
        file(self.prompts.as_deref()?)
    }

    /// Tokens in a window of a text.
    pub fn text_n_ctx(&self) -> u32 {
        self.n_ctx.unwrap_or(DEFAULT_N_CTX)
    }

    /// The way to choose the tokens of answers; `None`: greedily.
    pub fn sampling(&self) -> Option<Sampling> {
        self.temp.filter(|&temp| temp > 0.0).map(|temp| Sampling {
            temp,
            top_k: self.top_k.unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            seed: self.seed.unwrap_or(DEFAULT_SEED as u32),
        })
    }

    /// True if windows end with an answer: one that is given, or one that is generated.
    pub fn has_answers(&self) -> bool {
        self.generate.is_some() || self.scores_given_answers()
    }

    /// True if the answers that conversations hold are scored, and nothing else.
    pub fn scores_given_answers(&self) -> bool {
        self.score == Some(ScoreFrom::Answers)
    }
}

/// The files, each after the name of its group if it has one.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prompts = self.prompts.iter().map(|path| path.display().to_string());
        let texts = self.text_path.iter().map(|text| {
            let name = text.group.as_ref();
            let group = name.map_or(String::new(), |name| format!("{name}="));
            format!("{group}{}", text.path.display())
        });
        f.write_str(&prompts.chain(texts).collect::<Vec<_>>().join(", "))
    }
}

/// A text, and perhaps its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedText {
    /// The name of its group.
    pub group: Option<String>,
    /// The file, `-`, or `starter` without a group for the text that comes with `kl`.
    pub path: PathBuf,
}

impl NamedText {
    /// The file, `-` for standard input; `None` for the text that comes with `kl`.
    pub fn file(&self) -> Option<&Path> {
        if self.group.is_some() {
            return Some(&self.path);
        }
        file(&self.path)
    }

    /// True if windows of this text belong to groups.
    pub fn has_groups(&self) -> bool {
        self.group.is_some() || self.file().is_none()
    }
}

/// The path of an input; `None` where it stands for what comes with `kl`.
pub fn file(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| path.as_os_str() != STARTER)
}

/// The rule for a group's name, for messages.
pub const GROUP_NAMES: &str = "use 1 to 100 characters, none of them a control character";

/// True if a group can have this name.
pub fn is_group_name(name: &str) -> bool {
    (1..=100).contains(&name.chars().count()) && !name.contains(char::is_control)
}
