//! The result of a run, as the JSON holds it: field names are its keys.

mod model;
mod reference;
mod tokens;

use serde::Serialize;

use super::number::is_printable;
use super::warning::Warning;

pub use model::{
    ContextMemory, Interrupted, ModelInfo, ModelReport, ModelResult, NotAvailable, TimingInfo,
    notable_core_wait, without_part,
};
pub use reference::{PromptsInfo, ReferenceInfo, RowsHere, StatesInfo, unit};
pub use tokens::{DivergentToken, PromptReport, TokenColumns, TopToken, WorstText, WorstToken};

/// The version of the keys of every JSON document: see docs/PROMISES.md for what raises it.
const JSON_VERSION: u32 = 2;

/// The first keys of every JSON document.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Versions {
    /// The version of the program that wrote the document.
    pub kl_version: &'static str,
    /// The version of the document's keys. It changes only if a key is removed or renamed, or if its
    /// meaning or type changes; new keys do not change it.
    pub json_version: u32,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            kl_version: env!("CARGO_PKG_VERSION"),
            json_version: JSON_VERSION,
        }
    }
}

/// A document's text, indented, which ends with a line feed.
///
/// # Errors
/// If a value cannot be written as JSON.
pub fn json_text(document: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(document)? + "\n";
    // Beyond ASCII there are only strings, and JSON has an escape for each of their characters: the document
    // may be shown on a terminal, which would obey some of them.
    let is_safe = |c: char| c == '\n' || is_printable(c);
    if text.chars().all(is_safe) {
        return Ok(text);
    }
    let escaped = text.chars().map(|c| {
        if is_safe(c) {
            c.to_string()
        } else {
            format!("\\u{:04x}", u32::from(c)) // all of them are in the first plane
        }
    });
    Ok(escaped.collect())
}

/// One run: a reference, and the models evaluated against it.
#[derive(Serialize, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Report {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The reference that the models were evaluated against.
    pub reference: ReferenceInfo,
    /// True if every model was tried: false while some are still to come, and in what an
    /// interrupted run leaves.
    pub complete: bool,
    /// The models that were evaluated, in the order given.
    pub models: Vec<ModelReport>,
    /// The models that could not be evaluated.
    pub failed: Vec<Failure>,
    /// The warnings of the run, in the order in which they came up.
    pub warnings: Vec<Warning>,
    /// The outputs that could not be written, and why, one line each.
    #[serde(skip)]
    pub unwritten: Vec<String>,
}

impl Report {
    /// The whole result as JSON. It is indented unless it holds the values of every token, which
    /// nobody reads line by line.
    ///
    /// # Errors
    /// If a value cannot be written as JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        if self.models.iter().any(|model| model.tokens.is_some()) {
            Ok(serde_json::to_string(self)? + "\n")
        } else {
            json_text(self)
        }
    }
}

/// A model that could not be evaluated.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Failure {
    /// Its path, as given.
    pub path: String,
    /// The reason, in one line.
    pub error: String,
}
