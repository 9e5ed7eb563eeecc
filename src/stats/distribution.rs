//! A divergence over all tokens: its mean, its spread and its tail.

use std::borrow::Cow;

use kl_formats::sidecar::TokenRecord;
use serde::Serialize;

use super::clustered_mean::ClusteredMean;
use super::columns::Columns;
use super::estimate::{Confidence, finite};
use super::mean::Moments;
use super::quantile::{self, QuantileEstimate};
use super::strata::Cluster;
use super::tail::Tail;
use super::text_length;

/// The upper tail is where quantizations differ.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.999];

/// The distribution of one per-token divergence, in nats.
///
/// All but `n_infinite` is over the tokens whose divergence is finite.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// About how many windows like these would give an interval of the mean that reaches 5 % to
    /// either side; `None` for fewer than two clusters, and for a mean of 0.
    pub windows_for_5_percent: Option<u64>,
}

/// The position of a scored token.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TokenLocation {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window; its row predicts the token at the next position.
    pub position: u32,
    /// The id of the actual next token; `None` for a window's last row.
    pub token: Option<u32>,
}

impl TokenLocation {
    /// Locates a record.
    pub fn of(record: &TokenRecord) -> Self {
        Self {
            window: record.window,
            position: record.position,
            token: record.next_token(),
        }
    }
}

impl Distribution {
    /// Summarises a divergence of the counted tokens, `divergences[i]` of which is in cluster
    /// `clusters[i]`. `None` if it is finite for none of them. Returns the finite ones in ascending
    /// order too.
    pub(super) fn of(
        columns: &Columns,
        clusters: &[Cluster],
        divergences: &[f64],
        n_windows: u64,
        confidence: Confidence,
    ) -> Option<(Self, Vec<f64>)> {
        let (numbers, samples) = finite_of(clusters, divergences);
        let moments = Moments::of(&samples)?;
        let mean = ClusteredMean::of_moments(&moments, &numbers, &samples, confidence);
        let mean = mean.not_below_0();
        let at = |index: usize| {
            let location = columns.location(index);
            (location.window, location.position)
        };
        let indexed = divergences.iter().enumerate();
        let indexed = indexed.filter(|(_, x)| x.is_finite());
        let (max_index, max) =
            indexed.max_by(|(i, a), (j, b)| a.total_cmp(b).then_with(|| at(*j).cmp(&at(*i))))?;
        let sorted = quantile::sorted(&samples);
        let distribution = Self {
            n_infinite: (divergences.len() - samples.len()) as u64,
            mean,
            std: moments.std().and_then(finite),
            min: *sorted.first()?,
            max: *max,
            max_at: columns.location(max_index),
            quantiles: quantile::estimates(&numbers, &samples, &sorted, &QUANTILES, confidence),
            tail: Tail::of(&sorted),
            windows_for_5_percent: text_length::windows_for(0.05, &mean, n_windows),
        };
        Some((distribution, sorted))
    }
}

/// The finite ones of some values, and their clusters.
pub(super) fn finite_of<'v>(
    clusters: &'v [Cluster],
    values: &'v [f64],
) -> (Cow<'v, [Cluster]>, Cow<'v, [f64]>) {
    if values.iter().all(|value| value.is_finite()) {
        return (clusters.into(), values.into());
    }
    let both = clusters.iter().zip(values);
    let (clusters, values): (Vec<_>, Vec<_>) = both.filter(|(_, value)| value.is_finite()).unzip();
    (clusters.into(), values.into())
}
