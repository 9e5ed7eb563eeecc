//! Makes copies of models whose quantized weights are dequantized: to f16, as most originals have them, so that
//! they are computed by the same kernels; to f32 where f16 would lose more of a tensor than it does of others.

use kl_formats::{GgmlType, Mixture};
use rayon::prelude::*;

use super::quantize::rewrite;
use super::stored_rows::StoredRows;
use super::weights::{quantized, squares};
use crate::dequantized_copy::{TemporaryCopy, copies_folder};
use crate::gguf::{Gguf, Tensor};
use crate::{Blueprint, DequantizedCopy, EngineError, Quantization};

/// The most that rounding to f16 loses of weights within its range, relative to their squares: half a unit in
/// the last of its 11 places, squared. Weights beyond the range lose more, small ones bit by bit.
const F16_ERROR: f64 = 1.0 / (1_u64 << 22) as f64;

/// Elements that a core reads at a time, where a row has fewer.
const PIECE_ELEMENTS: usize = 1 << 18;

/// Describes the copy of a model; `None` if it has no quantized weights.
pub(super) fn describe(header: &Gguf) -> Option<DequantizedCopy> {
    let (f16, mut bytes) = (kind("f16"), header.file_bytes);
    let mut largest_tensor = 0;
    for tensor in of_blocks(header) {
        let n_params = tensor.n_params();
        let dequantized = f16.bytes(n_params).unwrap_or(u64::MAX);
        bytes = bytes
            .saturating_sub(tensor.bytes)
            .saturating_add(dequantized);
        // The quantizer holds it in f32, and as it writes it.
        let in_memory = n_params.saturating_mul(4).saturating_add(dequantized);
        largest_tensor = largest_tensor.max(in_memory);
    }
    (largest_tensor > 0).then_some(DequantizedCopy {
        bytes,
        largest_tensor,
    })
}

/// Makes the copy; `None` if there is nothing to dequantize.
///
/// # Errors
/// A tensor that llama.cpp's quantizer does not change, or a file that cannot be read or written.
pub(super) fn copy(header: &Gguf) -> Result<Option<TemporaryCopy>, EngineError> {
    let mut mixture = Mixture::new();
    for tensor in of_blocks(header) {
        mixture.insert(tensor.name.clone(), plain_kind(header, tensor)?);
    }
    if mixture.is_empty() {
        return Ok(None);
    }
    let tensors = Blueprint::of_quantized(header, None)?.tensors;
    let copy = TemporaryCopy::create().map_err(|cause| {
        let folder = copies_folder();
        EngineError::Setup(format!(
            "--dequantize: {}: cannot create a temporary file: {cause}: set TMPDIR to another folder",
            folder.display()
        ))
    })?;
    let to_copy = Quantization {
        input: header.path(),
        output: copy.path(),
        mixture: &mixture,
        imatrix: None,
        threads: rayon::current_num_threads() as u32,
    };
    rewrite(header, &tensors, &to_copy)?;
    Ok(Some(copy))
}

/// The tensors whose weights are stored in blocks.
fn of_blocks(header: &Gguf) -> impl Iterator<Item = &Tensor> {
    let tensors = header.tensors.iter();
    tensors.filter(|tensor| tensor.kind.is_for_weights && tensor.kind.block > 1)
}

/// The type that holds the weights of a quantized tensor: f16 unless that loses more than half a unit in the last
/// place of them.
pub(super) fn plain_kind(header: &Gguf, tensor: &Tensor) -> Result<GgmlType, EngineError> {
    let (f16, f32) = (kind("f16"), kind("f32"));
    let Some(rows) = StoredRows::new(header, tensor) else {
        return Ok(f16);
    };
    let n_at_once = (PIECE_ELEMENTS / rows.n_columns).max(1);
    let pieces = (0..rows.n_rows.div_ceil(n_at_once)).into_par_iter();
    let lost = pieces.map(|piece| {
        let first = piece * n_at_once;
        let weights = rows.weights(first..rows.n_rows.min(first + n_at_once))?;
        let Some(back) = quantized(f16, &weights, None) else {
            return Ok(None);
        };
        let error = squares(&weights, Some(&back), None);
        Ok(Some((error, squares(&weights, None, None))))
    });
    let lost = lost.collect::<Result<Vec<_>, EngineError>>()?;
    let sums = lost
        .into_iter()
        .try_fold((0.0, 0.0), |(error, all), sums_of_piece| {
            let (error_of_piece, all_of_piece) = sums_of_piece?;
            Some((error + error_of_piece, all + all_of_piece))
        });
    let is_kept = sums.is_some_and(|(error, all)| error <= F16_ERROR * all);
    Ok(if is_kept { f16 } else { f32 })
}

/// A type without blocks.
fn kind(name: &str) -> GgmlType {
    let mut all = GgmlType::all();
    all.find(|kind| kind.name == name)
        .expect("ggml has f16 and f32")
}
