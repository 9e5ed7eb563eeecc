//! The perplexity of both models, and how they compare.

use serde::Serialize;

use super::clustered::ClusteredValue;
use super::clusters::Estimator;
use super::estimate::{finite, finite_or_null};
use super::mean::{Moments, Sum};

/// The perplexities of both models, as llama-perplexity defines them, and their ratio.
///
/// They come from the negative log-likelihoods (NLL, nats) of the same tokens under both models.
/// Each `se` is one standard error, with tokens as independent, by first-order propagation; those
/// of ratio and difference include the covariance of the two models, which see the same tokens.
/// They are `None` for fewer than two tokens. (llama-perplexity prints 0 up to ten.)
///
/// The clustered intervals are to be believed. Those of a perplexity and of the ratio are the
/// exponentials of the intervals of a mean NLL and of `ln_ratio`.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Perplexity {
    /// The number of tokens that the numbers are from: those with a next token, less `n_infinite`
    /// and `n_unknown`.
    pub n_tokens: u64,
    /// Tokens whose NLL is infinite under one of the models, which are left out.
    pub n_infinite: u64,
    /// Tokens whose probability the reference does not record, which are left out.
    pub n_unknown: u64,
    /// `exp(mean NLL)` under the reference; infinite (null in JSON) if that overflows.
    #[serde(rename = "ref", serialize_with = "finite_or_null")]
    #[cfg_attr(feature = "testing", schemars(with = "Option<f64>"))]
    pub reference: f64,
    /// Its standard error, `PPL · SE(mean NLL)`.
    pub ref_se: Option<f64>,
    /// Its cluster-robust standard error.
    pub ref_cluster_se: Option<f64>,
    /// The lower end of its clustered interval.
    pub ref_cluster_lo: Option<f64>,
    /// The upper end of its clustered interval.
    pub ref_cluster_hi: Option<f64>,
    /// `exp(mean NLL)` under the evaluated model.
    #[serde(rename = "eval", serialize_with = "finite_or_null")]
    #[cfg_attr(feature = "testing", schemars(with = "Option<f64>"))]
    pub evaluated: f64,
    /// Its standard error.
    pub eval_se: Option<f64>,
    /// Its cluster-robust standard error.
    pub eval_cluster_se: Option<f64>,
    /// The lower end of its clustered interval.
    pub eval_cluster_lo: Option<f64>,
    /// The upper end of its clustered interval.
    pub eval_cluster_hi: Option<f64>,
    /// `mean(eval NLL − ref NLL)`, which is `ln(PPL eval / PPL ref)`.
    pub ln_ratio: ClusteredValue,
    /// `PPL eval / PPL ref`.
    pub ratio: ClusteredValue,
    /// `PPL eval − PPL ref`.
    pub difference: ClusteredValue,
    /// The correlation of the two mean NLLs; `None` if either model has no variance.
    pub correlation: Option<f64>,
}

impl Perplexity {
    /// Computes them from the NLLs of the same tokens in the same order: NaN under both models where one
    /// is infinite (`n_infinite` tokens) or not known (`n_unknown`). `None` without others.
    pub(super) fn from_nlls(
        estimator: &Estimator,
        ref_nll: &[f64],
        eval_nll: &[f64],
        [n_infinite, n_unknown]: [u64; 2],
    ) -> Option<Self> {
        let reference = Moments::from_samples(ref_nll.iter().copied())?;
        let evaluated = Moments::from_samples(eval_nll.iter().copied())?;
        let nlls = || ref_nll.iter().zip(eval_nll);
        let residuals = || nlls().map(|(r, e)| (r - reference.mean, e - evaluated.mean));
        // The textbook's `var + var − 2 cov` is the same standard error, but cancels where the models agree.
        let with_interval = |value: f64, residual: &dyn Fn((f64, f64)) -> f64| {
            estimator.value(value, residuals().map(residual))
        };
        let (ref_ppl, eval_ppl) = (reference.mean.exp(), evaluated.mean.exp());
        // A mean NLL is never negative, so that no perplexity is below 1.
        let perplexity = |nll: ClusteredValue| {
            let clustered = nll.clustered.clamp(0.0, f64::INFINITY);
            ClusteredValue { clustered, ..nll }.exp()
        };
        let ref_value = perplexity(with_interval(reference.mean, &|(r, _)| r));
        let eval_value = perplexity(with_interval(evaluated.mean, &|(_, e)| e));
        let ln_ratio = with_interval(evaluated.mean - reference.mean, &|(r, e)| e - r);
        let products = residuals().map(|(r, e)| r * e);
        let product: Sum = products.filter(|product| product.is_finite()).collect();
        let scale = reference.variance.sqrt() * evaluated.variance.sqrt();
        let correlation = product.value() / reference.n as f64 / scale;
        Some(Self {
            n_tokens: reference.n as u64,
            n_infinite,
            n_unknown,
            reference: ref_ppl,
            ref_se: ref_value.se,
            ref_cluster_se: ref_value.clustered.se,
            ref_cluster_lo: ref_value.clustered.lo,
            ref_cluster_hi: ref_value.clustered.hi,
            evaluated: eval_ppl,
            eval_se: eval_value.se,
            eval_cluster_se: eval_value.clustered.se,
            eval_cluster_lo: eval_value.clustered.lo,
            eval_cluster_hi: eval_value.clustered.hi,
            ln_ratio,
            ratio: ln_ratio.exp(),
            difference: with_interval(eval_ppl - ref_ppl, &|(r, e)| eval_ppl * e - ref_ppl * r),
            correlation: finite(correlation).map(|c| c.clamp(-1.0, 1.0)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::{assert_close, estimator};

    /// Each token is a cluster.
    fn of(ref_nll: &[f64], eval_nll: &[f64]) -> Option<Perplexity> {
        let clusters = 0..ref_nll.len() as u32;
        Perplexity::from_nlls(&estimator(clusters), ref_nll, eval_nll, [0; 2])
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
        let difference_variance = ppl_eval.powi(2) * var_eval + ppl_ref.powi(2) * var_ref
            - 2.0 * ppl_eval * ppl_ref * shared;
        assert_close(got.difference.value, ppl_eval - ppl_ref, 1e-13);
        assert_close(
            got.difference.se.unwrap(),
            difference_variance.sqrt(),
            1e-12,
        );
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
}
