//! What a reference is written from, as the user names it.

use std::path::{Path, PathBuf};

use super::{ScoreFrom, Windowing};

/// A text or a file of prompts, and how it becomes windows.
#[derive(Debug)]
pub enum Source {
    /// A text, cut into windows.
    Text(TextSource),
    /// Prompts, one window each.
    Prompts(PromptSource),
}

impl Source {
    /// The file, or `-` for standard input.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Text(text) => &text.path,
            Self::Prompts(prompts) => &prompts.path,
        }
    }
}

/// How a text becomes windows.
#[derive(Debug)]
pub struct TextSource {
    /// The file, or `-`.
    pub path: PathBuf,
    /// How it is cut.
    pub windowing: Windowing,
    /// Whether special tokens in the text are read as such.
    pub parse_special: bool,
}

/// How prompts become windows.
#[derive(Debug)]
pub struct PromptSource {
    /// The file, or `-`.
    pub path: PathBuf,
    /// The chat template to apply.
    pub template: TemplateChoice,
    /// Whether special tokens are read as such where no template is applied.
    pub parse_special: bool,
    /// The most tokens in a window; `None`: as many as the longest prompt has.
    pub n_ctx: Option<u32>,
    /// How many prompts to use, from the first on; `None`: all.
    pub max_prompts: Option<u32>,
    /// How many tokens the model generates after each prompt.
    pub generate: Option<u32>,
    /// Which positions are scored: not `Half` or `New`, since prompts differ in length and do not
    /// overlap. `None`: from the prompt's last on.
    pub score: Option<ScoreFrom>,
}

/// Which chat template is applied to prompts.
#[derive(Debug, PartialEq, Eq)]
pub enum TemplateChoice {
    /// The model's own, if it has one.
    OfModel,
    /// The one in this file.
    File(PathBuf),
    /// None: prompts are tokenized as they are.
    None,
}
