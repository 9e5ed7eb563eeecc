//! The mean of samples that are correlated within their cluster, and the share of tokens that have a
//! trait.

use serde::Serialize;

use super::clusters::Estimator;
use super::estimate::{Confidence, Estimate, finite, finite_or_null};
use super::mean::Moments;
use super::probability;
use super::spread::{ClusteredInterval, Spread};

/// A mean with two intervals: one that treats tokens as independent, one that treats clusters so.
///
/// Tokens of one window share a text and a context, so the first interval (`lo`, `hi`, `se`) is
/// too narrow. The clustered interval is the one to believe.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ClusteredMean {
    /// The mean, and its interval with tokens as independent.
    #[serde(flatten)]
    pub independent: Estimate,
    /// The standard error with tokens as independent; `None` for fewer than two samples.
    pub se: Option<f64>,
    /// The clustered interval.
    #[serde(flatten)]
    pub clustered: ClusteredInterval,
}

/// A value with a standard error that treats tokens as independent, and its clustered interval.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ClusteredValue {
    /// The value; null if an exponential overflowed.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(feature = "testing", schemars(with = "Option<f64>"))]
    pub value: f64,
    /// The standard error with tokens as independent; `None` where the sample is too small.
    pub se: Option<f64>,
    /// The clustered interval.
    #[serde(flatten)]
    pub clustered: ClusteredInterval,
}

impl ClusteredValue {
    /// The value with its clustered interval.
    pub fn estimate(&self) -> Estimate {
        self.clustered.around(self.value)
    }
}

impl ClusteredMean {
    /// The mean with the interval to believe, by cluster.
    pub fn estimate(&self) -> Estimate {
        self.clustered.around(self.independent.value)
    }

    /// Half the width of the clustered interval, over the mean; `None` for fewer than two clusters,
    /// and for a mean of 0.
    pub fn relative_half_width(&self) -> Option<f64> {
        finite(self.clustered.half_width()? / self.independent.value)
    }
}

impl ClusteredValue {
    /// The exponential of the value, with the exponentials of its interval's ends.
    pub fn exp(self) -> Self {
        let value = self.value.exp();
        Self {
            value,
            se: self.se.and_then(|se| finite(value * se)),
            clustered: self.clustered.map(f64::exp, value),
        }
    }
}

/// A share of tokens, with its clustered interval.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Share {
    /// The share, and its interval at the effective number of tokens.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The number of independent tokens that would tell as much: their number over the design effect, the
    /// variance as a multiple of that with tokens as independent, where that is above 1.
    pub n_effective: f64,
}

impl Estimator {
    /// Estimates the mean of samples, one for each token. Those that are not finite do not count; `None`
    /// without others.
    pub fn mean(&self, samples: impl Iterator<Item = f64> + Clone) -> Option<ClusteredMean> {
        self.mean_with(samples, Spread::interval)
    }

    /// Estimates the mean as [`Self::mean`] does, of samples that cannot be negative.
    pub fn mean_of_positive(
        &self,
        samples: impl Iterator<Item = f64> + Clone,
    ) -> Option<ClusteredMean> {
        self.mean_with(samples, Spread::interval_of_positive)
    }

    fn mean_with(
        &self,
        samples: impl Iterator<Item = f64> + Clone,
        interval: fn(&Spread, f64, Confidence) -> ClusteredInterval,
    ) -> Option<ClusteredMean> {
        let moments = Moments::from_samples(samples.clone())?;
        let spread = Spread::from_residuals(&self.clusters, samples.map(|x| x - moments.mean));
        Some(ClusteredMean {
            independent: moments.estimate(self.confidence),
            se: moments.standard_error().and_then(finite),
            clustered: interval(&spread, moments.mean, self.confidence),
        })
    }

    /// Estimates a value whose linearisation has these residuals.
    pub(super) fn value(&self, value: f64, residuals: impl Iterator<Item = f64>) -> ClusteredValue {
        let spread = Spread::from_residuals(&self.clusters, residuals);
        ClusteredValue {
            value,
            se: spread.se.and_then(finite),
            clustered: spread.interval(value, self.confidence),
        }
    }

    /// Estimates the share of tokens that are hits; `None` is for a token that does not count.
    ///
    /// Its interval is Jeffreys' for `Spread::n_for_share` tokens: none from one cluster. `None`
    /// without tokens.
    pub fn share(&self, hits: impl Iterator<Item = Option<bool>> + Clone) -> Option<Share> {
        let hits = hits.map(|hit| hit.map_or(f64::NAN, |hit| u8::from(hit).into()));
        let share = Moments::from_samples(hits.clone())?.mean;
        let spread = Spread::from_residuals(&self.clusters, hits.map(|hit| hit - share));
        let n = spread.n_for_share(self.confidence);
        Some(Share {
            estimate: n.map_or(Estimate::point(share), |n| {
                jeffreys(share, n, self.confidence)
            }),
            n_effective: spread.n_effective(),
        })
    }
}

/// The Bayesian interval of a share of `n` independent tokens, which need not be whole.
///
/// It is the equal-tailed interval of the posterior Beta(k + ½, n − k + ½), `k = share · n`, from
/// the Jeffreys prior Beta(½, ½). For `k = 0` the lower end is 0 and for `k = n` the upper end is 1
/// (Brown, Cai & DasGupta 2001), so that the interval holds the observed share.
pub(super) fn jeffreys(share: f64, n: f64, confidence: Confidence) -> Estimate {
    let tail = 0.5 * confidence.outside();
    let body = 1.0 - tail;
    let (a, b) = (share * n + 0.5, (1.0 - share) * n + 0.5);
    let end = |lower, upper| probability::quantile(a, b, lower, upper);
    let lo = if share > 0.0 { end(tail, body) } else { 0.0 };
    let hi = if share < 1.0 { end(body, tail) } else { 1.0 };
    Estimate::within(share, lo, hi)
}

#[cfg(test)]
#[path = "tests/clustered.rs"]
mod tests;
