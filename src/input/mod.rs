//! Text and prompts in, windows out: which tokens are decoded, and which positions are scored.
//!
//! [`Source`] is what the user named, [`RawInput`] what was read from it before the model is
//! loaded, and [`PreparedInput`] the windows that the model's tokenizer and chat template make from
//! it.
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
mod dialogue;
mod generation;
mod prepared;
mod prompt_file;
mod prompt_windows;
mod prompts;
mod source;
mod spans;
mod starter;
mod text;
mod texts;
mod windows;

pub use answer_file::AnswerFile;
pub use generation::{Generation, GenerationStep};
pub use prepared::{PreparedInput, RawInput, Selection};
pub use source::{
    GROUP_NAMES, NamedText, PromptPath, PromptSource, Source, TemplateChoice, TextSource,
    is_group_name,
};
pub use spans::{PROMPT, SpanRule};
pub use windows::{Plan, ScoreFrom, Windowing};
