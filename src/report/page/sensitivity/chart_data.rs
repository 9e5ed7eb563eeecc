//! The data of the charts.

use std::collections::BTreeMap;

use kl_formats::GgmlType;
use serde::Serialize;

use crate::report::number::finite;
use crate::report::page::data::on_log_scale;
use crate::report::sensitivity::{Sensitivity, TensorSensitivity};

/// The data of all charts; `heat.js`, `charts.js` and `choose.js` read it.
#[derive(Serialize, Debug)]
pub(super) struct ChartData<'s> {
    /// The types of some tensor besides the original's own, by falling bits.
    types: Vec<&'static str>,
    /// The index of the type that is shown at first.
    shown: usize,
    roles: Vec<&'s str>,
    layers: Vec<Layer>,
    tensors: Vec<Tensor<'s>>,
}

/// The tensors of a layer, at the type at which tensors are compared.
#[derive(Serialize, Debug)]
struct Layer {
    layer: u32,
    kld: Option<f64>,
    lo: Option<f64>,
    hi: Option<f64>,
    relative: Option<f64>,
}

#[derive(Serialize, Debug)]
struct Tensor<'s> {
    name: &'s str,
    role: &'s str,
    layer: Option<u32>,
    /// For each of the types; `None` where the tensor cannot have it.
    costs: Vec<Option<TensorCost>>,
}

/// A KLD, the ends of its interval, 1 if it was measured, and the bytes that the type saves.
#[derive(Serialize, Debug)]
struct TensorCost(Option<f64>, Option<f64>, Option<f64>, u8, u64);

impl<'s> ChartData<'s> {
    pub fn of(of: &'s Sensitivity) -> Self {
        let kinds = kinds(of);
        let shown = kinds.iter().position(|kind| *kind == of.measured_type);
        let layers = of.by_layer.iter().map(|layer| Layer {
            layer: layer.layer,
            kld: finite(layer.part.kld.value),
            lo: layer.part.kld.lo.and_then(finite),
            hi: layer.part.kld.hi.and_then(finite),
            relative: layer.part.relative_cost.and_then(finite),
        });
        Self {
            types: kinds.iter().map(|kind| kind.name).collect(),
            shown: shown.unwrap_or(0),
            roles: of.by_role.iter().map(|role| role.role.as_str()).collect(),
            layers: layers.collect(),
            tensors: of
                .tensors
                .iter()
                .map(|tensor| Tensor::of(tensor, &kinds))
                .collect(),
        }
    }

    /// The types' names.
    pub fn types(&self) -> &[&'static str] {
        &self.types
    }

    /// The width in rem beyond which a heat map's cells would be too wide.
    pub fn heat_width(&self) -> usize {
        13 + 4 * self.layers.len().max(2)
    }

    /// Returns true if there is a tensor to draw.
    pub fn has_cells(&self) -> bool {
        let mut costs = self.tensors.iter().flat_map(|tensor| &tensor.costs);
        costs.any(|cost| cost.is_some())
    }
}

impl<'s> Tensor<'s> {
    fn of(TensorSensitivity { tensor, .. }: &'s TensorSensitivity, kinds: &[GgmlType]) -> Self {
        let (original, costs) = match tensor.costs.split_last() {
            Some((original, costs)) => (original.bytes, costs),
            None => (0, &[][..]),
        };
        let cost = |kind: &GgmlType| {
            let cost = costs.iter().find(|cost| cost.kind == *kind)?;
            Some(TensorCost(
                finite(cost.kld.value),
                on_log_scale(cost.kld.lo),
                on_log_scale(cost.kld.hi),
                u8::from(cost.is_measured),
                original.saturating_sub(cost.bytes),
            ))
        };
        Self {
            name: &tensor.name,
            role: &tensor.role,
            layer: tensor.layer,
            costs: kinds.iter().map(cost).collect(),
        }
    }
}

/// The types of some tensor besides the original's own, by falling bits.
fn kinds(of: &Sensitivity) -> Vec<GgmlType> {
    let tensors = of
        .tensors
        .iter()
        .filter_map(|of| of.tensor.costs.split_last());
    let costs = tensors.flat_map(|(_, costs)| costs);
    let kinds: BTreeMap<u32, GgmlType> = costs.map(|cost| (cost.kind.id, cost.kind)).collect();
    let mut kinds: Vec<GgmlType> = kinds.into_values().collect();
    kinds.sort_by(|a, b| b.bits().total_cmp(&a.bits()));
    kinds
}
