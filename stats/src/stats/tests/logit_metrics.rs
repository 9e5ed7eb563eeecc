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
    LogitSummary::of(
        &Columns::of(records),
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
    let records = [(3, 0), (1, 9), (1, 2), (2, 0)].map(|(window, position)| TokenRecord {
        window,
        position,
        ..records()[0]
    });
    let got = summary(&records, |_| metrics, false);
    let max_at = got.jensen_shannon.unwrap().max_at;
    assert_eq!(max_at, TokenLocation::of(&records[2]));
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
