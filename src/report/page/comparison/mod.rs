//! The page of a comparison of models.

mod chart_data;
mod pareto;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use minijinja::value::Serde;
use minijinja::{Error, Value, context};

use super::Page;
use crate::report::comparison::{ComparedModel, Comparison};
use crate::report::number::sampled_answers;
use crate::stats::{DEFAULT_DRAFTED, FEW_TOKENS, Ratio};
use chart_data::ChartData;

/// The page of a comparison: a whole HTML document, which loads nothing else.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn html(comparison: &Comparison) -> Result<String, Error> {
    let (unit, reference) = (comparison.size_unit(), &comparison.reference);
    let steps = pareto::steps(comparison, unit);
    let data = ChartData::of(comparison, &steps, unit);
    let models = &comparison.models;
    let original = reference.model_name().or(reference.file_name.as_deref());
    let label = |m: &ComparedModel| m.label.clone();
    let sizes = comparison.sizes();
    let size = |m: &ComparedModel| sizes.bytes(m);
    let unsized_models = models.iter().filter(|m| size(m).is_none());
    let is_0 = |m: &&ComparedModel| m.mean_kld().is_some_and(|mean| mean.value <= 0.0);
    let at_0 = models.iter().filter(|m| !m.is_noise_floor).filter(is_0);
    let by_ratio = |holds: fn(&Ratio) -> bool| -> Vec<String> {
        let is_one = |m: &&ComparedModel| m.ratio_to_best.is_some_and(|of| holds(&of.ratio));
        models.iter().filter(is_one).map(label).collect()
    };
    let loses_more = models.iter().flat_map(|m| {
        let of_each = m.ratio_to_best_by_span.iter();
        let more = of_each.filter(|of| comparison.loses_more(of));
        more.map(|of| [m.label.clone(), of.label.clone()])
    });
    let drafts = comparison.drafts().into_iter();
    let drafts = drafts.map(|m| (label(m), m.model.shown_bytes()));
    let values = context! {
        kl_version => comparison.versions.kl_version,
        c => Value::from(Serde(comparison)),
        best => comparison.best().map(|model| Value::from(Serde(model))),
        has_sizes => data.has_sizes(),
        has_caches => sizes.has_caches,
        window => reference.unit(),
        title => original.unwrap_or("a model"),
        n_candidates => models.iter().filter(|m| m.is_candidate()).count(),
        // Labels are unique.
        left_out => models.iter().map(|m| (label(m), m.n_left_out())).collect::<BTreeMap<_, _>>(),
        sizes => models.iter().map(|m| (label(m), size(m))).collect::<BTreeMap<_, _>>(),
        unsized => unsized_models.map(label).collect::<Vec<_>>(),
        at_0 => at_0.map(label).collect::<Vec<_>>(),
        few => FEW_TOKENS,
        drawn => by_ratio(is_drawn),
        infinite => by_ratio(|ratio| ratio.value == f64::INFINITY),
        no_interval => by_ratio(|ratio| is_drawn(ratio) && ratio.lo.zip(ratio.hi).is_none()),
        spans => Value::from(Serde(comparison.spans())),
        has_span_ratios => comparison.has_span_ratios(),
        loses_more => loses_more.collect::<Vec<_>>(),
        drafts => drafts.collect::<BTreeMap<_, _>>(),
        draft_notes => comparison.draft_notes(),
        drafted => DEFAULT_DRAFTED,
        identical_title => comparison.identical_title(),
        answers_left_out => comparison.answers_left_out(),
        sampled_answers => reference.sampling.as_ref().map(sampled_answers),
        sentences => comparison.sentences(str::to_owned),
        steps => Value::from(Serde(&steps)),
        unit => Value::from(Serde(unit)),
        computed_with => settings::of_reference(comparison),
        settings => settings::columns(comparison),
        not_compared => Value::from(Serde(comparison.not_compared_by_reason())),
    };
    Page {
        template: include_str!("page.html"),
        scripts: &[
            include_str!("charts.js"),
            include_str!("../page.js"),
            include_str!("choose.js"),
        ],
    }
    .render(values, &data)
}

/// Returns true if a logarithmic scale has the ratio.
fn is_drawn(ratio: &Ratio) -> bool {
    ratio.value.is_finite() && ratio.value > 0.0
}
