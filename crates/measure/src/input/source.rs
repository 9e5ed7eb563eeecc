//! Texts or prompts, and how they become windows.

use std::fmt;
use std::path::{Path, PathBuf};

use kl_formats::Sampling;

use super::starter::STARTER;
use super::{ScoreFrom, SpanRule};
use crate::pipeline::DEFAULT_SEED;

/// The window of a text where neither the user nor a reference gives one: llama.cpp's default.
pub const DEFAULT_N_CTX: u32 = 512;

/// The input of a reference model: texts or prompts, and the windows of them.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The texts. Several have groups, which are reported apart; no window holds parts of two.
    pub texts: Vec<NamedText>,
    /// The file of prompts, in place of texts: one per line, or JSONL with "prompt" or "messages" in each line, and
    /// perhaps "group".
    pub prompts: Option<PathBuf>,
    /// True if prompts are tokenized as they are, without a chat template.
    pub no_chat_template: bool,
    /// The chat template (Jinja) of prompts; `None`: the model's own.
    pub chat_template_file: Option<PathBuf>,
    /// The most tokens with which the reference model answers each prompt. The answers are scored, and the prompts
    /// too if `score` is [`ScoreFrom::All`]. `None`: prompts are not answered.
    pub generate: Option<u32>,
    /// The temperature at which tokens of answers are chosen by chance; `None` and 0: greedily.
    pub temp: Option<f32>,
    /// The number of most probable tokens among which those of answers are chosen; `None`: all.
    pub top_k: Option<u32>,
    /// The total probability of the most probable tokens among which those of answers are chosen; `None`: 1, all.
    pub top_p: Option<f32>,
    /// The probability, relative to that of the top token, below which no token is chosen; `None`: 0, all.
    pub min_p: Option<f32>,
    /// The seed by which tokens of answers are chosen. The same seed gives the same answers.
    pub seed: Option<u32>,
    /// Parts of answers that are reported apart, besides code, and reasoning and tool calls in well-known markers.
    pub spans: Vec<SpanRule>,
    /// Tokens from the start of a text's window to that of the next; `None`: windows do not overlap.
    pub stride: Option<u32>,
    /// The number of first windows to use of each text, or of prompts; `None`: all.
    pub max_windows: Option<u32>,
    /// The first position of each window that is scored; `None`: the first that has seen text, which is 1 after a
    /// BOS, else 0.
    pub score: Option<ScoreFrom>,
    /// True if special tokens in the text are parsed. In a chat template's output they always are.
    pub parse_special: bool,
    /// Tokens in a window, a BOS included; `None` for prompts: as many as the longest prompt has.
    pub n_ctx: Option<u32>,
}

impl Source {
    /// A text without a group, cut into windows of `n_ctx` tokens.
    pub fn one_text(path: &Path, n_ctx: u32) -> Self {
        Self {
            texts: vec![NamedText {
                group: None,
                path: path.to_owned(),
            }],
            n_ctx: Some(n_ctx),
            ..Self::default()
        }
    }

    /// The files, `-` for standard input; none for the text and the prompts that come with `kl`.
    pub fn paths(&self) -> Vec<&Path> {
        let texts = self.texts.iter().filter_map(NamedText::file);
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
        let texts = self.texts.iter().map(|text| {
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
