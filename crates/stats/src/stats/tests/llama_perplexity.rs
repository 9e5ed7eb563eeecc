//! llama-perplexity's statistics against numpy, and at the edges.

use serde_json::Value;

use super::super::oracle::{assert_close, assert_pinned, pinned_numbers, records};
use super::*;

#[test]
fn exact_scores_give_numpys_statistics() {
    let statistics = LlamaPerplexity::of_records(&records()).unwrap();
    assert_pinned(&statistics, pinned_numbers("LLAMA_PERPLEXITY"));
}

#[test]
fn a_model_against_itself_has_no_errors() {
    let mut records = records();
    for record in &mut records {
        record.eval_nll = record.ref_nll;
    }
    let got = LlamaPerplexity::of_records(&records).unwrap();
    let exactly = |value| WithError { value, err: 0.0 };
    assert_eq!(got.mean_ln_ppl_ratio.value, 0.0);
    assert!(got.mean_ln_ppl_ratio.err < 1e-8);
    assert!(got.mean_ppl_difference.err < 1e-7);
    assert_eq!(
        (got.mean_delta_p, got.rms_delta_p),
        (exactly(0.0), exactly(0.0))
    );
    assert_eq!((got.maximum_delta_p, got.median_delta_p), (0.0, 0.0));
    assert_close(got.cor_ln_ppl.unwrap(), 1.0, 1e-12);
}

#[test]
fn positions_that_are_not_finite_are_left_out_and_too_few_give_none() {
    let mut records = records();
    let all = LlamaPerplexity::of_records(&records);
    let mut bad = records[0];
    bad.kld = f64::NAN;
    records.push(bad);
    bad = records[0];
    bad.eval_nll = f64::INFINITY;
    records.push(bad);
    assert_eq!(LlamaPerplexity::of_records(&records), all);
    records
        .retain(|r| is_counted(r) && [r.kld, r.ref_nll, r.eval_nll].iter().all(|x| x.is_finite()));
    records.truncate(MIN_TOKENS);
    assert!(LlamaPerplexity::of_records(&records).is_some());
    records.truncate(MIN_TOKENS - 1);
    assert_eq!(LlamaPerplexity::of_records(&records), None);
}

#[test]
fn undefined_numbers_are_null() {
    let record = TokenRecord {
        kld: 0.0,
        ref_nll: 1.0,
        eval_nll: 1e6,
        ref_top: 1,
        eval_top: 1,
        ..records()[0]
    };
    let got = LlamaPerplexity::of_records(&[record; MIN_TOKENS]).unwrap();
    let json = serde_json::to_value(got).unwrap();
    assert_eq!(json["cor_ln_ppl"], Value::Null);
    assert_eq!(json["mean_ppl_q"]["value"], Value::Null);
    assert_eq!(json["same_top_p"]["err"], 0.0);
}
