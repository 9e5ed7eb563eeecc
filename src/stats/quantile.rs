//! Quantiles of a sample, with intervals between order statistics.

use std::collections::BTreeMap;

use serde::Serialize;

use super::clustered_error::Spread;
use super::estimate::{Confidence, Estimate};
use super::strata::{Cluster, Stratum};
use super::{maritz_jarrett, order_statistics};

/// A quantile of a sample, with its intervals.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuantileEstimate {
    /// The quantile: the share of samples below it.
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
    let values: Option<Vec<f64>> = ps.iter().map(|p| linear(sorted, *p)).collect();
    let Some(values) = values else {
        return Vec::new();
    };
    let up_to = UpTo::of(clusters, samples, &values);
    let mut quantiles: Vec<QuantileEstimate> = ps
        .iter()
        .zip(&values)
        .enumerate()
        .map(|(index, (&p, &value))| {
            let n_effective = up_to.spread(index).n_for_share(confidence);
            let ranks = |n| order_statistics::ranks(sorted.len(), n, p, confidence);
            let (lo, hi) = n_effective.map_or((None, None), ranks);
            let at = |rank: usize| sorted.get(rank - 1).copied();
            let mj = maritz_jarrett::interval(sorted, p, confidence);
            QuantileEstimate {
                p,
                estimate: Estimate {
                    value,
                    // The value may lie between two samples, beyond the last that is an end.
                    lo: lo.and_then(at).map(|lo| lo.min(value)),
                    hi: hi.and_then(at).map(|hi| hi.max(value)),
                },
                mj_lo: mj.map(|(lo, _)| lo),
                mj_hi: mj.map(|(_, hi)| hi),
            }
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

/// The number of samples up to each of some ascending values, by cluster.
struct UpTo {
    n_samples: f64,
    /// The number of samples in each cluster, and of those up to each value.
    clusters: BTreeMap<Cluster, (f64, Vec<f64>)>,
}

impl UpTo {
    fn of(clusters: &[Cluster], samples: &[f64], values: &[f64]) -> Self {
        let mut counts = BTreeMap::<Cluster, (f64, Vec<f64>)>::new();
        let mut rest = samples;
        for run in clusters.chunk_by(|one, next| one == next) {
            let (inside, after) = rest.split_at(run.len());
            rest = after;
            let (n, up_to) = counts
                .entry(run[0])
                .or_insert_with(|| (0.0, vec![0.0; values.len()]));
            *n += run.len() as f64;
            for (up_to, value) in up_to.iter_mut().zip(values) {
                *up_to += inside.iter().filter(|x| *x <= value).count() as f64;
            }
        }
        Self {
            n_samples: samples.len() as f64,
            clusters: counts,
        }
    }

    /// The spread of the share of samples up to the `index`-th value.
    fn spread(&self, index: usize) -> Spread {
        let counts = || {
            let clusters = self.clusters.iter();
            clusters.map(|(cluster, (n, up_to))| (cluster.stratum, *n, up_to[index]))
        };
        let share = counts().map(|(_, _, hits)| hits).sum::<f64>() / self.n_samples;
        let mut strata = BTreeMap::<u32, Stratum>::new();
        for (stratum, n, hits) in counts() {
            let stratum = strata.entry(stratum).or_default();
            let (hit, miss, misses) = (1.0 - share, -share, n - hits);
            let total = |power: i32| hits * hit.powi(power) + misses * miss.powi(power);
            stratum.powers.n += n;
            stratum.powers.sum += total(1);
            stratum.powers.squares += total(2);
            stratum.powers.cubes += total(3);
            stratum.clusters.push((n, hits - n * share));
        }
        Spread::of_strata(strata.into_values().collect())
    }
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
