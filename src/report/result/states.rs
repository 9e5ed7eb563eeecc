//! The hidden states that a reference holds in place of rows.

use std::fmt;

use kl_formats::{HeadCheck, HeadStep, States};
use serde::Serialize;

use crate::pipeline::RowsHere;
use crate::report::number::{count_of, significant};

/// The hidden states of a reference, and how exact the rows are that are computed from them.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatesInfo {
    /// How their numbers are stored: `f16`, `bf16` or `f32`.
    #[serde(rename = "type")]
    pub state_type: &'static str,
    /// Numbers in a state.
    pub n_embd: u32,
    /// The head that makes rows of them.
    pub head: HeadInfo,
    /// What follows the product with the head, in order.
    pub then: Vec<HeadStep>,
    /// The encoding's own error: what the writer's own rows and those computed from its states
    /// differ by, on its machine.
    pub error: RowError,
    /// Where this run computed rows, and what they and the writer's own differ by; of several models
    /// or files, for the last one. Null before rows are computed.
    pub here: Option<HereInfo>,
}

/// The tensor that makes rows of states.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeadInfo {
    /// Its name in the GGUF.
    pub name: String,
    /// The type of its elements, by ggml's name.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its size.
    pub bytes: u64,
}

/// How far rows that were computed a second time are from the model's own.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RowError {
    /// Rows that were compared.
    pub n_rows: u64,
    /// The mean KL divergence of the computed rows from the model's own, in nats.
    pub mean_kld: f64,
    /// The largest KL divergence of a row.
    pub max_kld: f64,
}

/// Where rows are computed, and how far they are from the model's own.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HereInfo {
    /// The device: `CPU`, `CUDA0`.
    pub device: String,
    /// How far the rows that the file also holds as the model gave them are from those computed
    /// here. No rows: the file is a part without the window that they are of.
    #[serde(flatten)]
    pub error: RowError,
    /// Whether all of them are equal to the bit; null without rows.
    pub is_exact: Option<bool>,
    /// Whether the evaluated model's own head is the same, so that memory holds it once.
    pub shares_model_head: bool,
}

impl StatesInfo {
    /// Collects what a reference records of its states.
    #[must_use]
    pub fn new(states: &States) -> Self {
        let head = &states.head;
        Self {
            state_type: states.state_type.name(),
            n_embd: states.n_embd,
            head: HeadInfo {
                name: head.name.clone(),
                type_name: head.type_name.clone(),
                bytes: head.bytes,
            },
            then: states.then.clone(),
            error: RowError::from(&states.check),
            here: None,
        }
    }
}

impl From<&HeadCheck> for RowError {
    fn from(check: &HeadCheck) -> Self {
        Self {
            n_rows: check.n_rows,
            mean_kld: check.mean_kld.into(),
            max_kld: check.max_kld.into(),
        }
    }
}

/// `mean KLD of 1.20e-6, 0.0000340 at most, in 64 rows`.
impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, max] = [self.mean_kld, self.max_kld].map(|kld| significant(kld, 3));
        let rows = count_of(self.n_rows, "row");
        write!(f, "mean KLD of {mean}, {max} at most, in {rows}")
    }
}

impl From<RowsHere> for HereInfo {
    fn from(here: RowsHere) -> Self {
        let moved = here.moved;
        Self {
            device: here.device,
            error: RowError {
                n_rows: moved.n_rows,
                mean_kld: moved.mean_kld(),
                max_kld: moved.max_kld,
            },
            is_exact: (moved.n_rows > 0).then(|| moved.is_exact()),
            shares_model_head: here.shares_model_head,
        }
    }
}
