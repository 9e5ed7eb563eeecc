//! Input that was read before the model is loaded, so that a bad file fails at once.

use std::path::Path;

use anyhow::Result;

use super::grouped::RawTexts;
use super::prompts::{Generation, RawPrompts};
use super::single::RawText;
use super::text::InvalidUtf8;
use super::{Part, PreparedInput, Source};
use crate::engine::Model;

/// Which windows of an input are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection {
    /// The most scored positions in all.
    pub max_rows: Option<u64>,
    /// Which part of those windows; `None`: all.
    pub part: Option<Part>,
    /// How many rows of the [first windows of all parts](super::Plan::first) are wanted too.
    pub n_first_rows: u64,
}

/// A text or prompts, not yet tokenized.
pub enum RawInput<'s> {
    /// A text.
    Text(RawText<'s>),
    /// Several texts.
    Texts(RawTexts<'s>),
    /// Prompts.
    Prompts(RawPrompts<'s>),
}

impl<'s> RawInput<'s> {
    /// Reads the file that `source` names, and its chat template if that is a file too.
    ///
    /// # Errors
    /// A file that cannot be read, is empty or too long, or holds no prompts.
    pub fn read(source: &'s Source) -> Result<Self> {
        Ok(match source {
            Source::Prompts(source) => Self::Prompts(RawPrompts::read(source)?),
            Source::Texts(source) => Self::Texts(RawTexts::read(source)?),
            Source::Text(source) => Self::Text(RawText::read(source)?),
        })
    }

    /// The files that hold bytes that are not UTF-8, and which those are.
    #[must_use]
    pub fn invalid_utf8(&self) -> Vec<(String, InvalidUtf8)> {
        let of = |path: &Path, found: Option<InvalidUtf8>| {
            let named = found.map(|invalid| (path.display().to_string(), invalid));
            named.into_iter().collect()
        };
        match self {
            Self::Text(raw) => of(raw.path(), raw.invalid_utf8()),
            Self::Texts(raw) => raw.invalid_utf8(),
            Self::Prompts(raw) => of(raw.path(), raw.invalid_utf8),
        }
    }

    /// Whether prompts stay as they are because `model` has no chat template.
    #[must_use]
    pub fn lacks_chat_template(&self, model: &impl Model) -> bool {
        match self {
            Self::Text(_) | Self::Texts(_) => false,
            Self::Prompts(raw) => raw.lacks_chat_template(model),
        }
    }

    /// Tokenizes the input, cuts it into windows, and keeps those that are selected.
    ///
    /// `in_chunks`: cut as llama-perplexity cuts a text, for its base file. `generation` runs the
    /// model where prompts are to be continued.
    ///
    /// # Errors
    /// If nothing is left to score, or the model or its chat template refuses the input; errors of
    /// `generation`.
    pub fn prepare<M: Model>(
        self,
        model: &M,
        in_chunks: bool,
        selection: &Selection,
        generation: Generation<'_>,
    ) -> Result<PreparedInput> {
        let max_rows = selection.max_rows;
        let mut input = match self {
            Self::Prompts(raw) => return raw.prepare(model, selection, generation),
            Self::Text(raw) if in_chunks => raw.in_chunks(model)?,
            Self::Text(raw) => raw.in_windows(model, max_rows)?,
            Self::Texts(raw) => raw.in_windows(model, max_rows)?,
        };
        input.shard = input.plan.keep(selection.part)?;
        Ok(input)
    }
}
