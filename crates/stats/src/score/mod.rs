//! Two rows of logits in, one [`TokenRecord`] out: the hot loop.
//!
//! Let `l` be the reference row and `m` the evaluated one, `L` and `M` their maxima,
//! `p = softmax(l)`, `q = softmax(m)`, natural logarithms throughout. With `a = l − L`,
//! `b = m − M`, `d = a − b`, `P = Σ e^a` and `Q = Σ e^b`:
//!
//! | number | formula |
//! |---|---|
//! | KL(p‖q) | `Σ e^a d / P + ln(Q/P)` |
//! | KL(q‖p) | `−Σ e^b d / Q + ln(P/Q)` |
//! | entropy of p | `ln P − Σ e^a a / P` |
//! | NLL | `ln P − a[next]`, `ln Q − b[next]` |
//! | probability of the top token | `e^(max a) / P`, `e^(max b) / Q` |
//! | acceptance | `Σ min(e^a / P, e^b / Q)` |
//!
//! which are the definitions (Kullback and Leibler 1951) with the softmax's normalisers taken out
//! of the sums. Nothing is clipped, floored or smoothed.
//!
//! # Masked entries
//!
//! A logit of −∞ is a probability of 0. Where both rows have one, the entry adds nothing. Where only
//! the evaluated row has one, and p is not 0, KL(p‖q) is infinite; where only the reference has one,
//! and q is not 0, KL(q‖p) is. A weight that underflows in f64 counts as 0. The NLL of a masked next
//! token is infinite. A row with NaN or +∞, or with nothing but −∞, has no softmax and is left out.
//!
//! # Unknown entries
//!
//! An entry at the [`floor`](fn@floor) of a row of llama.cpp's base file has a log-probability at or
//! below that value; which one is not known. Both divergences and the entropy are over the entries
//! that both rows know: the sums P, Q and those with `d` and `a` run over these, so that p and q are
//! renormalised, for the acceptance too. If these weigh nothing in one of the rows, both divergences
//! are infinite, and the acceptance is 0.
//!
//! The NLL and the top token's probability of a row with a floor are those stored, since a base file
//! holds ln p of the whole softmax; those of a row without one are over its whole vocabulary. Tops
//! and ranks are over whole rows. [`ref_unknown_p`](TokenRecord::ref_unknown_p) is the most that the reference's
//! unknown entries can weigh.
//!
//! # Passes
//!
//! Logits are f32; everything computed from them is f64. Rows of language models are *ordinary*:
//! all logits are within ±300, so that e^l itself neither overflows nor underflows. One pass then
//! collects sums and maxima at once, with `L = M = 0` in the formulas above. Any other pair takes
//! two passes: the first finds the maxima and whether both rows have a softmax, the second computes
//! the sums with the true `L` and `M`, so that `a`, `b` and `d` are right up to the largest f32,
//! and an entry whose weight underflows adds exactly 0. Ranks need the maxima and are counted last,
//! unless both rows have the same top token.
//!
//! Masks decide which entries count. Most rows need none: where a block of 1,024
//! entries turns out to hold a −∞, that block is computed again with them.
//!
//! If a divergence comes out below 1e-7, its parts have cancelled, and one more pass computes both as
//! sums of terms that are never below 0. With u = ln(p/q), and since p and q both sum to 1:
//!
//! ```text
//! KL(p‖q) = Σ p (e^−u − 1 + u)      KL(q‖p) = Σ q (e^u − 1 − u)
//! ```
//!
//! For small u a term is computed by its series.
//!
//! The acceptance needs both normalisers, so it takes a pass of its own, unless the rows are equal. Of
//! both log-probabilities, `l − ln P` and `m − ln Q`, the smaller is taken first: one exponential for
//! each entry, in f32. A logarithm that is rounded at its own size would be too far off where all of
//! 150,000 entries are equal, so normalisers are split in two parts whose differences from logits are
//! exact. Four vectors are added in f32, their sums in f64.
//!
//! An encoded row is decoded first, to the f32 values that [`Row::get`] returns.
//!
//! # Accuracy
//!
//! Largest errors against a float64 computation with the C library's exp and compensated sums, over
//! this module's tests (2,383 pairs with finite logits: random, flat, peaked, equal but for one
//! entry, with ties, with ranges up to the largest f32, of 1 to 128,259 entries): 1.1e-12 relative
//! for e^x, which is the error of its polynomial; 1.9e-12 for either KL below 1 nat, and 1.1e-12
//! relative above.
//!
//! An acceptance is off by less than 5e-7, over the same tests.
//!
//! Below 1e-7, where the last pass computes it, a KL is off by at most 2.4e-8 of its value: against
//! mpmath with 40 digits, 17 pairs from 5e-8 down to 2.6e-16.
//!
//! Equal rows give exactly 0 in both directions, since both have the same weights, summed in the
//! same order. A KL, entropy or NLL that rounding leaves below 0 is returned as 0.
//!
//! A processor gives the same bits from run to run, whatever the number of threads. Two instruction
//! sets agree within the errors above, not to the bit; tops, ranks and flags agree exactly.
//!
//! # Speed
//!
//! The hot loop is written once, in vectors of `fearless_simd`, and compiled for AVX-512 (as of Ice
//! Lake), AVX2, SSE4.2 and SSE2, or for NEON. Microseconds for a pair of 128,256 entries on one core of a
//! Zen 4, with the same top token on both sides: best of 480 runs.
//!
//! | instructions | f32 reference | u16 | base file | masked column in both rows | divergences of 1e-10 |
//! |---|---|---|---|---|---|
//! | AVX-512 | 159 | 182 | 210 | 177 | 366 |
//! | without the acceptance | 121 | 135 | 155 | 139 | 328 |
//! | AVX2 | 198 | 243 | 306 | 233 | 462 |
//! | without the acceptance | 139 | 168 | 217 | 175 | 404 |
//! | SSE2 | 602 | 725 | 794 | 667 | 1,374 |
//! | without the acceptance | 456 | 543 | 587 | 521 | 1,228 |
//!
//! NEON has not been timed.

mod llama_perplexity;
mod logit_metrics;
mod pair;
mod passes;
mod row_error;
mod softmax;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod vector;

#[cfg(test)]
mod tests;

use std::cell::RefCell;

use fearless_simd::{Level, dispatch};
use kl_formats::{Row, TokenRecord};

pub use llama_perplexity::LlamaPerplexityScore;
pub use logit_metrics::LogitMetrics;
pub use pair::{RowPair, floor};
use passes::SimdRows;
pub use row_error::RowError;
pub use softmax::has_softmax;

thread_local! {
    /// The memory for a decoded row, used again by the next.
    static DECODED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Scores one evaluated row against one reference row, with the best instructions of this processor.
/// Without a next token both NLLs are NaN. The record's window, position and group are left at 0.
///
/// # Panics
///
/// If the rows are empty or of different length, if the next token is not below that length, or
/// if a floor is not one of [`floor`](fn@floor)'s. These are bugs in the caller: no input leads to
/// them.
pub fn score(pair: &RowPair<'_>) -> TokenRecord {
    with_logits(
        pair,
        |logits| dispatch!(Level::new(), simd => passes::score(SimdRows::new(simd, logits, pair))),
    )
}

/// Compares an evaluated row with a reference row that holds raw logits.
///
/// For a row of log-probabilities, as in llama.cpp's base file, only the last two numbers mean
/// anything.
///
/// # Panics
///
/// If the rows are empty or of different length. These are bugs in the caller: no input leads to
/// them.
pub fn logit_metrics(pair: &RowPair<'_>) -> LogitMetrics {
    with_logits(
        pair,
        |logits| dispatch!(Level::new(), simd => passes::distances(SimdRows::new(simd, logits, pair))),
    )
}

/// Checks a pair, and computes a number from the logits of both of its rows.
fn with_logits<T>(pair: &RowPair<'_>, compute: impl FnOnce([&[f32]; 2]) -> T) -> T {
    pair.check();
    if let Row::F32(reference) = pair.reference {
        return compute([reference, pair.eval]);
    }
    DECODED.with_borrow_mut(|decoded| {
        decoded.resize(pair.eval.len(), 0.0);
        pair.reference.decode_into(decoded);
        compute([decoded, pair.eval])
    })
}
