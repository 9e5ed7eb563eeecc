//! The hidden states that a reference holds in place of rows.

use std::fmt;

use kl_formats::{HeadCheck, HeadStep, States};
use serde::Serialize;

use crate::pipeline::RowsHere;
use crate::report::number::{count_of, significant};
use crate::score::RowError;

/// The hidden states of a reference, and how exact the rows are that are computed from them.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatesInfo {
    /// The type of their numbers: `f16`, `bf16` or `f32`.
    #[serde(rename = "type")]
    pub state_type: &'static str,
    /// Numbers in a state.
    pub n_embd: u32,
    /// The head that makes rows of them.
    pub head: HeadInfo,
    /// The steps that follow the product with the head, in order.
    pub then: Vec<HeadStep>,
    /// The encoding's own error: what the writer's own rows and those computed from its states
    /// differ by, on its machine.
    pub error: RowError,
    /// Where this run computed rows, and what they and the writer's own differ by; of several models
    /// or files, for the last one. Null before rows are computed.
    pub here: Option<RowsHere>,
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
            ..Self::default()
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
