use super::*;
use crate::stats::oracle::assert_close;

/// Each token is a cluster.
fn of(ref_nll: &[f64], eval_nll: &[f64]) -> Option<Perplexity> {
    let clusters: Vec<Cluster> = (0..ref_nll.len() as u32).map(Cluster::from).collect();
    Perplexity::of(&clusters, ref_nll, eval_nll, Confidence::default())
}

/// llama-perplexity's own formulas, by sums and covariance.
#[test]
fn errors_are_llama_perplexitys() {
    let reference: Vec<f64> = (0..50).map(|i| f64::from(i % 7) * 0.5).collect();
    let evaluated: Vec<f64> = (0..50).map(|i| f64::from(i % 7 + i % 3) * 0.4).collect();
    let n = 50.0;
    let mean = |x: &[f64]| x.iter().sum::<f64>() / n;
    let covariance = |x: &[f64], y: &[f64]| {
        let products: Vec<f64> = x.iter().zip(y).map(|(x, y)| x * y).collect();
        (mean(&products) - mean(x) * mean(y)) / (n - 1.0)
    };
    let (ppl_ref, ppl_eval) = (mean(&reference).exp(), mean(&evaluated).exp());
    let var_ref = covariance(&reference, &reference);
    let var_eval = covariance(&evaluated, &evaluated);
    let shared = covariance(&reference, &evaluated);

    let got = of(&reference, &evaluated).unwrap();
    assert_close(got.reference, ppl_ref, 1e-14);
    assert_close(got.evaluated, ppl_eval, 1e-14);
    assert_close(got.ref_se.unwrap(), ppl_ref * var_ref.sqrt(), 1e-12);
    assert_close(got.eval_se.unwrap(), ppl_eval * var_eval.sqrt(), 1e-12);
    assert_close(
        got.correlation.unwrap(),
        shared / (var_ref * var_eval).sqrt(),
        1e-12,
    );
    let ln_ratio_se = (var_ref + var_eval - 2.0 * shared).sqrt();
    assert_close(got.ln_ratio.value, (ppl_eval / ppl_ref).ln(), 1e-13);
    assert_close(got.ln_ratio.se.unwrap(), ln_ratio_se, 1e-12);
    assert_close(got.ratio.value, ppl_eval / ppl_ref, 1e-14);
    assert_close(
        got.ratio.se.unwrap(),
        ppl_eval / ppl_ref * ln_ratio_se,
        1e-12,
    );
    let difference_variance =
        ppl_eval.powi(2) * var_eval + ppl_ref.powi(2) * var_ref - 2.0 * ppl_eval * ppl_ref * shared;
    assert_close(got.difference.value, ppl_eval - ppl_ref, 1e-13);
    assert_close(
        got.difference.se.unwrap(),
        difference_variance.sqrt(),
        1e-12,
    );
}

#[test]
fn a_model_against_itself_is_exactly_zero() {
    let nll = [0.3, 2.0, 1.1, 5.0];
    let got = of(&nll, &nll).unwrap();
    for zero in [got.ln_ratio, got.difference] {
        assert_eq!((zero.value, zero.se), (0.0, Some(0.0)));
        assert_eq!(zero.clustered.ends(), Some((0.0, 0.0)));
    }
    assert_eq!(got.ratio.value, 1.0);
    assert_close(got.correlation.unwrap(), 1.0, 1e-15);
}

#[test]
fn small_and_overflowing_samples() {
    assert_eq!(of(&[], &[]), None);
    let one = of(&[1.0], &[1.5]).unwrap();
    assert_eq!(
        (one.ref_se, one.ln_ratio.se, one.correlation),
        (None, None, None)
    );
    let huge = of(&[1.0, 2.0], &[1e4, 2e4]).unwrap();
    let json = serde_json::to_string(&huge).unwrap();
    assert!(json.contains(r#""eval":null,"eval_se":null"#), "{json}");
    assert!(
        json.contains(r#""difference":{"value":null,"se":null,"cluster_se":null"#),
        "{json}"
    );
}
