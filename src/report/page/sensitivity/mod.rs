//! The page of a map of sensitivity.

mod chart_data;
#[cfg(test)]
mod tests;

use minijinja::value::Serde;
use minijinja::{Error, Value, context};

use super::Page;
use crate::report::number::short_count;
use crate::report::sensitivity::{Sensitivity, TensorSensitivity, times_predicted, times_sum};
use chart_data::ChartData;

/// The most tensors in each of the two short lists.
const MAX_LISTED: usize = 10;

/// The page of a map: a whole HTML document, which loads nothing else.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn html(of: &Sensitivity) -> Result<String, Error> {
    let data = ChartData::of(of);
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
        heat_width => data.heat_width(),
        types => Value::from(Serde(data.types())),
        has_cells => data.has_cells(),
    };
    Page {
        template: include_str!("page.html"),
        scripts: &[
            include_str!("../grid.js"),
            include_str!("heat.js"),
            include_str!("charts.js"),
            include_str!("../page.js"),
            include_str!("choose.js"),
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
