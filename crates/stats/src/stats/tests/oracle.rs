//! Samples that the tests and `oracle.py` both generate, bit for bit, and a check of closeness.

use std::collections::BTreeMap;

use kl_formats::{Random, TokenRecord};
use serde::Serialize;
use serde_json::Value;

pub use crate::Lcg;

use super::distribution::Point;
use super::{
    Breakdown, ClusterRule, Clusters, Confidence, Estimator, PartNames, Run, Summary, TokenTable,
};

/// The rows that `oracle.py` and `llama_perplexity_oracle.py` print under a name.
fn pinned_rows(name: &str) -> impl Iterator<Item = &'static str> {
    let lines = include_str!("pinned.txt").lines();
    let rows = lines.filter_map(move |row| row.strip_prefix(name)?.strip_prefix(' '));
    assert!(rows.clone().next().is_some(), "no row of {name}");
    rows
}

/// Rows of numbers.
pub fn pinned<const N: usize>(name: &str) -> impl Iterator<Item = [f64; N]> {
    let number = |text: &str| text.parse().unwrap();
    pinned_rows(name).map(move |row| {
        Vec::from_iter(row.split(' ').map(number))
            .try_into()
            .unwrap()
    })
}

/// Numbers of a JSON document, by their pointers.
pub fn pinned_numbers(name: &str) -> BTreeMap<&'static str, f64> {
    let rows = pinned_rows(name).map(|row| row.split_once(' ').unwrap());
    rows.map(|(pointer, number)| (pointer, number.parse().unwrap()))
        .collect()
}

/// Panics unless the document of a value has these numbers.
#[track_caller]
pub fn assert_pinned(value: &impl Serialize, numbers: BTreeMap<&str, f64>) {
    let json = serde_json::to_value(value).unwrap();
    assert!(!numbers.is_empty());
    for (pointer, expected) in numbers {
        let got = json.pointer(pointer).and_then(Value::as_f64);
        let got = got.unwrap_or_else(|| panic!("no number at {pointer}"));
        let error = (got - expected).abs() / expected.abs().max(1e-3);
        assert!(
            error < 1e-11,
            "{pointer}: {got} is not {expected}: off by {error:e}"
        );
    }
}

/// `n` samples with a long upper tail, like KLDs, as `skewed` in `oracle.py` makes them.
pub fn skewed(n: usize) -> Vec<f64> {
    let mut lcg = Lcg::new(n as u64);
    (0..n).map(|_| long_tail(lcg.uniform())).collect()
}

fn long_tail(u: f64) -> f64 {
    u * u * u * u / (1.001 - u)
}

/// The records of 40 windows of up to 60 rows, as `records` in `oracle.py` makes them.
pub fn records() -> Vec<TokenRecord> {
    let mut lcg = Lcg::new(2024);
    let mut records = Vec::new();
    for window in 0..40 {
        let rows = 30 + window % 4 * 10;
        let hard = 0.5 + lcg.uniform();
        for position in 0..rows {
            let kld = hard * 0.1 * long_tail(lcg.uniform());
            let reverse_kld = kld * (0.5 + lcg.uniform());
            let ref_nll = 5.0 * lcg.uniform();
            let eval_nll = ref_nll + 0.5 * (lcg.uniform() - 0.4);
            let ref_top = lcg.below(50);
            let ref_top_rank = 1 + lcg.below(12) * lcg.below(2);
            let eval_top_rank = 1 + lcg.below(12) * lcg.below(2);
            let last = position + 1 == rows;
            records.push(TokenRecord {
                window,
                position,
                token: if last { u32::MAX } else { lcg.below(1000) },
                flags: match (window * 60 + position) % 97 {
                    5 => TokenRecord::REF_NOT_FINITE,
                    6 => TokenRecord::EVAL_NOT_FINITE,
                    _ => 0,
                },
                ref_top,
                eval_top: if ref_top_rank == 1 { ref_top } else { 50 },
                ref_top_rank,
                eval_top_rank,
                kld,
                reverse_kld,
                ref_nll: if last { f64::NAN } else { ref_nll },
                eval_nll: if last { f64::NAN } else { eval_nll },
                ref_entropy: 1.0,
                ref_top_p: 0.5,
                eval_top_p: 0.25,
                ref_unknown_p: 0.0,
                group: 0,
                span: 0,
                acceptance: 1.0 / (1.0 + reverse_kld),
            });
        }
    }
    records
}

/// Tokens in these clusters, at the default confidence.
pub fn estimator(clusters: impl IntoIterator<Item = u32>) -> Estimator {
    Estimator::new(clusters.into_iter().map(Into::into), Confidence::default())
}

/// The runs of tokens, each given as its window and its group.
pub fn runs(tokens: impl IntoIterator<Item = (u32, u32)>) -> Vec<Run> {
    let record = |(window, group)| TokenRecord {
        window,
        group,
        ..TokenRecord::default()
    };
    let records: Vec<TokenRecord> = tokens.into_iter().map(record).collect();
    Run::from_records(&records)
}

/// All that records give.
pub struct Statistics {
    pub summary: Summary,
    pub breakdown: Breakdown,
    pub ccdf: Vec<Point>,
    pub by_window: Vec<Point>,
}

/// The statistics of records at the default confidence.
pub fn statistics(records: &[TokenRecord], groups: &[String], rule: ClusterRule) -> Statistics {
    let names = PartNames {
        groups,
        ..PartNames::default()
    };
    let table = TokenTable::from_records(records);
    let windows = table.windows();
    let of = table.summarise(
        &Clusters::by_rule(&windows, rule),
        names,
        Confidence::default(),
    );
    Statistics {
        summary: of.summary,
        breakdown: of.breakdown,
        ccdf: of.ccdf,
        by_window: windows.means(),
    }
}

/// The summary of records at the default confidence.
pub fn summary(records: &[TokenRecord], rule: ClusterRule) -> Summary {
    statistics(records, &[], rule).summary
}

/// Standard normals, from splitmix64 by Box and Muller's method.
pub fn splitmix_normals(seed: u64) -> impl Iterator<Item = f64> {
    let mut random = Random(seed);
    let mut uniform = move || (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
    std::iter::from_fn(move || {
        let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
        Some(radius * (std::f64::consts::TAU * uniform()).cos())
    })
}

/// Panics unless `got` is within `tolerance` of `expected`, relative to it or to 1e-3 if it is
/// smaller.
#[track_caller]
pub fn assert_close(got: f64, expected: f64, tolerance: f64) {
    let error = (got - expected).abs() / expected.abs().max(1e-3);
    assert!(
        error <= tolerance,
        "{got} is not {expected}: off by {error:e}"
    );
}
