//! The numbers of [`LogitMetrics`] over all tokens.

use std::fmt;

use serde::Serialize;

use super::cluster::ClusteredMean;
use super::distribution::TokenLocation;
use super::estimate::Confidence;
use super::quantile::{self, QuantileEstimate};
use crate::score::LogitMetrics;

/// Half of the tokens, and the upper tail.
const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];

/// What one evaluated model's logits differ in, over all tokens; its fields are the JSON's keys.
///
/// A part is `None` (null) without tokens that count.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct LogitSummary {
    /// Of the raw logits; `None` also where the reference does not hold them.
    pub logits: Option<LogitDistances>,
    /// Why there is no `logits`, if it is not for want of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_not_available: Option<NotAvailable>,
    /// Jensen-Shannon divergence, in nats.
    pub jensen_shannon: Option<Metric>,
    /// KL(p'‖q') of the smoothed distributions, in nats: MAX's KL divergence.
    pub smoothed_kld: Option<Metric>,
}

/// The numbers that depend on the logits themselves, not only on their softmax.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct LogitDistances {
    /// Each token's mean of |l − m| over the vocabulary: their mean is MAX's mean absolute error.
    pub mean_abs_diff: Metric,
    /// Each token's greatest |l − m|.
    pub max_abs_diff: Metric,
    /// 1 − cos of the angle between the two rows.
    pub cosine_distance: Metric,
}

/// One number a token: its mean and its upper tail.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Metric {
    /// The mean with both of its intervals.
    pub mean: ClusteredMean,
    pub max: f64,
    /// Where the maximum is; the first such place of the text if there are several.
    pub max_at: TokenLocation,
    /// Median, 95 % and 99 %.
    pub quantiles: Vec<QuantileEstimate>,
}

/// Why a number cannot be had.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum NotAvailable {
    /// The reference is llama.cpp's base file: what it holds lies off the logits by a constant a row.
    LogProbabilitiesOnly,
}

impl fmt::Display for NotAvailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogProbabilitiesOnly => {
                f.write_str("the stored rows are log-probabilities, not logits")
            }
        }
    }
}

impl LogitSummary {
    /// From the numbers of each scored token, of which the i-th is at `places[i]`; the two slices
    /// are of one length. Tokens whose numbers are not finite are left out.
    pub fn from_metrics(
        metrics: &[LogitMetrics],
        places: &[TokenLocation],
        confidence: Confidence,
    ) -> Self {
        debug_assert_eq!(metrics.len(), places.len());
        let counted: Vec<_> = metrics
            .iter()
            .zip(places)
            .filter(|(metrics, _)| metrics.is_finite())
            .collect();
        let metric = |of: fn(&LogitMetrics) -> f64| {
            let samples = counted.iter().map(|(metrics, _)| of(metrics)).collect();
            let places = counted.iter().map(|(_, place)| **place);
            Metric::of(samples, &places.collect::<Vec<_>>(), confidence)
        };
        Self {
            logits: LogitDistances::of(metric),
            logits_not_available: None,
            jensen_shannon: metric(|metrics| metrics.jensen_shannon),
            smoothed_kld: metric(|metrics| metrics.smoothed_kld),
        }
    }

    /// The same less what depends on the logits themselves, and why.
    #[must_use]
    pub fn without_logits(self, why: NotAvailable) -> Self {
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
    /// Of finite samples, of which the i-th is at `places[i]`. `None` without any.
    fn of(mut samples: Vec<f64>, places: &[TokenLocation], confidence: Confidence) -> Option<Self> {
        let windows: Vec<u32> = places.iter().map(|place| place.window).collect();
        let mean = ClusteredMean::of(&windows, &samples, confidence)?;
        let (max, max_at) = samples.iter().zip(places).max_by(|(a, at), (b, bt)| {
            let place = |at: &TokenLocation| (at.window, at.position);
            a.total_cmp(b).then_with(|| place(bt).cmp(&place(at)))
        })?;
        let (max, max_at) = (*max, *max_at);
        samples.sort_unstable_by(f64::total_cmp);
        Some(Self {
            mean,
            max,
            max_at,
            quantiles: quantile::estimates(&samples, &QUANTILES, confidence),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Summary;
    use super::super::oracle::{assert_close, records};
    use super::*;

    /// Numbers made of the records that all statistics are tested with.
    fn sample() -> (Vec<LogitMetrics>, Vec<TokenLocation>) {
        let records = records();
        let metrics = records.iter().map(|record| {
            if record.flags != 0 {
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
        let places = records.iter().map(TokenLocation::of);
        (metrics.collect(), places.collect())
    }

    /// The summary of the KLDs themselves is pinned to numpy and scipy; scaling samples by a power of
    /// two scales it exactly.
    #[test]
    fn is_what_the_klds_summary_says_of_the_same_numbers() {
        let (metrics, places) = sample();
        let got = LogitSummary::from_metrics(&metrics, &places, Confidence::default());
        let pinned = Summary::from_records(&records(), Confidence::default());
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
            same(mean.cluster_lo, want.cluster_lo);
            same(mean.cluster_hi, want.cluster_hi);
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
        let place = |window, position| TokenLocation {
            window,
            position,
            token: None,
        };
        let places = [place(3, 0), place(1, 9), place(1, 2), place(2, 0)];
        let summary = LogitSummary::from_metrics(&[metrics; 4], &places, Confidence::default());
        assert_eq!(summary.jensen_shannon.unwrap().max_at, place(1, 2));
    }

    #[test]
    fn what_is_not_there_is_null_and_says_why() {
        let (metrics, places) = sample();
        let none = LogitSummary::from_metrics(&[], &[], Confidence::default());
        let null = json!({"logits": null, "jensen_shannon": null, "smoothed_kld": null});
        assert_eq!(serde_json::to_value(&none).unwrap(), null);
        let only_bad = [LogitMetrics::EXCLUDED; 3];
        let bad = LogitSummary::from_metrics(&only_bad, &places[..3], Confidence::default());
        assert_eq!(bad, none);

        let whole = LogitSummary::from_metrics(&metrics, &places, Confidence::default());
        let part = whole
            .clone()
            .without_logits(NotAvailable::LogProbabilitiesOnly);
        assert_eq!(part.jensen_shannon, whole.jensen_shannon);
        let json = serde_json::to_value(&part).unwrap();
        assert_eq!(json["logits"], Value::Null);
        assert_eq!(json["logits_not_available"], "log_probabilities_only");
    }
}
