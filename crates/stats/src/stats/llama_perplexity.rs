//! The statistics that `llama-perplexity --kl-divergence` prints after its table, by its formulas,
//! in f64.
//!
//! Source: `kl_divergence` in llama.cpp's `tools/perplexity/perplexity.cpp`, as of mid 2026.
//! docs/PEERS.md says which of its digits differ.

use kl_formats::TokenRecord;
use serde::Serialize;

use super::clusters::Estimator;
use super::estimate::{Confidence, finite_or_null};
use super::mean::Moments;
use super::perplexity::Perplexity;
use super::quantile;
use super::token::{delta_p, is_counted};
use super::windows::Cluster;

/// llama-perplexity prints no statistics for fewer positions.
pub const MIN_TOKENS: usize = 100;

/// A value and its `±`: one standard error, with tokens as independent.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct WithError {
    /// The value; null in JSON if it is not finite.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(feature = "testing", schemars(with = "Option<f64>"))]
    pub value: f64,
    /// Its standard error; null in JSON if it is not finite.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(feature = "testing", schemars(with = "Option<f64>"))]
    pub err: f64,
}

/// llama-perplexity's statistics, in the order in which it prints them.
///
/// `q` is the evaluated model and `base` the reference; `kld` is in nats; `delta_p` is
/// `q(next) − base(next)` as a fraction, which llama-perplexity prints in percent.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct LlamaPerplexity {
    /// The perplexity of the evaluated model, `exp(mean NLL)`.
    pub mean_ppl_q: WithError,
    /// The perplexity of the reference.
    pub mean_ppl_base: WithError,
    /// The correlation of the two mean NLLs; `None` if one has no variance.
    pub cor_ln_ppl: Option<f64>,
    /// `ln(PPL(q) / PPL(base))`; the errors of ratio and difference include the covariance.
    pub mean_ln_ppl_ratio: WithError,
    /// `PPL(q) / PPL(base)`.
    pub mean_ppl_ratio: WithError,
    /// `PPL(q) − PPL(base)`.
    pub mean_ppl_difference: WithError,

    /// The mean KLD, nats.
    pub mean_kld: WithError,
    /// The largest KLD, nats.
    pub maximum_kld: f64,
    /// The 99.9 % quantile of the KLD, nats.
    pub kld_99_9: f64,
    /// The 99 % quantile of the KLD, nats.
    pub kld_99: f64,
    /// The 95 % quantile of the KLD, nats.
    pub kld_95: f64,
    /// The 90 % quantile of the KLD, nats.
    pub kld_90: f64,
    /// The median KLD, nats.
    pub median_kld: f64,
    /// The 10 % quantile of the KLD, nats.
    pub kld_10: f64,
    /// The 5 % quantile of the KLD, nats.
    pub kld_5: f64,
    /// The 1 % quantile of the KLD, nats.
    pub kld_1: f64,
    /// The 0.1 % quantile of the KLD, nats.
    pub kld_0_1: f64,
    /// The smallest KLD, nats.
    pub minimum_kld: f64,

    /// The mean Δp, a fraction.
    pub mean_delta_p: WithError,
    /// The largest Δp, a fraction.
    pub maximum_delta_p: f64,
    /// The 99.9 % quantile of the Δp, a fraction.
    pub delta_p_99_9: f64,
    /// The 99 % quantile of the Δp, a fraction.
    pub delta_p_99: f64,
    /// The 95 % quantile of the Δp, a fraction.
    pub delta_p_95: f64,
    /// The 90 % quantile of the Δp, a fraction.
    pub delta_p_90: f64,
    /// The 75 % quantile of the Δp, a fraction.
    pub delta_p_75: f64,
    /// The median Δp, a fraction.
    pub median_delta_p: f64,
    /// The 25 % quantile of the Δp, a fraction.
    pub delta_p_25: f64,
    /// The 10 % quantile of the Δp, a fraction.
    pub delta_p_10: f64,
    /// The 5 % quantile of the Δp, a fraction.
    pub delta_p_5: f64,
    /// The 1 % quantile of the Δp, a fraction.
    pub delta_p_1: f64,
    /// The 0.1 % quantile of the Δp, a fraction.
    pub delta_p_0_1: f64,
    /// The smallest Δp, a fraction.
    pub minimum_delta_p: f64,
    /// The root of the mean square of Δp, a fraction.
    pub rms_delta_p: WithError,
    /// The share of positions where both models have the same top token.
    pub same_top_p: WithError,
}

impl LlamaPerplexity {
    /// Computes them from the counted records whose KLD and NLLs are finite: llama-perplexity
    /// scores no position without a next token. `None` for fewer than [`MIN_TOKENS`].
    pub fn of_records(records: &[TokenRecord]) -> Option<Self> {
        let is_finite =
            |r: &TokenRecord| [r.kld, r.ref_nll, r.eval_nll].iter().all(|x| x.is_finite());
        let mut counted: Vec<&TokenRecord> = records.iter().collect();
        counted.retain(|record| is_counted(record) && is_finite(record));
        if counted.len() < MIN_TOKENS {
            return None;
        }
        let values = |value: fn(&TokenRecord) -> f64| -> Vec<f64> {
            counted.iter().map(|record| value(record)).collect()
        };
        let tokens = vec![Cluster::default(); counted.len()];
        let independent = Estimator::new(tokens, Confidence::default());
        let (base_nll, eval_nll) = (values(|r| r.ref_nll), values(|r| r.eval_nll));
        let ppl = Perplexity::from_nlls(&independent, &base_nll, &eval_nll, [0; 2])?;
        let klds = values(|r| r.kld);
        let changes = values(|r| delta_p(r.ref_nll, r.eval_nll));
        let same_top = values(|r| f64::from(u8::from(r.ref_top == r.eval_top)));
        let (sorted_klds, sorted_changes) = (quantile::sorted(&klds), quantile::sorted(&changes));
        let kld = |p| quantile::linear(&sorted_klds, p);
        let delta_p = |p| quantile::linear(&sorted_changes, p);
        Some(Self {
            mean_ppl_q: WithError::new(ppl.evaluated, ppl.eval_se),
            mean_ppl_base: WithError::new(ppl.reference, ppl.ref_se),
            cor_ln_ppl: ppl.correlation,
            mean_ln_ppl_ratio: WithError::new(ppl.ln_ratio.value, ppl.ln_ratio.se),
            mean_ppl_ratio: WithError::new(ppl.ratio.value, ppl.ratio.se),
            mean_ppl_difference: WithError::new(ppl.difference.value, ppl.difference.se),

            mean_kld: WithError::mean(klds.iter().copied())?,
            maximum_kld: kld(1.0)?,
            kld_99_9: kld(0.999)?,
            kld_99: kld(0.99)?,
            kld_95: kld(0.95)?,
            kld_90: kld(0.9)?,
            median_kld: kld(0.5)?,
            kld_10: kld(0.1)?,
            kld_5: kld(0.05)?,
            kld_1: kld(0.01)?,
            kld_0_1: kld(0.001)?,
            minimum_kld: kld(0.0)?,

            mean_delta_p: WithError::mean(changes.iter().copied())?,
            maximum_delta_p: delta_p(1.0)?,
            delta_p_99_9: delta_p(0.999)?,
            delta_p_99: delta_p(0.99)?,
            delta_p_95: delta_p(0.95)?,
            delta_p_90: delta_p(0.9)?,
            delta_p_75: delta_p(0.75)?,
            median_delta_p: delta_p(0.5)?,
            delta_p_25: delta_p(0.25)?,
            delta_p_10: delta_p(0.1)?,
            delta_p_5: delta_p(0.05)?,
            delta_p_1: delta_p(0.01)?,
            delta_p_0_1: delta_p(0.001)?,
            minimum_delta_p: delta_p(0.0)?,
            rms_delta_p: WithError::root_mean_square(&changes)?,
            same_top_p: WithError::mean(same_top.into_iter())?,
        })
    }
}

impl WithError {
    fn new(value: f64, se: Option<f64>) -> Self {
        let err = se.unwrap_or(f64::NAN);
        Self { value, err }
    }

    fn mean(samples: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let moments = Moments::from_samples(samples)?;
        Some(Self::new(moments.mean, moments.standard_error()))
    }

    fn root_mean_square(samples: &[f64]) -> Option<Self> {
        let of_squares = Self::mean(samples.iter().map(|x| x.powi(2)))?;
        let value = of_squares.value.sqrt();
        let err = if value > 0.0 {
            0.5 * of_squares.err / value
        } else {
            0.0
        };
        Some(Self { value, err })
    }
}

#[cfg(test)]
#[path = "tests/llama_perplexity.rs"]
mod tests;
