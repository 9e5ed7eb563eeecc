//! llama-perplexity's statistics against numpy, and at the edges.
//!
//! `llama_perplexity_oracle.py` prints the pinned values.

use serde_json::Value;

use super::super::oracle::{assert_close, records};
use super::*;

const EXACT: [(&str, f64); 43] = [
    ("/mean_ppl_q/value", 13.346249152965253),
    ("/mean_ppl_q/err", 0.46072223897095327),
    ("/mean_ppl_base/value", 12.680416706393089),
    ("/mean_ppl_base/err", 0.4355270256584974),
    ("/cor_ln_ppl", 0.9950128347810824),
    ("/mean_ln_ppl_ratio/value", 0.05117657129494335),
    ("/mean_ln_ppl_ratio/err", 0.0034433388038877175),
    ("/mean_ppl_ratio/value", 1.052508719704493),
    ("/mean_ppl_ratio/err", 0.0036241441159886615),
    ("/mean_ppl_difference/value", 0.6658324465721641),
    ("/mean_ppl_difference/err", 0.0513441122312163),
    ("/mean_kld/value", 0.4476444344900387),
    ("/mean_kld/err", 0.06326553474322),
    ("/mean_delta_p/value", -0.008049468211253376),
    ("/mean_delta_p/err", 0.0010674372909106695),
    ("/rms_delta_p/value", 0.04502087582077865),
    ("/rms_delta_p/err", 0.0015699420976298592),
    ("/same_top_p/value", 0.5322112594312246),
    ("/same_top_p/err", 0.01202403793447214),
    ("/maximum_kld", 58.52967441131327),
    ("/kld_99_9", 34.78714347312104),
    ("/kld_99", 11.395984191587027),
    ("/kld_95", 1.2490523715872013),
    ("/kld_90", 0.48264646322271937),
    ("/median_kld", 0.009555015308311947),
    ("/kld_10", 5.509511987794292e-06),
    ("/kld_5", 1.8941649943271635e-07),
    ("/kld_1", 2.351104548923706e-10),
    ("/kld_0_1", 1.139417102601573e-13),
    ("/minimum_kld", 9.838595526741379e-15),
    ("/maximum_delta_p", 0.19166195712731415),
    ("/delta_p_99_9", 0.1761030830341945),
    ("/delta_p_99", 0.11530500205235407),
    ("/delta_p_95", 0.05065720208069431),
    ("/delta_p_90", 0.021882679562480405),
    ("/delta_p_75", 0.003144770437593824),
    ("/median_delta_p", -0.0017269024567016702),
    ("/delta_p_25", -0.012141429774932398),
    ("/delta_p_10", -0.05240959027626697),
    ("/delta_p_5", -0.09397102383083007),
    ("/delta_p_1", -0.17920577313406133),
    ("/delta_p_0_1", -0.22544698367569602),
    ("/minimum_delta_p", -0.24187117917037082),
];

fn check(statistics: LlamaPerplexity, pinned: &[(&str, f64)], tolerance: f64) {
    let json: Value = serde_json::to_value(statistics).unwrap();
    for &(key, expected) in pinned {
        let got = json.pointer(key).and_then(Value::as_f64).expect(key);
        assert_close(got, expected, tolerance);
    }
}

#[test]
fn exact_scores_give_numpys_statistics() {
    check(
        LlamaPerplexity::of_records(&records()).unwrap(),
        &EXACT,
        1e-11,
    );
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
