//! Quantiles of a sample, with intervals between order statistics.

use serde::Serialize;

use super::clustered_error::Spread;
use super::estimate::{Confidence, Estimate};
use super::strata::Cluster;
use super::{maritz_jarrett, order_statistics};

/// A quantile of a sample, with its intervals.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuantileEstimate {
    /// Which quantile: the share of samples below it.
    pub p: f64,
    /// Its value, and the interval to believe. An end is `None` where the sample has none: in a
    /// sparse tail, any value beyond the last sample would do.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The lower end of kl.py's interval, `scipy.stats.mstats.mquantiles_cimj`.
    pub mj_lo: Option<f64>,
    /// The upper end of kl.py's interval.
    pub mj_hi: Option<f64>,
}

/// Estimates several quantiles of finite samples, where `samples[i]` is in cluster `clusters[i]`;
/// empty without samples. `sorted` are the same samples, and ascend; so do `ps`.
///
/// The value is [`linear`]. The interval is of the order statistics that hold the quantile with the
/// asked confidence, by the binomial distribution of how many samples are below it. Samples of a
/// cluster resemble each other: the number of samples in that distribution is the effective one
/// for the share of samples below the quantile (Woodruff 1952, J. Am. Stat. Assoc. 47).
///
/// Higher quantiles have higher ends: each end is also an end for the quantiles beyond it. One
/// cluster gives no ends.
pub fn estimates(
    clusters: &[Cluster],
    samples: &[f64],
    sorted: &[f64],
    ps: &[f64],
    confidence: Confidence,
) -> Vec<QuantileEstimate> {
    let mut quantiles: Vec<QuantileEstimate> = ps
        .iter()
        .filter_map(|&p| {
            let value = linear(sorted, p)?;
            let n_effective = n_effective(clusters, samples, value, confidence);
            let ranks = |n| order_statistics::ranks(sorted.len(), n, p, confidence);
            let (lo, hi) = n_effective.map_or((None, None), ranks);
            let at = |rank: usize| sorted.get(rank - 1).copied();
            let mj = maritz_jarrett::interval(sorted, p, confidence);
            Some(QuantileEstimate {
                p,
                estimate: Estimate {
                    value,
                    // The value may lie between two samples, beyond the last that is an end.
                    lo: lo.and_then(at).map(|lo| lo.min(value)),
                    hi: hi.and_then(at).map(|hi| hi.max(value)),
                },
                mj_lo: mj.map(|(lo, _)| lo),
                mj_hi: mj.map(|(_, hi)| hi),
            })
        })
        .collect();
    let mut highest = None;
    for QuantileEstimate { estimate, .. } in &mut quantiles {
        let ends = [estimate.lo, highest].into_iter().flatten();
        estimate.lo = ends.max_by(f64::total_cmp);
        highest = estimate.lo;
    }
    let mut lowest = None;
    for QuantileEstimate { estimate, .. } in quantiles.iter_mut().rev() {
        let ends = [estimate.hi, lowest].into_iter().flatten();
        estimate.hi = ends.min_by(f64::total_cmp);
        lowest = estimate.hi;
    }
    quantiles
}

/// How many independent samples would determine the share of samples up to `value` as well.
fn n_effective(
    clusters: &[Cluster],
    samples: &[f64],
    value: f64,
    confidence: Confidence,
) -> Option<f64> {
    let below = |x: &f64| if *x <= value { 1.0 } else { 0.0 };
    let share = samples.iter().map(below).sum::<f64>() / samples.len() as f64;
    Spread::of(clusters, samples.iter().map(|x| below(x) - share)).n_for_share(confidence)
}

/// The samples in ascending order.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Interpolates linearly between the samples around index `p (n−1)`; `None` without samples.
///
/// This is Hyndman & Fan's type 7, the default of `numpy.quantile` and what llama-perplexity
/// prints.
pub fn linear(sorted: &[f64], p: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = p.clamp(0.0, 1.0) * last as f64;
    let below = position as usize;
    let (a, b) = (sorted[below], sorted[(below + 1).min(last)]);
    let t = position - below as f64;
    // As numpy does: from the nearer end.
    Some(if t < 0.5 {
        a + (b - a) * t
    } else {
        b - (b - a) * (1.0 - t)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_reaches_both_ends() {
        assert_eq!(linear(&[1.0, 2.0, 4.0], 0.0), Some(1.0));
        assert_eq!(linear(&[1.0, 2.0, 4.0], 0.75), Some(3.0));
        assert_eq!(linear(&[1.0, 2.0, 4.0], 1.0), Some(4.0));
        assert_eq!(linear(&[], 0.5), None);
    }
}
