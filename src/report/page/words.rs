//! The title, and what each chart shows in words, for those who cannot see it.

use serde::Serialize;

use super::answer::Answer;
use super::filters::kld;
use crate::report::comparison::{ComparedModel, Comparison};
use crate::report::number::{bytes, count_of, percent, quantile_name};
use crate::stats::Bin;

/// More models than this are not read out one by one.
const MAX_READ_OUT: usize = 12;

/// The name of the original.
pub(super) fn title(comparison: &Comparison) -> &str {
    let reference = &comparison.reference;
    let name = reference.model_name().or(reference.file_name.as_deref());
    name.unwrap_or("a model")
}

/// A text alternative for each chart.
#[derive(Serialize, Debug)]
pub(super) struct Alternatives {
    size: String,
    forest: String,
    ccdf: String,
    confidence: String,
    position: String,
    groups: String,
    windows: String,
}

pub(super) fn alternatives(comparison: &Comparison, answer: &Answer) -> Alternatives {
    let best = comparison.best();
    let of_best = |words: &dyn Fn(&ComparedModel) -> String| {
        best.map(|best| format!(" {}: {}.", best.label, words(best)))
            .unwrap_or_default()
    };
    let unit = comparison.reference.unit();
    let table = "A table below has the numbers of all models.";
    Alternatives {
        size: format!(
            "Size against mean KLD of {}. On the Pareto front, from the smallest: {}. The table of all numbers has the others.",
            count_of(comparison.models.len() as u64, "model"),
            list(answer.steps.iter().map(|step| format!(
                "{} with {} and {} nats",
                step.label,
                bytes(step.size),
                kld(step.kld)
            )))
        ),
        forest: format!(
            "Differences of the mean KLD to {}, in nats: {}. The table of all numbers has them too.",
            answer.best.map_or("the best", |best| best.label),
            list(comparison.models.iter().filter_map(difference))
        ),
        ccdf: format!(
            "Share of tokens with at least a KLD, a falling line for each model.{} The table of all numbers has the quantiles.",
            of_best(&quantiles)
        ),
        confidence: format!(
            "Mean KLD by the probability of the original's top token.{} {table}",
            of_best(&|best| bins(&best.breakdown.by_confidence))
        ),
        position: format!(
            "Mean KLD by position in the {unit}.{} {table}",
            of_best(&|best| bins(&best.breakdown.by_position))
        ),
        groups: format!(
            "Mean KLD by group.{} {table}",
            of_best(&|best| bins(&best.breakdown.by_group))
        ),
        windows: format!(
            "Mean KLD along the text, a line for each model.{}",
            of_best(&|best| extremes(best, unit))
        ),
    }
}

fn difference(model: &ComparedModel) -> Option<String> {
    let difference = model.difference_to_best?.difference;
    let ends = difference.lo.zip(difference.hi);
    let interval = ends.map(|(lo, hi)| format!(" ({} to {})", kld(lo), kld(hi)));
    let verdict = if model.indistinguishable_from_best {
        ", cannot be told from the best"
    } else {
        ""
    };
    Some(format!(
        "{} {}{}{verdict}",
        model.label,
        kld(difference.value),
        interval.unwrap_or_default()
    ))
}

fn quantiles(model: &ComparedModel) -> String {
    let quantiles = model.summary.kld.iter().flat_map(|kld| &kld.quantiles);
    list(quantiles.map(|quantile| {
        let value = kld(quantile.estimate.value);
        format!("{} {value} nats", quantile_name(quantile.p))
    }))
}

fn bins(bins: &[Bin]) -> String {
    list(bins.iter().filter_map(|bin| {
        let share = bin.share_of_kld.map(percent);
        let share = share.map(|share| format!(", {share} of its KLD"));
        Some(format!(
            "{} {} nats{}",
            bin.label,
            kld(bin.kld?.value),
            share.unwrap_or_default()
        ))
    }))
}

fn extremes(model: &ComparedModel, unit: &str) -> String {
    let by_mean = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let points = model.by_window.iter();
    match points.clone().min_by(by_mean).zip(points.max_by(by_mean)) {
        Some((min, max)) => format!(
            "from {} nats at {unit} {} to {} at {unit} {}",
            kld(min.1),
            min.0,
            kld(max.1),
            max.0
        ),
        None => format!("no {unit}"),
    }
}

/// The first items, separated by semicolons.
fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    let mut text = items
        .iter()
        .take(MAX_READ_OUT)
        .cloned()
        .collect::<Vec<_>>()
        .join("; ");
    if items.len() > MAX_READ_OUT {
        text += &format!("; and {} more", items.len() - MAX_READ_OUT);
    }
    text
}
