//! Scores one position as llama-perplexity does against its own base file: a second pass over a
//! pair of rows, made only on request.
//!
//! A base file's row holds `ln p`, with entries far below the largest raised to a floor (see
//! `formats/LLAMACPP.md`), so that its probabilities sum to a little more than 1. llama-perplexity
//! does not renormalise them, and skips entries with `ln p ≤ −16`. With `m` the evaluated row:
//!
//! | number | formula |
//! |---|---|
//! | KLD | `Σ p (ln p − m + ln Σ e^m)` over `ln p > −16`; can be below 0 |
//! | NLL | `−ln p[next]`, `ln Σ e^m − m[next]` |
//! | Δp | `e^−NLL` of the evaluated row minus that of the base |
//!
//! llama-perplexity's digits depend on its types, so the types here are the same: f32, except for
//! the two sums over a row, which are f64. With the C library's `expf`, one entry at a time, a pair
//! of 128,256 entries takes 1.4 ms on one core: twenty times as long as the first pass.
//!
//! Source: `log_softmax` with `kl_divergence_result` in llama.cpp's
//! `tools/perplexity/perplexity.cpp`, as of mid 2026.

use kl_formats::Row;

/// Entries of the base with this log-probability or less are skipped.
const SKIPPED_UP_TO: f32 = -16.0;

/// The numbers that llama-perplexity computes for a position. `R` is f32 as in llama-perplexity, or
/// f64 for a position that `kl` scored exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaPerplexityToken<R = f32> {
    /// KL divergence, in nats.
    pub kld: f64,
    /// −ln p\[next\] of the base, in nats.
    pub base_nll: R,
    /// −ln q\[next\] of the evaluated model, in nats.
    pub eval_nll: R,
    /// q\[next\] − p\[next\].
    pub p_diff: R,
    /// Whether both rows have the same top token.
    pub same_top: bool,
}

/// Scores an evaluated row against a base file's; `None` if there is no next token. Rows that are
/// not finite give numbers that are not finite.
///
/// # Panics
/// If the rows differ in length, or `next` is not below that length.
pub fn score(base: Row<'_>, eval: &[f32], next: Option<u32>) -> Option<LlamaPerplexityToken> {
    assert_eq!(base.len(), eval.len(), "rows of different length");
    let next = next? as usize;
    let (eval_top, max) = first_max(eval.iter().copied());
    let sum_exp: f64 = eval.iter().map(|m| f64::from((m - max).exp())).sum();
    let log_sum_exp = sum_exp.ln() as f32;
    let eval_nll = max + log_sum_exp - eval[next];
    let base_nll = -base.get(next);

    let ln_p = || (0..base.len()).map(|entry| base.get(entry));
    let log_sum = max + log_sum_exp;
    let terms = ln_p().zip(eval).filter(|(ln_p, _)| *ln_p > SKIPPED_UP_TO);
    let kld = terms
        .map(|(ln_p, m)| f64::from(ln_p.exp() * (ln_p - m + log_sum)))
        .sum();
    Some(LlamaPerplexityToken {
        kld,
        base_nll,
        eval_nll,
        p_diff: (-eval_nll).exp() - (-base_nll).exp(),
        same_top: first_max(ln_p()).0 == eval_top,
    })
}

/// The first of the largest entries, with its index.
fn first_max(row: impl Iterator<Item = f32>) -> (usize, f32) {
    row.enumerate()
        .reduce(|best, entry| if entry.1 > best.1 { entry } else { best })
        .unwrap_or((0, f32::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: [f32; 5] = [-0.5, -1.5, -2.0, -16.0, -15.99];
    const EVAL: [f32; 5] = [3.0, 2.5, 1.0, -20.0, -9.0];

    /// Equal within a few roundings of f32.
    fn close(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-6, "{got} is not {expected}");
    }

    #[test]
    fn the_base_is_not_renormalised_and_its_floor_is_skipped() {
        let got = score(Row::F32(&BASE), &EVAL, Some(1)).unwrap();
        let log_sum = EVAL.map(|m| f64::from(m).exp()).iter().sum::<f64>().ln();
        let term = |entry: usize| {
            let ln_p = f64::from(BASE[entry]);
            ln_p.exp() * (ln_p - f64::from(EVAL[entry]) + log_sum)
        };
        close(got.kld, term(0) + term(1) + term(2) + term(4));
        close(f64::from(got.base_nll), 1.5);
        close(f64::from(got.eval_nll), log_sum - 2.5);
        close(
            f64::from(got.p_diff),
            (2.5 - log_sum).exp() - (-1.5f64).exp(),
        );
        assert!(got.same_top);
    }

    #[test]
    fn encoded_rows_hold_log_probabilities() {
        let codes = [65535u16, 0, 32768];
        let base = Row::U16 {
            min: -8.0,
            step: 1e-4,
            codes: &codes,
        };
        let decoded = [base.get(0), base.get(1), base.get(2)];
        let eval = [1.0, 2.0, 0.0];
        let got = score(base, &eval, Some(2));
        assert_eq!(got, score(Row::F32(&decoded), &eval, Some(2)));
        assert!(!got.unwrap().same_top);
    }

    #[test]
    fn the_first_of_equal_entries_is_the_top() {
        let token = |base: [f32; 3]| score(Row::F32(&base), &[1.0, 2.0, 2.0], Some(0)).unwrap();
        assert!(token([-2.0, -1.0, -1.0]).same_top);
        assert!(!token([-1.0, -1.0, -1.0]).same_top);
    }

    #[test]
    fn a_position_without_a_next_token_is_not_scored() {
        assert_eq!(score(Row::F32(&BASE), &EVAL, None), None);
    }

    #[test]
    fn a_row_that_is_not_finite_gives_a_kld_that_is_not() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut eval = EVAL;
            eval[4] = bad;
            assert!(
                !score(Row::F32(&BASE), &eval, Some(1))
                    .unwrap()
                    .kld
                    .is_finite()
            );
        }
    }
}
