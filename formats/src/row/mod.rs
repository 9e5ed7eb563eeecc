//! A row: one logit for each entry of the vocabulary, and how it is stored as bytes.
//!
//! An [`Encoding`] is what a user chooses; a [`RowLayout`] is the bytes of a row in a kind of file. Each
//! row of the layout [`RowLayout::U16`] has one of three forms, which [`RowForms`] counts. A [`Row`]
//! views a stored row in place.

mod block;
pub(crate) mod llama_cpp;
mod u16;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::numbers::Float;
pub use block::{ReadBlocks, ReadStream, RowBlock};
pub use u16::RowForms;
pub(crate) use u16::{U16Form, append_exact};

/// One row of logits, borrowed as it is stored; as long as the vocabulary. A row of llama.cpp's
/// base file holds log-probabilities, which serve as logits.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// The logits themselves.
    F32(&'a [f32]),
    /// Linear codes: a logit is `min + step * code`, in f32, the product rounded before the sum
    /// (numpy's float32 gives the same bits). Where some entries are masked, code 0 is theirs, and any
    /// other is one larger.
    U16 {
        /// The logit that all masked entries have: -inf or a finite number.
        masked: Option<f32>,
        /// The smallest logit of the others. llama.cpp's base file has NaN here for a row that held a NaN
        /// or an infinity.
        min: f32,
        /// The distance between neighbouring codes; 0 where all of these logits are equal.
        step: f32,
        /// A code per entry.
        codes: &'a [u16],
    },
}

impl Row<'_> {
    /// The row's first `n` entries, or all if it has fewer.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "no more than the row has")]
    pub fn first(mut self, n: usize) -> Self {
        let n = n.min(self.len());
        match &mut self {
            Row::F32(logits) => *logits = &logits[..n],
            Row::U16 { codes, .. } => *codes = &codes[..n],
        }
        self
    }

    /// Entries: the vocabulary's size.
    pub fn len(&self) -> usize {
        match self {
            Row::F32(logits) => logits.len(),
            Row::U16 { codes, .. } => codes.len(),
        }
    }

    /// True if the row has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The logit of token `i`.
    ///
    /// # Panics
    /// If `i` is not below [`Row::len`].
    #[expect(clippy::indexing_slicing, reason = "the caller's index, as documented")]
    pub fn get(&self, i: usize) -> f32 {
        match *self {
            Row::F32(logits) => logits[i],
            Row::U16 {
                masked,
                min,
                step,
                codes,
            } => match masked {
                None => min + step * f32::from(codes[i]),
                Some(masked) => unmasked(codes[i], masked, min, step),
            },
        }
    }

    /// Writes all logits to `out`.
    ///
    /// # Panics
    /// If `out` is not as long as the row.
    pub fn decode_into(&self, out: &mut [f32]) {
        assert_eq!(
            out.len(),
            self.len(),
            "a row decodes into a buffer of its own length"
        );
        match *self {
            Row::F32(logits) => out.copy_from_slice(logits),
            Row::U16 {
                masked,
                min,
                step,
                codes,
            } => {
                let entries = out.iter_mut().zip(codes);
                // A loop for each, without a branch inside.
                match masked {
                    None => entries.for_each(|(x, &code)| *x = min + step * f32::from(code)),
                    Some(of) => entries.for_each(|(x, &code)| *x = unmasked(code, of, min, step)),
                }
            }
        }
    }

    /// True if every logit is finite, the masked one included. Constant time for codes, a
    /// pass over the row for `F32`.
    pub fn is_finite(&self) -> bool {
        match *self {
            Row::F32(logits) => logits.iter().fold(true, |all, x| all & x.is_finite()),
            // The largest code decodes to the value farthest from `min`.
            Row::U16 {
                masked, min, step, ..
            } => {
                let largest = min + step * f32::from(u16::MAX - u16::from(masked.is_some()));
                [masked.unwrap_or(min), min, largest]
                    .iter()
                    .all(|x| x.is_finite())
            }
        }
    }
}

/// The logit of a code of a row with masked entries.
#[inline(always)]
fn unmasked(code: u16, masked: f32, min: f32, step: f32) -> f32 {
    match code {
        0 => masked,
        code => min + step * f32::from(code - 1),
    }
}

/// The layout of a row's bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowLayout {
    /// An f32 for each entry: `kl`'s own file and kl.py's.
    F32,
    /// Codes of 16 bits, linear over the row's own range, in `kl`'s own file. Entries of
    /// probability 0 may share one code. A row that codes would change by more than 1e-6 nats is
    /// stored exactly: it needs more bytes, and [`crate::WindowEncoder::commit`] asks for it.
    U16,
    /// The layout of llama.cpp's base file: log-probabilities as u16 codes, padded, after a scale
    /// and a minimum. beellama.cpp's `_logits2` files, which are only read, have no floor:
    /// there, code 0 means a probability of 0.
    LlamaCpp {
        /// True if rows have llama.cpp's floor.
        is_floored: bool,
    },
    /// No row of logits, but the hidden state that one is computed from, in `kl`'s own file.
    State(Float),
}

impl RowLayout {
    /// Bytes of a row of `row_len` entries, unless it is stored exactly, or of a state of as many
    /// numbers; `usize::MAX` where that overflows.
    pub fn row_bytes(self, row_len: usize) -> usize {
        match self {
            RowLayout::F32 => row_len.saturating_mul(4),
            RowLayout::U16 => U16Form::Linear.row_bytes(row_len),
            RowLayout::LlamaCpp { .. } => llama_cpp::row_bytes(row_len),
            RowLayout::State(state_type) => row_len.saturating_mul(state_type.bytes()),
        }
    }

    /// Writes the logits of a row, or the numbers of a state, to `out`; of a row that must be stored
    /// exactly, only a mark.
    ///
    /// # Panics
    /// If `row` is empty, or `out` is not [`RowLayout::row_bytes`] of its length long.
    pub fn encode(self, row: &[f32], out: &mut [u8]) {
        assert_eq!(
            out.len(),
            self.row_bytes(row.len()),
            "an encoded row is as long as its layout makes it"
        );
        match self {
            RowLayout::F32 => out.copy_from_slice(bytemuck::cast_slice(row)),
            RowLayout::U16 => u16::encode(row, out),
            RowLayout::LlamaCpp { .. } => llama_cpp::encode_row(row, out),
            RowLayout::State(state_type) => state_type.encode(row, out),
        }
    }

    /// The row that `bytes` hold; `None` if they are not exactly one row of `n_vocab` entries, not
    /// aligned to their elements, or a state.
    pub fn view(self, bytes: &[u8], n_vocab: usize) -> Option<Row<'_>> {
        match self {
            RowLayout::F32 if bytes.len() != self.row_bytes(n_vocab) => None,
            RowLayout::F32 => bytemuck::try_cast_slice(bytes).ok().map(Row::F32),
            RowLayout::U16 => u16::view(bytes, n_vocab),
            RowLayout::LlamaCpp { is_floored } => llama_cpp::view(bytes, n_vocab, is_floored),
            RowLayout::State(_) => None,
        }
    }

    /// The form of an encoded row, where rows have one.
    pub(crate) fn form(self, encoded: &[u8]) -> Option<U16Form> {
        match self {
            RowLayout::U16 => U16Form::of(encoded),
            _ => None,
        }
    }

    /// Most bytes that a row can have.
    pub(crate) fn most_row_bytes(self, row_len: usize) -> usize {
        let usual = self.row_bytes(row_len);
        match self {
            RowLayout::U16 => usual.max(U16Form::Exact.row_bytes(row_len)),
            _ => usual,
        }
    }

    /// True if all rows have the same length.
    pub(crate) fn is_fixed(self) -> bool {
        self != RowLayout::U16
    }
}

/// The storage of a row's logits. Written `f32`, `u16` or `hidden` in JSON and on the command line.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// An f32 for each entry: exact.
    F32,
    /// A code of 16 bits for each entry, linear over the row's own range: see [`RowLayout::U16`].
    U16,
    /// Not the row but the hidden state that it is computed from, in the smallest type that gives
    /// the model's own row to the bit: see [`crate::States`].
    ///
    /// Version 0.1.0 also wrote `hidden16`, states in f16 whatever they lost: read as this.
    #[serde(alias = "hidden16")]
    Hidden,
}

/// Every encoding.
const ALL: [Encoding; 3] = [Encoding::F32, Encoding::U16, Encoding::Hidden];

impl Encoding {
    /// Its name, in JSON, in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::U16 => "u16",
            Encoding::Hidden => "hidden",
        }
    }

    /// Returns the layout of a row of `kl`'s own file in this encoding; `None` for hidden states,
    /// whose type is recorded in the file.
    pub const fn layout(self) -> Option<RowLayout> {
        match self {
            Encoding::F32 => Some(RowLayout::F32),
            Encoding::U16 => Some(RowLayout::U16),
            Encoding::Hidden => None,
        }
    }

    /// True if hidden states are stored, from which rows are computed.
    pub const fn holds_states(self) -> bool {
        matches!(self, Encoding::Hidden)
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Encoding {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = ALL.into_iter().find(|encoding| encoding.name() == name);
        named.ok_or_else(|| format!("unknown encoding {name:?}: give f32, u16 or hidden"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for encoding in ALL {
            assert_eq!(encoding.to_string().parse(), Ok(encoding));
            assert_eq!(
                serde_json::to_string(&encoding).unwrap(),
                format!("\"{encoding}\"")
            );
        }
        assert!("u8".parse::<Encoding>().is_err());
        // Read, but no longer offered.
        assert!("hidden16".parse::<Encoding>().is_err());
        let earlier: Encoding = serde_json::from_str("\"hidden16\"").unwrap();
        assert_eq!(earlier, Encoding::Hidden);
    }
}
