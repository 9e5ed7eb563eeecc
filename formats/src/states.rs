//! The hidden states that a reference may hold in place of rows.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::calls::Calls;
use crate::numbers::{Float, GgmlType};
use crate::window::WindowEntry;

/// Most numbers that a hidden state may have. The widest model published by 2026 has 18,432.
pub const MAX_N_EMBD: u32 = 1 << 20;

/// Most steps after the product. The longest known sequence is three: scale, tanh, scale.
const MAX_STEPS: usize = 16;

/// Most rows that are stored for the check.
const MAX_CHECK_ROWS: usize = 64;

/// Longest name of a tensor; ggml's own limit is 64.
const MAX_NAME_BYTES: usize = 1 << 10;

/// The description of a reference's hidden states, and of the head that makes rows of them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct States {
    /// Numbers in a state.
    pub n_embd: u32,
    /// The type in which they are stored.
    #[serde(rename = "type")]
    pub state_type: Float,
    /// The head: what states are multiplied with.
    pub head: HeadTensor,
    /// The steps that follow the product, in order.
    pub then: Vec<HeadStep>,
    /// The rule by which windows were split. The states of a physical batch were multiplied with the
    /// head together.
    #[serde(flatten)]
    pub calls: Calls,
    /// The distance of the computed rows from the model's own.
    pub check: HeadCheck,
}

/// The head's tensor, as it stands in the model's GGUF: `n_vocab` rows of `n_embd` elements.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeadTensor {
    /// Its name, such as `output.weight`; of tied embeddings `token_embd.weight`.
    pub name: String,
    /// ggml's name for the type of its elements, such as `q6_K`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The type's number in a GGUF.
    pub type_id: u32,
    /// Its bytes.
    pub bytes: u64,
    /// SHA-256 (hex) of its bytes.
    pub sha256: String,
}

/// A step that follows the product of head and state, in f32.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum HeadStep {
    /// `x * factor + bias`, as `ggml_scale_bias` computes it.
    Scale {
        /// The factor that each logit is multiplied with.
        factor: f32,
        /// The number that is added to each logit.
        bias: f32,
    },
    /// `tanh(x)`.
    Tanh,
    /// `x + value`.
    Add {
        /// The number of values that are stored after the head: one for each entry of the
        /// vocabulary, or one for all.
        n_values: u32,
    },
    /// `x * value`.
    Mul {
        /// The number of values that are stored after the head: one for each entry of the
        /// vocabulary, or one for all.
        n_values: u32,
    },
}

/// The distance, measured by the writer, of rows computed from the stored states to the model's own
/// rows; and the positions whose own rows the file holds, so that a reader can measure it again.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeadCheck {
    /// Rows that were compared.
    pub n_rows: u64,
    /// The mean of KL(model's own row ‖ computed row), in nats; 0 where all are equal to the bit.
    pub mean_kld: f32,
    /// The largest KLD of a row.
    pub max_kld: f32,
    /// The positions whose rows the file holds, as the model gave them.
    pub rows: Vec<CheckRow>,
}

/// A position whose row the file holds, as the model gave it.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckRow {
    /// The window's index in the order of the text.
    pub window: u32,
    /// The position in the window.
    pub position: u32,
}

impl HeadStep {
    /// Returns the number of f32 values of the step that are stored after the head.
    pub fn n_values(self) -> u32 {
        match self {
            HeadStep::Add { n_values } | HeadStep::Mul { n_values } => n_values,
            HeadStep::Scale { .. } | HeadStep::Tanh => 0,
        }
    }

    fn is_possible(self, n_vocab: u32) -> bool {
        match self {
            HeadStep::Scale { factor, bias } => factor.is_finite() && bias.is_finite(),
            HeadStep::Tanh => true,
            HeadStep::Add { n_values } | HeadStep::Mul { n_values } => {
                n_values == 1 || n_values == n_vocab
            }
        }
    }
}

impl States {
    /// The rows of each physical batch of a window, which were multiplied with the head together:
    /// ranges of indices among its stored rows, in order, that cover all of them. ggml's products
    /// may differ in the last bits with the number of columns, so a reader should use the same.
    pub fn row_batches(&self, window: &WindowEntry) -> impl Iterator<Item = Range<u32>> + use<> {
        let first = u64::from(window.first_scored);
        let n_tokens = first + u64::from(window.n_rows);
        let batches = self.calls.batches(first, n_tokens);
        // No more than the window has rows, which a u32 counts.
        let index = move |position: u64| position.saturating_sub(first) as u32;
        batches
            .map(move |batch| index(batch.start)..index(batch.end))
            .filter(|rows| !rows.is_empty())
    }

    /// Bytes of what is stored of the head: its tensor, then the steps' values, f32.
    pub fn head_bytes(&self) -> u64 {
        let values = self.then.iter().map(|step| u64::from(step.n_values()) * 4);
        values.fold(self.head.bytes, u64::saturating_add)
    }

    /// Finds a fault in the sizes, in a file of rows of `n_vocab` entries and windows of at most
    /// `n_ctx` tokens. Call it before allocating memory.
    pub(crate) fn fault(&self, n_vocab: u32, n_ctx: u32) -> Option<String> {
        let (calls, head, check) = (self.calls, &self.head, &self.check);
        let known = GgmlType::of(head.type_id).filter(|known| known.is_for_weights);
        let row = known.and_then(|known| known.bytes(self.n_embd.into()));
        let bytes = row.and_then(|row| row.checked_mul(n_vocab.into()));
        let is_kld = |x: f32| x.is_finite() && x >= 0.0;
        let fault = match self.then.len() {
            _ if !(1..=MAX_N_EMBD).contains(&self.n_embd) => "n_embd is not 1 to 2^20",
            _ if !(1..=calls.n_batch).contains(&calls.n_ubatch) => "n_ubatch is not 1 to n_batch",
            _ if self.state_type == Float::F64 => "they are f64",
            _ if known.is_none_or(|of| of.name != head.type_name) => "the head's type is not known",
            _ if bytes != Some(head.bytes) => "the head's bytes are not those of its type and rows",
            _ if head.name.len() > MAX_NAME_BYTES => "the head's name is longer than 1 KiB",
            n_steps if n_steps > MAX_STEPS => "more than 16 steps follow the head",
            _ if !self.then.iter().all(|step| step.is_possible(n_vocab)) => "a step cannot be",
            _ if !is_kld(check.mean_kld) || !is_kld(check.max_kld) => "a KLD is not finite",
            _ if check.rows.iter().any(|row| row.position >= n_ctx) => "a check row beyond n_ctx",
            _ if check.rows.len() > MAX_CHECK_ROWS => "more than 64 rows are to be checked",
            _ => return None,
        };
        Some(format!("states: {fault}"))
    }
}

#[cfg(test)]
mod tests;
