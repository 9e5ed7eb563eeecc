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
    pub mean: ClusteredMean,
    /// Sample standard deviation (n−1); `None` below two tokens.
    pub std: Option<f64>,
    pub min: f64,
    pub max: f64,
    /// Where the maximum is; the first such place of the text if there are several.
    pub max_at: TokenLocation,
    pub quantiles: Vec<QuantileEstimate>,
}

/// Where in the text a scored token is.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLocation {
    pub window: u32,
    /// Of the row, inside its window; it predicts the token at the next position.
    pub position: u32,
    /// Id of the actual next token; `None` for a window's last row.
    pub token: Option<u32>,
}

impl TokenLocation {
    /// Where `record` was taken.
    pub fn of(record: &TokenRecord) -> Self {
        Self {
            window: record.window,
            position: record.position,
            token: record.next_token(),
        }
    }
}

impl Distribution {
    /// Of `divergence` over `records`, which are all to be counted and give finite values; `windows`
    /// holds the window of each. `None` without records.
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
            let place = |r: &TokenRecord| (r.window, r.position);
            divergence(a)
                .total_cmp(&divergence(b))
                .then_with(|| place(b).cmp(&place(a)))
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
