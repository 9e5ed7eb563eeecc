//! The source of a reference, as the user names it: texts or prompts.

use std::fmt;
use std::path::{Path, PathBuf};

use kl_formats::Sampling;

use super::{ScoreFrom, SpanRule, Windowing};

/// Texts or a file of prompts, and how they become windows.
#[derive(Debug)]
pub enum Source {
    /// One text, or several that each have a group, cut into windows.
    Texts(TextSource),
    /// Prompts, one window each.
    Prompts(PromptSource),
}

impl Source {
    /// The files, `-` for standard input; none for the prompts that come with `kl`.
    pub fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Texts(source) => source.texts.iter().map(|text| &*text.path).collect(),
            Self::Prompts(prompts) => prompts.file().into_iter().collect(),
        }
    }

    /// Returns the rule by which texts are cut; `None` for prompts.
    pub fn windowing(&self) -> Option<&Windowing> {
        match self {
            Self::Texts(grouped) => Some(&grouped.windowing),
            Self::Prompts(_) => None,
        }
    }

    /// Whether a model is to answer the prompts.
    pub fn is_answered(&self) -> bool {
        matches!(self, Self::Prompts(prompts) if prompts.generate.is_some())
    }

    /// The most tokens in a window; `None`: as many as the longest prompt has.
    pub fn n_ctx(&self) -> Option<u32> {
        match self {
            Self::Texts(source) => Some(source.windowing.n_ctx),
            Self::Prompts(prompts) => prompts.n_ctx,
        }
    }
}

/// The files, each after the name of its group if it has one.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = match self {
            Self::Prompts(prompts) => return write!(f, "{}", prompts.path.display()),
            Self::Texts(source) => &source.texts,
        };
        for (index, text) in texts.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            if let Some(group) = &text.group {
                write!(f, "{group}=")?;
            }
            write!(f, "{}", text.path.display())?;
        }
        Ok(())
    }
}

/// The texts to cut into windows.
#[derive(Debug)]
pub struct TextSource {
    /// One text without a group, or texts that each have one; several may be of the same group.
    pub texts: Vec<NamedText>,
    /// The rule by which each is cut.
    pub windowing: Windowing,
    /// True if special tokens in the texts are read as such.
    pub parse_special: bool,
}

/// A text, and perhaps its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedText {
    /// The name of its group.
    pub group: Option<String>,
    /// The file, or `-`.
    pub path: PathBuf,
}

impl NamedText {
    /// The name of its group; empty without one.
    pub(super) fn group(&self) -> &str {
        self.group.as_deref().unwrap_or_default()
    }
}

/// The rule for a group's name, for messages.
pub const GROUP_NAMES: &str = "use 1 to 100 characters, none of them a control character";

/// Whether a group can have this name.
pub fn is_group_name(name: &str) -> bool {
    (1..=100).contains(&name.chars().count()) && !name.contains(char::is_control)
}

/// The name of the prompts that come with `kl`.
pub const STARTER: &str = "starter";

/// The prompts to make windows of.
#[derive(Debug)]
pub struct PromptSource {
    /// The file, `-` for standard input, or `starter`.
    pub path: PathBuf,
    /// The chat template to apply.
    pub template: TemplateChoice,
    /// True if special tokens are read as such where no template is applied.
    pub parse_special: bool,
    /// The most tokens in a window; `None`: as many as the longest prompt has.
    pub n_ctx: Option<u32>,
    /// The number of prompts to use, from the first on; `None`: all.
    pub max_prompts: Option<u32>,
    /// The most tokens with which the model answers each prompt.
    pub generate: Option<u32>,
    /// The way to choose those tokens; `None`: greedily.
    pub sampling: Option<Sampling>,
    /// The first scored position: not `Half` or `New`, since prompts differ in length and do not
    /// overlap. `None`: the prompt's last.
    pub score: Option<ScoreFrom>,
    /// The user's own spans of answers.
    pub spans: Vec<SpanRule>,
}

impl PromptSource {
    /// The file, `-` for standard input; `None` for the prompts that come with `kl`.
    pub fn file(&self) -> Option<&Path> {
        Some(&*self.path).filter(|path| path.as_os_str() != STARTER)
    }

    /// Whether the answers that conversations hold are scored, and nothing else.
    pub fn scores_given_answers(&self) -> bool {
        self.score == Some(ScoreFrom::Answers)
    }

    /// Whether windows end with an answer: one that is given, or one that is generated.
    pub fn has_answers(&self) -> bool {
        self.generate.is_some() || self.scores_given_answers()
    }
}

/// The chat template that is applied to prompts.
#[derive(Debug, PartialEq, Eq)]
pub enum TemplateChoice {
    /// The model's own, if it has one.
    OfModel,
    /// The one in this file.
    File(PathBuf),
    /// None: prompts are tokenized as they are.
    None,
}
