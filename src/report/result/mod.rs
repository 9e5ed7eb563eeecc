//! The result of a run, as the JSON holds it: field names are its keys.

mod model;
mod reference;
mod states;
mod timing;
mod tokens;
mod verdict;

use serde::Serialize;

use super::json::Versions;
use super::warning::Warning;

pub use model::{Interrupted, ModelInfo, ModelReport, ModelResult, NotAvailable, without_part};
pub use reference::{PromptsInfo, ReferenceInfo, unit};
pub use states::{HeadInfo, StatesInfo};
pub use timing::{DeviceInfo, TimingInfo, notable_core_wait};
pub use tokens::{DivergentToken, PromptReport, TokenColumns, TokenContext, TopToken};
pub use verdict::{Reason, Verdict};

/// One run: a reference, and the models evaluated against it.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// A report on no model yet.
    #[must_use]
    pub fn new(reference: ReferenceInfo) -> Self {
        Self {
            versions: Versions::default(),
            reference,
            complete: false,
            models: Vec::new(),
            failed: Vec::new(),
            warnings: Vec::new(),
            unwritten: Vec::new(),
        }
    }
}

/// A model that could not be evaluated.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Failure {
    /// Its path, as given.
    pub path: String,
    /// Why, in one line.
    pub error: String,
}
