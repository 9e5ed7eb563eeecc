//! Exchanges weights, among those that the graph of one decoded token uses, in their own memory for rows of the original, quantized as llama.cpp's quantizer does it
//! (`llama_tensor_quantize_impl` in its `llama-quant.cpp`), on all cores.

use std::io::Read as _;
use std::sync::{Mutex, Once};

use bytemuck::cast_slice;
use kl_formats::{GgmlType, Mixture};
use rayon::prelude::*;

use super::LlamaCppModel;
use super::ggml::ModelTensor;
use super::hidden_states::Use;
use super::stored_rows::StoredRows;
use super::weights::{bytes_of, quantize, quantized, squares, to_f32, words_for};
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
    n_columns: usize,
    /// Rows of an expert.
    n_rows: usize,
    n_experts: usize,
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

    /// Bytes of a row at a type of whose blocks it is made.
    fn row_bytes(&self, kind: GgmlType) -> usize {
        kind.bytes(self.n_columns as u64).unwrap_or_default() as usize
    }

    /// The importances of the columns of an expert.
    fn of_expert<'i>(&self, importances: Option<&'i [f32]>, expert: usize) -> Option<&'i [f32]> {
        let start = expert * self.n_columns;
        importances.map(|values| &values[start..start + self.n_columns])
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
    /// The weights that can be exchanged, in the order of the file.
    pub(super) fn weights(&self) -> Result<&[Weight], EngineError> {
        if !self.facts.options.is_exchangeable {
            return Err(self.fault("was not loaded to exchange its weights"));
        }
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        let architecture = self.header.architecture().unwrap_or_default();
        let used = &self.probe()?.used;
        let mut weights = Vec::new();
        for tensor in &self.header.tensors {
            let (name, kind) = (&tensor.name, GgmlType::of(tensor.type_id));
            let is_changed = |used: &&Use| {
                changes(architecture, name, &tensor.shape)
                    && n_dims(&tensor.shape) <= 3
                    && !used.is_unusual
                    && kind.is_none_or(|kind| !PUBLISHED.contains(&kind.name))
            };
            let Some(used) = used.get(name).filter(is_changed) else {
                continue;
            };
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
            let dimension = |i: usize| tensor.shape.get(i).map_or(1, |&n| n as usize);
            weights.push(Weight {
                tensor: tensor.clone(),
                kind,
                n_columns: dimension(0),
                n_rows: dimension(1),
                n_experts: dimension(2),
                places: used.places.clone(),
                contents: Mutex::new(Some(Contents {
                    kind,
                    imatrix: None,
                })),
            });
        }
        Ok(self.weights.get_or_init(|| weights))
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

    /// Returns the rows of the original at a type, in memory that is aligned as ggml's blocks must be.
    ///
    /// # Errors
    /// A file that cannot be read any more, or weights that are not finite.
    fn quantize(
        &self,
        weight: &Weight,
        kind: GgmlType,
        importances: Option<&[f32]>,
    ) -> Result<Vec<u64>, EngineError> {
        let fault = |what| self.not_exchanged(weight.name(), what);
        let unreadable = |error| fault(format!("cannot be read: {error}"));
        let (n_columns, n_rows) = (weight.n_columns, weight.n_rows);
        let (own_row, row) = (weight.row_bytes(weight.kind), weight.row_bytes(kind));
        let mut words = words_for(row * n_rows * weight.n_experts);
        let bytes = bytes_of(&mut words, row * n_rows * weight.n_experts);
        let mut file = self.header.open(&weight.tensor)?;
        if kind == weight.kind {
            file.read_exact(bytes).map_err(unreadable)?;
            return Ok(words);
        }
        let mut originals = words_for(own_row * n_rows);
        let originals = bytes_of(&mut originals, own_row * n_rows);
        let rows_of_piece = (PIECE_ELEMENTS / n_columns).max(1);
        for (expert, quantized) in bytes.chunks_mut(row * n_rows).enumerate() {
            file.read_exact(originals).map_err(unreadable)?;
            let importances = weight.of_expert(importances, expert);
            let pieces = originals.par_chunks(own_row * rows_of_piece);
            let pieces = pieces.zip(quantized.par_chunks_mut(row * rows_of_piece));
            let quantize_piece =
                |weights: &mut Vec<f32>, (original, quantized): (&[u8], &mut _)| {
                    weights.resize(original.len() / own_row * n_columns, 0.0);
                    to_f32(weight.kind, original, weights);
                    quantize(kind, n_columns, weights, importances, quantized)
                };
            let are_finite = pieces.map_init(Vec::new, quantize_piece);
            if !are_finite.all(|is_finite| is_finite) {
                return Err(fault(not_finite(kind)));
            }
        }
        Ok(words)
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
        let rows = StoredRows::of(&self.header, &weight.tensor);
        let rows = rows.ok_or_else(|| fault("has no rows".to_owned()))?;
        let sample = rows.sample(n_rows).into_iter();
        let originals = sample.map(|index| Ok((index, rows.weights(index)?)));
        let originals: Vec<_> = originals.collect::<Result<_, EngineError>>()?;
        let sum = |kind: Option<GgmlType>| -> Option<f64> {
            let rows = originals.par_iter().map(|(index, weights)| {
                let importances = weight.of_expert(importances, index / weight.n_rows);
                let back = kind.map(|kind| quantized(kind, weights, importances));
                let is_finite = !matches!(back, Some(None));
                is_finite.then(|| squares(weights, back.flatten().as_deref(), importances))
            });
            // Added in one order, so that the same errors are the same numbers.
            let rows: Vec<f64> = rows.collect::<Option<_>>()?;
            Some(rows.iter().sum())
        };
        let weights = sum(None).unwrap_or_default();
        let error = |&kind| match sum(Some(kind)) {
            None => Err(fault(not_finite(kind))),
            Some(0.0) => Ok(0.0),
            Some(error) => Ok(error / weights),
        };
        kinds.iter().map(error).collect()
    }
}

fn not_finite(kind: GgmlType) -> String {
    format!(
        "it has weights that are not finite, or not as {kind}: llama.cpp's quantizer would refuse it too"
    )
}
