//! The page: a comparison as one HTML file that needs nothing but a browser.
//!
//! `page.html` is the template, with the texts and tables; `charts.js` holds the charts as
//! Vega-Lite specifications, and `page.js` draws them. `vendor/` has the libraries that do, as
//! `scripts/vendor-vega.sh` fetched them.

mod answer;
mod chart_data;
mod filters;
mod set_up;
#[cfg(test)]
mod tests;

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value, context};
use serde::Serialize;
use thiserror::Error;

use super::comparison::{ComparedModel, Comparison};
use answer::Answer;
use chart_data::ChartData;
use set_up::SetUpTable;

const TEMPLATE: &str = include_str!("page.html");
const CSS: &str = include_str!("page.css");
const LICENCES: &str = include_str!("vendor/LICENSES.txt");

/// In the order in which they run.
const SCRIPTS: [&str; 5] = [
    include_str!("vendor/vega.min.js"),
    include_str!("vendor/vega-lite.min.js"),
    include_str!("vendor/vega-embed.min.js"),
    include_str!("charts.js"),
    include_str!("page.js"),
];

/// Why a page could not be made.
#[derive(Error, Debug)]
#[non_exhaustive]
pub enum PageError {
    /// A value could not be written as JSON.
    #[error("cannot write the data of the page's charts as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The template failed.
    #[error("cannot render the page: {0}")]
    Template(#[from] minijinja::Error),
}

/// The page of a comparison: a whole HTML document, which loads nothing else.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn html(comparison: &Comparison) -> Result<String, PageError> {
    let (answer, reference) = (Answer::of(comparison), &comparison.reference);
    let data = ChartData::of(comparison, &answer);
    let models = &comparison.models;
    let original = reference.model_name().or(reference.file_name.as_deref());
    let label = |m: &ComparedModel| m.label.clone();
    let unsized_models = models.iter().filter(|m| m.model.shown_bytes().is_none());
    let is_0 = |m: &&ComparedModel| m.mean_kld().is_some_and(|mean| mean.estimate.value <= 0.0);
    let at_0 = models.iter().filter(|m| !m.is_noise_floor).filter(is_0);
    let floors = models
        .iter()
        .filter(|m| m.is_noise_floor && m.mean_kld().is_some());
    let values = context! {
        c => Value::from(Serde(comparison)),
        first => models.first().map(|model| Value::from(Serde(model))),
        best => comparison.best().map(|model| Value::from(Serde(model))),
        floors => floors.map(|model| Value::from(Serde(model))).collect::<Vec<_>>(),
        has_macro => models.iter().any(|m| m.summary.kld_macro.is_some()),
        has_sizes => data.has_sizes(),
        window => reference.unit(),
        title => original.unwrap_or("a model"),
        n_candidates => models.iter().filter(|m| m.is_candidate()).count(),
        // Labels are unique.
        left_out => models.iter().map(|m| (label(m), m.n_left_out())).collect::<Value>(),
        sizes => models.iter().map(|m| (label(m), m.model.shown_bytes())).collect::<Value>(),
        n_tokens => models.iter().map(|m| m.summary.n_tokens).max(),
        unsized => unsized_models.map(label).collect::<Vec<_>>(),
        at_0 => at_0.map(label).collect::<Vec<_>>(),
        answer => Value::from(Serde(&answer)),
        reference_rows => set_up::reference_rows(comparison),
        set_up => Value::from(Serde(SetUpTable::of(models, reference.prompts))),
        not_compared => Value::from(Serde(comparison.not_compared_by_reason())),
        css => Value::from_safe_string(CSS.to_owned()),
        data => Value::from_safe_string(json_in_script(&data)?),
        licences => Value::from_safe_string(LICENCES.to_owned()),
        scripts => SCRIPTS.map(|script| Value::from_safe_string(script.to_owned())),
    };
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    // What a comparison lacks is shown as a dash.
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    filters::add_to(&mut environment);
    Ok(environment.template_from_str(TEMPLATE)?.render(values)?)
}

/// JSON for a script element, which ends at the first `</script`, wherever it is.
fn json_in_script(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string(value)?.replace('<', "\\u003c"))
}
