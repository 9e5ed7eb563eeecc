//! From a map of sensitivity to the best mixture of types: pure functions, no model and no file.
//!
//! [`Sensitivities`] is what a map says of each tensor at each type, and [`solve()`] chooses:
//!
//! 1. `combination`: the mean of each cell, and numbers made of several, with intervals;
//! 2. `costs`: the KLD of each tensor at each type;
//! 3. `additivity`: the KLD of a mixture from the sum of its tensors';
//! 4. `knapsack`: the cheapest choice of one item from each class;
//! 5. `selection`: by how much a choice makes its KLD too low;
//! 6. `solve`: the best mixtures;
//! 7. `file`: a recipe as llama.cpp's quantizer takes it.

mod additivity;
mod combination;
mod costs;
mod file;
mod knapsack;
mod selection;
mod sensitivities;
mod solve;

use kl_formats::{GgmlType, MapTensor, Mixture, Unmeasured};
use kl_stats::stats::Estimate;
use serde::Serialize;

pub use file::{flags, tensor_type_file};
pub use sensitivities::Sensitivities;
pub use solve::{frontier, improved, neighbours, solve, solve_holding, thinned};

/// A tensor at each type that it can have.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TensorCosts {
    /// Its name in the file.
    pub name: String,
    /// Its name without the layer and `.weight`: `attn_v`, `ffn_down_exps`, `output`.
    pub role: String,
    /// The number in `blk.N.`.
    pub layer: Option<u32>,
    /// Its parameters.
    pub n_params: u64,
    /// The costs by rising bytes; the original's own type is the last, and costs 0.
    pub costs: Vec<Cost>,
}

/// The cost of a tensor at a type.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cost {
    /// The type.
    #[serde(rename = "type")]
    pub kind: GgmlType,
    /// Its bytes in a file, with the padding after it.
    pub bytes: u64,
    /// The mean KLD of the model with this tensor alone at this type, in nats.
    pub kld: Estimate,
    /// False if it follows from another type's, or from a group's, by the weight errors.
    pub is_measured: bool,
}

/// The whole model at one type, against the sum of its tensors.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Additivity {
    /// The type of all tensors that can have it.
    #[serde(rename = "type")]
    pub kind: GgmlType,
    /// The mean KLD with all tensors exchanged, in nats.
    pub together: Estimate,
    /// The sum of the mean KLDs of each alone, on the same windows: where a tensor was measured over
    /// fewer of them, in proportion to how hard those are for the whole model.
    pub sum: f64,
}

/// A cell that was predicted, and then measured.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CheckedPrediction {
    /// The tensor's name.
    pub tensor: String,
    /// The type that it was given.
    #[serde(rename = "type")]
    pub kind: GgmlType,
    /// The KLD that was predicted, in nats.
    pub predicted: f64,
    /// The mean KLD that was measured then, in nats.
    pub measured: Estimate,
}

/// The target of a recipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// A file of at most this number of bytes.
    Size(u64),
    /// At most this number of bits per parameter, of all tensors together.
    Bpw(f64),
    /// The smallest file with a predicted KLD of at most this, in nats.
    Kld(f64),
}

/// A mixture, its size, and its KLD.
#[derive(Serialize, Clone, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Recipe {
    /// Bytes of the file that llama-quantize writes.
    pub size_bytes: u64,
    /// Its bits per parameter, of all tensors.
    pub bpw: f64,
    /// The mean KLD from the original.
    pub kld: RecipeKld,
    /// The most by which another mixture of this size could lower the predicted KLD, in nats; 0 if none can.
    pub gap: f64,
    /// The tensors that the quantizer may change, in the order of the model's file.
    pub tensors: Vec<RecipeTensor>,
    /// The tensors that the quantizer may change but that cannot be measured: each has the same type in every
    /// recipe.
    pub unmeasured: Vec<UnmeasuredTensor>,
    /// The factor by which the sum of its tensors' KLDs is too low, because it was chosen by them.
    #[serde(skip)]
    pub selection: f64,
}

/// The mean KLD of a recipe from the original, in nats.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecipeKld {
    /// The KLD that follows from the map.
    pub predicted: Estimate,
    /// The KLD on another text, with its clustered interval; null if it was not measured.
    pub measured: Option<Estimate>,
}

/// A tensor of a recipe.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecipeTensor {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: GgmlType,
    /// Its bytes in the file, with the padding after it.
    pub bytes: u64,
    /// The predicted mean KLD of the model with this tensor alone at its type, in nats.
    pub kld: f64,
    /// Its name without the layer and `.weight`: `attn_v`, `ffn_down_exps`, `output`.
    pub role: String,
    /// Its parameters.
    pub n_params: u64,
}

impl Recipe {
    /// A type for each tensor that can be measured.
    pub fn mixture(&self) -> Mixture {
        let tensors = self.tensors.iter();
        tensors
            .map(|tensor| (tensor.name.clone(), tensor.kind))
            .collect()
    }

    /// A type for each tensor that the quantizer may change.
    pub fn mixture_of_file(&self) -> Mixture {
        let mut mixture = self.mixture();
        let unmeasured = self.unmeasured.iter();
        mixture.extend(unmeasured.map(|tensor| (tensor.name.clone(), tensor.kind)));
        mixture
    }
}

/// A tensor that the quantizer may change but that cannot be measured.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnmeasuredTensor {
    /// Its name.
    pub name: String,
    /// Its type in every recipe: `q8_0` if decoding does not use it, else the original's.
    #[serde(rename = "type")]
    pub kind: GgmlType,
    /// Its bytes in the file, with the padding after it.
    pub bytes: u64,
    /// Its parameters.
    pub n_params: u64,
    /// The reason why it cannot be measured.
    pub why: Unmeasured,
}

impl UnmeasuredTensor {
    /// The number of `q8_0` in a GGUF: it changes next to nothing in what such a tensor computes, and no mixture
    /// that could be measured would be better.
    const Q8_0: u32 = 8;

    fn new(tensor: &MapTensor, why: Unmeasured, pad: impl Fn(u64) -> u64) -> Self {
        let smaller = GgmlType::of(Self::Q8_0).filter(|kind| {
            let is_smaller = kind.bits() < tensor.kind.bits();
            why == Unmeasured::Unused && tensor.has_rows_of(*kind) && is_smaller
        });
        let mut this = Self {
            name: tensor.name.clone(),
            kind: smaller.unwrap_or(tensor.kind),
            bytes: 0,
            n_params: tensor.n_params(),
            why,
        };
        this.bytes = pad(this.data_bytes());
        this
    }

    /// Bytes of its data, without padding.
    fn data_bytes(&self) -> u64 {
        self.kind.bytes(self.n_params).unwrap_or(0)
    }
}

/// A mixture that no other one of its size, or of fewer bytes, beats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FrontierPoint {
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Bits per parameter.
    pub bpw: f64,
    /// The predicted mean KLD, in nats.
    pub kld: f64,
}

/// The type itself if it is among `types`, or the nearest in bits; the first of equals.
pub fn nearest_type<'t>(
    kind: GgmlType,
    types: impl Iterator<Item = &'t GgmlType>,
) -> Option<GgmlType> {
    types.min_by_key(|other| nearness(**other, kind)).copied()
}

/// The order of types by their nearness to another: that itself first, then by the difference in bits.
pub fn nearness(kind: GgmlType, other: GgmlType) -> (bool, u64) {
    // The bit patterns of positive numbers are in the order of the numbers.
    (kind != other, (kind.bits() - other.bits()).abs().to_bits())
}

/// A tensor's role and the number of its layer: `attn_v` and 3 of `blk.3.attn_v.weight`, `output` and
/// none of `output.weight`.
pub fn role_and_layer(name: &str) -> (String, Option<u32>) {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let split = name.split_once("blk.").and_then(|(before, after)| {
        let (number, role) = after.split_once('.')?;
        Some((format!("{before}{role}"), number.parse().ok()?))
    });
    match split {
        Some((role, layer)) => (role, Some(layer)),
        None => (name.to_owned(), None),
    }
}

#[cfg(test)]
mod tests;
