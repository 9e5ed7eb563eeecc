//! The distances between logits, summarised over all tokens.

use serde::Serialize;

use super::clustered::ClusteredMean;
use super::clusters::{ClusterRule, Clusters};
use super::distribution::Distribution;
use super::estimate::Confidence;
use super::quantile::{self, QuantileEstimate};
use super::table::TokenTable;
use super::token::TokenLocation;
use super::windows::WindowSums;
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
    /// The reason that `logits` is null; absent where the reason is that no token was counted.
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

/// The reason that distances between logits are not available.
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
    pub fn from_metrics(
        table: &TokenTable,
        metrics: &[LogitMetrics],
        only_log_probabilities: bool,
        confidence: Confidence,
        rule: ClusterRule,
    ) -> Self {
        let windows = WindowSums::from_tokens(&table.counted, table.klds());
        let clusters = Clusters::by_rule(&windows, rule);
        let estimator = clusters.estimator(&table.counted, confidence);
        let metric = |value: fn(&LogitMetrics) -> f64| {
            // NaN leaves a token out.
            let values: Vec<f64> = metrics
                .iter()
                .map(|metrics| {
                    if metrics.is_finite() {
                        value(metrics)
                    } else {
                        f64::NAN
                    }
                })
                .collect();
            let sorted = quantile::sorted(&values);
            let distribution =
                Distribution::from_values(table, &estimator, &values, &sorted, &QUANTILES)?;
            Some(Metric {
                mean: distribution.mean,
                max: distribution.max,
                max_at: distribution.max_at,
                quantiles: distribution.quantiles,
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
mod tests {
    use kl_formats::TokenRecord;
    use serde_json::{Value, json};

    use super::*;
    use crate::stats::is_counted;
    use crate::stats::oracle::{self, assert_close, records};

    /// Distances made from a record.
    fn metrics(record: &TokenRecord) -> LogitMetrics {
        LogitMetrics {
            mean_abs_diff: record.kld,
            max_abs_diff: 8.0 * record.kld,
            cosine_distance: record.reverse_kld,
            jensen_shannon: 0.25 * record.reverse_kld,
            smoothed_kld: 0.5 * record.kld,
        }
    }

    fn summary(
        records: &[TokenRecord],
        metrics: impl Fn(&TokenRecord) -> LogitMetrics,
        only_log_probabilities: bool,
    ) -> LogitSummary {
        let counted = records.iter().filter(|record| is_counted(record));
        LogitSummary::from_metrics(
            &TokenTable::from_records(records),
            &counted.map(metrics).collect::<Vec<_>>(),
            only_log_probabilities,
            Confidence::default(),
            ClusterRule::default(),
        )
    }

    /// The summary of the KLDs themselves is pinned to numpy and scipy; scaling samples by a power
    /// of two scales it exactly.
    #[test]
    fn equals_the_summary_of_the_klds_for_the_same_numbers() {
        let got = summary(&records(), metrics, false);
        let pinned = oracle::summary(&records(), ClusterRule::default());
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
            same(Some(mean.independent.value), Some(want.independent.value));
            same(mean.independent.lo, want.independent.lo);
            same(mean.independent.hi, want.independent.hi);
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
    fn missing_parts_are_null_and_have_a_reason() {
        let none = summary(&[], metrics, false);
        let null = json!({"logits": null, "jensen_shannon": null, "smoothed_kld": null});
        assert_eq!(serde_json::to_value(&none).unwrap(), null);
        let bad = summary(&records(), |_| LogitMetrics::EXCLUDED, false);
        assert_eq!(bad, none);

        let whole = summary(&records(), metrics, false);
        let part = summary(&records(), metrics, true);
        assert_eq!(part.jensen_shannon, whole.jensen_shannon);
        let json = serde_json::to_value(&part).unwrap();
        assert_eq!(json["logits"], Value::Null);
        assert_eq!(json["logits_not_available"], "log_probabilities_only");
    }
}
