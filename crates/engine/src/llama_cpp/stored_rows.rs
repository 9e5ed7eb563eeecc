//! Rows of weights as they lie in a file, without a model that is loaded: which of them are faulty, and how
//! far they are from an original's.

use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use kl_formats::GgmlType;
use llama_cpp_sys_2 as sys;
use rayon::prelude::*;

use super::weights::{Blocks, quantized, squares, to_f32};
use crate::gguf::{Gguf, Tensor};
use crate::quantizer::needs_its_rows;
use crate::{EngineError, needs_imatrix};

/// Elements that a core reads at a time, where a row has fewer.
const PIECE_ELEMENTS: usize = 1 << 18;

/// The rows of a tensor in a file, those of one expert after those of the other.
pub struct StoredRows<'f> {
    header: &'f Gguf,
    pub tensor: &'f Tensor,
    pub(super) n_columns: usize,
    /// Rows of all experts.
    pub n_rows: usize,
    /// Rows of an expert.
    pub n_rows_of_expert: usize,
}

/// A row that no sound tensor of weights has.
#[derive(Clone, Copy, Debug)]
pub struct FaultyRow {
    /// Its index among the rows of all experts.
    pub index: usize,
    /// Its first block with a weight that is not finite; `None` if all its weights are zero.
    pub block: Option<usize>,
}

/// The distance of rows from an original's.
#[derive(Clone, Copy, Debug)]
pub struct RowDistance {
    /// The index of the first among those of all experts.
    pub index: usize,
    /// The sum of the original's squared weights.
    pub squares: f64,
    /// The sum of the squared differences.
    pub error: f64,
    /// The sum of the squared differences of the original's row, quantized to the type without an
    /// importance matrix.
    pub expected: f64,
}

impl<'f> StoredRows<'f> {
    /// The rows of a tensor; `None` of one without rows, or of a type without weights.
    pub fn new(header: &'f Gguf, tensor: &'f Tensor) -> Option<Self> {
        let dimension = |i: usize| tensor.shape.get(i).map_or(1, |&n| n as usize);
        let n_rows = (tensor.n_params() as usize).checked_div(dimension(0))?;
        (n_rows > 0 && tensor.kind.is_for_weights).then_some(Self {
            header,
            tensor,
            n_columns: dimension(0),
            n_rows,
            n_rows_of_expert: dimension(1),
        })
    }

    /// Reads every row, on all cores, and returns the faulty ones. Rows of zeros are not faulty where zeros
    /// are allowed, nor where the original's rows become zero too.
    ///
    /// # Errors
    /// A file that cannot be read, or an original whose weights are not finite.
    pub fn faulty(&self, original: Option<&Self>) -> Result<Vec<FaultyRow>, EngineError> {
        let n_at_once = (PIECE_ELEMENTS / self.n_columns).max(1);
        let may_be_zero = !needs_its_rows(self.header, self.tensor);
        let is_lost = |index| -> Result<bool, EngineError> {
            let error = original.map(|original| self.error(original, index));
            Ok(error.transpose()?.is_none_or(|of| of.error > of.expected))
        };
        let pieces = (0..self.n_rows.div_ceil(n_at_once)).into_par_iter();
        let checked = pieces.with_max_len(1).map(|piece| {
            let first = piece * n_at_once;
            let end = self.n_rows.min(first + n_at_once);
            let (blocks, mut weights) = (self.read(first..end)?, vec![0.0; self.n_columns]);
            let rows = blocks.chunks_exact(self.row_bytes(self.tensor.kind));
            let faulty = rows.zip(first..end).map(|(row, index)| {
                let block = self.first_bad_block(row, &mut weights);
                let is_sound = may_be_zero || weights.iter().any(|&weight| weight != 0.0);
                let is_faulty = block.is_some() || !is_sound && is_lost(index)?;
                Ok(is_faulty.then_some(FaultyRow { index, block }))
            });
            faulty.filter_map(Result::transpose).collect()
        });
        let faulty = checked.collect::<Result<Vec<Vec<_>>, EngineError>>()?;
        Ok(faulty.concat())
    }

    /// Converts a row, and returns its first block with a weight or a scale that is not valid.
    fn first_bad_block(&self, row: &[u8], weights: &mut [f32]) -> Option<usize> {
        to_f32(self.tensor.kind, row, weights);
        let not_finite = weights.iter().position(|weight| !weight.is_finite());
        let (kind, data) = (self.tensor.kind.id as sys::ggml_type, row.as_ptr().cast());
        // Only where all weights are finite, since it prints a line if a scale is not valid.
        // SAFETY: the row is valid for reads of all its bytes.
        let is_valid = || {
            not_finite.is_some() || unsafe { sys::ggml_validate_row_data(kind, data, row.len()) }
        };
        let column = if is_valid() { not_finite } else { Some(0) };
        column.map(|column| column / self.tensor.kind.block as usize)
    }

    /// At most `n` rows, evenly spaced, by their indices.
    pub fn sample(&self, n: usize) -> Vec<usize> {
        let (n, all) = (n.clamp(1, self.n_rows) as u128, self.n_rows as u128);
        Vec::from_iter((0..n).map(|i| (i * all / n) as usize))
    }

    /// Compares a row with that of an original of the same shape.
    ///
    /// # Errors
    /// A file that cannot be read, or an original whose weights are not finite.
    pub fn error(&self, original: &Self, index: usize) -> Result<RowDistance, EngineError> {
        let ones = vec![1.0; self.n_columns];
        let importances = needs_imatrix(&self.tensor.name, self.tensor.kind).then_some(&*ones);
        let weights = original.weights(index..index + 1)?;
        let expected = quantized(self.tensor.kind, &weights, importances).ok_or_else(|| {
            let what = format!("{} is not finite: check it with --verify", self.tensor.name);
            EngineError::model(original.header.path(), what)
        })?;
        Ok(RowDistance {
            index,
            squares: squares(&weights, None, None),
            error: squares(&weights, Some(&self.weights(index..index + 1)?), None),
            expected: squares(&weights, Some(&expected), None),
        })
    }

    /// The importances of the columns of a row, among those of all experts.
    pub(super) fn importances<'i>(&self, all: Option<&'i [f32]>, row: usize) -> Option<&'i [f32]> {
        let start = row / self.n_rows_of_expert * self.n_columns;
        all.map(|values| &values[start..start + self.n_columns])
    }

    /// The weights of rows, one row after the other.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn weights(&self, rows: Range<usize>) -> Result<Vec<f32>, EngineError> {
        let mut weights = vec![0.0; rows.len() * self.n_columns];
        to_f32(self.tensor.kind, &self.read(rows)?, &mut weights);
        Ok(weights)
    }

    /// Reads rows as they are in the file.
    pub(super) fn read(&self, rows: Range<usize>) -> Result<Blocks, EngineError> {
        let row_bytes = self.row_bytes(self.tensor.kind);
        let mut blocks = Blocks::zeros(rows.len() * row_bytes);
        let mut file = self.header.open(self.tensor)?;
        file.seek(SeekFrom::Start((rows.start * row_bytes) as u64))
            .and_then(|_| file.read_exact(&mut blocks))
            .map_err(|cause| {
                let what = format!("{} cannot be read: {cause}", self.tensor.name);
                EngineError::model(self.header.path(), what)
            })?;
        Ok(blocks)
    }

    /// Bytes of a row at a type whose blocks divide it.
    pub(super) fn row_bytes(&self, kind: GgmlType) -> usize {
        kind.bytes(self.n_columns as u64).unwrap_or_default() as usize
    }
}
