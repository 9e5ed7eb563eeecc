//! The distances between logits, summarised over all tokens.

use std::fmt;

use serde::Serialize;

use super::cluster::Clusters;
use super::clustered_mean::ClusteredMean;
use super::distribution::TokenLocation;
use super::estimate::Confidence;
use super::quantile::{self, QuantileEstimate};
use super::strata::Cluster;
use crate::score::LogitMetrics;

/// The median and the upper tail.
const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];

/// The distances of the evaluated model's logits from the reference's.
///
/// A part is `None` (null) without counted tokens.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LogitsNotAvailable {
    /// A file holds log-probabilities, which differ from the logits by a constant in each row.
    LogProbabilitiesOnly,
}

impl fmt::Display for LogitsNotAvailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogProbabilitiesOnly => {
                f.write_str("the stored rows are log-probabilities, not logits")
            }
        }
    }
}

impl LogitSummary {
    /// Summarises the distances of scored tokens, where `metrics[i]` is of the token at
    /// `locations[i]`.
    ///
    /// Both slices have the same length. Tokens whose distances are not finite are left out.
    pub fn from_metrics(
        metrics: &[LogitMetrics],
        locations: &[TokenLocation],
        clusters: &Clusters,
        confidence: Confidence,
    ) -> Self {
        debug_assert_eq!(metrics.len(), locations.len());
        let counted: Vec<_> = metrics
            .iter()
            .zip(locations)
            .filter(|(metrics, _)| metrics.is_finite())
            .collect();
        let metric = |of: fn(&LogitMetrics) -> f64| {
            let samples: Vec<f64> = counted.iter().map(|(metrics, _)| of(metrics)).collect();
            let locations: Vec<_> = counted.iter().map(|(_, location)| **location).collect();
            Metric::of(&samples, &locations, clusters, confidence)
        };
        Self {
            logits: LogitDistances::of(metric),
            logits_not_available: None,
            jensen_shannon: metric(|metrics| metrics.jensen_shannon),
            smoothed_kld: metric(|metrics| metrics.smoothed_kld),
        }
    }

    /// Drops the part that depends on the logits themselves, and records why.
    #[must_use]
    pub fn without_logits(self, why: LogitsNotAvailable) -> Self {
        Self {
            logits: None,
            logits_not_available: Some(why),
            ..self
        }
    }
}

impl LogitDistances {
    fn of(metric: impl Fn(fn(&LogitMetrics) -> f64) -> Option<Metric>) -> Option<Self> {
        Some(Self {
            mean_abs_diff: metric(|metrics| metrics.mean_abs_diff)?,
            max_abs_diff: metric(|metrics| metrics.max_abs_diff)?,
            cosine_distance: metric(|metrics| metrics.cosine_distance)?,
        })
    }
}

impl Metric {
    /// Summarises finite samples, where `samples[i]` is at `locations[i]`. `None` without any.
    fn of(
        samples: &[f64],
        locations: &[TokenLocation],
        clusters: &Clusters,
        confidence: Confidence,
    ) -> Option<Self> {
        let of_window = |location: &TokenLocation| clusters.of_window(location.window);
        let numbers: Vec<Cluster> = locations.iter().map(of_window).collect();
        let (max, max_at) = samples.iter().zip(locations).max_by(|(a, at), (b, bt)| {
            let order = |at: &TokenLocation| (at.window, at.position);
            a.total_cmp(b).then_with(|| order(bt).cmp(&order(at)))
        })?;
        let sorted = quantile::sorted(samples);
        Some(Self {
            mean: ClusteredMean::of_non_negative(&numbers, samples, confidence)?,
            max: *max,
            max_at: *max_at,
            quantiles: quantile::estimates(&numbers, samples, &sorted, &QUANTILES, confidence),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::stats::oracle::{assert_close, records};
    use crate::stats::{ClusterRule, Summary};

    /// Distances made from the records that all statistics are tested with.
    fn sample() -> (Vec<LogitMetrics>, Vec<TokenLocation>) {
        let records = records();
        let metrics = records.iter().map(|record| {
            if record.is_excluded() {
                return LogitMetrics::EXCLUDED;
            }
            LogitMetrics {
                mean_abs_diff: record.kld,
                max_abs_diff: 8.0 * record.kld,
                cosine_distance: record.reverse_kld,
                jensen_shannon: 0.25 * record.reverse_kld,
                smoothed_kld: 0.5 * record.kld,
            }
        });
        let locations = records.iter().map(TokenLocation::of);
        (metrics.collect(), locations.collect())
    }

    fn summary(metrics: &[LogitMetrics], locations: &[TokenLocation]) -> LogitSummary {
        let clusters = Clusters::of_records(&records(), ClusterRule::default());
        LogitSummary::from_metrics(metrics, locations, &clusters, Confidence::default())
    }

    /// The summary of the KLDs themselves is pinned to numpy and scipy; scaling samples by a power
    /// of two scales it exactly.
    #[test]
    fn equals_the_summary_of_the_klds_for_the_same_numbers() {
        let (metrics, locations) = sample();
        let got = summary(&metrics, &locations);
        let rule = ClusterRule::default();
        let pinned = Summary::from_records(&records(), Confidence::default(), rule);
        let (kld, reverse) = (pinned.kld.unwrap(), pinned.reverse_kld.unwrap());
        let logits = got.logits.unwrap();
        for (metric, scale, of) in [
            (logits.mean_abs_diff, 1.0, &kld),
            (logits.max_abs_diff, 8.0, &kld),
            (logits.cosine_distance, 1.0, &reverse),
            (got.jensen_shannon.unwrap(), 0.25, &reverse),
            (got.smoothed_kld.unwrap(), 0.5, &kld),
        ] {
            let same = |got: Option<f64>, want: Option<f64>| {
                assert_close(got.unwrap(), scale * want.unwrap(), 1e-13);
            };
            let (mean, want) = (&metric.mean, &of.mean);
            same(Some(mean.estimate.value), Some(want.estimate.value));
            same(mean.estimate.lo, want.estimate.lo);
            same(mean.estimate.hi, want.estimate.hi);
            same(mean.se, want.se);
            same(mean.clustered.lo, want.clustered.lo);
            same(mean.clustered.hi, want.clustered.hi);
            same(Some(metric.max), Some(of.max));
            assert_eq!(metric.max_at, of.max_at);
            assert_eq!(metric.quantiles.len(), QUANTILES.len());
            for quantile in &metric.quantiles {
                let want = of.quantiles.iter().find(|q| q.p == quantile.p).unwrap();
                same(Some(quantile.estimate.value), Some(want.estimate.value));
                same(quantile.estimate.lo, want.estimate.lo);
                same(quantile.estimate.hi, want.estimate.hi);
            }
        }
    }

    #[test]
    fn the_first_of_equal_maxima_is_named() {
        let metrics = LogitMetrics {
            mean_abs_diff: 1.0,
            max_abs_diff: 1.0,
            cosine_distance: 1.0,
            jensen_shannon: 0.5,
            smoothed_kld: 1.0,
        };
        let at = |window, position| TokenLocation {
            window,
            position,
            token: None,
        };
        let locations = [at(3, 0), at(1, 9), at(1, 2), at(2, 0)];
        let got = summary(&[metrics; 4], &locations);
        assert_eq!(got.jensen_shannon.unwrap().max_at, at(1, 2));
    }

    #[test]
    fn missing_parts_are_null_and_have_a_reason() {
        let (metrics, locations) = sample();
        let none = summary(&[], &[]);
        let null = json!({"logits": null, "jensen_shannon": null, "smoothed_kld": null});
        assert_eq!(serde_json::to_value(&none).unwrap(), null);
        let only_bad = [LogitMetrics::EXCLUDED; 3];
        let bad = summary(&only_bad, &locations[..3]);
        assert_eq!(bad, none);

        let whole = summary(&metrics, &locations);
        let part = whole
            .clone()
            .without_logits(LogitsNotAvailable::LogProbabilitiesOnly);
        assert_eq!(part.jensen_shannon, whole.jensen_shannon);
        let json = serde_json::to_value(&part).unwrap();
        assert_eq!(json["logits"], Value::Null);
        assert_eq!(json["logits_not_available"], "log_probabilities_only");
    }
}
