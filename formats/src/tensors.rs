//! Arrays of rows as other programs store them: what `safetensors` and `npz` files share. What is
//! accepted of both is specified in `TENSORS.md`.

use std::ops::Range;
use std::path::Path;

use crate::about::{About, Values};
use crate::error::Result;
use crate::kinds::Kind;
use crate::numbers::{Float, Number};
use crate::row::{Row, RowBlock, RowLayout};
use crate::window::{MAX_N_CTX, MAX_N_VOCAB, WindowEntry, WindowSpec};

/// An array of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) float: Float,
    pub(crate) n_rows: u32,
    pub(crate) n_vocab: u32,
}

impl Matrix {
    /// An array of this type and shape.
    ///
    /// # Errors
    /// A phrase if it is not floats of shape [tokens, vocabulary] or [1, tokens, vocabulary].
    pub(crate) fn new(number: Number, shape: &[u64]) -> Result<Self, String> {
        let Number::Float(float) = number else {
            return Err("rows must be little-endian floats of 16, 32 or 64 bits".to_owned());
        };
        let (&[n_rows, n_vocab] | &[1, n_rows, n_vocab]) = shape else {
            return Err(format!(
                "its shape is {shape:?}, not [tokens, vocabulary] or [1, tokens, vocabulary]"
            ));
        };
        let within = |n: u64, max: u32| u32::try_from(n).ok().filter(|n| (1..=max).contains(n));
        match (within(n_rows, MAX_N_CTX), within(n_vocab, MAX_N_VOCAB)) {
            (Some(n_rows), Some(n_vocab)) => Ok(Self {
                float,
                n_rows,
                n_vocab,
            }),
            _ => Err(format!(
                "its shape is {shape:?}: tokens must be 1 to {MAX_N_CTX}, the vocabulary 1 to \
                 {MAX_N_VOCAB}"
            )),
        }
    }

    /// Bytes of a row. No overflow: 2^24 x 8.
    pub(crate) fn row_bytes(self) -> usize {
        self.n_vocab as usize * self.float.bytes()
    }

    /// A block for these rows of the window at an index, as f32.
    pub(crate) fn block(self, reuse: Option<RowBlock>, index: usize, rows: Range<u32>) -> RowBlock {
        let n_vocab = self.n_vocab as usize;
        RowBlock::prepare(reuse, index as u32, rows, n_vocab, RowLayout::F32)
    }
}

/// Checks an array of token ids, of shape `[n]` or `[1, n]`, beside `n_rows` rows: one for each row,
/// and there may be one more, which follows the last row's. Returns its bytes.
///
/// # Errors
/// A phrase with any other type or shape.
pub(crate) fn bytes_of_ids(number: Number, shape: &[u64], n_rows: u32) -> Result<u64, String> {
    let n_rows = u64::from(n_rows);
    match *shape {
        _ if !matches!(number, Number::Id32 | Number::Id64) => {
            Err("token ids must be little-endian integers of 32 or 64 bits".to_owned())
        }
        [n] | [1, n] if (n_rows..=n_rows + 1).contains(&n) => {
            Ok(number.bytes_of(shape).unwrap_or_default()) // n is a u32, or one more
        }
        _ => Err(format!(
            "token ids of shape {shape:?} for {n_rows} rows: there must be as many, or one more at the \
             end"
        )),
    }
}

/// A window of a reference of such arrays.
#[derive(Debug)]
pub(crate) struct TensorWindow<A> {
    /// The array of its rows.
    pub(crate) rows: A,
    pub(crate) matrix: Matrix,
    /// Its token ids; empty where the file holds none.
    pub(crate) tokens: Vec<u32>,
}

impl<A> TensorWindow<A> {
    /// The window, by its index in the file.
    pub(crate) fn spec(&self, index: usize) -> WindowSpec {
        WindowSpec {
            window: index as u32, // far fewer fit in memory
            tokens: self.tokens.clone(),
            first_scored: 0,
            n_rows: self.matrix.n_rows,
        }
    }

    /// Finds a fault in its token ids, and a contradiction between it and the reference's first window,
    /// whose file or array has the name `first_name`.
    fn fault(&self, first: &Self, first_name: &str) -> Option<String> {
        let (n_vocab, n_tokens) = (self.matrix.n_vocab, self.tokens.len() as u64);
        if n_vocab != first.matrix.n_vocab {
            let there = first.matrix.n_vocab;
            return Some(format!(
                "has rows of {n_vocab}, and {first_name} of {there}: all windows must be of one model"
            ));
        }
        if self.tokens.is_empty() != first.tokens.is_empty() {
            return Some(format!(
                "it and {first_name} do not both hold token ids: all windows must, or none"
            ));
        }
        if let Some(position) = self.tokens.iter().position(|&id| id >= n_vocab) {
            return Some(format!(
                "the token id at position {position} is outside the vocabulary of {n_vocab}"
            ));
        }
        let fault = bytes_of_ids(Number::Id32, &[n_tokens], self.matrix.n_rows).err();
        fault.filter(|_| n_tokens > 0)
    }
}

/// Finds the first window that has a fault or does not belong to the first one: its array of rows and
/// the fault. `name` is the name of an array, or of its file.
pub(crate) fn first_fault<A>(
    windows: &[TensorWindow<A>],
    name: impl Fn(&A) -> String,
) -> Option<(&A, String)> {
    let first = windows.first()?;
    let mut faults = windows.iter().filter_map(|window| {
        let fault = window.fault(first, &name(&first.rows))?;
        Some((&window.rows, fault))
    });
    faults.next()
}

/// Describes a reference, but for the checks of its kind, and lists its windows.
pub(crate) fn describe<A>(
    kind: Kind,
    path: &Path,
    file_bytes: u64,
    windows: &[TensorWindow<A>],
    values: Values,
) -> (About, Vec<WindowEntry>) {
    let entries: Vec<_> = windows
        .iter()
        .enumerate()
        .map(|(i, window)| window.spec(i).entry())
        .collect();
    let first = windows.first();
    let n_ctx = entries.iter().map(|entry| entry.n_rows).max();
    let n_vocab = first.map_or(0, |first| first.matrix.n_vocab);
    let mut about = About {
        file_bytes,
        encoding: first.map_or(Float::F32, |first| first.matrix.float).name(),
        values,
        holds_tokens: Some(first.is_some_and(|first| !first.tokens.is_empty())),
        ..About::new(kind, path, n_ctx.unwrap_or(0), n_vocab)
    };
    about.first_scored = Some(0);
    (about, entries)
}

/// The meaning of the first finite row of these blocks, each with the type it was stored in:
/// log-probabilities sum to 1.
///
/// # Errors
/// Those of the blocks.
pub(crate) fn values_of(
    blocks: impl IntoIterator<Item = Result<(RowBlock, Float)>>,
) -> Result<Values> {
    for block in blocks {
        let (block, float) = block?;
        let Some(row) = block.rows().find(Row::is_finite) else {
            continue;
        };
        let entries = || (0..row.len()).map(|i| f64::from(row.get(i)));
        let max = entries().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = entries().map(|x| (x - max).exp()).sum();
        if (max + sum.ln()).abs() < tolerance(float, row.len()) {
            return Ok(Values::LogProbabilities);
        }
        break;
    }
    Ok(Values::Logits)
}

/// The largest distance from 0 of the logarithm of a sum of probabilities that were stored as
/// rounded logarithms. Each is off by a relative `u` at most (f16: 2^-11, bf16: 2^-8), the sum
/// by `u` times the row's entropy, which is at most that of equal chances.
fn tolerance(float: Float, n_vocab: usize) -> f64 {
    const OF_ARITHMETIC: f64 = 1e-3;
    let u = match float {
        Float::F16 => 2f64.powi(-11),
        Float::Bf16 => 2f64.powi(-8),
        Float::F32 | Float::F64 => 0.0,
    };
    OF_ARITHMETIC + u * (n_vocab as f64).ln()
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    const F32: Number = Number::Float(Float::F32);

    #[test]
    fn invalid_ids_are_in_no_vocabulary() {
        let ids = [5i64, -1, 1 << 32];
        let ids = Number::Id64.decode_ids(bytemuck::cast_slice(&ids));
        assert_eq!(ids, [5, u32::MAX, u32::MAX]);
        let fault = |tokens: &[u32], n_vocab: u64| {
            let matrix = Matrix::new(F32, &[tokens.len() as u64, n_vocab]).unwrap();
            let tokens = tokens.to_vec();
            let window = TensorWindow {
                rows: (),
                matrix,
                tokens,
            };
            window.fault(&window, "itself")
        };
        assert!(fault(&ids, MAX_N_VOCAB.into()).is_some_and(|what| what.contains("position 1")));
        assert_eq!(fault(&ids[..1], 6), None);
        let ids = Number::Id32.decode_ids(bytemuck::cast_slice(&[7i32, -1]));
        assert_eq!(ids, [7, u32::MAX]);
    }

    /// Log-probabilities of 50,000 entries, rounded, and what they are made of.
    #[test]
    fn log_probabilities_are_distinguished_from_logits() {
        let n = 50_000;
        let logits: Vec<f32> = (0..n).map(|i| (i * 7919 % 1000) as f32 / 100.0).collect();
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let logs: Vec<f32> = logits.iter().map(|&x| x - sum.ln() as f32).collect();
        for float in [Float::F16, Float::Bf16, Float::F32, Float::F64] {
            let stored = |row: &[f32]| {
                let round = |&x: &f32| match float {
                    Float::F16 => f16::from_f32(x).to_f32(),
                    Float::Bf16 => bf16::from_f32(x).to_f32(),
                    Float::F32 | Float::F64 => x,
                };
                let row: Vec<f32> = row.iter().map(round).collect();
                let block = |row: &[f32]| Ok((RowBlock::from_f32(0, 0, n, row), float));
                // A row that is not finite does not show it.
                values_of([block(&vec![f32::NAN; n]), block(&row)]).unwrap()
            };
            assert_eq!(stored(&logs), Values::LogProbabilities, "{float:?}");
            assert_eq!(stored(&logits), Values::Logits, "{float:?}");
            let nudged: Vec<f32> = logs.iter().map(|x| x + 0.1).collect();
            assert_eq!(stored(&nudged), Values::Logits, "{float:?}");
        }
    }
}
