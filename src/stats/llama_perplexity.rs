//! The statistics that `llama-perplexity --kl-divergence` prints after its table, by its formulas.
//!
//! With `f64` they are exact statistics of exact scores. With `f32` they equal llama-perplexity's
//! to the digit, given its scores: it rounds products and percentiles to f32, and its variances are
//! differences of sums, which cancel where the models agree. Where such a difference comes out
//! below 0, it prints `-nan`; here the error is then computed from the differences of the scores.
//!
//! Source: `kl_divergence` in llama.cpp's `tools/perplexity/perplexity.cpp`, as of mid 2026.

use std::ops::{Add, Mul, Sub};

use kl_formats::sidecar::TokenRecord;
use serde::Serialize;

use super::delta_p::delta_p;
use super::estimate::finite_or_null;
use super::exclusion::is_counted;
use crate::score::LlamaPerplexityToken;

/// llama-perplexity prints no statistics for fewer positions.
pub const MIN_TOKENS: usize = 100;

/// A value and its `±`: one standard error, with tokens as independent.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WithError {
    /// The value; null in JSON if it is not finite.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(test, schemars(with = "Option<f64>"))]
    pub value: f64,
    /// Its standard error; null in JSON if it is not finite.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(test, schemars(with = "Option<f64>"))]
    pub err: f64,
}

/// llama-perplexity's statistics, in the order in which it prints them.
///
/// `q` is the evaluated model and `base` the reference; `kld` is in nats; `delta_p` is
/// `q(next) − base(next)` as a fraction, which llama-perplexity prints in percent.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LlamaPerplexity {
    /// The perplexity of the evaluated model, `exp(mean NLL)`.
    pub mean_ppl_q: WithError,
    /// The perplexity of the reference.
    pub mean_ppl_base: WithError,
    /// The correlation of the two mean NLLs; NaN (null in JSON) if one has no variance.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(test, schemars(with = "Option<f64>"))]
    pub cor_ln_ppl: f64,
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
    /// Computes them from scores of positions, leaving out those that are not finite. `None` for
    /// fewer than [`MIN_TOKENS`].
    pub fn of<R: Real>(tokens: impl IntoIterator<Item = LlamaPerplexityToken<R>>) -> Option<Self> {
        let tokens: Vec<LlamaPerplexityToken<R>> = tokens.into_iter().filter(is_finite).collect();
        if tokens.len() < MIN_TOKENS {
            return None;
        }
        let n = tokens.len() as f64;
        let eval = mean(&tokens, |token| with_square(token.eval_nll));
        let base = mean(&tokens, |token| with_square(token.base_nll));
        let product = |token: &LlamaPerplexityToken<R>| (token.eval_nll * token.base_nll).into();
        let mean_product = tokens.iter().map(product).sum::<f64>() / n;
        let covariance = (mean_product - eval.value * base.value) / (n - 1.0);
        let (q_ppl, base_ppl) = (exp(eval), exp(base));
        // The standard error of a mean difference of NLLs, each multiplied by a factor.
        let spread = |of_eval: f64, of_base: f64| {
            let difference = |token: &LlamaPerplexityToken<R>| {
                of_eval * token.eval_nll.into() - of_base * token.base_nll.into()
            };
            mean(&tokens, |token| with_square(difference(token))).err
        };
        let ln_ratio = difference(eval, base, covariance, || spread(1.0, 1.0));
        let squared_delta_p = mean(&tokens, |token| with_square(with_square(token.p_diff).1));
        let kld = Ascending::of(tokens.iter().map(|token| R::rounded(token.kld)));
        let delta_p = Ascending::of(tokens.iter().map(|token| token.p_diff));
        Some(Self {
            mean_ppl_q: q_ppl,
            mean_ppl_base: base_ppl,
            cor_ln_ppl: covariance / (eval.err * base.err),
            mean_ln_ppl_ratio: ln_ratio,
            mean_ppl_ratio: exp(ln_ratio),
            mean_ppl_difference: difference(
                q_ppl,
                base_ppl,
                q_ppl.value * base_ppl.value * covariance,
                || spread(q_ppl.value, base_ppl.value),
            ),

            mean_kld: mean(&tokens, |token| with_square(token.kld)),
            maximum_kld: kld.percentile(1.0),
            kld_99_9: kld.percentile(0.999),
            kld_99: kld.percentile(0.99),
            kld_95: kld.percentile(0.95),
            kld_90: kld.percentile(0.9),
            median_kld: kld.median(),
            kld_10: kld.percentile(0.1),
            kld_5: kld.percentile(0.05),
            kld_1: kld.percentile(0.01),
            kld_0_1: kld.percentile(0.001),
            minimum_kld: kld.percentile(0.0),

            mean_delta_p: mean(&tokens, |token| with_square(token.p_diff)),
            maximum_delta_p: delta_p.percentile(1.0),
            delta_p_99_9: delta_p.percentile(0.999),
            delta_p_99: delta_p.percentile(0.99),
            delta_p_95: delta_p.percentile(0.95),
            delta_p_90: delta_p.percentile(0.9),
            delta_p_75: delta_p.percentile(0.75),
            median_delta_p: delta_p.median(),
            delta_p_25: delta_p.percentile(0.25),
            delta_p_10: delta_p.percentile(0.1),
            delta_p_5: delta_p.percentile(0.05),
            delta_p_1: delta_p.percentile(0.01),
            delta_p_0_1: delta_p.percentile(0.001),
            minimum_delta_p: delta_p.percentile(0.0),
            rms_delta_p: root(squared_delta_p),
            same_top_p: share(&tokens, |token| token.same_top),
        })
    }

    /// Computes them from exact scores: those of counted positions that have a next token, as all
    /// positions do that llama-perplexity scores. Positions with an infinite or unknown score, which
    /// it does not have, are left out.
    pub fn of_records(records: &[TokenRecord]) -> Option<Self> {
        let is_finite =
            |r: &TokenRecord| [r.kld, r.ref_nll, r.eval_nll].iter().all(|x| x.is_finite());
        let counted = records
            .iter()
            .filter(|record| is_counted(record) && is_finite(record));
        Self::of(counted.map(|record| LlamaPerplexityToken {
            kld: record.kld,
            base_nll: record.ref_nll,
            eval_nll: record.eval_nll,
            p_diff: delta_p(record),
            same_top: record.ref_top == record.eval_top,
        }))
    }
}

/// The type of scores, to which products are rounded: f32 or f64.
pub trait Real:
    Copy + Into<f64> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// Rounds to the nearest number of this type.
    fn rounded(x: f64) -> Self;
}

impl Real for f32 {
    fn rounded(x: f64) -> Self {
        x as Self
    }
}

impl Real for f64 {
    fn rounded(x: f64) -> Self {
        x
    }
}

fn is_finite<R: Real>(token: &LlamaPerplexityToken<R>) -> bool {
    token.kld.is_finite()
        && [token.base_nll, token.eval_nll, token.p_diff]
            .iter()
            .all(|&x| x.into().is_finite())
}

/// A sample and its square, which is rounded to the sample's type.
fn with_square<R: Real>(x: R) -> (f64, f64) {
    (x.into(), (x * x).into())
}

/// The mean of samples that come with their squares: `± sqrt((mean x² − (mean x)²) / (n − 1))`.
fn mean<T>(samples: &[T], of: impl Fn(&T) -> (f64, f64)) -> WithError {
    let n = samples.len() as f64;
    let (sum, squares) = samples
        .iter()
        .map(of)
        .fold((0.0, 0.0), |(sum, squares), (x, square)| {
            (sum + x, squares + square)
        });
    let value = sum / n;
    WithError {
        value,
        err: sqrt_or_0((squares / n - value * value) / (n - 1.0)),
    }
}

/// A share: `± sqrt(s (1 − s) / (n − 1))`.
fn share<T>(samples: &[T], holds: impl Fn(&T) -> bool) -> WithError {
    let n = samples.len() as f64;
    let value = samples.iter().filter(|sample| holds(sample)).count() as f64 / n;
    WithError {
        value,
        err: sqrt_or_0(value * (1.0 - value) / (n - 1.0)),
    }
}

/// `e^x ± e^x Δx`.
fn exp(x: WithError) -> WithError {
    let value = x.value.exp();
    WithError {
        value,
        err: value * x.err,
    }
}

/// `√x ± Δx / (2 √x)`; for 0, `± 0`.
fn root(x: WithError) -> WithError {
    let value = x.value.sqrt();
    WithError {
        value,
        err: if value > 0.0 {
            0.5 / value * x.err
        } else {
            0.0
        },
    }
}

/// `a − b` of correlated numbers, `± sqrt(Δa² + Δb² − 2 cov)`, or `± spread` where rounding leaves
/// that variance below 0.
fn difference(
    a: WithError,
    b: WithError,
    covariance: f64,
    spread: impl FnOnce() -> f64,
) -> WithError {
    let variance = a.err * a.err + b.err * b.err - 2.0 * covariance;
    WithError {
        value: a.value - b.value,
        err: if variance >= 0.0 {
            variance.sqrt()
        } else {
            spread()
        },
    }
}

/// The root of a variance, or 0 if rounding has left it below 0.
fn sqrt_or_0(variance: f64) -> f64 {
    variance.max(0.0).sqrt()
}

/// Samples in ascending order, at least one.
struct Ascending<R>(Vec<R>);

impl<R: Real> Ascending<R> {
    fn of(samples: impl Iterator<Item = R>) -> Self {
        let mut samples: Vec<R> = samples.collect();
        samples.sort_unstable_by(|&a, &b| a.into().total_cmp(&b.into()));
        Self(samples)
    }

    /// Interpolates linearly around index `fraction (n − 1)`, which is rounded to the samples'
    /// type: in f32 it is off by some 1e-4 for a few thousand samples, and that shows in print.
    fn percentile(&self, fraction: f64) -> f64 {
        let last = self.0.len() - 1;
        let position = R::rounded(fraction) * R::rounded(last as f64);
        let below = (position.into() as usize).min(last);
        let t = position - R::rounded(below as f64);
        let (a, b) = (self.0[below], self.0[(below + 1).min(last)]);
        ((R::rounded(1.0) - t) * a + t * b).into()
    }

    fn median(&self) -> f64 {
        let upper = self.0.len() / 2;
        if self.0.len().is_multiple_of(2) {
            (R::rounded(0.5) * (self.0[upper] + self.0[upper - 1])).into()
        } else {
            self.0[upper].into()
        }
    }
}

#[cfg(test)]
#[path = "llama_perplexity_tests.rs"]
mod tests;
