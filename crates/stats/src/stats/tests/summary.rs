//! The whole summary against numpy and scipy, and at the edges.

use kl_formats::TokenRecord;
use serde_json::Value;

use super::super::clusters::ClusterRule;
use super::super::oracle::{self, assert_close, assert_pinned, pinned_numbers, records};
use super::super::table::MAX_EXCLUDED_LISTED;
use super::super::token::ExclusionReason;
use super::*;

fn summary(records: &[TokenRecord]) -> Summary {
    oracle::summary(records, ClusterRule::default())
}

fn json(records: &[TokenRecord]) -> Value {
    serde_json::to_value(summary(records)).unwrap()
}

#[test]
fn every_number_matches_numpy_and_scipy() {
    let by_window = pinned_numbers("BY_WINDOW");
    let mut by_block = by_window.clone();
    by_block.extend(pinned_numbers("BY_BLOCK"));
    for (rule, numbers) in [
        (ClusterRule::Window, by_window),
        (ClusterRule::Block, by_block),
    ] {
        assert_eq!(numbers.len(), 199);
        assert_pinned(&oracle::summary(&records(), rule), numbers);
    }
}

#[test]
fn counts_add_up() {
    let records = records();
    let summary = summary(&records);
    assert_eq!(summary.n_tokens + summary.n_excluded, records.len() as u64);
    assert_eq!(summary.n_excluded, summary.excluded.len() as u64);
    assert_eq!(summary.n_windows, 40);
    let first = ExcludedToken {
        window: 0,
        position: 5,
        which: ExclusionReason::Ref,
    };
    assert_eq!(summary.excluded[0], first);
    assert_eq!(summary.excluded[1].which, ExclusionReason::Eval);
}

#[test]
fn order_of_the_records_moves_last_bits_only() {
    let records = records();
    let mut reversed = records.clone();
    reversed.reverse();
    let (a, b) = (summary(&records), summary(&reversed));
    let (a, b) = (a.kld.unwrap(), b.kld.unwrap());
    assert_eq!((a.max_at, a.quantiles), (b.max_at, b.quantiles));
    assert_close(
        a.mean.clustered.lo.unwrap(),
        b.mean.clustered.lo.unwrap(),
        1e-14,
    );
}

#[test]
fn no_counted_record_gives_null() {
    let mut broken = records();
    for record in &mut broken {
        record.flags = TokenRecord::REF_NOT_FINITE | TokenRecord::EVAL_NOT_FINITE;
    }
    for records in [&[][..], &broken] {
        let json = json(records);
        for key in [
            "kld",
            "reverse_kld",
            "agreement",
            "acceptance",
            "perplexity",
            "delta_p",
        ] {
            assert_eq!(json.get(key), Some(&Value::Null), "{key}");
        }
        assert_eq!(json["n_tokens"], 0);
        assert_eq!(json["n_excluded"], records.len());
    }
    let json = json(&broken);
    assert_eq!(
        json["excluded"].as_array().unwrap().len(),
        MAX_EXCLUDED_LISTED
    );
    assert_eq!(json["excluded"][0]["which"], "both");
}

#[test]
fn one_record_has_values_and_no_intervals() {
    let json = json(&records()[..1]);
    assert_eq!(json["n_tokens"], 1);
    assert!(json["kld"]["mean"]["value"].is_f64());
    for key in [
        "lo",
        "hi",
        "se",
        "cluster_se",
        "cluster_lo",
        "cluster_hi",
        "n_effective",
    ] {
        assert!(json["kld"]["mean"][key].is_null(), "{key}");
    }
    assert!(json["kld"]["std"].is_null());
    assert!(json["perplexity"]["ln_ratio"]["se"].is_null());
    assert!(json["agreement"]["ref_top1"]["lo"].is_null());
}

#[test]
fn last_rows_have_no_next_token() {
    let last: Vec<TokenRecord> = records()
        .into_iter()
        .filter(|r| r.next_token().is_none() && !r.is_excluded())
        .collect();
    let summary = summary(&last);
    assert_eq!(summary.n_tokens, last.len() as u64);
    assert!(summary.perplexity.is_none() && summary.delta_p.is_none());
    assert_eq!(summary.kld.unwrap().max_at.token, None);
}

#[test]
fn scores_that_are_errors_are_left_out() {
    let mut records = records();
    records[0].kld = f64::NAN;
    records[1].reverse_kld = f64::NEG_INFINITY;
    records[2].eval_nll = -1e9; // e to the 1e9 overflows
    records[3].ref_nll = -1e9;
    let summary = summary(&records);
    for (position, excluded) in summary.excluded[..4].iter().enumerate() {
        assert_eq!(excluded.position, position as u32);
        assert_eq!(excluded.which, ExclusionReason::Score);
    }
}

/// Probabilities of 0 are counted, and the means are over the other tokens.
#[test]
fn infinite_and_unknown_scores_are_counted_beside_the_means() {
    let whole = summary(&records());
    let mut records = records();
    records.truncate(4);
    let (mut masked, mut dropped, mut unknown) = (records[0], records[1], records[2]);
    masked.kld = f64::INFINITY;
    masked.eval_nll = f64::INFINITY;
    dropped.reverse_kld = f64::INFINITY;
    dropped.ref_nll = f64::INFINITY;
    unknown.ref_nll = f64::NAN;
    unknown.ref_unknown_p = 0.25;
    let records = [masked, dropped, unknown, records[3]];
    let got = summary(&records);
    assert_eq!((got.n_tokens, got.n_excluded, got.n_infinite()), (4, 0, 1));
    let kld = got.kld.unwrap();
    let mean = (records[1].kld + records[2].kld + records[3].kld) / 3.0;
    assert_close(kld.mean.independent.value, mean, 1e-14);
    assert_eq!(
        (kld.n_infinite, got.reverse_kld.unwrap().n_infinite),
        (1, 1)
    );
    let perplexity = got.perplexity.unwrap();
    let counts = (
        perplexity.n_tokens,
        perplexity.n_infinite,
        perplexity.n_unknown,
    );
    assert_eq!(counts, (1, 2, 1));
    assert_close(perplexity.reference, records[3].ref_nll.exp(), 1e-14);
    assert_eq!(
        got.delta_p.unwrap().max,
        delta_p(records[3].ref_nll, records[3].eval_nll)
    );
    let weight = MeanMax {
        mean: 0.0625,
        max: 0.25,
    };
    assert_eq!((got.unknown_p, whole.unknown_p), (Some(weight), None));
}

#[test]
fn a_kld_that_is_infinite_everywhere_is_counted() {
    let mut records = records();
    for record in &mut records {
        record.kld = f64::INFINITY;
    }
    let summary = summary(&records);
    assert_eq!(
        (summary.n_infinite(), &summary.kld),
        (summary.n_tokens, &None)
    );
    assert!(summary.n_tokens > 0 && summary.reverse_kld.is_some());
    assert_eq!(summary.clusters.autocorrelation, None);
}

#[test]
fn first_of_equal_maxima_is_named() {
    let mut records = records();
    records.reverse();
    for index in [300, 100, 200] {
        records[index].kld = 500.0;
        records[index].flags = 0;
    }
    // In the text's order, not the records'.
    let max_at = summary(&records).kld.unwrap().max_at;
    assert_eq!(
        (max_at.window, max_at.position),
        (records[300].window, records[300].position)
    );
}
