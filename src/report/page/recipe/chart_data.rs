//! The data of the charts.

use std::collections::{BTreeMap, BTreeSet};

use kl_formats::GgmlType;
use serde::Serialize;

use super::ReportedQuant;
use crate::recipe::role_and_layer;
use crate::report::number::{SizeUnit, finite};
use crate::report::page::data::on_log_scale;
use crate::report::recipe::RecipeReport;
use crate::stats::Estimate;

/// The data of all charts; `charts.js` and `key.js` read it.
#[derive(Serialize, Debug)]
pub(super) struct ChartData<'r> {
    /// The unit of sizes.
    unit: &'static str,
    frontier: Vec<Size>,
    points: Vec<Point<'r>>,
    /// The recipe's types, by rising bits.
    types: Vec<&'static str>,
    /// Those of the largest KLD at first.
    roles: Vec<&'r str>,
    layers: Vec<u32>,
    tensors: Vec<Tensor<'r>>,
}

/// A mixture that no other one of its size beats.
#[derive(Serialize, Debug)]
struct Size {
    size: f64,
    bpw: f64,
    kld: Option<f64>,
}

#[derive(Serialize, Debug)]
struct Point<'r> {
    label: &'r str,
    /// `predicted` and `measured` of the recipe, `quant` of another model.
    kind: &'static str,
    size: f64,
    kld: Option<f64>,
    lo: Option<f64>,
    hi: Option<f64>,
}

#[derive(Serialize, Debug)]
struct Tensor<'r> {
    name: &'r str,
    role: &'r str,
    layer: Option<u32>,
    /// The index of its type.
    kind: usize,
    kld: Option<f64>,
    bytes: u64,
}

impl<'r> ChartData<'r> {
    pub fn of(of: &'r RecipeReport, quants: &'r [ReportedQuant], unit: SizeUnit) -> Self {
        let size = |bytes: u64| bytes as f64 / unit.bytes;
        let frontier = of.frontier.iter().map(|point| Size {
            size: size(point.size_bytes),
            bpw: point.bpw,
            kld: on_log_scale(Some(point.kld)),
        });
        let point = |label, kind, bytes, kld: &Estimate| Point {
            label,
            kind,
            size: size(bytes),
            kld: on_log_scale(Some(kld.value)),
            lo: on_log_scale(kld.lo),
            hi: on_log_scale(kld.hi),
        };
        let quant = |of: &'r ReportedQuant| point(&of.label, "quant", of.size_bytes, &of.kld);
        let mut points: Vec<Point> = quants.iter().map(quant).collect();
        if let Some(like) = of.check.as_ref().and_then(|check| check.like.as_ref()) {
            points.push(point(&like.path, "quant", like.size_bytes, &like.kld));
        }
        points.push(point(
            "recipe",
            "predicted",
            of.size_bytes,
            &of.kld.predicted,
        ));
        if let Some(measured) = &of.kld.measured {
            points.push(point("recipe", "measured", of.size_bytes, measured));
        }
        let mut kinds: Vec<GgmlType> = of.tensors.iter().map(|tensor| tensor.kind).collect();
        kinds.sort_by(|a, b| a.bits().total_cmp(&b.bits()).then(a.cmp(b)));
        kinds.dedup();
        let tensors = of.tensors.iter().map(|tensor| Tensor {
            name: &tensor.name,
            role: &tensor.role,
            layer: role_and_layer(&tensor.name).1,
            kind: kinds
                .iter()
                .position(|kind| *kind == tensor.kind)
                .unwrap_or(0),
            kld: finite(tensor.kld),
            bytes: tensor.bytes,
        });
        let tensors: Vec<Tensor> = tensors.collect();
        let layers: BTreeSet<u32> = tensors.iter().filter_map(|tensor| tensor.layer).collect();
        Self {
            unit: unit.symbol,
            frontier: frontier.collect(),
            points,
            types: kinds.iter().map(|kind| kind.name).collect(),
            roles: roles(&tensors),
            layers: layers.into_iter().collect(),
            tensors,
        }
    }

    /// The names of the recipe's types.
    pub fn types(&self) -> &[&'static str] {
        &self.types
    }

    /// The width in rem beyond which a grid's cells would be too wide.
    pub fn grid_width(&self) -> usize {
        13 + 4 * self.layers.len().max(2)
    }

    /// Returns true if a logarithmic scale has a size's KLD.
    pub fn has_frontier(&self) -> bool {
        self.frontier.iter().any(|size| size.kld.is_some())
    }
}

/// The roles, by falling KLD of their tensors.
fn roles<'r>(tensors: &[Tensor<'r>]) -> Vec<&'r str> {
    let mut klds: BTreeMap<&str, f64> = BTreeMap::new();
    for tensor in tensors {
        *klds.entry(tensor.role).or_default() += tensor.kld.unwrap_or(0.0);
    }
    let mut roles: Vec<(&str, f64)> = klds.into_iter().collect();
    roles.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    roles.into_iter().map(|(role, _)| role).collect()
}
