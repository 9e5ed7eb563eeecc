//! The page of a comparison of models. Its table of all numbers is written in `page/comparison/page.html`.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kl_stats::stats::{FEW_TOKENS, Ratio};
use minijinja::value::Serde;
use minijinja::{Error, Value, context};
use serde::Serialize;
use serde_json::json;

use super::render;
use crate::comparison::{ComparedModel, ComparedPair, Comparison, clusters_text};
use crate::number::{SizeUnit, count, count_of, finite};
use crate::pick::Pick;
use crate::set_up::{SETTINGS, described};

/// The number of models that are in colour at once: as many as there are colours.
const MAX_COLOURED: usize = 8;

/// Its own scripts, in the order in which they run.
const SCRIPTS: [&str; 3] = [
    include_str!("comparison/charts.js"),
    super::DRAWING,
    include_str!("comparison/choose.js"),
];

/// The page of a comparison: a whole HTML document, which loads nothing else.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn html(comparison: &Comparison) -> Result<String, Error> {
    page(comparison, None)
}

/// The page of a pick: that of its comparison, with the pick and its table first.
///
/// # Errors
/// Those of [`html`].
pub fn pick_html(pick: &Pick) -> Result<String, Error> {
    page(&pick.comparison, Some(pick))
}

fn page(comparison: &Comparison, pick: Option<&Pick>) -> Result<String, Error> {
    let (models, sizes) = (&comparison.models, comparison.sizes());
    let (reference, unit) = (&comparison.reference, comparison.size_unit());
    let steps = steps(comparison, unit);
    let data = data_of_charts(comparison, &steps, unit);
    let size = |m: &ComparedModel| sizes.of_model(m);
    let labels_where = |condition: &dyn Fn(&ComparedModel) -> bool| -> Vec<String> {
        models
            .iter()
            .filter(|m| condition(m))
            .map(|m| m.label.clone())
            .collect()
    };
    let labels_by_ratio = |condition: fn(&Ratio) -> bool| {
        labels_where(&|m| {
            m.ratio_to_best
                .is_some_and(|to_best| condition(&to_best.ratio))
        })
    };
    let is_at_0 = |m: &ComparedModel| m.mean_kld().is_some_and(|mean| mean.value <= 0.0);
    let has_point = |m: &ComparedModel| {
        let kld = m.mean_kld().and_then(|mean| finite(mean.value));
        !m.is_noise_floor && size(m) > Some(0) && kld > Some(0.0)
    };
    let left_out = models.iter().map(|m| (&*m.label, m.n_left_out()));
    let name: &dyn Fn(&str) -> String = &str::to_owned;
    let original = reference.model_name().or(reference.file_name.as_deref());
    let values = context! {
        kl_version => comparison.versions.kl_version,
        c => Value::from(Serde(comparison)),
        best => comparison.best().map(|model| Value::from(Serde(model))),
        band => comparison.best().and_then(|model| model.band_in_words()),
        has_sizes => models.iter().any(has_point),
        size => sizes.title(),
        sizes_explained => sizes.explained(),
        window => reference.unit(),
        title => original.unwrap_or("a model"),
        n_candidates => models.iter().filter(|m| m.is_candidate()).count(),
        left_out => left_out.collect::<BTreeMap<_, _>>(),
        sizes => Value::from(Serde(&data["sizes"])),
        unsized => labels_where(&|m| size(m).is_none()),
        at_0 => labels_where(&|m| is_at_0(m) && !m.is_noise_floor),
        few => FEW_TOKENS,
        drawn => labels_by_ratio(is_drawn),
        infinite => labels_by_ratio(|ratio| ratio.value == f64::INFINITY),
        no_interval => labels_by_ratio(|ratio| is_drawn(ratio) && ratio.lo.zip(ratio.hi).is_none()),
        spans => Value::from(Serde(comparison.spans())),
        has_span_ratios => comparison.has_span_ratios(),
        loses_more => loses_more(comparison),
        drafts => Value::from(Serde(&data["drafts"])),
        sentences => pick.map_or_else(|| comparison.sentences(str::to_owned), Pick::sentences),
        pick_table => pick.map(|pick| Value::from(Serde(pick.table(name)))),
        pick_legend => pick.map(Pick::legend),
        picked => pick.and_then(|pick| Some(pick.pick.as_ref()?.label.clone())),
        unmeasured => pick.map(|pick| Value::from(Serde(pick.unmeasured()))),
        steps => Value::from(Serde(&steps)),
        unit => Value::from(Serde(unit)),
        answers_table => Value::from(Serde(comparison.identical_table(name, false))),
        drafts_table => Value::from(Serde(comparison.acceptance_table(name))),
        sampled_answers => reference.sampled_answers(),
        computed_with => reference.backend.as_ref().map(described),
        settings => settings(comparison),
        not_compared => Value::from(Serde(comparison.not_compared_by_reason())),
    };
    render(
        include_str!("comparison/page.html"),
        &SCRIPTS,
        values,
        &data,
    )
}

/// The values that the page's charts show; labels are unique.
fn data_of_charts(
    comparison: &Comparison,
    steps: &[FrontStep<'_>],
    unit: SizeUnit,
) -> serde_json::Value {
    let sizes = comparison.sizes();
    let sizes_by_label: BTreeMap<_, _> = comparison
        .models
        .iter()
        .map(|m| (&*m.label, sizes.of_model(m)))
        .collect();
    let draft_sizes_by_label: BTreeMap<_, _> = comparison
        .drafts()
        .into_iter()
        .map(|m| (&*m.label, m.model.shown_bytes()))
        .collect();
    let floors: Vec<_> = comparison
        .floor
        .iter()
        .map(|floor| json!({"label": "kl check", "kld": floor.kld}))
        .collect();
    json!({
        "models": comparison.models,
        "floors": floors,
        "unit": unit,
        "sizes": sizes_by_label,
        "drafts": draft_sizes_by_label,
        "size": sizes.title(),
        "window": comparison.reference.unit(),
        "few": FEW_TOKENS,
        "shown": labels_in_colour(comparison, steps),
    })
}

/// The models that lose more in a span than elsewhere, each with the span.
fn loses_more(comparison: &Comparison) -> Vec<[String; 2]> {
    comparison
        .models
        .iter()
        .flat_map(|m| {
            m.ratio_to_best_by_span
                .iter()
                .filter(|span| comparison.loses_more(span))
                .map(|span| [m.label.clone(), span.label.clone()])
        })
        .collect()
}

/// True if a logarithmic scale has the ratio.
fn is_drawn(ratio: &Ratio) -> bool {
    ratio.value.is_finite() && ratio.value > 0.0
}

/// The labels of the models that are in colour: every quant if there are enough colours, or the noise
/// floor if there are no quants. If there are too many quants, the best comes first, then some from all
/// along the Pareto front, then those with the lowest mean KLD.
fn labels_in_colour<'c>(comparison: &'c Comparison, front: &[FrontStep<'c>]) -> Vec<&'c str> {
    let has_quants = comparison.models.iter().any(|model| model.is_candidate());
    let labels = comparison
        .models
        .iter()
        .filter(|model| model.is_candidate() || !has_quants)
        .map(|model| model.label.as_str());
    let best = comparison.best().map(|best| best.label.as_str());
    let front_labels: Vec<&str> = front.iter().rev().map(|step| step.label).collect();
    let n_front = front_labels.len();
    let n_spread = n_front.min(MAX_COLOURED - 1);
    // Evenly spaced along the front, from its largest model to its smallest.
    let spread = (0..n_spread).filter_map(|i| {
        front_labels
            .get(i * (n_front - 1) / (n_spread - 1).max(1))
            .copied()
    });
    let mut chosen: Vec<&str> = Vec::with_capacity(MAX_COLOURED);
    for label in best.into_iter().chain(spread).chain(labels.clone()) {
        if chosen.len() < MAX_COLOURED && !chosen.contains(&label) {
            chosen.push(label);
        }
    }
    // In the order of the table.
    labels.filter(|label| chosen.contains(label)).collect()
}

/// A model of the Pareto front, beside the next smaller one.
#[derive(Serialize, Debug)]
struct FrontStep<'c> {
    #[serde(skip)]
    model: &'c ComparedModel,
    label: &'c str,
    /// Its size in bytes.
    size: u64,
    /// The mean KLD in nats.
    kld: f64,
    /// Its cost and gain; `None` for the smallest.
    gain: Option<Gain>,
}

/// The cost and the gain of a step of the Pareto front.
#[derive(Serialize, Debug)]
struct Gain {
    bytes: u64,
    /// The factor by which the mean KLD falls; `None` where it falls to noise.
    factor: Option<f64>,
    /// The interval of the factor; `None` where the two were not compared.
    interval: Option<(f64, f64)>,
    /// The nats by which the mean KLD falls for each [`SizeUnit`] of space; `None` for equal sizes.
    per_unit: Option<f64>,
    /// True if the difference may be chance. False where the two were not compared.
    may_be_chance: bool,
}

/// The Pareto front, from the smallest model to the largest.
fn steps(comparison: &Comparison, unit: SizeUnit) -> Vec<FrontStep<'_>> {
    let sizes = comparison.sizes();
    let mut steps: Vec<FrontStep> = comparison
        .models
        .iter()
        .filter(|m| m.pareto)
        .filter_map(|m| {
            Some(FrontStep {
                model: m,
                label: &m.label,
                size: sizes.of_model(m)?,
                kld: m.mean_kld()?.value,
                gain: None,
            })
        })
        .collect();
    steps.sort_by_key(|step| step.size);
    for i in 1..steps.len() {
        let (smaller, larger) = (&steps[i - 1], &steps[i]);
        let bytes = larger.size.saturating_sub(smaller.size);
        let labels = [smaller.label, larger.label];
        let pair = comparison
            .pairs
            .iter()
            .find(|pair| labels.contains(&&*pair.a) && labels.contains(&&*pair.b));
        let factor = finite(smaller.kld / larger.kld);
        let per_unit = (smaller.kld - larger.kld) / (bytes as f64 / unit.bytes);
        steps[i].gain = Some(Gain {
            bytes,
            factor: factor.filter(|_| !comparison.is_noise(larger.model)),
            per_unit: finite(per_unit),
            interval: pair.and_then(|pair| interval(pair, smaller.label)),
            may_be_chance: pair.is_some_and(|pair| comparison.may_be_chance(pair)),
        });
    }
    steps
}

/// The interval of a pair's ratio, as the mean KLD of the model `numerator` over the other one's.
fn interval(pair: &ComparedPair, numerator: &str) -> Option<(f64, f64)> {
    let mut ratio = pair.paired.ratio?;
    if pair.a != numerator {
        ratio = ratio.inverse();
    }
    let (lo, hi) = ratio.lo.zip(ratio.hi)?;
    finite(lo).zip(finite(hi))
}

/// The text of a column for a model and the word for its windows; `None` where it is not recorded.
type Setting = fn(&ComparedModel, &str) -> Option<String>;

const SETTINGS_OF_FILES: [(&str, Setting); 10] = [
    ("File", |m, _| Some(m.model.path.clone())),
    ("Architecture", |m, _| m.model.architecture.clone()),
    ("Parameters", |m, _| m.model.n_params.map(count)),
    ("Sidecar", |m, _| {
        Some(match m.parts.len() {
            0 => m.sidecar.clone(),
            n => format!("{} ({})", m.sidecar, count_of(n as u64, "part")),
        })
    }),
    ("Tokens", |m, _| Some(count(m.summary.n_tokens))),
    ("Left out", |m, _| Some(count(m.n_left_out()))),
    ("SHA-256 of the header", |m, _| {
        m.model.metadata_sha256.clone()
    }),
    ("SHA-256 of samples", |m, _| m.model.sample_sha256.clone()),
    ("windows", |m, _| Some(count(m.summary.n_windows))),
    ("Clusters", |m, unit| {
        Some(clusters_text(&m.summary.clusters, unit))
    }),
];

/// The columns of a table with a row for each model: titles and values. Columns that no model has
/// are left out.
fn settings(comparison: &Comparison) -> Vec<(String, Vec<Option<String>>)> {
    let (models, unit) = (&comparison.models, comparison.reference.unit());
    let file_columns = SETTINGS_OF_FILES.iter().map(|(title, value)| {
        let values = models.iter().map(|model| value(model, unit));
        (title.replace("window", unit), values.collect())
    });
    let set_up_columns = SETTINGS.iter().map(|(title, value)| {
        let values = models.iter().map(|model| value(&model.set_up));
        ((*title).to_owned(), values.collect())
    });
    let mut columns: Vec<(String, Vec<_>)> = file_columns.chain(set_up_columns).collect();
    columns.retain(|(_, values)| values.iter().any(Option::is_some));
    columns
}
