//! The whole summary against numpy and scipy, and at the edges.

use serde_json::Value;

use super::super::oracle::{assert_close, records};
use super::*;

fn summary(records: &[TokenRecord]) -> Summary {
    Summary::from_records(records, Confidence::default())
}

fn json(records: &[TokenRecord]) -> Value {
    serde_json::to_value(summary(records)).unwrap()
}

const PINNED: [(&str, f64); 100] = [
    ("/kld/mean/value", 0.4403726113181395),
    ("/kld/mean/lo", 0.31912164134474996),
    ("/kld/mean/hi", 0.561623581291529),
    ("/kld/mean/se", 0.06188143903751154),
    ("/kld/mean/cluster_lo", 0.30024378419848174),
    ("/kld/mean/cluster_hi", 0.5805014384377972),
    ("/kld/std", 2.597546654121238),
    ("/kld/min", 9.838595526741379e-15),
    ("/kld/max", 58.52967441131327),
    ("/kld/max_at/window", 9.0),
    ("/kld/max_at/position", 1.0),
    ("/kld/max_at/token", 775.0),
    ("/kld/quantiles/0/p", 0.5),
    ("/kld/quantiles/0/value", 0.009651360254805189),
    ("/kld/quantiles/0/lo", 0.006964023100194755),
    ("/kld/quantiles/0/hi", 0.012338697409415622),
    ("/kld/quantiles/1/p", 0.9),
    ("/kld/quantiles/1/value", 0.47745316648679187),
    ("/kld/quantiles/1/lo", 0.38292482781170817),
    ("/kld/quantiles/1/hi", 0.576076499192812),
    ("/kld/quantiles/2/p", 0.95),
    ("/kld/quantiles/2/value", 1.2302683444048303),
    ("/kld/quantiles/2/lo", 1.0127003702966444),
    ("/kld/quantiles/2/hi", 1.4833420869595029),
    ("/kld/quantiles/3/p", 0.99),
    ("/kld/quantiles/3/value", 11.18994330286979),
    ("/kld/quantiles/3/lo", 6.277705244513829),
    ("/kld/quantiles/3/hi", 17.137687572321287),
    ("/kld/quantiles/4/p", 0.999),
    ("/kld/quantiles/4/value", 34.782042511182155),
    ("/kld/quantiles/4/lo", 17.840886556700468),
    ("/kld/quantiles/4/hi", 63.131465106486985),
    ("/reverse_kld/mean/value", 0.4526821412698852),
    ("/reverse_kld/mean/lo", 0.31045646006295646),
    ("/reverse_kld/mean/hi", 0.594907822476814),
    ("/reverse_kld/mean/se", 0.07258605702788735),
    ("/reverse_kld/mean/cluster_lo", 0.2838391990529824),
    ("/reverse_kld/mean/cluster_hi", 0.621525083486788),
    ("/reverse_kld/std", 3.0468856655765357),
    ("/reverse_kld/min", 1.1603794434476062e-14),
    ("/reverse_kld/max", 83.77794065867226),
    ("/reverse_kld/max_at/window", 9.0),
    ("/reverse_kld/max_at/position", 1.0),
    ("/reverse_kld/max_at/token", 775.0),
    ("/reverse_kld/quantiles/0/p", 0.5),
    ("/reverse_kld/quantiles/0/value", 0.009625484456434404),
    ("/reverse_kld/quantiles/0/lo", 0.007126327652995224),
    ("/reverse_kld/quantiles/0/hi", 0.012124641259873585),
    ("/reverse_kld/quantiles/1/p", 0.9),
    ("/reverse_kld/quantiles/1/value", 0.46998268728518944),
    ("/reverse_kld/quantiles/1/lo", 0.37707559128417534),
    ("/reverse_kld/quantiles/1/hi", 0.5691739156154901),
    ("/reverse_kld/quantiles/2/p", 0.95),
    ("/reverse_kld/quantiles/2/value", 1.1112631848047694),
    ("/reverse_kld/quantiles/2/lo", 0.8216640519717676),
    ("/reverse_kld/quantiles/2/hi", 1.4028317238032857),
    ("/reverse_kld/quantiles/3/p", 0.99),
    ("/reverse_kld/quantiles/3/value", 8.096993895567241),
    ("/reverse_kld/quantiles/3/lo", 3.05466614960664),
    ("/reverse_kld/quantiles/3/hi", 14.84647133238742),
    ("/reverse_kld/quantiles/4/p", 0.999),
    ("/reverse_kld/quantiles/4/value", 34.244889246654616),
    ("/reverse_kld/quantiles/4/lo", 13.776946185069157),
    ("/reverse_kld/quantiles/4/hi", 100.46586358291617),
    ("/agreement/ref_top1/value", 0.5312145289443814),
    ("/agreement/ref_top1/lo", 0.507878659416281),
    ("/agreement/ref_top1/hi", 0.5544479449615694),
    ("/agreement/ref_top5/value", 0.7048808172531215),
    ("/agreement/ref_top5/lo", 0.6832614477118057),
    ("/agreement/ref_top5/hi", 0.7258277334189969),
    ("/agreement/ref_top10/value", 0.9199772985244041),
    ("/agreement/ref_top10/lo", 0.9066168202548178),
    ("/agreement/ref_top10/hi", 0.9319596633473027),
    ("/agreement/eval_top5/value", 0.7264472190692395),
    ("/agreement/eval_top5/lo", 0.7052733291766952),
    ("/agreement/eval_top5/hi", 0.7468778754867145),
    ("/agreement/eval_top10/value", 0.923950056753689),
    ("/agreement/eval_top10/lo", 0.9108742332350291),
    ("/agreement/eval_top10/hi", 0.9356347546657601),
    ("/perplexity/n_tokens", 1723.0),
    ("/perplexity/ref", 12.680416706393089),
    ("/perplexity/eval", 13.346249152965253),
    ("/perplexity/ref_se", 0.43552702565849727),
    ("/perplexity/eval_se", 0.46072223897095316),
    ("/perplexity/ln_ratio/value", 0.051176571294943685),
    ("/perplexity/ln_ratio/se", 0.0034433388038875314),
    ("/perplexity/ratio/value", 1.052508719704493),
    ("/perplexity/ratio/se", 0.0036241441159884655),
    ("/perplexity/difference/value", 0.6658324465721641),
    ("/perplexity/difference/se", 0.05134411223121407),
    ("/perplexity/correlation", 0.9950128347810825),
    ("/delta_p/mean/value", -0.008049468211253376),
    ("/delta_p/mean/lo", -0.010140999648169929),
    ("/delta_p/mean/hi", -0.005957936774336825),
    ("/delta_p/rms/value", 0.04502087582077865),
    ("/delta_p/rms/se", 0.001569942097629859),
    ("/delta_p/min", -0.24187117917037082),
    ("/delta_p/max", 0.19166195712731415),
    ("/delta_p/quantiles/1/value", -0.17920577313406133),
    ("/delta_p/quantiles/9/value", 0.11530500205235407),
];

#[test]
fn every_number_matches_numpy_and_scipy() {
    let json = json(&records());
    for (pointer, expected) in PINNED {
        let got = json.pointer(pointer).and_then(Value::as_f64);
        let got = got.unwrap_or_else(|| panic!("no number at {pointer}"));
        let error = (got - expected).abs() / expected.abs().max(1e-3);
        assert!(
            error < 1e-11,
            "{pointer}: {got} is not {expected}: off by {error:e}"
        );
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
        a.mean.cluster_lo.unwrap(),
        b.mean.cluster_lo.unwrap(),
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
        for key in ["kld", "reverse_kld", "agreement", "perplexity", "delta_p"] {
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
    for key in ["lo", "hi", "se", "cluster_lo", "cluster_hi"] {
        assert!(json["kld"]["mean"][key].is_null(), "{key}");
    }
    assert!(json["kld"]["std"].is_null());
    assert!(json["perplexity"]["ln_ratio"]["se"].is_null());
    assert!(json["agreement"]["ref_top1"]["lo"].is_f64());
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
fn scores_that_are_not_finite_are_left_out() {
    let mut records = records();
    records[0].kld = f64::NAN;
    records[1].reverse_kld = f64::INFINITY;
    records[2].eval_nll = f64::INFINITY;
    records[3].ref_nll = -1e9; // e to the 1e9 overflows
    let summary = summary(&records);
    for (position, excluded) in summary.excluded[..4].iter().enumerate() {
        assert_eq!(excluded.position, position as u32);
        assert_eq!(excluded.which, ExclusionReason::Score);
    }
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
