//! Quantiles, with the intervals of order statistics and of Maritz and Jarrett.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::clusters::Estimator;
use super::estimate::{Confidence, Estimate};
use super::mean::Totals;
use super::probability::{self, normal_two_sided};
use super::spread::Spread;
use super::windows::Cluster;

/// A quantile of a sample, with its intervals.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
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

impl Estimator {
    /// Estimates several quantiles of the finite samples, one for each token; empty without any. `sorted`
    /// are the finite samples, and ascend; so do `ps`.
    ///
    /// The value is [`linear`]. The interval is of the order statistics that hold the quantile with the
    /// asked confidence, by the binomial distribution of how many samples are below it. Samples of a
    /// cluster resemble each other: the number of samples in that distribution is the effective one
    /// for the share of samples below the quantile (Woodruff 1952, J. Am. Stat. Assoc. 47).
    ///
    /// Higher quantiles have higher ends: each end is also an end for the quantiles beyond it. One
    /// cluster gives no ends.
    pub(super) fn quantiles(
        &self,
        samples: &[f64],
        sorted: &[f64],
        ps: &[f64],
    ) -> Vec<QuantileEstimate> {
        let values: Option<Vec<f64>> = ps.iter().map(|p| linear(sorted, *p)).collect();
        let Some(values) = values else {
            return Vec::new();
        };
        let spreads = spreads_up_to(&self.clusters, samples, &values);
        let estimate = |((&p, value), spread): ((&f64, f64), Spread)| {
            let n_effective = spread.n_for_share(self.confidence);
            let ranks = |n| interval_ranks(sorted.len(), n, p, self.confidence);
            let (lo, hi) = n_effective.map_or((None, None), ranks);
            let at = |rank: usize| sorted.get(rank - 1).copied();
            let mj = maritz_jarrett_interval(sorted, p, self.confidence);
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
        };
        let mut quantiles: Vec<QuantileEstimate> =
            ps.iter().zip(values).zip(spreads).map(estimate).collect();
        let (mut highest, mut lowest) = (None, None);
        for QuantileEstimate { estimate, .. } in &mut quantiles {
            highest = estimate.lo.into_iter().chain(highest).reduce(f64::max);
            estimate.lo = highest;
        }
        for QuantileEstimate { estimate, .. } in quantiles.iter_mut().rev() {
            lowest = estimate.hi.into_iter().chain(lowest).reduce(f64::min);
            estimate.hi = lowest;
        }
        quantiles
    }
}

/// The spread of the share of finite samples up to each of some values.
fn spreads_up_to(clusters: &[Cluster], samples: &[f64], values: &[f64]) -> Vec<Spread> {
    // The finite samples of each cluster, and those of them up to each value.
    let mut counts = BTreeMap::<Cluster, (f64, Vec<f64>)>::new();
    let mut rest = samples;
    for run in clusters.chunk_by(|one, next| one == next) {
        let (inside, after) = rest.split_at(run.len());
        rest = after;
        let none = || (0.0, vec![0.0; values.len()]);
        let (n, up_to) = counts.entry(run[0]).or_insert_with(none);
        *n += inside.iter().filter(|x| x.is_finite()).count() as f64;
        for (up_to, value) in up_to.iter_mut().zip(values) {
            *up_to += inside.iter().filter(|x| *x <= value).count() as f64;
        }
    }
    counts.retain(|_, (n, _)| *n > 0.0);
    let n_samples: f64 = counts.values().map(|(n, _)| n).sum();
    let spread = |index: usize| {
        let hits = counts.values().map(|(_, up_to)| up_to[index]);
        let share = hits.sum::<f64>() / n_samples;
        let residuals = |(cluster, (n, up_to)): (&Cluster, &(f64, Vec<f64>))| {
            let (hits, misses) = (up_to[index], n - up_to[index]);
            let total = |power| hits * (1.0 - share).powi(power) + misses * (-share).powi(power);
            let sums = [hits - n * share, total(2), total(3)];
            (*cluster, Totals { n: *n, sums })
        };
        Spread::of_clusters(&counts.iter().map(residuals).collect())
    };
    (0..values.len()).map(spread).collect()
}

/// The finite samples in ascending order.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let finite = samples.iter().copied().filter(|x| x.is_finite());
    let mut sorted: Vec<f64> = finite.collect();
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

/// The ranks, from 1 to n, of the samples that are the ends of the p-quantile's interval.
///
/// Of m independent samples, Binomial(m, p) are below the quantile. The interval is from the
/// highest sample that is below it, and to the lowest that is above it, with a probability of at
/// least `(1 + confidence)/2` each. An end is `None` where even the first or the last sample is not:
/// the 99.9 % quantile has an upper end from 3,688 samples on, at 95 %.
///
/// `n_effective` is m, at most n. The ranks are those of n samples that are m different ones, each
/// n/m times, so with `n_effective` = n they are exact.
pub fn interval_ranks(
    n: usize,
    n_effective: f64,
    p: f64,
    confidence: Confidence,
) -> (Option<usize>, Option<usize>) {
    let m = (n_effective as usize).clamp(1, n.max(1));
    let tail = 0.5 * confidence.outside();
    // P(at least k of m samples are below the quantile), and its complement.
    let at_least = |k: usize| probability::tails(k as f64, (m - k + 1) as f64, p);
    let surely_below = first(m, |k| at_least(k).1 > tail) - 1;
    let surely_above = first(m, |k| at_least(k).0 <= tail);
    let copies = n as f64 / m as f64;
    let lo = (surely_below >= 1).then(|| ((surely_below - 1) as f64 * copies) as usize + 1);
    let hi = (surely_above <= m).then(|| ((surely_above as f64 * copies).ceil() as usize).min(n));
    (lo, hi)
}

/// The first k of 1 to m for which `holds`, which then holds for all after it; m + 1 if it does for
/// none.
fn first(m: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut lo, mut hi) = (1, m + 1);
    while lo < hi {
        let middle = lo.midpoint(hi);
        if holds(middle) {
            hi = middle;
        } else {
            lo = middle + 1;
        }
    }
    lo
}

/// The interval of the p-quantile of ascending, finite samples as
/// `scipy.stats.mstats.mquantiles_cimj` computes it: `weibull(p) ± z · maritz_jarrett_error(p)`.
///
/// Its centre is not [`super::quantile::linear`]: in a sparse tail the two definitions of a
/// quantile differ by up to one gap between samples. As in scipy, the ends are not clamped to the
/// range of the samples. `None` where the error is undefined, with too few samples in the tail:
/// `n < 0.5/(1−p)` (a 99.9 % quantile needs about 500).
pub fn maritz_jarrett_interval(
    sorted: &[f64],
    p: f64,
    confidence: Confidence,
) -> Option<(f64, f64)> {
    let centre = weibull(sorted, p)?;
    let half_width = normal_two_sided(confidence) * maritz_jarrett_error(sorted, p)?;
    Some((centre - half_width, centre + half_width))
}

/// Weibull plotting positions, `p (n+1)`: Hyndman & Fan's type 6, `mquantiles(alphap=0, betap=0)`.
fn weibull(sorted: &[f64], p: f64) -> Option<f64> {
    let n = sorted.len();
    if n < 2 {
        return sorted.first().copied();
    }
    let position = p * (n as f64 + 1.0);
    let k = position.clamp(1.0, n as f64 - 1.0).floor();
    let t = (position - k).clamp(0.0, 1.0);
    let k = k as usize;
    Some((1.0 - t) * sorted[k - 1] + t * sorted[k])
}

/// The standard error of the p-quantile by Maritz & Jarrett (1978), as `scipy.stats.mstats.mjci`
/// defines it.
///
/// It is the standard deviation of the samples under weights that are the beta probabilities of the
/// cells `[(i−1)/n, i/n]`, with parameters m−1 and n−m, `m = ⌊p n + ½⌋`.
///
/// `None` where that beta distribution does not exist: `m < 2` or `m = n`.
pub fn maritz_jarrett_error(sorted: &[f64], p: f64) -> Option<f64> {
    let n = sorted.len();
    let m = (p * n as f64 + 0.5) as usize;
    if m < 2 || m >= n {
        return None;
    }
    let known = weights_of(n, m);
    let (first, weights) = &*known;
    let cells = || weights.iter().zip(&sorted[*first..]);
    let total: f64 = weights.iter().sum();
    let mean = cells().map(|(w, x)| w * x).sum::<f64>() / total;
    let variance = cells().map(|(w, x)| w * (x - mean).powi(2)).sum::<f64>() / total;
    Some(variance.sqrt())
}

/// The weights of cells, and the index of the first.
type Weights = Arc<(usize, Vec<f64>)>;

/// The weights that were computed last, by n and m: models of one text need the same, and they take
/// a tenth of the time of a report.
static KNOWN: Mutex<BTreeMap<(usize, usize), Weights>> = Mutex::new(BTreeMap::new());

fn weights_of(n: usize, m: usize) -> Weights {
    /// More than the quantiles of one text.
    const MOST_KNOWN: usize = 64;
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(weights) = known().get(&(n, m)) {
        return Arc::clone(weights);
    }
    let weights = Arc::new(beta_weights(n, m));
    let mut known = known();
    if known.len() >= MOST_KNOWN {
        known.clear();
    }
    known.insert((n, m), Arc::clone(&weights));
    weights
}

/// The weights of all cells that matter, up to a common factor, and the index of the first.
///
/// Each cell's probability is the integral of the density over it, relative to the density at the
/// mode (so no special function and no large logarithm is needed), by 8-point Gauss-Legendre. The
/// walk goes outwards from the mode and ends where a cell adds nothing, after about 20 standard
/// deviations of `sqrt(n p (1−p))` cells instead of all n.
fn beta_weights(n: usize, m: usize) -> (usize, Vec<f64>) {
    /// Relative to all weight so far: what is left out is well below f64's resolution.
    const NEGLIGIBLE: f64 = 1e-20;
    /// (distance from the middle, weight) on [-1, 1]: Abramowitz & Stegun table 25.4, n = 8.
    const GAUSS_LEGENDRE_8: [(f64, f64); 4] = [
        (0.183_434_642_495_649_8, 0.362_683_783_378_362),
        (0.525_532_409_916_329, 0.313_706_645_877_887_3),
        (0.796_666_477_413_626_7, 0.222_381_034_453_374_5),
        (0.960_289_856_497_536_3, 0.101_228_536_290_376_3),
    ];
    // Beta(m−1, n−m) has the density x^below (1−x)^above, up to a factor.
    let (below, above) = ((m - 2) as f64, (n - m - 1) as f64);
    // Flat when both exponents are 0: any point is its mode.
    let degree = (below + above).max(1.0);
    let (mode, mode_from_one) = (below / degree, above / degree);
    let density = |x: f64| {
        let from_mode = x - mode;
        // With an exponent of 0 the mode is on the border; the factor is 1.
        let mut ln = 0.0;
        if below > 0.0 {
            ln += below * (from_mode / mode).ln_1p();
        }
        if above > 0.0 {
            ln += above * (-from_mode / mode_from_one).ln_1p();
        }
        ln.exp()
    };
    // The integral over the cell `[cell/n, (cell+1)/n]`, in units of a cell.
    let over_cell = |cell: usize| -> f64 {
        let middle = cell as f64 + 0.5;
        let pairs = GAUSS_LEGENDRE_8.iter().map(|(distance, weight)| {
            let at = |half: f64| density((middle + half * distance) / n as f64);
            0.5 * weight * (at(-0.5) + at(0.5))
        });
        pairs.sum()
    };
    let peak = ((mode * n as f64) as usize).min(n - 1);
    let mut total = 0.0;
    let mut matters = |cell: usize| {
        let weight = over_cell(cell);
        total += weight;
        (weight > NEGLIGIBLE * total).then_some(weight)
    };
    let mut weights: Vec<f64> = (0..=peak).rev().map_while(&mut matters).collect();
    weights.reverse();
    let first = peak + 1 - weights.len();
    weights.extend((peak + 1..n).map_while(&mut matters));
    (first, weights)
}

#[cfg(test)]
#[path = "tests/quantile.rs"]
mod tests;
