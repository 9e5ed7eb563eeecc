//! Finds the weights that can be exchanged, in the graph of one decoded token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kl_formats::GgmlType;
use llama_cpp_sys_2 as sys;

use super::LlamaCppModel;
use super::context::Watch;
use super::node::{ModelTensor, Node};
use crate::engine::EngineError;
use crate::engine::gguf;
use crate::engine::quantizer_rules::{changes, is_original};
use crate::lock::locked;

/// Quantized types in which models are published: a tensor of one stays as it is, and the others may be
/// an original's.
const PUBLISHED: [&str; 4] = ["mxfp4", "nvfp4", "tq1_0", "tq2_0"];

/// A weight of a loaded model that can be exchanged.
#[derive(Debug)]
pub(super) struct Weight {
    /// Its description in the file.
    pub(super) tensor: gguf::Tensor,
    /// Its type in the file.
    pub(super) kind: GgmlType,
    /// Where it lies: once, unless several devices need it.
    pub(super) places: Vec<ModelTensor>,
}

impl Weight {
    pub(super) fn name(&self) -> &str {
        &self.tensor.name
    }
}

/// The weights that a graph uses, by their names.
#[derive(Default)]
struct UsedWeights(HashMap<String, Use>);

/// How a graph uses a weight.
#[derive(Default)]
struct Use {
    places: Vec<ModelTensor>,
    /// True if a device computes with a copy that the graph makes.
    is_copied: bool,
    /// True if an operation uses it for which ggml may lack kernels for quantized weights.
    is_unusual: bool,
}

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
            match weight {
                Some(place) if !found.places.contains(&place) => found.places.push(place),
                Some(_) => {}
                None => found.is_copied = true,
            }
        }
        false
    }

    fn computed(&mut self, _node: Node<'_>) -> bool {
        true
    }
}

impl LlamaCppModel<'_> {
    /// The weights that can be exchanged, in the order of the file. The first call finds them by
    /// decoding one token.
    pub(super) fn weights(&self) -> Result<&[Weight], EngineError> {
        if !self.facts.options.is_exchangeable {
            let what = "was not loaded to exchange its weights";
            return Err(EngineError::model(&self.facts.path, what));
        }
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        let watch = Arc::new(Mutex::new(UsedWeights::default()));
        let failed = |reason: String| {
            let what = format!("llama.cpp cannot decode a token: {reason}");
            EngineError::model(&self.facts.path, what)
        };
        self.show_one_token(watch.clone(), failed)?;
        let UsedWeights(mut used) = std::mem::take(&mut *locked(&watch));
        let mut weights = Vec::new();
        for tensor in &self.header.tensors {
            let architecture = self.header.architecture().unwrap_or_default();
            if let Some(used) = used.remove(&tensor.name)
                && changes(architecture, &tensor.name, &tensor.shape)
                && !used.is_unusual
                && GgmlType::of(tensor.type_id).is_none_or(|it| !PUBLISHED.contains(&it.name))
            {
                weights.push(self.weight(tensor, used)?);
            }
        }
        Ok(self.weights.get_or_init(|| weights))
    }

    fn weight(&self, tensor: &gguf::Tensor, used: Use) -> Result<Weight, EngineError> {
        let kind = GgmlType::of(tensor.type_id);
        let Some(kind) = kind.filter(|&kind| is_original(kind)) else {
            let name = &tensor.name;
            let kind = kind.map_or_else(|| tensor.type_id.to_string(), |kind| kind.to_string());
            let what = format!(
                "{name} is quantized already ({kind}): give the original, in f16, bf16, f32 or q8_0"
            );
            return Err(EngineError::model(&self.facts.path, what));
        };
        let is_as_in_file = |place: &ModelTensor| place.type_id() == kind.id;
        if used.is_copied || !used.places.iter().all(is_as_in_file) {
            return Err(self.not_exchanged(
                &tensor.name,
                "its device computes with a copy of it: use another -ngl, -ot or -dev",
            ));
        }
        Ok(Weight {
            tensor: tensor.clone(),
            kind,
            places: used.places,
        })
    }

    /// The error for a weight that cannot be exchanged.
    pub(super) fn not_exchanged(&self, name: &str, what: &str) -> EngineError {
        let what = format!("{name} cannot be exchanged: {what}");
        EngineError::model(&self.facts.path, what)
    }
}
