//! Numbers of all tokens: the mean, the spread and the tail of a divergence and of the change in the next
//! token's probability, and the curves of the KLD.

use serde::Serialize;

use super::clustered::{ClusteredMean, ClusteredValue};
use super::clusters::Estimator;
use super::estimate::finite;
use super::mean::Sum;
use super::quantile::{self, QuantileEstimate};
use super::table::TokenTable;
use super::token::TokenLocation;

/// The distribution of one per-token divergence, in nats.
///
/// All but `n_infinite` is over the tokens whose divergence is finite.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Distribution {
    /// Tokens whose divergence is infinite: one model gives a probability of 0 where the other does
    /// not.
    pub n_infinite: u64,
    /// The mean, with both of its intervals.
    pub mean: ClusteredMean,
    /// The sample standard deviation (n−1); `None` for fewer than two tokens.
    pub std: Option<f64>,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Where the maximum is: its first position in the text if there are several.
    pub max_at: TokenLocation,
    /// The median and the upper tail, to 99.9 %.
    pub quantiles: Vec<QuantileEstimate>,
    /// The share of the mean that the largest values add.
    pub tail: Tail,
}

impl Distribution {
    /// Summarises a number of the counted tokens that cannot be negative; `sorted` are the finite ones of
    /// `values`, and ascend. `None` if there are none.
    pub(super) fn from_values(
        table: &TokenTable,
        estimator: &Estimator,
        values: &[f64],
        sorted: &[f64],
        quantiles: &[f64],
    ) -> Option<Self> {
        let (min, max, n) = (*sorted.first()?, *sorted.last()?, sorted.len());
        let mean = estimator.mean_of_positive(values.iter().copied())?;
        let tokens = table.locations().zip(values);
        let at_max = tokens.filter(|(_, value)| **value == max);
        Some(Self {
            n_infinite: (values.len() - n) as u64,
            mean,
            std: mean.se.and_then(|se| finite(se * (n as f64).sqrt())),
            min,
            max,
            max_at: at_max.map(|(location, _)| location).min()?,
            quantiles: estimator.quantiles(values, sorted, quantiles),
            tail: Tail::from_sorted(sorted),
        })
    }
}

/// The share of a mean that comes from few tokens.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Tail {
    /// The share of the sum that the largest 0.1 % of the samples add; `None` for fewer than 1,000,
    /// and for a sum of 0.
    pub top_0_1_percent: Option<f64>,
    /// The share that the largest 1 % add; `None` for fewer than 100, and for a sum of 0.
    pub top_1_percent: Option<f64>,
    /// The mean of all samples but the largest; `None` for one sample.
    pub mean_without_max: Option<f64>,
}

impl Tail {
    /// Computes them from finite samples in ascending order that are not negative.
    pub fn from_sorted(sorted: &[f64]) -> Self {
        let sum = |samples: &[f64]| samples.iter().copied().collect::<Sum>().value();
        let total = sum(sorted);
        let n = sorted.len() as f64;
        let top = |one_of: f64| {
            // The share may end within a sample: only the part before its end counts.
            let count = n / one_of;
            let (rest, largest) = sorted.split_at(sorted.len() - count as usize);
            let next = rest.last().map_or(0.0, |x| x * count.fract());
            let share = (sum(largest) + next) / total;
            (!largest.is_empty() && share.is_finite()).then_some(share)
        };
        Self {
            top_0_1_percent: top(1000.0),
            top_1_percent: top(100.0),
            mean_without_max: match sorted.split_last() {
                Some((_, rest)) if !rest.is_empty() => Some(sum(rest) / (n - 1.0)),
                _ => None,
            },
        }
    }
}

/// Both tails matter: where the evaluated model's probability fell, and where it rose.
const DELTA_P_QUANTILES: [f64; 11] = [
    0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999,
];

/// The distribution of `Δp = q(next) − p(next)`: fractions, not percent. It is over the tokens that
/// perplexity is over.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct DeltaP {
    /// The mean, with both of its intervals.
    pub mean: ClusteredMean,
    /// `sqrt(mean Δp²)`, with llama-perplexity's standard error `SE(mean Δp²) / (2 rms)`: `None`
    /// for fewer than two samples, 0 if all are 0. The clustered interval is the root of that of
    /// the mean square.
    pub rms: ClusteredValue,
    /// The largest loss.
    pub min: f64,
    /// The largest gain.
    pub max: f64,
    /// The quantiles from 0.1 % to 99.9 %.
    pub quantiles: Vec<QuantileEstimate>,
}

impl DeltaP {
    /// Summarises the change of each token, NaN where it is not known. `None` without others.
    pub(super) fn from_changes(estimator: &Estimator, changes: &[f64]) -> Option<Self> {
        let sorted = quantile::sorted(changes);
        let squares = changes.iter().map(|x| x * x);
        let mean_square = estimator.mean_of_positive(squares)?;
        let rms = mean_square.independent.value.sqrt();
        let se = |se: f64| finite(if se == 0.0 { 0.0 } else { 0.5 * se / rms });
        Some(Self {
            mean: estimator.mean(changes.iter().copied())?,
            rms: ClusteredValue {
                value: rms,
                se: mean_square.se.and_then(se),
                clustered: mean_square.clustered.map(f64::sqrt, 0.5 / rms),
            },
            min: *sorted.first()?,
            max: *sorted.last()?,
            quantiles: estimator.quantiles(changes, &sorted, &DELTA_P_QUANTILES),
        })
    }
}

/// A point of a curve: `[x, y]` in the JSON.
pub type Point = (f64, f64);

/// The most points of a distribution: more would not show in a plot.
const CCDF_POINTS: usize = 120;

/// The share of counted tokens with at least a KLD: points of KLD (nats) and share, by ascending
/// KLD.
///
/// The shares are spaced evenly in their logarithm, down to that of the largest KLD alone. Infinite
/// KLDs count as large ones, and have no point.
///
/// `sorted` are the finite KLDs of `n` counted tokens, and ascend.
pub(super) fn ccdf(sorted: &[f64], n: usize) -> Vec<Point> {
    let last = (CCDF_POINTS - 1) as f64;
    let mut points: Vec<Point> = (0..CCDF_POINTS)
        .rev()
        .filter_map(|i| {
            let n_largest = (n as f64).powf(i as f64 / last).round() as usize;
            let kld = *sorted.get(n.checked_sub(n_largest)?)?;
            let n_below = sorted.partition_point(|other| *other < kld);
            Some((kld, (n - n_below) as f64 / n as f64))
        })
        .collect();
    points.dedup();
    points
}

#[cfg(test)]
#[path = "tests/distribution.rs"]
mod tests;
