//! The Pareto front, step by step: the gain that each step in size buys.

use serde::Serialize;

use crate::report::comparison::{ComparedModel, ComparedPair, Comparison};
use crate::report::number::{SizeUnit, finite};

/// A model of the Pareto front, beside the next smaller one.
#[derive(Serialize, Debug)]
pub(super) struct Step<'c> {
    #[serde(skip)]
    model: &'c ComparedModel,
    pub label: &'c str,
    /// Its size in bytes.
    pub size: u64,
    /// The mean KLD in nats.
    pub kld: f64,
    /// Its cost and gain; `None` for the smallest.
    pub gain: Option<Gain>,
}

/// The cost and the gain of a step of the Pareto front.
#[derive(Serialize, Debug)]
pub(super) struct Gain {
    pub bytes: u64,
    /// By what the mean KLD is divided; `None` to one that is noise.
    pub factor: Option<f64>,
    /// The interval of the factor; `None` where the two were not compared.
    pub interval: Option<(f64, f64)>,
    /// By how many nats the mean KLD falls for each [`SizeUnit`] of space; `None` for about equal sizes.
    pub per_unit: Option<f64>,
    /// True if the difference may be chance. False where the two were not compared.
    pub may_be_chance: bool,
}

/// The Pareto front, from the smallest model to the largest.
pub(super) fn steps(comparison: &Comparison, unit: SizeUnit) -> Vec<Step<'_>> {
    let sizes = comparison.sizes();
    let front = comparison.models.iter().filter(|m| m.pareto);
    let front = front.filter_map(|m| {
        Some(Step {
            model: m,
            label: &m.label,
            size: sizes.bytes(m)?,
            kld: m.mean_kld()?.value,
            gain: None,
        })
    });
    let mut steps: Vec<Step> = front.collect();
    steps.sort_by_key(|step| step.size);
    for i in 1..steps.len() {
        let (smaller, larger) = (&steps[i - 1], &steps[i]);
        let bytes = larger.size.saturating_sub(smaller.size);
        let pair = pair_of(comparison, smaller.label, larger.label);
        let factor = finite(smaller.kld / larger.kld);
        let saves = sizes.saved(larger.model, smaller.model);
        let per_unit = saves.map(|bytes| (smaller.kld - larger.kld) / (bytes as f64 / unit.bytes));
        steps[i].gain = Some(Gain {
            bytes,
            factor: factor.filter(|_| !comparison.is_noise(larger.model)),
            per_unit: per_unit.and_then(finite),
            interval: pair.and_then(|pair| interval(pair, smaller.label)),
            may_be_chance: pair.is_some_and(|pair| comparison.may_be_chance(pair)),
        });
    }
    steps
}

fn pair_of<'c>(comparison: &'c Comparison, a: &str, b: &str) -> Option<&'c ComparedPair> {
    let mut pairs = comparison.pairs.iter();
    pairs.find(|pair| (pair.a == a && pair.b == b) || (pair.a == b && pair.b == a))
}

/// The interval of a pair's ratio, with the mean KLD of `above` over the other one's.
fn interval(pair: &ComparedPair, above: &str) -> Option<(f64, f64)> {
    let ratio = match pair.a == above {
        true => pair.ratio?,
        false => pair.ratio?.inverse(),
    };
    let (lo, hi) = ratio.lo.zip(ratio.hi)?;
    finite(lo).zip(finite(hi))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn the_steps_of_the_sample() {
        let comparison = sample::comparison();
        assert_eq!(comparison.size_unit().symbol, "MiB");
        let steps = steps(&comparison, comparison.size_unit());
        let labels: Vec<_> = steps.iter().map(|step| step.label).collect();
        assert_eq!(labels, ["tiny-q2_K", "tiny-iq4_xs", "tiny-q4_K_M"]);
        assert!(steps[0].gain.is_none());
        let gain = steps[2].gain.as_ref().unwrap();
        assert_eq!(gain.bytes, 100_000);
        assert!(gain.may_be_chance);
        assert!((gain.factor.unwrap() - 1.04).abs() < 1e-9);
    }

    /// The interval is of the smaller model's mean over the larger one's, whichever comes first in
    /// the pair.
    #[test]
    fn a_pair_turned_round_has_the_inverse_interval() {
        let mut pair = sample::comparison().pairs[0].clone();
        pair.ratio = Some(sample::ratio(2.0, 0.01));
        assert_eq!(interval(&pair, &pair.a), Some((1.8, 2.22)));
        assert_eq!(interval(&pair, &pair.b), Some((1.0 / 2.22, 1.0 / 1.8)));
        pair.ratio = None;
        assert_eq!(interval(&pair, &pair.a), None);
    }

    /// A step to a KLD of 0 has no factor: the page shows a dash.
    #[test]
    fn a_kld_of_0_divides_nothing() {
        let mut comparison = sample::comparison();
        for (i, kld) in [(1, 0.0), (2, 0.0)] {
            let of = comparison.models[i].summary.kld.as_mut().unwrap();
            of.mean.estimate.value = kld;
        }
        let factors = |gain: &Gain| (gain.factor, gain.per_unit.is_some());
        let steps = steps(&comparison, comparison.size_unit());
        let gains = steps.iter().filter_map(|step| step.gain.as_ref());
        let gains: Vec<_> = gains.map(factors).collect();
        assert_eq!(gains, [(None, true), (None, true)]);
    }
}
