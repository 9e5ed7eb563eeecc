//! The passes over a pair of rows, written once for vectors of any width.
//!
//! Everything is `inline(always)`: what is inlined into a kernel's entry point is compiled with its
//! instructions.

mod distances;
mod rows;
mod second;
mod sums;

use fearless_simd::Simd;
use kl_formats::TokenRecord;

use super::vector::UNDERFLOW;
pub(super) use distances::distances;
pub(super) use rows::SimdRows;
use rows::{count_above, is_masked_elsewhere, rank};
use sums::Sums;

/// Rows whose logits are all within ± this take one pass; e^300 is 2e130, e^−300 is 5e-131.
pub(super) const ORDINARY: f32 = 300.0;

/// Scores two rows of the same length, at least 1: sums over them, in one pass where that will do,
/// and the numbers of the module's table from the sums.
#[inline(always)]
pub(super) fn score<S: Simd>(rows: SimdRows<'_, S>) -> TokenRecord {
    let record = match rows.sums() {
        Ok(sums) => record(rows, &sums),
        Err(have_softmax) => excluded(have_softmax),
    };
    TokenRecord {
        token: rows.next.unwrap_or(u32::MAX),
        ..record
    }
}

#[inline(always)]
fn record<S: Simd>(rows: SimdRows<'_, S>, sums: &Sums) -> TokenRecord {
    let [reference, eval] = rows.logits;
    let are_infinite = are_infinite(rows, sums);
    let [p, q] = sums.weights;
    let are_equal = p == q && sums.differences == [0.0; 2] && are_infinite == [false; 2];
    // NaN of an entry that is not known. Where there is a floor, the row's values above it are ln p.
    let ln_p = |row: usize, logit: f32| match rows.floors[row] {
        Some(floor) if logit <= floor => f64::NAN,
        Some(_) => f64::from(logit),
        None => f64::from(logit) - sums.shifts[row] - sums.all[row].ln(),
    };
    let nll = |row: usize, logit: f32| at_least_zero(-ln_p(row, logit));
    let top_p = |row: usize| at_most_one(ln_p(row, sums.tops[row].logit).exp());
    let next = rows.next.map(|next| next as usize);
    let [ref_top, eval_top] = sums.tops;
    let (ref_top_rank, eval_top_rank) = if ref_top.index == eval_top.index {
        (1, 1)
    } else {
        (rank(eval, ref_top.index), rank(reference, eval_top.index))
    };
    let [kld, reverse_kld] = divergences(rows, sums, are_infinite, are_equal);
    TokenRecord {
        kld,
        reverse_kld,
        ref_entropy: if p > 0.0 {
            at_least_zero(p.ln() - sums.p_a / p)
        } else {
            0.0
        },
        ref_nll: next.map_or(f64::NAN, |next| nll(0, reference[next])),
        eval_nll: next.map_or(f64::NAN, |next| nll(1, eval[next])),
        ref_top: ref_top.index as u32,
        eval_top: eval_top.index as u32,
        ref_top_rank,
        eval_top_rank,
        ref_top_p: top_p(0),
        eval_top_p: top_p(1),
        ref_unknown_p: rows.floors[0].map_or(0.0, |floor| {
            let n_unknown = reference.len() - count_above(reference, floor) as usize;
            at_most_one(n_unknown as f64 * f64::from(floor).exp())
        }),
        // Exactly, and without another pass.
        acceptance: if are_equal {
            1.0
        } else {
            second::acceptance(rows, sums)
        },
        ..TokenRecord::default()
    }
}

/// KL(p‖q) and KL(q‖p).
#[inline(always)]
fn divergences<S: Simd>(
    rows: SimdRows<'_, S>,
    sums: &Sums,
    are_infinite: [bool; 2],
    are_equal: bool,
) -> [f64; 2] {
    let ([p, q], [p_d, q_d]) = (sums.weights, sums.differences);
    // The quotient first: the difference of two logarithms would round at their size, not at that of the
    // result.
    let mut divergences = [p_d / p + (q / p).ln(), (p / q).ln() - q_d / q];
    let are_close = divergences[0].min(divergences[1]) < second::CLOSE;
    if are_close && !are_equal && are_infinite == [false; 2] {
        divergences = second::close(rows, sums);
    }
    for (divergence, is_infinite) in divergences.iter_mut().zip(are_infinite) {
        *divergence = if is_infinite {
            f64::INFINITY
        } else {
            at_least_zero(*divergence)
        };
    }
    divergences
}

/// The record of a pair in which a row has no softmax: every float is NaN, and every top and rank 0.
pub(super) fn excluded(have_softmax: [bool; 2]) -> TokenRecord {
    let flags = [TokenRecord::REF_NOT_FINITE, TokenRecord::EVAL_NOT_FINITE];
    let lacking = flags.into_iter().zip(have_softmax);
    TokenRecord {
        flags: lacking.filter(|(_, has)| !has).map(|(flag, _)| flag).sum(),
        kld: f64::NAN,
        reverse_kld: f64::NAN,
        ref_nll: f64::NAN,
        eval_nll: f64::NAN,
        ref_entropy: f64::NAN,
        ref_top_p: f64::NAN,
        eval_top_p: f64::NAN,
        ref_unknown_p: f64::NAN,
        acceptance: f64::NAN,
        ..TokenRecord::default()
    }
}

/// True for each of KL(p‖q) and KL(q‖p) that is infinite: an entry that one row allows is impossible in
/// the other.
#[inline(always)]
fn are_infinite<S: Simd>(rows: SimdRows<'_, S>, sums: &Sums) -> [bool; 2] {
    // No entry that both know, or none of any weight.
    if sums.weights.contains(&0.0) {
        return [true; 2];
    }
    if !sums.may_be_masked {
        return [false; 2];
    }
    let [reference, eval] = rows.logits;
    let weighs = |row: usize, logit: f32| {
        let weight = f64::from(logit) - f64::from(sums.tops[row].logit);
        logit > rows.floors[row].unwrap_or(f32::NEG_INFINITY) && weight >= UNDERFLOW
    };
    [
        is_masked_elsewhere(reference, |logit| weighs(0, logit), eval),
        is_masked_elsewhere(eval, |logit| weighs(1, logit), reference),
    ]
}

/// Replaces what rounding left below 0 by 0; NaN stays.
#[inline(always)]
fn at_least_zero(x: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { x }
}

/// Replaces what rounding left above 1 by 1.
#[inline(always)]
fn at_most_one(x: f64) -> f64 {
    if x >= 1.0 { 1.0 } else { x }
}
