//! A row: one logit for each entry of the vocabulary, and how it is stored as bytes.
//!
//! An [`Encoding`] is what a user chooses; a [`RowLayout`] is the bytes of a row in a kind of file. Each
//! row of the layout [`RowLayout::U16`] has one of three forms, which [`RowForms`] counts. A [`Row`]
//! views a stored row in place.

mod block;
mod layout;
pub(crate) mod llama_cpp;
mod u16;

use std::ops::Range;

pub use block::RowBlock;
pub(crate) use block::Shape;
pub use layout::{Encoding, RowLayout};
pub use u16::RowForms;
pub(crate) use u16::{Form, append_exact};

/// One row of logits, borrowed as it is stored; as long as the vocabulary. A row of llama.cpp's
/// base file holds log-probabilities, which serve as logits.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// The logits themselves.
    F32(&'a [f32]),
    /// Linear codes: a logit is `min + step * code`, in f32, the product rounded before the sum
    /// (numpy's float32 gives the same bits).
    U16 {
        /// The row's smallest logit. llama.cpp's base file has NaN here for a row that held a NaN or
        /// an infinity.
        min: f32,
        /// The distance between neighbouring codes; 0 for a constant row.
        step: f32,
        /// A code per entry.
        codes: &'a [u16],
    },
    /// Linear codes for all entries but those that are masked, which share one value: a logit is
    /// `masked` for code 0, and `min + step * (code - 1)` for any other, computed as in
    /// [`Row::U16`].
    U16Masked {
        /// The logit of the masked entries: -inf or a finite number.
        masked: f32,
        /// The smallest of the other logits.
        min: f32,
        /// The distance between neighbouring codes; 0 where the other logits are equal.
        step: f32,
        /// A code per entry.
        codes: &'a [u16],
    },
}

impl<'a> Row<'a> {
    /// The row's first `n` entries, or all if it has fewer.
    pub fn first(self, n: usize) -> Row<'a> {
        self.part(0..n.min(self.len()))
    }

    /// The entries of a range, as a row.
    ///
    /// # Panics
    /// If the range does not lie within the row.
    #[expect(clippy::indexing_slicing, reason = "the caller's range, as documented")]
    pub fn part(self, range: Range<usize>) -> Row<'a> {
        match self {
            Row::F32(logits) => Row::F32(&logits[range]),
            Row::U16 { min, step, codes } => Row::U16 {
                min,
                step,
                codes: &codes[range],
            },
            Row::U16Masked {
                masked,
                min,
                step,
                codes,
            } => Row::U16Masked {
                masked,
                min,
                step,
                codes: &codes[range],
            },
        }
    }
}

impl Row<'_> {
    /// Entries: the vocabulary's size.
    pub fn len(&self) -> usize {
        match self {
            Row::F32(logits) => logits.len(),
            Row::U16 { codes, .. } | Row::U16Masked { codes, .. } => codes.len(),
        }
    }

    /// Returns true if the row has no entries.
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
            Row::U16 { min, step, codes } => min + step * f32::from(codes[i]),
            Row::U16Masked {
                masked,
                min,
                step,
                codes,
            } => unmasked(codes[i], masked, min, step),
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
            Row::U16 { min, step, codes } => {
                for (logit, &code) in out.iter_mut().zip(codes) {
                    *logit = min + step * f32::from(code);
                }
            }
            Row::U16Masked {
                masked,
                min,
                step,
                codes,
            } => {
                for (logit, &code) in out.iter_mut().zip(codes) {
                    *logit = unmasked(code, masked, min, step);
                }
            }
        }
    }

    /// Returns true if every logit is finite, the masked one included. Constant time for codes, a
    /// pass over the row for `F32`.
    pub fn is_finite(&self) -> bool {
        match *self {
            Row::F32(logits) => logits.iter().fold(true, |all, x| all & x.is_finite()),
            // The largest code decodes to the value farthest from `min`.
            Row::U16 { min, step, .. } => {
                min.is_finite() && (min + step * f32::from(u16::MAX)).is_finite()
            }
            Row::U16Masked {
                masked, min, step, ..
            } => {
                let largest = min + step * f32::from(u16::MAX - 1);
                masked.is_finite() && min.is_finite() && largest.is_finite()
            }
        }
    }
}

/// The logit of a code of [`Row::U16Masked`].
#[inline(always)]
fn unmasked(code: u16, masked: f32, min: f32, step: f32) -> f32 {
    match code {
        0 => masked,
        code => min + step * f32::from(code - 1),
    }
}
