//! Decode calls and their physical batches, and the hidden states that a reference may hold in place
//! of rows.

use std::ops::Range;

use serde::{Deserialize, Serialize};

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

impl HeadStep {
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

/// Fewest tokens of a call where a window is split into equal ones, unless the window is shorter.
/// ggml's CPU backend computes the attention of 64 tokens and more with another kernel than that of
/// fewer, and results move with it: by 0.5 to 1.8 % of a q8_0's mean KLD where the last call of each
/// window was shorter.
const MIN_EQUAL: u32 = 64;

/// The rule by which a window's tokens are split into decode calls, and these into physical batches:
/// the tokens that are computed together, on which a row's last bits depend.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Calls {
    /// Most tokens of a decode call. Where calls are equal, one may nevertheless have up to 127.
    pub n_batch: u32,
    /// Most tokens of a physical batch: from 1 to `n_batch`.
    pub n_ubatch: u32,
    /// True if windows are split into equal calls: as few as there can be of at most `n_batch` and at
    /// least 64 tokens, in sizes that differ by one at most, the longer ones first, each one physical
    /// batch. False if they are split as llama.cpp does it: into calls of `n_batch` tokens, and each
    /// call into physical batches of `n_ubatch` tokens; the last call and batch hold what is left.
    #[serde(
        rename = "equal_calls",
        default,
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub is_equal: bool,
}

impl Calls {
    /// Calls of `n_batch` tokens, in physical batches of `n_ubatch`.
    #[must_use]
    pub const fn new(n_batch: u32, n_ubatch: u32) -> Self {
        Self {
            n_batch,
            n_ubatch,
            is_equal: false,
        }
    }

    /// Equal calls of at most `most` tokens in a window of `n_ctx` tokens, and in shorter ones.
    #[must_use]
    pub fn equal(most: u32, n_ctx: u32) -> Self {
        let n_calls = n_equal(n_ctx.into(), most.into());
        let n_batch = u64::from(n_ctx).div_ceil(n_calls).max(1) as u32;
        Self {
            n_batch,
            n_ubatch: n_batch,
            // A window that is one call is split into one by either rule, and so is a shorter one.
            is_equal: n_batch < n_ctx,
        }
    }

    /// The positions that are decoded in the same call as `position`, which is below `n_tokens`: the
    /// number of a window's tokens that are decoded, up to and including the last scored one.
    #[must_use]
    pub fn call(&self, n_tokens: u64, position: u64) -> Range<u64> {
        let (size, n_longer) = if self.is_equal {
            let n_calls = n_equal(n_tokens, self.n_batch.into());
            ((n_tokens / n_calls).max(1), n_tokens % n_calls)
        } else {
            (u64::from(self.n_batch.max(1)), 0)
        };
        // The calls that are one token longer come first.
        let longer = n_longer * (size + 1);
        let start_of = |first: u64, size: u64| position - (position - first) % size;
        let (start, size) = if position < longer {
            (start_of(0, size + 1), size + 1)
        } else {
            (start_of(longer, size), size)
        };
        start..start.saturating_add(size).min(n_tokens)
    }

    /// The positions in the same physical batch as `position`, of the first `n_tokens` tokens of a
    /// window.
    #[must_use]
    pub fn batch(&self, n_tokens: u64, position: u64) -> Range<u64> {
        let call = self.call(n_tokens, position);
        if self.is_equal {
            return call;
        }
        let n_ubatch = u64::from(self.n_ubatch.max(1));
        let start = position - (position - call.start) % n_ubatch;
        start..start.saturating_add(n_ubatch).min(call.end)
    }

    /// The physical batches of a window of `n_tokens` tokens, in order, from the one that holds the
    /// position `from`.
    pub fn batches(self, from: u64, n_tokens: u64) -> impl Iterator<Item = Range<u64>> {
        let mut next = from;
        std::iter::from_fn(move || {
            let batch = (next < n_tokens).then(|| self.batch(n_tokens, next))?;
            next = batch.end;
            Some(batch)
        })
    }

    /// Most tokens of a call in windows of at most `n_ctx` tokens.
    #[must_use]
    pub fn most_tokens(&self, n_ctx: u32) -> u32 {
        let most = if self.is_equal {
            self.n_batch.max(2 * MIN_EQUAL - 1)
        } else {
            self.n_batch
        };
        most.min(n_ctx).max(1)
    }
}

/// The number of equal calls of a window: as few as there can be of at most `most` tokens, unless
/// they would be too short.
fn n_equal(n_tokens: u64, most: u64) -> u64 {
    let fitting = n_tokens.div_ceil(most.max(1));
    fitting.min(n_tokens / u64::from(MIN_EQUAL)).max(1)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod calls_tests {
    use proptest::prelude::*;

    use super::*;

    fn lengths(calls: Calls, n_tokens: u32) -> Vec<u64> {
        let batches = calls.batches(0, n_tokens.into());
        batches.map(|batch| batch.end - batch.start).collect()
    }

    #[test]
    fn equal_calls_are_as_few_as_fit() {
        let of_window = |most, n_ctx| lengths(Calls::equal(most, n_ctx), n_ctx);
        // 128,256 entries, then 152,064 and 248,320.
        assert_eq!(of_window(130, 512), [128; 4]);
        assert_eq!(of_window(110, 512), [103, 103, 102, 102, 102]);
        assert_eq!(of_window(67, 512), [64; 8]);
        assert_eq!(of_window(67, 511), [73; 7]);
        assert_eq!(of_window(67, 127), [127]);
        assert_eq!(of_window(67, 63), [63]);
        assert_eq!(of_window(1, 200), [67, 67, 66]);
        // A shorter window of the same reference.
        assert_eq!(lengths(Calls::equal(130, 512), 300), [100; 3]);
        assert!(lengths(Calls::equal(130, 512), 0).is_empty());
        // One call.
        let one = Calls {
            n_batch: 512,
            n_ubatch: 512,
            is_equal: false,
        };
        assert_eq!(Calls::equal(512, 512), one);
        assert_eq!(Calls::equal(600, 512), one);
    }

    #[test]
    fn llama_cpp_cuts_off_whole_batches() {
        let calls = Calls {
            n_batch: 100,
            n_ubatch: 40,
            is_equal: false,
        };
        assert_eq!(lengths(calls, 230), [40, 40, 20, 40, 40, 20, 30]);
        assert_eq!(
            (calls.call(230, 99), calls.call(230, 229)),
            (0..100, 200..230)
        );
        assert_eq!((calls.most_tokens(512), calls.most_tokens(7)), (100, 7));
    }

    proptest! {
        #[test]
        fn no_equal_call_is_short_and_all_are_of_one_size(
            most in 0u32..700, n_ctx in 1u32..9000, shorter in 0u32..9000
        ) {
            let calls = Calls::equal(most, n_ctx);
            let n_tokens = n_ctx - shorter.min(n_ctx - 1);
            let lengths = lengths(calls, n_tokens);
            let (least, longest) = (*lengths.iter().min().unwrap(), *lengths.iter().max().unwrap());
            prop_assert!(longest - least <= 1);
            prop_assert!(least >= u64::from(MIN_EQUAL.min(n_tokens)));
            prop_assert!(longest <= u64::from(calls.most_tokens(n_ctx)));
            prop_assert!(longest <= u64::from(most.max(2 * MIN_EQUAL - 1)));
            prop_assert_eq!(lengths.iter().sum::<u64>(), u64::from(n_tokens));
            let n_tokens = u64::from(n_tokens);
            for batch in calls.batches(0, n_tokens) {
                for position in batch.clone() {
                    prop_assert_eq!(calls.batch(n_tokens, position), batch.clone());
                }
            }
        }
    }
}
