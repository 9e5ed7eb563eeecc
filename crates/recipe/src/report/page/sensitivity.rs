//! The page of a map of sensitivity.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kl_formats::GgmlType;
use kl_report::number::short_count;
use kl_report::page::{DRAWING, render};
use minijinja::value::Serde;
use minijinja::{Error, Value, context};
use serde_json::json;

use crate::report::sensitivity::Sensitivity;

/// The most tensors in each of the two short lists.
const MAX_LISTED: usize = 10;

/// The page of a map: a whole HTML document, which loads nothing else.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn html(sensitivity: &Sensitivity) -> Result<String, Error> {
    let types = types(sensitivity);
    let data = json!({
        "types": types, "compared_type": sensitivity.compared_type, "by_role": sensitivity.by_role,
        "by_layer": sensitivity.by_layer, "tensors": sensitivity.tensors,
    });
    let name: &dyn Fn(&str) -> String = &str::to_owned;
    let ranked = sensitivity.by_relative_cost();
    let n = MAX_LISTED.min(ranked.len() / 2);
    let least = Vec::from_iter(ranked.iter().rev().take(n));
    let values = context! {
        kl_version => sensitivity.versions.kl_version,
        s => Value::from(Serde(sensitivity)),
        title => sensitivity.model.default_label(),
        sentences => sensitivity.sentences(),
        worst => Value::from(Serde(ranked.get(..n).unwrap_or_default())),
        least => Value::from(Serde(least)),
        n_others => sensitivity.at_other_types().count(),
        n_predicted => sensitivity.tensors.iter().filter(|tensor| !tensor.at.is_measured).count(),
        roles_table => Value::from(Serde(sensitivity.roles_table(name))),
        additivity_table => Value::from(Serde(sensitivity.additivity_table())),
        checks_table => Value::from(Serde(sensitivity.checks_table(name, sensitivity.checks.len()))),
        parameters => sensitivity.model.n_params.map(short_count),
        // Beyond this width in rem, a heat map's cells would be too wide.
        heat_width => 13 + 4 * sensitivity.by_layer.len().max(2),
        types => Value::from(Serde(&types)),
        has_cells => !types.is_empty(),
    };
    let scripts = [
        super::GRID,
        include_str!("sensitivity/heat.js"),
        include_str!("sensitivity/charts.js"),
        DRAWING,
        include_str!("sensitivity/choose.js"),
    ];
    render(
        include_str!("sensitivity/page.html"),
        &scripts,
        values,
        &data,
    )
}

/// The types of some tensor besides the original's own, by falling bits.
fn types(sensitivity: &Sensitivity) -> Vec<GgmlType> {
    let tensors = sensitivity.tensors.iter();
    let choices = tensors.filter_map(|tensor| tensor.tensor.costs.split_last());
    let costs = choices.flat_map(|(_, costs)| costs);
    let by_id: BTreeMap<u32, GgmlType> = costs.map(|cost| (cost.kind.id, cost.kind)).collect();
    let mut kinds: Vec<GgmlType> = by_id.into_values().collect();
    kinds.sort_by(|a, b| b.bits().total_cmp(&a.bits()));
    kinds
}
