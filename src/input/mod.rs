//! Text and prompts in, windows out: which tokens are decoded, and which positions are scored.
//!
//! [`Source`] is what the user named, [`RawInput`] what was read from it before the model is
//! loaded, and [`PreparedInput`] the windows that the model's tokenizer and chat template make from
//! it: planned, answered where a model is to answer, and cut to the wanted part.
//!
//! No input may make it panic: clippy denies what could, and each exception states why it cannot.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod answer_file;
mod chat;
pub mod chat_template;
mod generation;
mod prompt_file;
mod prompts;
mod source;
mod spans;
mod texts;
mod windows;

use std::borrow::Cow;

use anyhow::Result;
use kl_formats::{Groups, Prompts, Shard, TextIdentity, WindowSpec, longest_window};
use prompts::RawPrompts;
pub use texts::Doubt;
use texts::Text;

use crate::engine::Model;
use crate::pipeline::Part;

pub use answer_file::AnswerFile;
pub use generation::{Generation, GenerationStep};
pub use source::{
    GROUP_NAMES, NamedText, PromptSource, Source, TemplateChoice, TextSource, is_group_name,
};
pub use spans::{PROMPT, SpanRule};
pub use windows::{Plan, ScoreFrom, Windowing};

/// The windows of an input that are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection {
    /// The most scored positions in all.
    pub max_rows: Option<u64>,
    /// The part of those windows to use; `None`: all.
    pub part: Option<Part>,
    /// The number of rows of the [first windows of all parts](Plan::first) that are wanted
    /// too.
    pub n_first_rows: u64,
}

/// Texts or prompts that were read, not yet tokenized.
pub enum RawInput<'s> {
    /// One text or several.
    Texts(&'s TextSource, Vec<Text>),
    /// Prompts.
    Prompts(RawPrompts<'s>),
}

impl<'s> RawInput<'s> {
    /// Reads the files that `source` names, and its chat template if that is a file too. Doubts bytes
    /// that are not UTF-8, and in texts what only editors on Windows write.
    ///
    /// # Errors
    /// A file that cannot be read, is empty or too long, or holds no prompts.
    pub fn read(source: &'s Source, doubts: &mut Vec<Doubt>) -> Result<Self> {
        Ok(match source {
            Source::Prompts(source) => Self::Prompts(RawPrompts::read(source, doubts)?),
            Source::Texts(source) => {
                let texts = source.texts.iter();
                let texts = texts.map(|named| texts::read_to_tokenize(&named.path, doubts));
                Self::Texts(source, texts.collect::<Result<_>>()?)
            }
        })
    }

    /// Whether prompts stay as they are because `model` has no chat template.
    pub fn lacks_chat_template(&self, model: &impl Model) -> bool {
        match self {
            Self::Texts(..) => false,
            Self::Prompts(raw) => {
                raw.source.template == TemplateChoice::OfModel
                    && model.facts().chat_template.is_none()
            }
        }
    }

    /// The identity of the texts or the prompts; their tokens are not counted yet.
    pub fn text(&self) -> TextIdentity {
        match self {
            Self::Texts(source, read) => {
                texts::identity(source, read.iter().map(|text| &text.identity))
            }
            Self::Prompts(raw) => raw.text.clone(),
        }
    }

    /// Advice on how to make the windows shorter.
    pub fn to_shorten(&self) -> &'static str {
        match self {
            Self::Texts(..) => "lower --n-ctx",
            Self::Prompts(raw) if raw.source.generate.is_some() => {
                "lower --generate, or leave out the longest prompts"
            }
            Self::Prompts(_) => "leave out the longest prompts",
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
        mut generation: Generation<'_>,
    ) -> Result<PreparedInput> {
        let planned = match self {
            Self::Prompts(raw) => return raw.prepare(model, selection, generation),
            Self::Texts(source, texts) if in_chunks => texts::in_chunks(source, texts, model)?,
            Self::Texts(source, texts) => {
                texts::in_windows(source, texts, model, selection.max_rows)?
            }
        };
        let mut input = planned.checked(selection, &mut generation)?;
        input.plan.keep(selection.part);
        Ok(input)
    }
}

/// The windows to decode, and what a header records of where they come from.
#[derive(Default)]
pub struct PreparedInput {
    /// The windows, in the order in which they are decoded.
    pub plan: Plan,
    /// The part of all windows that these are; `None`: all.
    pub shard: Option<Shard>,
    /// The most tokens in a window.
    pub n_ctx: u32,
    /// Tokens of the longest window, be it of this part or of another: what a context has to hold.
    pub longest_window: u32,
    /// First scored position of a full window; for prompts, the lowest of all windows.
    pub first_scored: u32,
    /// Tokens from the start of a window to the start of the next, where windows overlap.
    pub stride: Option<u32>,
    /// True if each window starts with an inserted BOS.
    pub add_bos: bool,
    /// The file that was read, or all of them together.
    pub text: TextIdentity,
    /// Each of several texts; else empty.
    pub texts: Vec<TextIdentity>,
    /// The group that each window belongs to, if there are groups.
    pub groups: Option<Groups>,
    /// For a text cut into llama-perplexity's chunks, the text's own tokens in all windows; else
    /// empty.
    pub text_tokens: Vec<u32>,
    /// The number of tokens after the last whole chunk, which are left out.
    pub n_left_out: u64,
    /// The prompts, where the windows are prompts.
    pub prompts: Option<Prompts>,
    /// Answers of conversations that are left out because they do not fit in a window, as was known
    /// before any was generated.
    pub n_turns_left_out: u64,
    /// The number of windows that have no answer and so no rows, because their conversations could not be
    /// continued, and the reason, of the first of these, with its file and line.
    pub unanswered: Option<(u64, String)>,
}

impl PreparedInput {
    /// The input with the windows of all parts, before any of them is answered: makes the part known, and
    /// has the plan checked before hours of work.
    ///
    /// # Errors
    /// If there are fewer windows than parts, or `generation` refuses the plan.
    fn checked(mut self, selection: &Selection, generation: &mut Generation<'_>) -> Result<Self> {
        let (n_windows, n_rows) = (self.plan.windows.len(), self.plan.n_rows());
        let shard = selection.part.map(|part| part.of(n_windows, n_rows));
        self.shard = shard.transpose()?;
        (generation.on_plan)(&self)?;
        Ok(self)
    }

    /// The windows of one or several texts: `text` identifies all that was read.
    fn of_text(plan: Plan, windowing: &Windowing, bos: Option<u32>, text: TextIdentity) -> Self {
        Self {
            n_ctx: windowing.n_ctx,
            longest_window: longest_window(&plan.windows),
            first_scored: windowing.score.first(windowing.n_ctx, bos.is_some()),
            stride: windowing.stride,
            add_bos: bos.is_some(),
            text,
            plan,
            ..Self::default()
        }
    }

    /// The windows with the text's own tokens: a base file holds those, though a BOS replaces the
    /// first of each when it is decoded.
    pub fn windows_of_the_text(&self) -> Cow<'_, [WindowSpec]> {
        if self.text_tokens.is_empty() {
            return Cow::Borrowed(&self.plan.windows);
        }
        let chunks = self.text_tokens.chunks(self.n_ctx as usize);
        let windows = chunks.zip(&self.plan.windows);
        windows
            .map(|(tokens, window)| WindowSpec {
                tokens: tokens.to_vec(),
                ..window.clone()
            })
            .collect()
    }

    /// About the most bytes that the prompts can take in a header.
    pub fn prompt_bytes(&self) -> u64 {
        let prompts = self.prompts.iter().flat_map(|prompts| &prompts.list);
        // Escaping can make a text longer, but seldom doubles it.
        prompts
            .map(|prompt| 2 * (prompt.content.bytes() + prompt.variables.bytes()) as u64 + 64)
            .sum()
    }
}
