//! The page of a recipe.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use kl_formats::GgmlType;
use minijinja::value::Serde;
use minijinja::{Error, Value, context};
use serde::Serialize;
use serde_json::json;

use super::{Page, on_log_scale};
use crate::recipe::{quoted, role_and_layer, thinned};
use crate::report::comparison::Comparison;
use crate::report::number::SizeUnit;
use crate::report::recipe::{RecipeReport, RecipeTensor};
use crate::stats::Estimate;

/// The lines of the table of sizes.
const N_SIZES: usize = 16;

/// The page of a recipe: a whole HTML document, which loads nothing else. `quants` are drawn beside it.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn html(of: &RecipeReport, quants: &[ReportedQuant]) -> Result<String, Error> {
    let layers = of.tensors.iter().filter_map(layer).collect::<BTreeSet<_>>();
    let types = types(of);
    let data = chart_data(of, quants, &types, &layers);
    let model = of.model.as_ref().and_then(|model| model.shown_name());
    let command: Vec<String> = of.command.iter().map(|word| quoted(word)).collect();
    let values = context! {
        kl_version => of.versions.kl_version,
        r => Value::from(Serde(of)),
        title => model.unwrap_or("a model"),
        command => command.join(" "),
        sizes => Value::from(Serde(thinned(&of.frontier, N_SIZES))),
        quants => Value::from(Serde(quants)),
        types => Value::from(Serde(&types)),
        // Beyond this width in rem, a grid's cells would be too wide.
        grid_width => 13 + 4 * layers.len().max(2),
        is_of_second_round => of.is_of_second_round(),
        has_frontier => of.frontier.iter().any(|point| on_log_scale(Some(point.kld)).is_some()),
    };
    Page {
        template: include_str!("recipe/page.html"),
        scripts: &[
            include_str!("grid.js"),
            include_str!("recipe/charts.js"),
            include_str!("page.js"),
            include_str!("recipe/key.js"),
        ],
    }
    .render(values, &data)
}

/// The unit that suits the sizes of the quants and of the recipe; the original's own is far larger.
fn unit(of: &RecipeReport, quants: &[ReportedQuant]) -> SizeUnit {
    let sizes = quants.iter().map(|quant| quant.size_bytes);
    SizeUnit::for_sizes(sizes.chain([of.size_bytes]).max().unwrap_or(0))
}

/// The layer of a tensor; `None` for one that is in none.
fn layer(tensor: &RecipeTensor) -> Option<u32> {
    role_and_layer(&tensor.name).1
}

/// The recipe's types, by rising bits.
fn types(of: &RecipeReport) -> Vec<GgmlType> {
    let mut types: Vec<GgmlType> = of.tensors.iter().map(|tensor| tensor.kind).collect();
    types.sort_by(|a, b| a.bits().total_cmp(&b.bits()).then(a.cmp(b)));
    types.dedup();
    types
}

/// The data of all charts, which `charts.js` and `key.js` read. They leave out what is null, as what a
/// logarithmic scale does not have.
fn chart_data(
    of: &RecipeReport,
    quants: &[ReportedQuant],
    types: &[GgmlType],
    layers: &BTreeSet<u32>,
) -> serde_json::Value {
    let unit = unit(of, quants);
    let size = |bytes: u64| bytes as f64 / unit.bytes;
    let frontier = of.frontier.iter().map(|point| {
        let kld = on_log_scale(Some(point.kld));
        json!({"size": size(point.size_bytes), "bpw": point.bpw, "kld": kld})
    });
    let point = |label: &str, kind: &str, bytes: u64, kld: &Estimate| {
        json!({
            "label": label,
            "kind": kind,
            "size": size(bytes),
            "kld": on_log_scale(Some(kld.value)),
            "lo": on_log_scale(kld.lo),
            "hi": on_log_scale(kld.hi),
        })
    };
    let others = quants.iter();
    let others = others.map(|of| point(&of.label, "quant", of.size_bytes, &of.kld));
    let like = of.check.iter().filter_map(|check| check.like.as_ref());
    let like = like.map(|like| point(&like.path, "quant", like.size_bytes, &like.kld));
    let own = [
        ("predicted", Some(&of.kld.predicted)),
        ("measured", of.kld.measured.as_ref()),
    ];
    let own = own
        .into_iter()
        .filter_map(|(kind, kld)| Some(point("recipe", kind, of.size_bytes, kld?)));
    let tensors = of.tensors.iter().map(|tensor| {
        json!({
            "name": tensor.name,
            "role": tensor.role,
            "layer": layer(tensor),
            // The index of its type.
            "kind": types.iter().position(|kind| *kind == tensor.kind),
            "kld": tensor.kld,
            "bytes": tensor.bytes,
        })
    });
    json!({
        "unit": unit.symbol,
        "frontier": Vec::from_iter(frontier),
        "points": Vec::from_iter(others.chain(like).chain(own)),
        "types": types,
        "roles": roles(of),
        "layers": layers,
        "tensors": Vec::from_iter(tensors),
    })
}

/// The roles, by falling KLD of their tensors.
fn roles(of: &RecipeReport) -> Vec<&str> {
    let mut klds: BTreeMap<&str, f64> = BTreeMap::new();
    for tensor in of.tensors.iter().filter(|tensor| tensor.kld.is_finite()) {
        *klds.entry(&tensor.role).or_default() += tensor.kld;
    }
    let mut roles: Vec<(&str, f64)> = klds.into_iter().collect();
    roles.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    roles.into_iter().map(|(role, _)| role).collect()
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
    /// The quants of a comparison whose size and KLD are known, without the noise floor.
    pub fn of_comparison(of: &Comparison) -> Vec<Self> {
        let models = of.models.iter().filter(|model| !model.is_noise_floor);
        let quants = models.filter_map(|model| {
            Some(Self {
                label: model.label.clone(),
                size_bytes: model.model.shown_bytes()?,
                kld: model.mean_kld()?,
            })
        });
        quants.collect()
    }

    /// The same quants of the JSON of `kl report`, or of an evaluation.
    ///
    /// # Errors
    /// If the text is not such a document.
    pub fn of_json(json: &str) -> Result<Vec<Self>, String> {
        let is_none = || "is not the JSON of kl report: write one with kl report --json".to_owned();
        let document: serde_json::Value = serde_json::from_str(json).map_err(|_| is_none())?;
        let models = document.get("models").and_then(serde_json::Value::as_array);
        let is_floor = |model: &serde_json::Value| {
            model.get("is_noise_floor") == Some(&serde_json::Value::Bool(true))
        };
        let quants = models.ok_or_else(is_none)?.iter();
        let quants = quants.filter(|model| !is_floor(model)).filter_map(of_model);
        Ok(quants.collect())
    }
}

/// A model of the JSON, if its size and its KLD are known.
fn of_model(model: &serde_json::Value) -> Option<ReportedQuant> {
    let bytes = |name| {
        model
            .pointer(&format!("/model/{name}"))
            .and_then(serde_json::Value::as_u64)
    };
    let mean = |name| {
        model
            .pointer(&format!("/kld/mean/{name}"))
            .and_then(serde_json::Value::as_f64)
    };
    Some(ReportedQuant {
        label: model.get("label")?.as_str()?.to_owned(),
        size_bytes: bytes("file_bytes").or(bytes("size_bytes"))?,
        kld: Estimate {
            value: mean("value")?,
            lo: mean("cluster_lo"),
            hi: mean("cluster_hi"),
        },
    })
}
