//! The page of a recipe.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use kl_formats::GgmlType;
use kl_report::number::SizeUnit;
use kl_report::page::{DRAWING, render};
use kl_stats::stats::Estimate;
use kl_system::shell;
use minijinja::value::Serde;
use minijinja::{Error, Value, context};
use serde::Serialize;
use serde_json::json;

use crate::mathematics::{RecipeTensor, role_and_layer, thinned};
use crate::report::recipe::{RecipeReport, by_role};

/// The lines of the table of sizes.
const N_SIZES: usize = 16;

/// The page of a recipe: a whole HTML document, which loads nothing else. `quants` are drawn beside it.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn html(report: &RecipeReport, quants: &[ReportedQuant]) -> Result<String, Error> {
    let layer = |tensor: &RecipeTensor| role_and_layer(&tensor.name).1;
    let layers: Vec<Option<u32>> = report.recipe.tensors.iter().map(layer).collect();
    let n_layers = layers.iter().flatten().collect::<BTreeSet<_>>().len();
    let types = types(report);
    let of_roles = by_role(&report.recipe.tensors);
    let roles: Vec<&str> = of_roles.iter().map(|(role, ..)| *role).collect();
    // The original's own size is far larger than these.
    let sizes = quants.iter().map(|quant| quant.size_bytes);
    let largest = sizes.chain([report.recipe.size_bytes]).max().unwrap_or(0);
    let unit = SizeUnit::for_sizes(largest);
    let data = json!({
        "recipe": report, "quants": quants, "unit": unit, "types": types, "roles": roles,
        "layers": layers,
    });
    let model = report.model.as_ref().and_then(|model| model.shown_name());
    let command: Vec<String> = report
        .command
        .iter()
        .map(|word| shell::quoted(word))
        .collect();
    let values = context! {
        kl_version => report.versions.kl_version,
        r => Value::from(Serde(report)),
        title => model.unwrap_or("a model"),
        command => command.join(" "),
        sizes => Value::from(Serde(thinned(&report.frontier, N_SIZES))),
        quants => Value::from(Serde(quants)),
        types => Value::from(Serde(&types)),
        // Beyond this width in rem, a grid's cells would be too wide.
        grid_width => 13 + 4 * n_layers.max(2),
        is_of_second_round => report.is_of_second_round(),
        has_frontier => report.frontier.iter().any(|point| point.kld > 0.0 && point.kld.is_finite()),
    };
    let scripts = [
        super::GRID,
        include_str!("recipe/charts.js"),
        DRAWING,
        include_str!("recipe/key.js"),
    ];
    render(include_str!("recipe/page.html"), &scripts, values, &data)
}

/// The recipe's types, by rising bits.
fn types(report: &RecipeReport) -> Vec<GgmlType> {
    let mut types: Vec<GgmlType> = report
        .recipe
        .tensors
        .iter()
        .map(|tensor| tensor.kind)
        .collect();
    types.sort_by(|a, b| a.bits().total_cmp(&b.bits()).then(a.cmp(b)));
    types.dedup();
    types
}

/// A quant of a report: its size and its KLD.
#[derive(Serialize, Debug, Clone, PartialEq)]
pub struct ReportedQuant {
    pub label: String,
    /// Bytes of its file, or of its tensors where that is unknown.
    pub size_bytes: u64,
    /// Its mean KLD, in nats.
    pub kld: Estimate,
}

impl ReportedQuant {
    /// The quants of the JSON of `kl report`, or of an evaluation, whose size and KLD are known, without
    /// the noise floor.
    ///
    /// # Errors
    /// If it is not such a document.
    pub fn of_json(document: &serde_json::Value) -> Result<Vec<Self>, String> {
        let is_none = || "is not the JSON of kl report: write one with kl report --json".to_owned();
        let models = document.get("models").and_then(serde_json::Value::as_array);
        let quants = models.ok_or_else(is_none)?.iter().filter_map(|model| {
            let bytes = |name| model.get("model")?.get(name)?.as_u64();
            let mean = |name| model.pointer("/kld/mean")?.get(name)?.as_f64();
            let is_floor = model.get("is_noise_floor").is_some_and(|is| is == true);
            (!is_floor).then_some(Self {
                label: model.get("label")?.as_str()?.to_owned(),
                size_bytes: bytes("file_bytes").or(bytes("size_bytes"))?,
                kld: Estimate {
                    value: mean("value")?,
                    lo: mean("cluster_lo"),
                    hi: mean("cluster_hi"),
                },
            })
        });
        Ok(quants.collect())
    }
}
