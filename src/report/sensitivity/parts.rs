//! Tensors summed by role and by layer.

use std::collections::BTreeMap;

use serde::Serialize;

use super::TensorSensitivity;
use crate::recipe::{Cost, TensorCosts};
use crate::report::number::finite;
use crate::stats::Estimate;

/// Some tensors, each alone at the type at which tensors are compared.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Part {
    /// Tensors.
    pub n_tensors: u64,
    /// Their parameters.
    pub n_params: u64,
    /// The bytes that the type saves, against the original.
    pub bytes_saved: u64,
    /// The sum of their KLDs, in nats. Its ends are the sums of the tensors' ends: all were measured on
    /// the same windows, so their errors go together.
    pub kld: Estimate,
    /// Their share of the KLD of the whole.
    pub share: Option<f64>,
    /// Their KLD for each byte that the type saves, over that of the whole: 1 is the average. A recipe
    /// spends bytes where it is large. Null where no byte is saved.
    pub relative_cost: Option<f64>,
}

/// The tensors of a role.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RoleSensitivity {
    /// The tensors' name without the layer and `.weight`.
    pub role: String,
    #[serde(flatten)]
    pub part: Part,
}

/// The tensors of a layer.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LayerSensitivity {
    /// The layer's number, from 0.
    pub layer: u32,
    #[serde(flatten)]
    pub part: Part,
}

impl Default for Part {
    /// No tensor.
    fn default() -> Self {
        Self {
            n_tensors: 0,
            n_params: 0,
            bytes_saved: 0,
            kld: Estimate::within(0.0, 0.0, 0.0),
            share: None,
            relative_cost: None,
        }
    }
}

impl Part {
    /// A tensor by itself.
    pub fn of_tensor(tensor: &TensorCosts, at: &Cost) -> Self {
        let mut part = Self::default();
        part.add(tensor, at);
        part
    }

    /// Adds a tensor.
    pub fn add(&mut self, tensor: &TensorCosts, at: &Cost) {
        let original = tensor.costs.last().map_or(at.bytes, |cost| cost.bytes);
        let sum = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
        self.n_tensors += 1;
        self.n_params = self.n_params.saturating_add(tensor.n_params);
        let saved = original.saturating_sub(at.bytes);
        self.bytes_saved = self.bytes_saved.saturating_add(saved);
        self.kld = Estimate {
            value: self.kld.value + at.kld.value,
            lo: sum(self.kld.lo, at.kld.lo),
            hi: sum(self.kld.hi, at.kld.hi),
        };
    }

    /// The same tensors, as a part of `whole`.
    pub fn of(&self, whole: &Self) -> Self {
        let per_byte = |part: &Self| part.kld.value / part.bytes_saved as f64;
        Self {
            share: finite(self.kld.value / whole.kld.value),
            relative_cost: finite(per_byte(self) / per_byte(whole)),
            ..self.clone()
        }
    }
}

/// The tensors of each role, by falling relative cost.
pub fn by_role(tensors: &[TensorSensitivity], whole: &Part) -> Vec<RoleSensitivity> {
    let roles = sums(tensors, |tensor| Some(tensor.role.clone()));
    let roles = roles.into_iter().map(|(role, part)| RoleSensitivity {
        role,
        part: part.of(whole),
    });
    let mut roles: Vec<RoleSensitivity> = roles.collect();
    let cost = |of: &RoleSensitivity| of.part.relative_cost.unwrap_or(f64::NEG_INFINITY);
    roles.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
    roles
}

/// The tensors of each layer, from the first layer on.
pub fn by_layer(tensors: &[TensorSensitivity], whole: &Part) -> Vec<LayerSensitivity> {
    let layers = sums(tensors, |tensor| tensor.layer).into_iter();
    let layers = layers.map(|(layer, part)| LayerSensitivity {
        layer,
        part: part.of(whole),
    });
    layers.collect()
}

/// The sums of the tensors with the same key; those without one are left out.
fn sums<K: Ord>(
    tensors: &[TensorSensitivity],
    key: impl Fn(&TensorCosts) -> Option<K>,
) -> BTreeMap<K, Part> {
    let mut sums: BTreeMap<K, Part> = BTreeMap::new();
    for of in tensors {
        if let Some(key) = key(&of.tensor) {
            sums.entry(key).or_default().add(&of.tensor, &of.at);
        }
    }
    sums
}
