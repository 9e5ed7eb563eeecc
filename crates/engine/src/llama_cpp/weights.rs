//! Rows of weights in ggml's types: to f32, from f32, and what is lost on the way.

use std::ops::{Deref, DerefMut};

use bytemuck::{cast_slice, cast_slice_mut};
use kl_formats::GgmlType;
use llama_cpp_sys_2 as sys;

/// The sum of the squared weights of a row, or of their squared differences from others. Each square is
/// multiplied by the importance of its column.
pub(super) fn squares(weights: &[f32], back: Option<&[f32]>, importances: Option<&[f32]>) -> f64 {
    let value_at =
        |values: Option<&[f32]>, i: usize, default| values.map_or(default, |values| values[i]);
    let squares = weights.iter().enumerate().map(|(i, weight)| {
        let importance = value_at(importances, i, 1.0);
        f64::from(importance) * f64::from(weight - value_at(back, i, 0.0)).powi(2)
    });
    squares.sum()
}

/// Quantizes a row to a type and back; `None` if it is not finite.
pub(super) fn quantized(
    kind: GgmlType,
    weights: &[f32],
    importances: Option<&[f32]>,
) -> Option<Vec<f32>> {
    let n_bytes = kind.bytes(weights.len() as u64)? as usize;
    let (mut blocks, mut back) = (Blocks::zeros(n_bytes), vec![0.0; weights.len()]);
    let is_finite = weights.iter().all(|weight| weight.is_finite())
        && quantize(kind, weights.len(), weights, importances, &mut blocks);
    to_f32(kind, &blocks, &mut back);
    is_finite.then_some(back)
}

/// Rows in memory that is aligned as ggml's blocks must be.
pub(super) struct Blocks {
    words: Vec<u64>,
    n_bytes: usize,
}

impl Blocks {
    /// So many bytes of zeros.
    pub(super) fn zeros(n_bytes: usize) -> Self {
        let words = vec![0; n_bytes.div_ceil(size_of::<u64>())];
        Self { words, n_bytes }
    }
}

impl Deref for Blocks {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &cast_slice(&self.words)[..self.n_bytes]
    }
}

impl DerefMut for Blocks {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut cast_slice_mut(&mut self.words)[..self.n_bytes]
    }
}

/// Converts rows to f32.
pub(super) fn to_f32(kind: GgmlType, rows: &[u8], out: &mut [f32]) {
    assert_eq!(kind.bytes(out.len() as u64), Some(rows.len() as u64));
    // SAFETY: the table has an entry for each type that `kl` knows. The rows have as many bytes as that
    // many elements of their type, and are aligned as its blocks: they follow whole rows in `u64`s.
    unsafe {
        let traits = &*sys::ggml_get_type_traits(kind.id as sys::ggml_type);
        match traits.to_float {
            Some(to_float) => to_float(rows.as_ptr().cast(), out.as_mut_ptr(), out.len() as i64),
            // f32 alone has no conversion.
            None => out.copy_from_slice(cast_slice(rows)),
        }
    }
}

/// Quantizes rows, and returns whether all numbers in them are finite.
pub(super) fn quantize(
    kind: GgmlType,
    n_columns: usize,
    rows: &[f32],
    importances: Option<&[f32]>,
    out: &mut [u8],
) -> bool {
    assert!(rows.len().is_multiple_of(n_columns));
    assert!((n_columns as u64).is_multiple_of(kind.block));
    assert_eq!(kind.bytes(rows.len() as u64), Some(out.len() as u64));
    assert!(importances.is_none_or(|values| values.len() == n_columns));
    let importances = importances.map_or(std::ptr::null(), <[f32]>::as_ptr);
    let n_rows = (rows.len() / n_columns) as i64;
    let (kind, n_columns) = (kind.id as sys::ggml_type, n_columns as i64);
    // SAFETY: the output has as many bytes as whole rows at this type, and is aligned as above. The
    // importances are null or one for each column; `needs_imatrix` knows where ggml wants some.
    unsafe {
        let (rows, bytes) = (rows.as_ptr(), out.as_mut_ptr().cast());
        sys::ggml_quantize_chunk(kind, rows, bytes, 0, n_rows, n_columns, importances);
        sys::ggml_validate_row_data(kind, bytes, out.len())
    }
}
