//! Finds the weights that can be exchanged, in the graph of one decoded token, and exchanges them in
//! their own memory for rows of the original, quantized as llama.cpp's quantizer does it
//! (`llama_tensor_quantize_impl` in its `llama-quant.cpp`), on all cores.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, Once};

use bytemuck::{cast_slice, cast_slice_mut};
use kl_formats::{GgmlType, Mixture};
use llama_cpp_sys_2 as sys;
use rayon::prelude::*;

use super::LlamaCppModel;
use super::context::Watch;
use super::ggml::{ModelTensor, Node};
use crate::engine::quantizer::{changes, is_original, n_dims, refusal};
use crate::engine::{EngineError, Exchange, Imatrix, gguf};
use crate::lock::locked;

/// Quantized types in which models are published: a tensor of one stays as it is, and the others may be
/// an original's.
const PUBLISHED: [&str; 4] = ["mxfp4", "nvfp4", "tq1_0", "tq2_0"];

/// Elements that a core quantizes at a time, where a row has fewer: ggml takes a lock for each piece.
const PIECE_ELEMENTS: usize = 32 * 512;

/// A weight of a loaded model that can be exchanged: rows of one expert after those of the other.
#[derive(Debug)]
pub(super) struct Weight {
    /// Its description in the file.
    tensor: gguf::Tensor,
    /// Its type in the file.
    kind: GgmlType,
    /// Where it lies: once, unless several devices need it.
    places: Vec<ModelTensor>,
    /// What lies there; `None` if that is unknown.
    contents: Mutex<Option<Contents>>,
}

/// What lies in a weight's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contents {
    kind: GgmlType,
    /// SHA-256 (hex) of the importance matrix that it was quantized with.
    imatrix: Option<String>,
}

impl Weight {
    fn name(&self) -> &str {
        &self.tensor.name
    }

    fn dimension(&self, i: usize) -> usize {
        self.tensor.shape.get(i).map_or(1, |&n| n as usize)
    }

    fn n_columns(&self) -> usize {
        self.dimension(0)
    }

    /// Rows of an expert.
    fn n_rows(&self) -> usize {
        self.dimension(1)
    }

    fn n_experts(&self) -> usize {
        self.dimension(2)
    }

    /// Bytes of a row at a type of whose blocks it is made.
    fn row_bytes(&self, kind: GgmlType) -> usize {
        kind.bytes(self.n_columns() as u64).unwrap_or_default() as usize
    }

    /// The importances of the columns of an expert.
    fn of_expert<'i>(&self, importances: Option<&'i [f32]>, expert: usize) -> Option<&'i [f32]> {
        let n = self.n_columns();
        importances.map(|values| &values[expert * n..(expert + 1) * n])
    }
}

/// How a graph uses a weight.
#[derive(Default)]
struct Use {
    places: Vec<ModelTensor>,
    /// True if a device computes with a copy that the graph makes.
    is_copied: bool,
    /// True if an operation uses it for which ggml may lack kernels for quantized weights.
    is_unusual: bool,
}

/// The weights that a graph uses, by their names.
#[derive(Default)]
struct UsedWeights(HashMap<String, Use>);

impl Watch for UsedWeights {
    fn wants(&mut self, node: Node<'_>) -> bool {
        for (i, input) in node.inputs() {
            let weight = input.as_weight();
            if weight.is_none() && !input.is_copy() {
                continue;
            }
            let found = self.0.entry(input.name()).or_default();
            let is_usual = matches!(
                node.op(),
                sys::GGML_OP_MUL_MAT | sys::GGML_OP_MUL_MAT_ID | sys::GGML_OP_GET_ROWS
            );
            found.is_unusual |= i != 0 || !is_usual;
            found.is_copied |= weight.is_none();
            let is_new = |place: &ModelTensor| !found.places.contains(place);
            found.places.extend(weight.filter(is_new));
        }
        false
    }

    fn computed(&mut self, _node: Node<'_>) -> bool {
        true
    }
}

/// Makes llama.cpp build each graph anew, and CUDA launch each kernel by itself, in all contexts that
/// are created after this: graphs that were made before an exchange keep the types of the weights.
pub(super) fn disable_graph_reuse() {
    // Read by `llama_context::llama_context`, and by `ggml_cuda_graph::is_enabled`, once, when the first
    // graph is computed.
    const VARIABLES: [&str; 2] = ["LLAMA_GRAPH_REUSE_DISABLE", "GGML_CUDA_DISABLE_GRAPHS"];
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for variable in VARIABLES {
            // SAFETY: std's functions exclude each other. llama.cpp and ggml read the environment
            // where they start, load models and create contexts, and kl does none of these on one
            // thread while it loads a model on another.
            unsafe { std::env::set_var(variable, "1") };
            // C programs on Windows read their own copy of the environment, which std does not set.
            #[cfg(windows)]
            {
                use std::ffi::{CString, c_char, c_int};
                unsafe extern "C" {
                    fn _putenv_s(name: *const c_char, value: *const c_char) -> c_int;
                }
                let variable = CString::new(variable).unwrap_or_default();
                // SAFETY: as above, and both texts end with NUL.
                unsafe { _putenv_s(variable.as_ptr(), c"1".as_ptr()) };
            }
        }
    });
}

impl LlamaCppModel<'_> {
    /// The weights that can be exchanged, in the order of the file. The first call finds them by
    /// decoding one token.
    pub(super) fn weights(&self) -> Result<&[Weight], EngineError> {
        if !self.facts.options.is_exchangeable {
            return Err(self.fault("was not loaded to exchange its weights"));
        }
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        let watch = Arc::new(Mutex::new(UsedWeights::default()));
        self.show_one_token(watch.clone())?;
        let UsedWeights(mut used) = std::mem::take(&mut *locked(&watch));
        let architecture = self.header.architecture().unwrap_or_default();
        let mut weights = Vec::new();
        for tensor in &self.header.tensors {
            let kind = GgmlType::of(tensor.type_id);
            if let Some(used) = used.remove(&tensor.name)
                && changes(architecture, &tensor.name, &tensor.shape)
                && n_dims(&tensor.shape) <= 3
                && !used.is_unusual
                && kind.is_none_or(|kind| !PUBLISHED.contains(&kind.name))
            {
                weights.push(self.weight(tensor, kind, used)?);
            }
        }
        Ok(self.weights.get_or_init(|| weights))
    }

    fn weight(
        &self,
        tensor: &gguf::Tensor,
        kind: Option<GgmlType>,
        used: Use,
    ) -> Result<Weight, EngineError> {
        let name = &tensor.name;
        let Some(kind) = kind.filter(|&kind| is_original(kind)) else {
            let kind = kind.map_or_else(|| tensor.type_id.to_string(), |kind| kind.to_string());
            return Err(self.fault(format!(
                "{name} is quantized already ({kind}): give the original, in f16, bf16, f32 or q8_0"
            )));
        };
        let is_as_in_file = |place: &ModelTensor| place.type_id() == kind.id;
        if used.is_copied || !used.places.iter().all(is_as_in_file) {
            let what = "its device computes with a copy of it: use another -ngl, -ot or -dev";
            return Err(self.not_exchanged(name, what));
        }
        let imatrix = None;
        Ok(Weight {
            tensor: tensor.clone(),
            kind,
            places: used.places,
            contents: Mutex::new(Some(Contents { kind, imatrix })),
        })
    }

    /// The error for a weight that cannot be exchanged.
    fn not_exchanged(&self, name: &str, what: impl std::fmt::Display) -> EngineError {
        self.fault(format!("{name} cannot be exchanged: {what}"))
    }

    fn exchangeable_weight(&self, name: &str) -> Result<&Weight, EngineError> {
        let mut weights = self.weights()?.iter();
        let found = weights.find(|weight| weight.name() == name);
        let what = "decoding does not use it, or llama.cpp does not quantize it";
        found.ok_or_else(|| self.not_exchanged(name, what))
    }

    /// Refuses a type that a weight cannot have, and returns the importances to quantize it with.
    fn check<'i>(
        &self,
        weight: &Weight,
        kind: GgmlType,
        imatrix: Option<&'i Imatrix>,
    ) -> Result<Option<&'i [f32]>, EngineError> {
        let (name, original, shape) = (weight.name(), weight.kind, &weight.tensor.shape);
        let importances = imatrix.map(|imatrix| imatrix.values_for(name, shape));
        let importances = importances.transpose()?.flatten();
        if kind == original {
            return Ok(importances);
        }
        if let Some(what) = refusal(name, shape, kind, importances.is_some()) {
            return Err(self.not_exchanged(name, what));
        }
        let mut places = weight.places.iter();
        let fits = places.all(|place| place.has_room_for(kind, original));
        if weight.row_bytes(original) < weight.row_bytes(kind) || !fits {
            let what = format!("{kind} is larger than the original's {original}: use another type");
            return Err(self.not_exchanged(name, what));
        }
        Ok(importances)
    }

    /// Gives a weight the contents that are wanted, unless it has them.
    fn fill(
        &self,
        weight: &Weight,
        wanted: Contents,
        importances: Option<&[f32]>,
    ) -> Result<(), EngineError> {
        let mut contents = locked(&weight.contents);
        if contents.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let words = self.quantize(weight, wanted.kind, importances)?;
        *contents = None;
        let _turn = locked(self.turn());
        for place in &weight.places {
            // SAFETY: decoding takes turns with this, and no graph is used again, since the model was
            // loaded to exchange its weights. `check` has found room.
            let replaced = unsafe { place.replace(wanted.kind, cast_slice(&words)) };
            replaced.map_err(|what| self.not_exchanged(weight.name(), what))?;
        }
        *contents = Some(wanted);
        Ok(())
    }

    /// Memory for rows, aligned as ggml's blocks must be.
    fn words(&self, weight: &Weight, n_bytes: usize) -> Result<Vec<u64>, EngineError> {
        let (mut words, n_words) = (Vec::new(), n_bytes.div_ceil(size_of::<u64>()));
        words.try_reserve_exact(n_words).map_err(|_| {
            let what = format!("not enough memory for {n_bytes} bytes");
            self.not_exchanged(weight.name(), what)
        })?;
        words.resize(n_words, 0);
        Ok(words)
    }

    /// Returns the rows of the original at a type.
    ///
    /// # Errors
    /// A file that cannot be read any more, too little memory, or weights that are not finite.
    fn quantize(
        &self,
        weight: &Weight,
        kind: GgmlType,
        importances: Option<&[f32]>,
    ) -> Result<Vec<u64>, EngineError> {
        let fault = |what| self.not_exchanged(weight.name(), what);
        let unreadable = |error| fault(format!("cannot be read: {error}"));
        let (n_columns, own_row, row) = (
            weight.n_columns(),
            weight.row_bytes(weight.kind),
            weight.row_bytes(kind),
        );
        let (n_own, n_bytes) = (own_row * weight.n_rows(), row * weight.n_rows());
        let mut all = self.words(weight, n_bytes * weight.n_experts())?;
        let bytes: &mut [u8] = cast_slice_mut(&mut all);
        let bytes = &mut bytes[..n_bytes * weight.n_experts()];
        let mut file = self.header.open(&weight.tensor)?;
        if kind == weight.kind {
            file.read_exact(bytes).map_err(unreadable)?;
            return Ok(all);
        }
        let mut originals = self.words(weight, n_own)?;
        let originals = &mut cast_slice_mut::<u64, u8>(&mut originals)[..n_own];
        let rows_of_piece = (PIECE_ELEMENTS / n_columns).max(1);
        for (expert, quantized) in bytes.chunks_mut(n_bytes).enumerate() {
            file.read_exact(originals).map_err(unreadable)?;
            let importances = weight.of_expert(importances, expert);
            let pieces = originals.par_chunks(own_row * rows_of_piece);
            let pieces = pieces.zip(quantized.par_chunks_mut(row * rows_of_piece));
            let are_finite = pieces
                .map_init(Vec::new, |weights, (original, quantized)| {
                    weights.resize(original.len() / own_row * n_columns, 0.0);
                    to_f32(weight.kind, original, weights);
                    quantize(kind, n_columns, weights, importances, quantized)
                })
                .all(|is_finite| is_finite);
            if !are_finite {
                return Err(fault(not_finite(kind)));
            }
        }
        Ok(all)
    }
}

impl Exchange for LlamaCppModel<'_> {
    fn exchangeable(&self) -> Result<Vec<String>, EngineError> {
        let weights = self.weights()?.iter();
        Ok(weights.map(|weight| weight.name().to_owned()).collect())
    }

    fn exchange(&self, mixture: &Mixture, imatrix: Option<&Imatrix>) -> Result<(), EngineError> {
        for name in mixture.keys() {
            self.exchangeable_weight(name)?;
        }
        let checked = self.weights()?.iter().map(|weight| {
            let kind = *mixture.get(weight.name()).unwrap_or(&weight.kind);
            let imatrix = imatrix.filter(|_| kind != weight.kind);
            let importances = self.check(weight, kind, imatrix)?;
            let imatrix = importances.and(imatrix);
            let imatrix = imatrix.map(|imatrix| imatrix.identity.sha256.clone());
            Ok((weight, Contents { kind, imatrix }, importances))
        });
        let checked: Vec<_> = checked.collect::<Result<_, EngineError>>()?;
        let mut all = checked.into_iter();
        all.try_for_each(|(weight, wanted, importances)| self.fill(weight, wanted, importances))
    }

    fn weight_errors(
        &self,
        tensor: &str,
        kinds: &[GgmlType],
        imatrix: Option<&Imatrix>,
        n_rows: usize,
    ) -> Result<Vec<f64>, EngineError> {
        let weight = self.exchangeable_weight(tensor)?;
        let mut importances = None;
        for &kind in kinds {
            importances = self.check(weight, kind, imatrix)?;
        }
        let fault = |what| self.not_exchanged(tensor, what);
        let all_rows = weight.n_rows() * weight.n_experts();
        let n_rows = n_rows.clamp(1, all_rows);
        let nth_row = |i| (i as u128 * all_rows as u128 / n_rows as u128) as usize;
        let row = weight.row_bytes(weight.kind);
        let mut words = self.words(weight, n_rows * row)?;
        let originals = &mut cast_slice_mut::<u64, u8>(&mut words)[..n_rows * row];
        let mut file = self.header.open(&weight.tensor)?;
        for (i, original) in originals.chunks_mut(row).enumerate() {
            file.seek(SeekFrom::Start(nth_row(i) as u64 * row as u64))
                .and_then(|_| file.read_exact(original))
                .map_err(|error| fault(format!("cannot be read: {error}")))?;
        }
        let of_rows = originals.par_chunks(row).enumerate().map(|(i, original)| {
            let importances = weight.of_expert(importances, nth_row(i) / weight.n_rows());
            weight.squares(original, kinds, importances).map_err(fault)
        });
        // Of each type the squared errors, and then the squared weights. Added in one order, so that the
        // same errors are the same numbers.
        let mut sums = vec![0.0; kinds.len() + 1];
        for squares in of_rows.collect::<Result<Vec<_>, _>>()? {
            let pairs = sums.iter_mut().zip(squares);
            pairs.for_each(|(sum, square)| *sum += square);
        }
        let weights = sums.pop().unwrap_or_default();
        let relative = |error: f64| if error == 0.0 { 0.0 } else { error / weights };
        Ok(sums.into_iter().map(relative).collect())
    }
}

impl Weight {
    /// The squared errors of a row at some types, and its squared weights.
    fn squares(
        &self,
        original: &[u8],
        kinds: &[GgmlType],
        importances: Option<&[f32]>,
    ) -> Result<Vec<f64>, String> {
        let n = self.n_columns();
        let (mut weights, mut back) = (vec![0.0; n], vec![0.0; n]);
        to_f32(self.kind, original, &mut weights);
        let sum = |back: &[f32]| -> f64 {
            let pairs = weights.iter().zip(back).enumerate();
            let squares = pairs.map(|(i, (weight, back))| {
                let importance = importances.map_or(1.0, |values| values[i]);
                let error = f64::from(weight - back);
                f64::from(importance) * error * error
            });
            squares.sum()
        };
        // Before any type, what is subtracted is 0.
        let of_weights = sum(&back);
        let mut sums = Vec::with_capacity(kinds.len() + 1);
        for &kind in kinds {
            let n_bytes = self.row_bytes(kind);
            let mut words = vec![0_u64; n_bytes.div_ceil(size_of::<u64>())];
            let quantized = &mut cast_slice_mut::<u64, u8>(&mut words)[..n_bytes];
            if !quantize(kind, n, &weights, importances, quantized) {
                return Err(not_finite(kind));
            }
            to_f32(kind, quantized, &mut back);
            sums.push(sum(&back));
        }
        sums.push(of_weights);
        Ok(sums)
    }
}

fn not_finite(kind: GgmlType) -> String {
    format!(
        "it has weights that are not finite, or not as {kind}: llama.cpp's quantizer would refuse it too"
    )
}

/// Converts rows to f32.
fn to_f32(kind: GgmlType, rows: &[u8], out: &mut [f32]) {
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
