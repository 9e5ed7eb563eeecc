//! The page: a comparison as one HTML file that needs nothing but a browser.
//!
//! `page.html` is the template, with the texts and tables; `charts.js` holds the charts as
//! Vega-Lite specifications, and `page.js` draws them. `vendor/` has the libraries that do, as
//! `scripts/vendor-vega.sh` fetched them.

mod chart_data;
mod pareto;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value, context};

use super::comparison::{ComparedModel, Comparison};
use super::number;
use crate::stats::{FEW_TOKENS, Ratio};
use chart_data::ChartData;

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

const MISSING: &str = "–";

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
    let unsized_models = models.iter().filter(|m| m.model.shown_bytes().is_none());
    let is_0 = |m: &&ComparedModel| m.mean_kld().is_some_and(|mean| mean.value <= 0.0);
    let at_0 = models.iter().filter(|m| !m.is_noise_floor).filter(is_0);
    let by_ratio = |holds: fn(&Ratio) -> bool| -> Vec<String> {
        let is_one = |m: &&ComparedModel| m.ratio_to_best.is_some_and(|of| holds(&of.ratio));
        models.iter().filter(is_one).map(label).collect()
    };
    let values = context! {
        c => Value::from(Serde(comparison)),
        best => comparison.best().map(|model| Value::from(Serde(model))),
        has_sizes => data.has_sizes(),
        window => reference.unit(),
        title => original.unwrap_or("a model"),
        n_candidates => models.iter().filter(|m| m.is_candidate()).count(),
        // Labels are unique.
        left_out => models.iter().map(|m| (label(m), m.n_left_out())).collect::<BTreeMap<_, _>>(),
        sizes => models.iter().map(|m| (label(m), m.model.shown_bytes())).collect::<BTreeMap<_, _>>(),
        unsized => unsized_models.map(label).collect::<Vec<_>>(),
        at_0 => at_0.map(label).collect::<Vec<_>>(),
        few => FEW_TOKENS,
        drawn => by_ratio(is_drawn),
        infinite => by_ratio(|ratio| ratio.value == f64::INFINITY),
        no_interval => by_ratio(|ratio| is_drawn(ratio) && ratio.lo.zip(ratio.hi).is_none()),
        sentences => comparison.sentences(str::to_owned),
        steps => Value::from(Serde(&steps)),
        unit => Value::from(Serde(unit)),
        computed_with => settings::of_reference(comparison),
        settings => settings::columns(comparison),
        not_compared => Value::from(Serde(comparison.not_compared_by_reason())),
        css => Value::from_safe_string(CSS.to_owned()),
        data => Value::from_safe_string(data.json().map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?),
        licences => Value::from_safe_string(LICENCES.to_owned()),
        scripts => SCRIPTS.map(|script| Value::from_safe_string(script.to_owned())),
    };
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    // What a comparison lacks is shown as a dash.
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    add_filters(&mut environment);
    environment.template_from_str(TEMPLATE)?.render(values)
}

/// Returns true if a logarithmic scale has the ratio.
fn is_drawn(ratio: &Ratio) -> bool {
    ratio.value.is_finite() && ratio.value > 0.0
}

/// Adds the filters by which the template shows values: a dash for what is missing.
fn add_filters(environment: &mut Environment) {
    type Show = fn(f64) -> String;
    let numbers: [(&str, Show); 6] = [
        ("kld", |x| number::significant(x, 4)),
        ("percent", number::percent),
        ("short_percent", |x| {
            format!("{} %", number::short_percent(x))
        }),
        ("quantile_name", number::quantile_name),
        ("ratio", |x| number::significant(x, 3)),
        ("p_value", p_value),
    ];
    for (name, shown) in numbers {
        environment.add_filter(name, move |x: Option<f64>| show_finite(x, shown));
    }
    environment.add_filter("fixed", |x: Option<f64>, decimals: usize| {
        show_finite(x, |x| number::fixed(x, decimals))
    });
    environment.add_filter("sort_key", |x: Option<f64>| {
        let x = x.and_then(number::finite);
        x.map(|x| x.to_string()).unwrap_or_default()
    });
    environment.add_filter("bytes", |x: Option<u64>| show(x, number::bytes));
    environment.add_filter("count", |x: Option<u64>| show(x, number::count));
    environment.add_filter("count_of", |n: u64, thing: String| {
        number::count_of(n, &thing)
    });
    environment.add_filter("token", |text: String| token(&text));
}

fn show<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| MISSING.to_owned(), show)
}

/// Shows a number; one that is not finite is as good as missing.
fn show_finite(value: Option<f64>, shown: impl Fn(f64) -> String) -> String {
    show(value.and_then(number::finite), shown)
}

fn p_value(p: f64) -> String {
    match p < 1e-3 {
        true => "< 0.001".to_owned(),
        false => number::significant(p, 2),
    }
}

/// A token's text on one line, with its line feeds and tabs made visible.
fn token(text: &str) -> String {
    number::printable(&text.replace('\n', "↵").replace('\t', "⇥"))
}
