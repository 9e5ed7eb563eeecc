//! A divergence over all tokens: its mean, its spread and its tail.

use serde::Serialize;

use super::cluster::Cluster;
use super::clustered_mean::{ClusteredMean, finite_of};
use super::columns::Columns;
use super::estimate::{Confidence, finite};
use super::mean::Sum;
use super::quantile::{self, QuantileEstimate};
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
    /// Summarises a number of the counted tokens that cannot be negative, `values[i]` of which is in
    /// cluster `clusters[i]`; `sorted` are the finite ones, and ascend. `None` if there are none.
    pub(super) fn of(
        columns: &Columns,
        clusters: &[Cluster],
        values: &[f64],
        sorted: &[f64],
        quantiles: &[f64],
        confidence: Confidence,
    ) -> Option<Self> {
        let (numbers, samples) = finite_of(clusters, values);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let mean = ClusteredMean::of_positive(&numbers, &samples, confidence)?;
        let n = sorted.len();
        let tokens = columns.locations().zip(values);
        let at_max = tokens.filter(|(_, value)| **value == max);
        Some(Self {
            n_infinite: (values.len() - n) as u64,
            mean,
            std: mean.se.and_then(|se| finite(se * (n as f64).sqrt())),
            min,
            max,
            max_at: at_max.map(|(location, _)| location).min()?,
            quantiles: quantile::estimates(&numbers, &samples, sorted, quantiles, confidence),
            tail: Tail::of(sorted),
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
    pub fn of(sorted: &[f64]) -> Self {
        let sum = |samples: &[f64]| samples.iter().copied().collect::<Sum>().value();
        let total = sum(sorted);
        let n = sorted.len() as f64;
        let top = |one_of: f64| {
            // The share may end within a sample, of which only that part counts.
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

/// From this many windows on, an evaluation may stop where its interval is narrow enough:
/// docs/INTERVALS.md.
pub const MIN_WINDOWS_TO_PLAN: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_largest() {
        let mut samples = vec![1.0; 2000];
        (samples[1998], samples[1999]) = (1001.0, 2002.0);
        let tail = Tail::of(&samples);
        // 2 of 2,000, and 20 of them; the sum is 5,001.
        assert_eq!(tail.top_0_1_percent, Some(3003.0 / 5001.0));
        assert_eq!(tail.top_1_percent, Some(3021.0 / 5001.0));
        assert_eq!(tail.mean_without_max, Some(2999.0 / 1999.0));
    }

    #[test]
    fn part_of_a_token_counts_in_proportion() {
        let mut samples = vec![1.0; 1500];
        (samples[1498], samples[1499]) = (5.0, 11.0);
        assert_eq!(Tail::of(&samples).top_0_1_percent, Some(13.5 / 1514.0));
    }

    #[test]
    fn too_few_and_only_zeros() {
        let tail = Tail::of(&[1.0; 999]);
        assert_eq!(tail.top_0_1_percent, None);
        assert!(tail.top_1_percent.is_some());
        assert_eq!(Tail::of(&[0.0; 1000]).top_0_1_percent, None);
        assert_eq!(Tail::of(&[1.0]).mean_without_max, None);
    }
}
