//! The change in the probability of the actual next token.

use serde::Serialize;

use super::cluster::Cluster;
use super::clustered_mean::{ClusteredMean, ClusteredValue};
use super::estimate::{Confidence, finite};
use super::mean::Moments;
use super::quantile::{self, QuantileEstimate};
use super::spread::Spread;

/// Both tails matter: where the evaluated model's probability fell, and where it rose.
const QUANTILES: [f64; 11] = [
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
    /// Summarises `changes`, where `changes[i]` is in cluster `clusters[i]`; `sorted` are the same,
    /// and ascend. `None` without any.
    pub fn of(
        clusters: &[Cluster],
        changes: &[f64],
        sorted: &[f64],
        confidence: Confidence,
    ) -> Option<Self> {
        Some(Self {
            mean: ClusteredMean::of(clusters, changes, confidence)?,
            rms: root_mean_square(clusters, changes, confidence)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            quantiles: quantile::estimates(clusters, changes, sorted, &QUANTILES, confidence),
        })
    }
}

fn root_mean_square(
    clusters: &[Cluster],
    changes: &[f64],
    confidence: Confidence,
) -> Option<ClusteredValue> {
    let squares: Vec<f64> = changes.iter().map(|x| x * x).collect();
    let moments = Moments::of(&squares)?;
    let rms = moments.mean.sqrt();
    let se = moments.standard_error().map(|se| match se {
        0.0 => 0.0,
        se => 0.5 * se / rms,
    });
    let spread = Spread::of(clusters, squares.iter().map(|x| x - moments.mean));
    let mean_square = spread.interval_of_positive(moments.mean, confidence);
    Some(ClusteredValue {
        value: rms,
        se: se.and_then(finite),
        clustered: mean_square.map(f64::sqrt, 0.5 / rms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::assert_close;

    #[test]
    fn rms_and_its_error() {
        let got = DeltaP::of(
            &[0, 0, 1].map(Cluster::from),
            &[0.1, -0.3, 0.2],
            &[-0.3, 0.1, 0.2],
            Confidence::default(),
        )
        .unwrap();
        let mean_square: f64 = (0.01 + 0.09 + 0.04) / 3.0;
        let mean_fourth: f64 = (0.0001 + 0.0081 + 0.0016) / 3.0;
        let se = ((mean_fourth - mean_square.powi(2)) / 2.0).sqrt();
        assert_close(got.rms.value, mean_square.sqrt(), 1e-14);
        assert_close(got.rms.se.unwrap(), 0.5 * se / mean_square.sqrt(), 1e-12);
        assert_eq!((got.min, got.max), (-0.3, 0.2));
        assert_close(got.mean.estimate.value, 0.0, 1e-13);
    }

    #[test]
    fn no_change_and_no_tokens() {
        let got = DeltaP::of(
            &[0, 1].map(Cluster::from),
            &[0.0, 0.0],
            &[0.0, 0.0],
            Confidence::default(),
        )
        .unwrap();
        assert_eq!((got.rms.value, got.rms.se), (0.0, Some(0.0)));
        assert_eq!(DeltaP::of(&[], &[], &[], Confidence::default()), None);
    }
}
