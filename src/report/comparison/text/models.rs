//! The table of the models.

use super::super::names::Names;
use super::super::{ComparedModel, Comparison};
use super::{fitted, lines};
use crate::report::number::{SizeUnit, count_of, ends, fixed, short_percent, significant};

/// The marks of a row, which the lines below the table explain.
const ALIKE: &str = "≈";
const PARETO: &str = "P";
const NOISE: &str = "-";
const INCOMPLETE: &str = "!";

/// A row for each model, and what the marks mean.
pub fn table(comparison: &Comparison, names: &Names) -> String {
    let models = &comparison.models;
    let sizes = models.iter().filter_map(|model| model.model.shown_bytes());
    let unit = SizeUnit::for_sizes(sizes.max().unwrap_or(0));
    let level = short_percent(comparison.confidence.level());
    let titles = [
        String::new(),
        String::new(),
        "\nmodel".to_owned(),
        format!("size\n{}", unit.symbol),
        "\nBPW".to_owned(),
        "mean\nKLD".to_owned(),
        format!("{level} %\ninterval"),
        "99 %\nKLD".to_owned(),
        "same\ntop %".to_owned(),
        "PPL\nratio".to_owned(),
    ];
    let ranks = ranks(models);
    let mut text = fitted(names, |width| {
        let row = |(model, rank): (&ComparedModel, &String)| {
            let [mean, interval] = mean(model);
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            let size = model
                .model
                .shown_bytes()
                .map(|size| size as f64 / unit.bytes);
            let top = model
                .same_top()
                .map(|share| format!("{:.2}", 100.0 * share));
            vec![
                rank.clone(),
                marks(model),
                names.short(&model.label, width),
                or_dash(size.map(|size| format!("{size:.2}"))),
                or_dash(model.model.bpw.map(|bpw| format!("{bpw:.2}"))),
                mean,
                interval,
                or_dash(model.quantile(0.99).map(|q| kld(q.estimate.value))),
                or_dash(top),
                or_dash(model.ppl_ratio().map(|ratio| fixed(ratio, 4))),
            ]
        };
        lines(
            titles.to_vec(),
            models.iter().zip(&ranks).map(row).collect(),
            3,
        )
    });
    text.push_str(&legend(comparison));
    text
}

/// A KLD to three significant digits.
pub fn kld(value: f64) -> String {
    significant(value, 3)
}

/// The mean KLD, and its interval.
fn mean(model: &ComparedModel) -> [String; 2] {
    match model.mean_kld() {
        None => ["-".to_owned(), String::new()],
        Some(mean) => [
            kld(mean.estimate.value),
            ends(mean.clustered.lo, mean.clustered.hi, kld),
        ],
    }
}

/// The rank of each candidate.
fn ranks(models: &[ComparedModel]) -> Vec<String> {
    let mut rank = 0;
    let ranks = models.iter().map(|model| match model.is_candidate() {
        true => {
            rank += 1;
            rank.to_string()
        }
        false if model.is_incomplete => INCOMPLETE.to_owned(),
        false => NOISE.to_owned(),
    });
    ranks.collect()
}

/// The marks of a model.
pub fn marks(model: &ComparedModel) -> String {
    let is_alike = model.indistinguishable_from_best && model.difference_to_best.is_some();
    let mark = |is: bool, mark: &'static str| if is { mark } else { " " };
    format!("{}{}", mark(is_alike, ALIKE), mark(model.pareto, PARETO))
}

/// What the marks mean that occur.
fn legend(comparison: &Comparison) -> String {
    let models = &comparison.models;
    let marked = |mark: &str| models.iter().any(|model| marks(model).contains(mark));
    let mut text = String::new();
    let mut line = |mark: &str, what: &str| text.push_str(&format!("{mark} {what}\n"));
    if marked(ALIKE) {
        line(
            ALIKE,
            "cannot be told from the best, by Holm's test on the same tokens",
        );
    }
    if marked(PARETO) {
        line(
            PARETO,
            "on the Pareto front: no other is as small and as near",
        );
    }
    if models.iter().any(|model| model.is_noise_floor) {
        line(NOISE, "the noise floor: the reference's own model");
    }
    for model in models.iter().filter(|model| model.is_incomplete) {
        let n = count_of(model.n_left_out(), "token");
        let label = &model.label;
        line(INCOMPLETE, &format!("not ranked: {label} leaves out {n}"));
    }
    text
}
