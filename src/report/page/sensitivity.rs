//! The page of a map of sensitivity.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kl_formats::GgmlType;
use minijinja::value::Serde;
use minijinja::{Error, Value, context};
use serde_json::json;

use super::{Page, on_log_scale};
use crate::report::number::{finite, short_count};
use crate::report::sensitivity::{Sensitivity, TensorSensitivity, times_predicted, times_sum};

/// The most tensors in each of the two short lists.
const MAX_LISTED: usize = 10;

/// The page of a map: a whole HTML document, which loads nothing else.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn html(of: &Sensitivity) -> Result<String, Error> {
    let types = types(of);
    let data = chart_data(of, &types);
    let ranked = of.by_relative_cost();
    let n = MAX_LISTED.min(ranked.len() / 2);
    let least = ranked.iter().rev().take(n).copied();
    let values = context! {
        kl_version => of.versions.kl_version,
        s => Value::from(Serde(of)),
        title => of.model.default_label(),
        sentences => of.sentences(),
        worst => rows(ranked.iter().take(n).copied()),
        least => rows(least),
        all => rows(of.tensors.iter()),
        by_layer_and_role => Value::from(Serde(by_layer_and_role(of))),
        n_others => of.at_other_types().count(),
        n_predicted => of.tensors.iter().filter(|tensor| !tensor.at.is_measured).count(),
        additivity_ratios => of.additivity.iter().map(times_sum).collect::<Vec<_>>(),
        check_ratios => of.checks.iter().map(times_predicted).collect::<Vec<_>>(),
        parameters => of.model.n_params.map(short_count),
        // Beyond this width in rem, a heat map's cells would be too wide.
        heat_width => 13 + 4 * of.by_layer.len().max(2),
        types => Value::from(Serde(&types)),
        has_cells => !types.is_empty(),
    };
    Page {
        template: include_str!("sensitivity/page.html"),
        scripts: &[
            include_str!("grid.js"),
            include_str!("sensitivity/heat.js"),
            include_str!("sensitivity/charts.js"),
            include_str!("page.js"),
            include_str!("sensitivity/choose.js"),
        ],
    }
    .render(values, &data)
}

/// Tensors as the template shows them.
fn rows<'t>(tensors: impl Iterator<Item = &'t TensorSensitivity>) -> Vec<Value> {
    let row = |of| Value::from(Serde(of));
    tensors.map(row).collect()
}

/// For each layer its number and the KLDs of its tensors, in the order of the roles.
fn by_layer_and_role(of: &Sensitivity) -> Vec<(u32, Vec<Option<f64>>)> {
    let layers = of.by_layer.iter().map(|layer| {
        let mut own = of
            .tensors
            .iter()
            .filter(|tensor| tensor.tensor.layer == Some(layer.layer));
        let own: Vec<&TensorSensitivity> = own.by_ref().collect();
        let roles = of.by_role.iter().map(|role| {
            let mut own = own.iter().filter(|tensor| tensor.tensor.role == role.role);
            own.next().map(|tensor| tensor.kld().value)
        });
        (layer.layer, roles.collect())
    });
    layers.collect()
}

/// The data of all charts, which `heat.js`, `charts.js` and `choose.js` read. `types` are those of some
/// tensor, of which a tensor has a cost at each that it can have.
fn chart_data(of: &Sensitivity, types: &[GgmlType]) -> serde_json::Value {
    let layers = of.by_layer.iter().map(|layer| {
        let (kld, relative) = (&layer.part.kld, layer.part.relative_cost);
        json!({
            "layer": layer.layer, "kld": kld.value, "lo": kld.lo, "hi": kld.hi, "relative": relative,
        })
    });
    let tensors = of.tensors.iter().map(|TensorSensitivity { tensor, .. }| {
        let (original, costs) = match tensor.costs.split_last() {
            Some((original, costs)) => (original.bytes, costs),
            None => (0, &[][..]),
        };
        // A KLD, the ends of its interval, 1 if it was measured, and the bytes that the type saves.
        let cost = |kind: &GgmlType| {
            let cost = costs.iter().find(|cost| cost.kind == *kind)?;
            let (kld, measured) = (&cost.kld, u8::from(cost.is_measured));
            let saved = original.saturating_sub(cost.bytes);
            let [lo, hi] = [kld.lo, kld.hi].map(on_log_scale);
            Some((finite(kld.value), lo, hi, measured, saved))
        };
        json!({
            "name": tensor.name,
            "role": tensor.role,
            "layer": tensor.layer,
            "costs": Vec::from_iter(types.iter().map(cost)),
        })
    });
    json!({
        "types": types,
        // The index of the type that is shown at first.
        "shown": types.iter().position(|kind| *kind == of.measured_type).unwrap_or(0),
        "roles": Vec::from_iter(of.by_role.iter().map(|role| &role.role)),
        "layers": Vec::from_iter(layers),
        "tensors": Vec::from_iter(tensors),
    })
}

/// The types of some tensor besides the original's own, by falling bits.
fn types(of: &Sensitivity) -> Vec<GgmlType> {
    let tensors = of.tensors.iter();
    let tensors = tensors.filter_map(|of| of.tensor.costs.split_last());
    let costs = tensors.flat_map(|(_, costs)| costs);
    let kinds: BTreeMap<u32, GgmlType> = costs.map(|cost| (cost.kind.id, cost.kind)).collect();
    let mut kinds: Vec<GgmlType> = kinds.into_values().collect();
    kinds.sort_by(|a, b| b.bits().total_cmp(&a.bits()));
    kinds
}
