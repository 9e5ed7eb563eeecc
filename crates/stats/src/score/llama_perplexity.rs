//! Scores one position as llama-perplexity does against its own base file: a second pass over a
//! pair of rows, made only on request.

use kl_formats::Row;

/// Entries of the base with this log-probability or less are skipped.
const SKIPPED_UP_TO: f32 = -16.0;

/// The numbers of a position that llama-perplexity defines otherwise than
/// [`TokenRecord`](kl_formats::TokenRecord).
///
/// A base file's row holds `ln p`, with entries far below the largest raised to a floor (see
/// `formats/LLAMACPP.md`), so that its probabilities sum to a little more than 1. llama-perplexity
/// uses them as they stand.
///
/// Source: `log_softmax` with `kl_divergence_result` in llama.cpp's
/// `tools/perplexity/perplexity.cpp`, as of mid 2026. It computes in f32, this in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaPerplexityScore {
    /// `Σ p (ln p − ln q)` over the entries with `ln p > −16`, in nats; can be below 0.
    pub kld: f64,
    /// `−ln p[next]` as stored, at the floor too, in nats; NaN if there is no next token.
    pub ref_nll: f64,
}

impl LlamaPerplexityScore {
    /// Scores an evaluated row against a base file's. Rows that are not finite give numbers that
    /// are not finite.
    ///
    /// # Panics
    /// If the rows differ in length, or `next` is not below that length.
    pub fn new(base: Row<'_>, eval: &[f32], next: Option<u32>) -> Self {
        assert_eq!(base.len(), eval.len(), "rows of different length");
        let max = f64::from(eval.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = eval.iter().map(|m| (f64::from(*m) - max).exp()).sum();
        let ln_sum = max + sum.ln();
        let ln_p = (0..base.len()).map(|entry| base.get(entry));
        let counted = ln_p.zip(eval).filter(|(ln_p, _)| *ln_p > SKIPPED_UP_TO);
        let terms = counted.map(|(ln_p, m)| {
            let ln_p = f64::from(ln_p);
            ln_p.exp() * (ln_p - (f64::from(*m) - ln_sum))
        });
        Self {
            kld: terms.sum(),
            ref_nll: next.map_or(f64::NAN, |next| -f64::from(base.get(next as usize))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: [f32; 5] = [-0.5, -1.5, -2.0, -16.0, -15.99];
    const EVAL: [f32; 5] = [3.0, 2.5, 1.0, -20.0, -9.0];

    fn close(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-14, "{got} is not {expected}");
    }

    #[test]
    fn the_base_is_not_renormalised_and_its_floor_is_skipped() {
        let got = LlamaPerplexityScore::new(Row::F32(&BASE), &EVAL, Some(3));
        let log_sum = EVAL.map(|m| f64::from(m).exp()).iter().sum::<f64>().ln();
        let term = |entry: usize| {
            let ln_p = f64::from(BASE[entry]);
            ln_p.exp() * (ln_p - f64::from(EVAL[entry]) + log_sum)
        };
        close(got.kld, term(0) + term(1) + term(2) + term(4));
        assert_eq!(got.ref_nll, 16.0);
        let last = LlamaPerplexityScore::new(Row::F32(&BASE), &EVAL, None);
        assert!(last.ref_nll.is_nan() && last.kld == got.kld);
    }

    #[test]
    fn a_row_that_is_not_finite_gives_a_kld_that_is_not() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut eval = EVAL;
            eval[4] = bad;
            let got = LlamaPerplexityScore::new(Row::F32(&BASE), &eval, Some(1));
            assert!(!got.kld.is_finite());
        }
    }
}
