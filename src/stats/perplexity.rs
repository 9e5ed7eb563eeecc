//! The perplexity of both models, and how they compare.

use serde::Serialize;

use super::estimate::{Uncertain, finite, finite_or_null};
use super::mean::{Moments, Sum};

/// The perplexities of both models, as llama-perplexity defines them, and their ratio.
///
/// They come from the negative log-likelihoods (NLL, nats) of the same tokens under both models.
/// All errors are one sigma, with tokens as independent, by first-order propagation; those of ratio
/// and difference include the covariance of the two models, which see the same tokens. Errors are
/// `None` for fewer than two tokens. (llama-perplexity prints 0 up to ten.)
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// How many tokens have a next token: fewer than are scored.
    pub n_tokens: u64,
    /// `exp(mean NLL)` under the reference; infinite (null in JSON) if that overflows.
    #[serde(rename = "ref", serialize_with = "finite_or_null")]
    pub reference: f64,
    /// Its standard error, `PPL · SE(mean NLL)`.
    pub ref_se: Option<f64>,
    /// `exp(mean NLL)` under the evaluated model.
    #[serde(rename = "eval", serialize_with = "finite_or_null")]
    pub evaluated: f64,
    /// Its standard error.
    pub eval_se: Option<f64>,
    /// `mean(eval NLL − ref NLL)`, which is `ln(PPL eval / PPL ref)`.
    pub ln_ratio: Uncertain,
    /// `PPL eval / PPL ref`.
    pub ratio: Uncertain,
    /// `PPL eval − PPL ref`.
    pub difference: Uncertain,
    /// The correlation of the two mean NLLs; `None` if either model has no variance.
    pub correlation: Option<f64>,
}

impl Perplexity {
    /// Computes them from the finite NLLs of the same tokens in the same order. `None` without
    /// tokens, or if the slices differ in length.
    pub fn of(ref_nll: &[f64], eval_nll: &[f64]) -> Option<Self> {
        if ref_nll.len() != eval_nll.len() {
            return None;
        }
        let reference = Moments::of(ref_nll)?;
        let evaluated = Moments::of(eval_nll)?;
        let residuals = || {
            ref_nll
                .iter()
                .zip(eval_nll)
                .map(|(r, e)| (r - reference.mean, e - evaluated.mean))
        };
        let n = ref_nll.len() as f64;
        // The standard error of a mean whose samples have these residuals. The textbook's
        // `var + var − 2 cov` is the same number, but cancels where the models agree.
        let error = |residual: &dyn Fn((f64, f64)) -> f64| {
            let squares: Sum = residuals().map(|pair| residual(pair).powi(2)).collect();
            finite((squares.value() / n / (n - 1.0)).sqrt())
        };
        let (ref_ppl, eval_ppl) = (reference.mean.exp(), evaluated.mean.exp());
        let ln_ratio = Uncertain {
            value: evaluated.mean - reference.mean,
            se: error(&|(r, e)| e - r),
        };
        let ratio = ln_ratio.value.exp();
        let product: Sum = residuals().map(|(r, e)| r * e).collect();
        let correlation =
            product.value() / n / (reference.variance.sqrt() * evaluated.variance.sqrt());
        Some(Self {
            n_tokens: ref_nll.len() as u64,
            reference: ref_ppl,
            ref_se: error(&|(r, _)| ref_ppl * r),
            evaluated: eval_ppl,
            eval_se: error(&|(_, e)| eval_ppl * e),
            ln_ratio,
            ratio: Uncertain {
                value: ratio,
                se: ln_ratio.se.and_then(|se| finite(ratio * se)),
            },
            difference: Uncertain {
                value: eval_ppl - ref_ppl,
                se: error(&|(r, e)| eval_ppl * e - ref_ppl * r),
            },
            correlation: finite(correlation).map(|c| c.clamp(-1.0, 1.0)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::assert_close;
    use super::*;

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

        let got = Perplexity::of(&reference, &evaluated).unwrap();
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
    fn a_model_against_itself_is_exactly_zero() {
        let nll = [0.3, 2.0, 1.1, 5.0];
        let got = Perplexity::of(&nll, &nll).unwrap();
        let zero = Uncertain {
            value: 0.0,
            se: Some(0.0),
        };
        assert_eq!((got.ln_ratio, got.difference), (zero, zero));
        assert_eq!(got.ratio.value, 1.0);
        assert_close(got.correlation.unwrap(), 1.0, 1e-15);
    }

    #[test]
    fn small_and_overflowing_samples() {
        assert_eq!(Perplexity::of(&[], &[]), None);
        assert_eq!(Perplexity::of(&[1.0], &[]), None);
        let one = Perplexity::of(&[1.0], &[1.5]).unwrap();
        assert_eq!(
            (one.ref_se, one.ln_ratio.se, one.correlation),
            (None, None, None)
        );
        let huge = Perplexity::of(&[1.0, 2.0], &[1e4, 2e4]).unwrap();
        let json = serde_json::to_string(&huge).unwrap();
        assert!(json.contains(r#""eval":null,"eval_se":null"#), "{json}");
        assert!(
            json.contains(r#""difference":{"value":null,"se":null}"#),
            "{json}"
        );
    }
}
