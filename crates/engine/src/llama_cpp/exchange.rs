//! Exchanges weights in their own memory: each that the graph of one decoded token uses can become rows of
//! the original, quantized on all cores as llama.cpp's quantizer does it (`llama_tensor_quantize_impl` in
//! its `llama-quant.cpp`).

use std::sync::Mutex;

use kl_formats::{GgmlType, Mixture, Unmeasured};
use rayon::prelude::*;

use super::LlamaCppModel;
use super::ggml::ModelTensor;
use super::stored_rows::StoredRows;
use super::weights::{Blocks, quantize, quantized, squares};
use crate::gguf::Tensor;
use crate::model_files::IN_USE;
use crate::quantizer::{changes, is_original, refusal};
use crate::{EngineError, Imatrix, ShouldStop, Weights};
use kl_system::locked;

/// Quantized types in which models are published: a tensor of such a type stays as it is. Other types may
/// be an original's.
const PUBLISHED: [&str; 4] = ["mxfp4", "nvfp4", "tq1_0", "tq2_0"];

/// Elements that a core quantizes at a time, where a row has fewer: ggml takes a lock for each piece.
const PIECE_ELEMENTS: usize = 1 << 16;

/// A weight of a loaded model that can be exchanged.
#[derive(Debug)]
pub(super) struct Weight {
    /// Its description in the file.
    tensor: Tensor,
    /// Where it lies: once, unless several devices need it.
    places: Vec<ModelTensor>,
    /// The contents of that memory; `None` if they are unknown.
    contents: Mutex<Option<Contents>>,
}

/// The contents of a weight's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contents {
    kind: GgmlType,
    /// SHA-256 (hex) of the importance matrix that it was quantized with.
    imatrix: Option<String>,
}

impl LlamaCppModel<'_> {
    /// The weights that can be exchanged, in the order of the file.
    fn exchangeable_weights(&self) -> Result<&[Weight], EngineError> {
        if let Some(weights) = self.exchangeable.get() {
            return Ok(weights);
        }
        let architecture = self.header.architecture().unwrap_or_default();
        let uses = &self.probe()?.used;
        let mut weights = Vec::new();
        for tensor in &self.header.tensors {
            let (name, kind) = (&tensor.name, tensor.kind);
            let can_change =
                changes(architecture, name, &tensor.shape) && !PUBLISHED.contains(&kind.name);
            let used = uses.get(name).filter(|used| can_change && !used.is_unusual);
            let Some(used) = used else {
                continue;
            };
            if !is_original(kind) {
                return Err(self.fault(format!(
                    "{name} is quantized already ({kind}): give the original, in f16, bf16, f32 or q8_0"
                )));
            }
            let is_as_in_file = |place: &ModelTensor| place.type_id() == kind.id;
            if used.is_copied || !used.places.iter().all(is_as_in_file) {
                let what = "its device computes with a copy of it: use another -ngl, -ot or -dev";
                return Err(self.not_exchanged(name, what));
            }
            weights.push(Weight {
                tensor: tensor.clone(),
                places: used.places.clone(),
                contents: Mutex::new(Some(Contents {
                    kind,
                    imatrix: None,
                })),
            });
        }
        Ok(self.exchangeable.get_or_init(|| weights))
    }

    /// The error for a weight that cannot be exchanged.
    fn not_exchanged(&self, name: &str, what: impl std::fmt::Display) -> EngineError {
        self.fault(format!("{name} cannot be exchanged: {what}"))
    }

    fn exchangeable_weight(&self, name: &str) -> Result<&Weight, EngineError> {
        let mut weights = self.exchangeable_weights()?.iter();
        let found = weights.find(|weight| weight.tensor.name == name);
        let what = "decoding does not use it, or llama.cpp does not quantize it";
        found.ok_or_else(|| self.not_exchanged(name, what))
    }

    /// The rows of a weight, as they lie in the file.
    fn rows<'m>(&'m self, weight: &'m Weight) -> Result<StoredRows<'m>, EngineError> {
        let rows = StoredRows::new(&self.header, &weight.tensor);
        rows.ok_or_else(|| self.not_exchanged(&weight.tensor.name, "it has no rows"))
    }

    /// Refuses a type that a weight cannot have, and returns the importances to quantize it with.
    fn check<'i>(
        &self,
        weight: &Weight,
        kind: GgmlType,
        imatrix: Option<&'i Imatrix>,
    ) -> Result<Option<&'i [f32]>, EngineError> {
        let (name, shape) = (&weight.tensor.name, &weight.tensor.shape);
        let original = weight.tensor.kind;
        let values = imatrix.map(|imatrix| imatrix.values_for(name, shape));
        let importances = values.transpose()?.flatten();
        if kind == original {
            return Ok(importances);
        }
        if let Some(what) = refusal(name, shape, kind, importances.is_some()) {
            return Err(self.not_exchanged(name, what));
        }
        let mut places = weight.places.iter();
        let fits = places.all(|place| place.has_room_for(kind, original));
        if kind.bits() > original.bits() || !fits {
            let what = format!("{kind} is larger than the original's {original}: use another type");
            return Err(self.not_exchanged(name, what));
        }
        Ok(importances)
    }

    /// Gives a weight the contents that are wanted, unless it has them. No context of the model may exist:
    /// its graphs hold the types that the weights had.
    fn fill(
        &self,
        weight: &Weight,
        wanted: Contents,
        importances: Option<&[f32]>,
        should_stop: ShouldStop<'_>,
    ) -> Result<(), EngineError> {
        let mut contents = locked(&weight.contents);
        if contents.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let blocks = self.quantize(weight, wanted.kind, importances, should_stop)?;
        self.files.check_same(IN_USE)?;
        *contents = None;
        let _turn = locked(self.turn());
        for place in &weight.places {
            // SAFETY: `exchange` keeps contexts away, and the servers' other models wait for their turn.
            // `check` has found room.
            let replaced = unsafe { place.replace(wanted.kind, &blocks) };
            replaced.map_err(|what| self.not_exchanged(&weight.tensor.name, what))?;
        }
        *contents = Some(wanted);
        Ok(())
    }

    /// Returns the rows of the original at a type.
    ///
    /// # Errors
    /// A file that cannot be read any more, weights that are not finite, or that it should stop.
    fn quantize(
        &self,
        weight: &Weight,
        kind: GgmlType,
        importances: Option<&[f32]>,
        should_stop: ShouldStop<'_>,
    ) -> Result<Blocks, EngineError> {
        let rows = self.rows(weight)?;
        if kind == weight.tensor.kind {
            return rows.read(0..rows.n_rows);
        }
        let n_at_once = (PIECE_ELEMENTS / rows.n_columns).max(1);
        let row_bytes = rows.row_bytes(kind);
        let mut blocks = Blocks::zeros(row_bytes * rows.n_rows);
        let experts = blocks.chunks_mut(row_bytes * rows.n_rows_of_expert);
        for (expert, quantized) in experts.enumerate() {
            let start = expert * rows.n_rows_of_expert;
            let importances = rows.importances(importances, start);
            let pieces = quantized.par_chunks_mut(row_bytes * n_at_once).enumerate();
            pieces.try_for_each(|(piece, quantized)| {
                if should_stop() {
                    return Err(EngineError::Interrupted);
                }
                let first = start + piece * n_at_once;
                let weights = rows.weights(first..first + quantized.len() / row_bytes)?;
                if quantize(kind, rows.n_columns, &weights, importances, quantized) {
                    return Ok(());
                }
                Err(self.not_exchanged(&weight.tensor.name, not_finite(kind)))
            })?;
        }
        Ok(blocks)
    }
}

impl Weights for LlamaCppModel<'_> {
    fn exchangeable(&self) -> Result<Vec<String>, EngineError> {
        let weights = self.exchangeable_weights()?.iter();
        Ok(weights.map(|weight| weight.tensor.name.clone()).collect())
    }

    fn unmeasured(&self) -> Result<Vec<(String, Unmeasured)>, EngineError> {
        let architecture = self.header.architecture().unwrap_or_default();
        let used = &self.probe()?.used;
        let why = |tensor: &Tensor| match used.get(&tensor.name) {
            None => Some(Unmeasured::Unused),
            Some(used) => used.is_unusual.then_some(Unmeasured::OtherOperation),
        };
        let tensors = self.header.tensors.iter();
        let changing = tensors.filter(|tensor| changes(architecture, &tensor.name, &tensor.shape));
        let unmeasured = changing.filter_map(|tensor| Some((tensor.name.clone(), why(tensor)?)));
        Ok(unmeasured.collect())
    }

    fn exchange(
        &self,
        mixture: &Mixture,
        imatrix: Option<&Imatrix>,
        should_stop: ShouldStop<'_>,
    ) -> Result<(), EngineError> {
        for name in mixture.keys() {
            self.exchangeable_weight(name)?;
        }
        let checks = self.exchangeable_weights()?.iter().map(|weight| {
            let kind = *mixture
                .get(&weight.tensor.name)
                .unwrap_or(&weight.tensor.kind);
            let applicable = imatrix.filter(|_| kind != weight.tensor.kind);
            let importances = self.check(weight, kind, applicable)?;
            let used = importances.and(applicable);
            let imatrix = used.map(|imatrix| imatrix.identity.sha256.clone());
            Ok((weight, Contents { kind, imatrix }, importances))
        });
        let checked: Vec<_> = checks.collect::<Result<_, EngineError>>()?;
        // Held until the end, so that none is created meanwhile.
        let contexts = locked(&self.contexts);
        if contexts.n_alive > 0 {
            return Err(EngineError::has_decoder(&self.facts.path));
        }
        let mut all = checked.into_iter();
        all.try_for_each(|(weight, wanted, importances)| {
            self.fill(weight, wanted, importances, should_stop)
        })
    }

    fn errors(
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
        let rows = self.rows(weight)?;
        let read = rows.sample(n_rows).into_iter().map(|index| {
            let weights = rows.weights(index..index + 1)?;
            Ok((weights, rows.importances(importances, index)))
        });
        let sample: Vec<_> = read.collect::<Result<_, EngineError>>()?;
        self.files.check_same(IN_USE)?;
        let all: f64 = sample
            .iter()
            .map(|(weights, importances)| squares(weights, None, *importances))
            .sum();
        let error = |&kind: &GgmlType| {
            let row_errors = sample.par_iter().map(|(weights, importances)| {
                let back = quantized(kind, weights, *importances)?;
                Some(squares(weights, Some(&back), *importances))
            });
            let finite = row_errors.collect::<Option<Vec<f64>>>();
            let errors = finite.ok_or_else(|| self.not_exchanged(tensor, not_finite(kind)))?;
            // Added in one order, so that the same errors are the same numbers.
            let error: f64 = errors.iter().sum();
            Ok(if error == 0.0 { 0.0 } else { error / all })
        };
        kinds.iter().map(error).collect()
    }
}

fn not_finite(kind: GgmlType) -> String {
    format!(
        "it has weights that are not finite, or not as {kind}: llama.cpp's quantizer would refuse it too"
    )
}
