//! A divergence over all tokens: its mean, its spread and its tail.

use kl_formats::sidecar::TokenRecord;
use serde::Serialize;

use super::cluster::ClusteredMean;
use super::estimate::{Confidence, finite};
use super::mean::Moments;
use super::quantile::{self, QuantileEstimate};

/// The upper tail is where quantizations differ.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.999];

/// The distribution of one per-token divergence, in nats.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Distribution {
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
}

/// The position of a scored token.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Summarises `divergence` over `records`, where `records[i]` is from window `windows[i]`.
    ///
    /// All records count, and have finite values. `None` without records.
    pub(super) fn of(
        records: &[&TokenRecord],
        windows: &[u32],
        divergence: impl Fn(&TokenRecord) -> f64,
        confidence: Confidence,
    ) -> Option<Self> {
        let mut samples: Vec<f64> = records.iter().map(|r| divergence(r)).collect();
        let mean = ClusteredMean::of(windows, &samples, confidence)?;
        let std = Moments::of(&samples)?.std().and_then(finite);
        let max_at = records.iter().copied().max_by(|a, b| {
            let location = |r: &TokenRecord| (r.window, r.position);
            divergence(a)
                .total_cmp(&divergence(b))
                .then_with(|| location(b).cmp(&location(a)))
        })?;
        samples.sort_unstable_by(f64::total_cmp);
        Some(Self {
            mean,
            std,
            min: *samples.first()?,
            max: *samples.last()?,
            max_at: TokenLocation::of(max_at),
            quantiles: quantile::estimates(&samples, &QUANTILES, confidence),
        })
    }
}
