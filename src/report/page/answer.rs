//! What a comparison comes down to: the best model, those that cannot be told from it, and what
//! more space buys.

use serde::Serialize;

use crate::report::comparison::{ComparedModel, Comparison};
use crate::report::number::SizeUnit;

/// The facts of the page's first section.
#[derive(Serialize, Debug)]
pub(super) struct Answer<'c> {
    /// `None` if no quant has a mean KLD.
    pub best: Option<Row<'c>>,
    /// The models that cannot be told from the best, by mean KLD.
    pub near: Vec<&'c str>,
    /// The smallest of `near`, if it is smaller than the best.
    pub smallest: Option<Row<'c>>,
    /// How many models were compared with the best.
    pub compared: usize,
    /// The original's own rows.
    pub floors: Vec<Row<'c>>,
    /// The Pareto front, from the smallest model to the largest.
    pub steps: Vec<Step<'c>>,
    /// The unit of sizes.
    pub unit: SizeUnit,
}

/// A model's numbers in the text.
#[derive(Serialize, Debug, Clone, Copy)]
pub(super) struct Row<'c> {
    pub label: &'c str,
    /// Bytes of its file.
    pub size: Option<u64>,
    /// The mean KLD in nats.
    pub kld: f64,
    pub lo: Option<f64>,
    pub hi: Option<f64>,
    pub same_top: Option<f64>,
}

/// A model of the Pareto front, beside the next smaller one.
#[derive(Serialize, Debug)]
pub(super) struct Step<'c> {
    pub label: &'c str,
    /// Bytes of its file.
    pub size: u64,
    /// The mean KLD in nats.
    pub kld: f64,
    /// What it costs and brings; `None` for the smallest.
    pub gain: Option<Gain>,
}

/// What a step of the Pareto front costs and brings.
#[derive(Serialize, Debug)]
pub(super) struct Gain {
    pub bytes: u64,
    /// By what the mean KLD is divided; `None` for a KLD of 0.
    pub factor: Option<f64>,
    /// By how many nats the mean KLD falls for each [`SizeUnit`] of space; `None` for equal sizes.
    pub per_unit: Option<f64>,
    /// Whether the difference may be chance. False where the two were not compared.
    pub may_be_chance: bool,
}

impl<'c> Answer<'c> {
    pub fn of(comparison: &'c Comparison) -> Self {
        let models = &comparison.models;
        let is_compared = |m: &&ComparedModel| m.is_candidate() && m.difference_to_best.is_some();
        let largest = models.iter().filter_map(|m| m.model.shown_bytes()).max();
        let unit = SizeUnit::for_sizes(largest.unwrap_or(0));
        Self {
            best: comparison.best().and_then(Row::of),
            near: comparison.near_best().map(|m| m.label.as_str()).collect(),
            smallest: comparison.smallest_near_best().and_then(Row::of),
            compared: models.iter().filter(is_compared).count(),
            floors: models
                .iter()
                .filter(|m| m.is_noise_floor)
                .filter_map(Row::of)
                .collect(),
            steps: steps(comparison, unit),
            unit,
        }
    }
}

impl<'c> Row<'c> {
    fn of(model: &'c ComparedModel) -> Option<Self> {
        let mean = model.mean_kld()?;
        Some(Self {
            label: &model.label,
            size: model.model.shown_bytes(),
            kld: mean.estimate.value,
            lo: mean.clustered.lo,
            hi: mean.clustered.hi,
            same_top: model.same_top(),
        })
    }
}

fn steps(comparison: &Comparison, unit: SizeUnit) -> Vec<Step<'_>> {
    let mut front: Vec<(u64, Row)> = comparison
        .models
        .iter()
        .filter(|m| m.pareto)
        .filter_map(|m| Some((m.model.shown_bytes()?, Row::of(m)?)))
        .collect();
    front.sort_by_key(|(size, _)| *size);
    let mut steps: Vec<Step> = Vec::with_capacity(front.len());
    for (size, row) in front {
        let gain = steps.last().map(|smaller| {
            let bytes = size.saturating_sub(smaller.size);
            // Two may tie, and a KLD may be 0.
            let finite = |x: f64| x.is_finite().then_some(x);
            Gain {
                bytes,
                factor: finite(smaller.kld / row.kld),
                per_unit: finite((smaller.kld - row.kld) / (bytes as f64 / unit.bytes)),
                may_be_chance: may_be_chance(comparison, smaller.label, row.label),
            }
        });
        steps.push(Step {
            label: row.label,
            size,
            kld: row.kld,
            gain,
        });
    }
    steps
}

fn may_be_chance(comparison: &Comparison, a: &str, b: &str) -> bool {
    let pair = comparison
        .pairs
        .iter()
        .find(|pair| (pair.a == a && pair.b == b) || (pair.a == b && pair.b == a));
    pair.is_some_and(|pair| comparison.may_be_chance(pair))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn the_answer_of_the_sample() {
        let comparison = sample::comparison();
        let answer = Answer::of(&comparison);
        assert_eq!(answer.best.unwrap().label, "tiny-q4_K_M");
        assert_eq!(answer.near, ["tiny-iq4_xs"]);
        assert_eq!(answer.smallest.unwrap().label, "tiny-iq4_xs");
        assert_eq!(answer.compared, 4);
        assert_eq!(answer.floors.len(), 1);
        assert_eq!(answer.unit.symbol, "MiB");
        let labels: Vec<_> = answer.steps.iter().map(|step| step.label).collect();
        assert_eq!(labels, ["tiny-q2_K", "tiny-iq4_xs", "tiny-q4_K_M"]);
        assert!(answer.steps[0].gain.is_none());
        let gain = answer.steps[2].gain.as_ref().unwrap();
        assert_eq!(gain.bytes, 100_000);
        assert!(gain.may_be_chance);
        assert!((gain.factor.unwrap() - 1.04).abs() < 1e-9);
    }
}
