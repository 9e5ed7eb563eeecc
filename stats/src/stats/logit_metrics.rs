//! The distances between logits, summarised over all tokens.

use serde::Serialize;

use super::clustered::ClusteredMean;
use super::clusters::{ClusterRule, Clusters};
use super::columns::Columns;
use super::distribution::Distribution;
use super::estimate::Confidence;
use super::quantile::{self, QuantileEstimate};
use super::token::TokenLocation;
use super::windows::Windows;
use crate::score::LogitMetrics;

/// The median and the upper tail.
const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];

/// The distances of the evaluated model's logits from the reference's.
///
/// A part is `None` (null) without counted tokens.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct LogitSummary {
    /// Distances between the raw logits; `None` also if the stored rows do not hold logits.
    pub logits: Option<LogitDistances>,
    /// Why `logits` is missing, unless for want of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_not_available: Option<LogitsNotAvailable>,
    /// The Jensen-Shannon divergence, in nats.
    pub jensen_shannon: Option<Metric>,
    /// KL(p'‖q') of the smoothed distributions, in nats: MAX's KL divergence.
    pub smoothed_kld: Option<Metric>,
}

/// The distances that depend on the logits themselves, not only on their softmax.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct LogitDistances {
    /// Each token's mean |l − m| over the vocabulary; its mean over tokens is MAX's mean absolute
    /// error.
    pub mean_abs_diff: Metric,
    /// Each token's largest |l − m|.
    pub max_abs_diff: Metric,
    /// 1 − cos of the angle between the two rows.
    pub cosine_distance: Metric,
}

/// A summary of a number that each token has: its mean and its upper tail.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Metric {
    /// The mean, with both of its intervals.
    pub mean: ClusteredMean,
    /// The largest value.
    pub max: f64,
    /// Where the maximum is: its first position in the text if there are several.
    pub max_at: TokenLocation,
    /// The median, 95 % and 99 %.
    pub quantiles: Vec<QuantileEstimate>,
}

/// Why distances between logits are not available.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LogitsNotAvailable {
    /// A file holds log-probabilities, which differ from the logits by a constant in each row.
    LogProbabilitiesOnly,
}

impl LogitSummary {
    /// Summarises the distances of the counted tokens, one for each. Those that are not finite are
    /// left out, and with `only_log_probabilities` those that depend on the logits themselves.
    pub fn of(
        columns: &Columns,
        metrics: &[LogitMetrics],
        only_log_probabilities: bool,
        confidence: Confidence,
        rule: ClusterRule,
    ) -> Self {
        debug_assert_eq!(columns.kld.len(), metrics.len());
        let windows = Windows::of(&columns.counted, &columns.kld);
        let clusters = Clusters::of(&windows, rule).of_tokens(&columns.counted);
        let metric = |of: fn(&LogitMetrics) -> f64| {
            let finite_or_nan = |metrics: &LogitMetrics| match metrics.is_finite() {
                true => of(metrics),
                false => f64::NAN,
            };
            let values: Vec<f64> = metrics.iter().map(finite_or_nan).collect();
            let sorted = quantile::sorted(&values);
            let of = Distribution::of(columns, &clusters, &values, &sorted, &QUANTILES, confidence);
            of.map(|of| Metric {
                mean: of.mean,
                max: of.max,
                max_at: of.max_at,
                quantiles: of.quantiles,
            })
        };
        let logits = || {
            Some(LogitDistances {
                mean_abs_diff: metric(|metrics| metrics.mean_abs_diff)?,
                max_abs_diff: metric(|metrics| metrics.max_abs_diff)?,
                cosine_distance: metric(|metrics| metrics.cosine_distance)?,
            })
        };
        Self {
            logits: (!only_log_probabilities).then(logits).flatten(),
            logits_not_available: only_log_probabilities
                .then_some(LogitsNotAvailable::LogProbabilitiesOnly),
            jensen_shannon: metric(|metrics| metrics.jensen_shannon),
            smoothed_kld: metric(|metrics| metrics.smoothed_kld),
        }
    }
}

#[cfg(test)]
#[path = "tests/logit_metrics.rs"]
mod tests;
