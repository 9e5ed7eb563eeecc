//! Makes the bytes of exchanged weights: rows of the original's tensor, quantized as llama.cpp's
//! quantizer does (`llama_tensor_quantize_impl` in its `llama-quant.cpp`), on all cores.

use std::io::{Read, Seek, SeekFrom};

use bytemuck::{cast_slice, cast_slice_mut};
use kl_formats::GgmlType;
use llama_cpp_sys_2 as sys;
use rayon::prelude::*;

use crate::engine::EngineError;
use crate::engine::gguf::{Gguf, Tensor};

/// Most bytes of the original that are read before they are quantized.
const SLAB_BYTES: usize = 64 << 20;

/// Elements that a core quantizes at a time, where a row has fewer: ggml takes a lock for each piece.
const PIECE_ELEMENTS: usize = 32 * 512;

/// Bytes that are aligned as ggml's blocks must be.
#[derive(Default)]
pub(super) struct Bytes {
    words: Vec<u64>,
    n: usize,
}

impl Bytes {
    pub(super) fn get(&self) -> &[u8] {
        &cast_slice(&self.words)[..self.n]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut cast_slice_mut(&mut self.words)[..self.n]
    }
}

/// A tensor of the original in its file: the rows of one expert after those of the other.
pub(super) struct OriginalRows<'m> {
    header: &'m Gguf,
    tensor: &'m Tensor,
    kind: GgmlType,
    /// Elements of a row.
    pub(super) n_columns: usize,
    /// Rows of an expert.
    n_rows: usize,
    n_experts: usize,
    row_bytes: usize,
}

impl<'m> OriginalRows<'m> {
    /// The rows of a tensor of this type; `None` if it has more dimensions than the quantizer reads.
    pub(super) fn of(header: &'m Gguf, tensor: &'m Tensor, kind: GgmlType) -> Option<Self> {
        let size = |i: usize| usize::try_from(tensor.shape.get(i).copied().unwrap_or(1)).ok();
        let [n_columns, n_rows, n_experts, 1] = [size(0)?, size(1)?, size(2)?, size(3)?] else {
            return None;
        };
        let row_bytes = usize::try_from(kind.bytes(n_columns as u64)?).ok()?;
        (n_columns > 0 && n_rows > 0 && n_experts > 0).then_some(Self {
            header,
            tensor,
            kind,
            n_columns,
            n_rows,
            n_experts,
            row_bytes,
        })
    }

    /// The number of values that an importance matrix has for the tensor.
    pub(super) fn n_importances(&self) -> usize {
        self.n_columns * self.n_experts
    }

    /// Bytes of a row at a type; `None` if it is not whole blocks.
    fn row_bytes(&self, kind: GgmlType) -> Option<usize> {
        let bytes = kind.bytes(self.n_columns as u64)?;
        usize::try_from(bytes).ok()
    }

    /// Reads all bytes of the tensor.
    ///
    /// # Errors
    /// A file that cannot be read any more, or too little memory.
    pub(super) fn read(&self) -> Result<Bytes, EngineError> {
        let mut bytes = Bytes::default();
        self.resize(&mut bytes, self.row_bytes * self.n_rows * self.n_experts)?;
        let mut file = self.header.open(self.tensor)?;
        file.read_exact(bytes.get_mut())
            .map_err(|error| self.fault(format!("cannot be read: {error}")))?;
        Ok(bytes)
    }

    /// Quantizes the tensor; `importances` are those of one expert after the other.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), or weights that are not finite.
    pub(super) fn quantize(
        &self,
        kind: GgmlType,
        importances: Option<&[f32]>,
    ) -> Result<Bytes, EngineError> {
        let row_bytes = self.row_bytes(kind).unwrap_or_default();
        let all_rows = self.n_rows * self.n_experts;
        let (mut slab, mut quantized) = (Bytes::default(), Bytes::default());
        self.resize(&mut quantized, row_bytes * all_rows)?;
        let rows_of_slab = (SLAB_BYTES / self.row_bytes).max(1);
        let mut file = self.header.open(self.tensor)?;
        let slabs = quantized.get_mut().chunks_mut(row_bytes * rows_of_slab);
        for (i, quantized) in slabs.enumerate() {
            let n_rows = quantized.len() / row_bytes;
            self.resize(&mut slab, n_rows * self.row_bytes)?;
            file.read_exact(slab.get_mut())
                .map_err(|error| self.fault(format!("cannot be read: {error}")))?;
            let rows_of_piece = (PIECE_ELEMENTS / self.n_columns).max(1);
            let originals = slab.get().par_chunks(self.row_bytes * rows_of_piece);
            let pieces = quantized
                .par_chunks_mut(row_bytes * rows_of_piece)
                .zip(originals);
            let quantize_piece = |weights: &mut Vec<f32>, (piece, (quantized, original))| {
                let first_row = i * rows_of_slab + piece * rows_of_piece;
                self.quantize_piece(kind, importances, first_row, original, weights, quantized)
            };
            let are_finite = pieces
                .enumerate()
                .map_init(Vec::new, quantize_piece)
                .reduce(|| true, |all, this| all && this);
            if !are_finite {
                return Err(self.not_finite(kind));
            }
        }
        Ok(quantized)
    }

    /// Quantizes some rows, which may be of several experts, and returns whether all numbers are finite.
    fn quantize_piece(
        &self,
        kind: GgmlType,
        importances: Option<&[f32]>,
        first_row: usize,
        original: &[u8],
        weights: &mut Vec<f32>,
        quantized: &mut [u8],
    ) -> bool {
        let end = first_row + original.len() / self.row_bytes;
        weights.resize((end - first_row) * self.n_columns, 0.0);
        to_f32(self.kind, original, weights);
        let row_bytes = quantized.len() / (end - first_row);
        let (mut row, mut rest, mut are_finite) = (first_row, quantized, true);
        while row < end {
            let expert = row / self.n_rows;
            let n_rows = end.min((expert + 1) * self.n_rows) - row;
            let of_expert =
                &weights[(row - first_row) * self.n_columns..][..n_rows * self.n_columns];
            let importances = self.of_expert(importances, expert);
            let bytes = rest.split_off_mut(..n_rows * row_bytes).unwrap_or_default();
            are_finite &= quantize(kind, self.n_columns, of_expert, importances, bytes);
            row += n_rows;
        }
        are_finite
    }

    /// The relative squared errors of at most `n_rows` rows, evenly spaced, at some types.
    ///
    /// # Errors
    /// Those of [`quantize`](Self::quantize).
    pub(super) fn errors(
        &self,
        kinds: &[GgmlType],
        importances: Option<&[f32]>,
        n_rows: usize,
    ) -> Result<Vec<f64>, EngineError> {
        let all_rows = self.n_rows * self.n_experts;
        let n_rows = n_rows.clamp(1, all_rows);
        let nth_row = |i| (i as u128 * all_rows as u128 / n_rows as u128) as usize;
        let rows: Vec<usize> = (0..n_rows).map(nth_row).collect();
        let mut file = self.header.open(self.tensor)?;
        let mut slab = Bytes::default();
        // Of each type the squared errors, and then the squared weights.
        let mut sums = vec![0.0; kinds.len() + 1];
        for rows in rows.chunks((SLAB_BYTES / self.row_bytes).max(1)) {
            self.resize(&mut slab, rows.len() * self.row_bytes)?;
            for (&row, bytes) in rows.iter().zip(slab.get_mut().chunks_mut(self.row_bytes)) {
                file.seek(SeekFrom::Start(row as u64 * self.row_bytes as u64))
                    .and_then(|_| file.read_exact(bytes))
                    .map_err(|error| self.fault(format!("cannot be read: {error}")))?;
            }
            let originals = slab.get().par_chunks_exact(self.row_bytes);
            let of_rows = rows.par_iter().zip(originals).map(|(row, original)| {
                let importances = self.of_expert(importances, row / self.n_rows);
                self.squares(original, kinds, importances)
            });
            // Added in one order, so that the same errors are the same numbers.
            for squares in of_rows.collect::<Result<Vec<_>, _>>()? {
                let pairs = sums.iter_mut().zip(squares);
                pairs.for_each(|(sum, square)| *sum += square);
            }
        }
        let weights = sums.pop().unwrap_or_default();
        let relative = |error: f64| if error == 0.0 { 0.0 } else { error / weights };
        Ok(sums.into_iter().map(relative).collect())
    }

    /// The squared errors of a row at some types, and its squared weights.
    fn squares(
        &self,
        original: &[u8],
        kinds: &[GgmlType],
        importances: Option<&[f32]>,
    ) -> Result<Vec<f64>, EngineError> {
        let mut weights = vec![0.0; self.n_columns];
        to_f32(self.kind, original, &mut weights);
        // Before any type, what is subtracted is 0.
        let (mut quantized, mut back) = (Bytes::default(), vec![0.0; self.n_columns]);
        let sum = |back: &[f32]| -> f64 {
            let squares = weights
                .iter()
                .zip(back)
                .enumerate()
                .map(|(i, (weight, back))| {
                    let importance = importances.map_or(1.0, |values| values[i]);
                    let error = f64::from(weight - back);
                    f64::from(importance) * error * error
                });
            squares.sum()
        };
        let of_weights = sum(&back);
        let mut sums = Vec::with_capacity(kinds.len() + 1);
        for &kind in kinds {
            self.resize(&mut quantized, self.row_bytes(kind).unwrap_or_default())?;
            let bytes = quantized.get_mut();
            if !quantize(kind, self.n_columns, &weights, importances, bytes) {
                return Err(self.not_finite(kind));
            }
            to_f32(kind, quantized.get(), &mut back);
            sums.push(sum(&back));
        }
        sums.push(of_weights);
        Ok(sums)
    }

    /// Makes this many bytes of `bytes`.
    fn resize(&self, bytes: &mut Bytes, n: usize) -> Result<(), EngineError> {
        let n_words = n.div_ceil(size_of::<u64>());
        let more = n_words.saturating_sub(bytes.words.len());
        let reserved = bytes.words.try_reserve_exact(more);
        reserved.map_err(|_| self.fault(format!("not enough memory for {n} bytes")))?;
        bytes.words.resize(n_words, 0);
        bytes.n = n;
        Ok(())
    }

    fn of_expert<'i>(&self, importances: Option<&'i [f32]>, expert: usize) -> Option<&'i [f32]> {
        let start = expert * self.n_columns;
        importances.map(|values| &values[start..start + self.n_columns])
    }

    fn fault(&self, what: String) -> EngineError {
        EngineError::model(self.header.path(), format!("{}: {what}", self.tensor.name))
    }

    fn not_finite(&self, kind: GgmlType) -> EngineError {
        self.fault(format!(
            "has weights that are not finite, or not as {kind}: llama.cpp's quantizer would refuse it too"
        ))
    }
}

/// Converts rows to f32.
fn to_f32(kind: GgmlType, rows: &[u8], out: &mut [f32]) {
    assert_eq!(kind.bytes(out.len() as u64), Some(rows.len() as u64));
    // SAFETY: the table has an entry for each type that `kl` knows. The rows have as many bytes as that
    // many elements of their type, and are aligned as its blocks: they lie in `Bytes`, after whole rows.
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
fn quantize(
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
