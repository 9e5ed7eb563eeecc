//! A divergence over all tokens: its mean, its spread and its tail.

use kl_formats::sidecar::TokenRecord;
use serde::Serialize;

use super::cluster::Clusters;
use super::clustered_mean::ClusteredMean;
use super::estimate::{Confidence, finite};
use super::mean::Moments;
use super::quantile::{self, QuantileEstimate};
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
    /// What the largest values add to the mean.
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
    /// Summarises `divergence` over the counted `records`. `None` if it is finite for none of them.
    pub(super) fn of(
        records: &[&TokenRecord],
        clusters: &Clusters,
        divergence: impl Fn(&TokenRecord) -> f64,
        confidence: Confidence,
    ) -> Option<Self> {
        let n = records.len();
        let mut records = records.to_vec();
        records.retain(|record| divergence(record).is_finite());
        let samples: Vec<f64> = records.iter().map(|record| divergence(record)).collect();
        let numbers = clusters.of_each(&records);
        let mean = ClusteredMean::of_non_negative(&numbers, &samples, confidence)?;
        let max_at = records.iter().copied().max_by(|a, b| {
            let location = |r: &TokenRecord| (r.window, r.position);
            divergence(a)
                .total_cmp(&divergence(b))
                .then_with(|| location(b).cmp(&location(a)))
        })?;
        let sorted = quantile::sorted(&samples);
        Some(Self {
            n_infinite: (n - samples.len()) as u64,
            mean,
            std: Moments::of(&samples)?.std().and_then(finite),
            min: *sorted.first()?,
            max: divergence(max_at),
            max_at: TokenLocation::of(max_at),
            quantiles: quantile::estimates(&numbers, &samples, &sorted, &QUANTILES, confidence),
            tail: Tail::of(&sorted),
            windows_for_5_percent: text_length::windows_for(
                0.05,
                &mean,
                clusters.n_windows() as u64,
            ),
        })
    }
}
