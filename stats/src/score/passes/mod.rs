//! The passes over a pair of rows, written once for vectors of any width.
//!
//! Everything is `inline(always)`: what is inlined into a kernel's entry point is compiled with its
//! instructions.

mod second;
mod sums;

use fearless_simd::prelude::*;
use kl_formats::TokenRecord;

use super::pair::RowPair;
use super::pair::Source;
use super::vector::UNDERFLOW;
use second::{CLOSE, acceptance, close};
use sums::{Counted, Sums, one_pass, two_passes};

/// Rows whose logits are all within ± this take one pass; e^300 is 2e130, e^−300 is 5e-131.
pub(super) const ORDINARY: f32 = 300.0;

/// Rows with fewer entries take two passes, in which the largest entry weighs exactly 1.
const SHORT: usize = 64;

/// Entries summed before the sums are added to the row's: keeps rounding errors from growing with
/// the row.
const BLOCK: usize = 1024;

/// The start and the end of each block of `n` entries.
fn blocks(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n)
        .step_by(BLOCK)
        .map(move |start| (start, n.min(start + BLOCK)))
}

/// Scores two rows of the same length, at least 1: sums over them, in one pass where that will do,
/// and the numbers of the module's table from the sums. `reference` holds the entries of the pair's
/// own.
#[inline(always)]
pub(super) fn score<S: Simd, R: Source>(simd: S, reference: R, pair: &RowPair<'_>) -> TokenRecord {
    let eval = pair.eval;
    let n = eval.len();
    let floors = [pair.ref_floor, pair.eval_floor];
    let sums = match floors {
        _ if n < SHORT => None,
        [None, None] => one_pass(simd, reference, eval, Counted::Every, floors),
        [Some(floor), None] => {
            let counted = Counted::AboveFloor(floor);
            one_pass(simd, reference, eval, counted, floors)
        }
        [_, Some(_)] => one_pass(simd, reference, eval, Counted::Known(floors), floors),
    };
    let sums = match sums {
        Some(sums) => Ok(sums),
        None => two_passes(simd, reference, eval, floors),
    };
    let token = pair.next.unwrap_or(u32::MAX);
    let sums = match sums {
        Ok(sums) => sums,
        Err(excluded) => return TokenRecord { token, ..excluded },
    };
    // The quotient first: the difference of two logarithms would round at their size, not at that
    // of the result.
    let mut divergences = [
        sums.p_d / sums.p + (sums.q / sums.p).ln(),
        (sums.p / sums.q).ln() - sums.q_d / sums.q,
    ];
    let are_infinite = are_infinite(simd, reference, pair, &sums);
    let are_equal = sums.p == sums.q && sums.p_d == 0.0 && sums.q_d == 0.0;
    if divergences[0].min(divergences[1]) < CLOSE && !are_equal && are_infinite == [false; 2] {
        divergences = match sums.may_be_masked || floors != [None; 2] {
            true => close(simd, reference, eval, Counted::Known(floors), floors, &sums),
            false => close(simd, reference, eval, Counted::Every, floors, &sums),
        };
    }
    // Exactly, and without another pass.
    let acceptance = match are_equal && are_infinite == [false; 2] {
        true => 1.0,
        false => acceptance(simd, reference, eval, floors, &sums),
    };
    let divergence = |which: usize| match are_infinite[which] {
        true => f64::INFINITY,
        false => at_least_zero(divergences[which]),
    };
    let p = Softmax {
        floor: pair.ref_floor,
        shift: sums.ref_shift,
        sum: sums.p_all,
    };
    let q = Softmax {
        floor: pair.eval_floor,
        shift: sums.eval_shift,
        sum: sums.q_all,
    };
    let (ref_nll, eval_nll) = match pair.next.map(|next| next as usize) {
        Some(next) => (p.nll(reference.get(next)), q.nll(eval[next])),
        None => (f64::NAN, f64::NAN),
    };
    let (ref_top, eval_top) = (sums.ref_top, sums.eval_top);
    let (ref_top_rank, eval_top_rank) = if ref_top.index == eval_top.index {
        (1, 1)
    } else {
        (
            rank(simd, eval, n, ref_top.index),
            rank(simd, reference, n, eval_top.index),
        )
    };
    TokenRecord {
        kld: divergence(0),
        reverse_kld: divergence(1),
        ref_entropy: match sums.p > 0.0 {
            true => at_least_zero(sums.p.ln() - sums.p_a / sums.p),
            false => 0.0,
        },
        ref_nll,
        eval_nll,
        ref_top: ref_top.index as u32,
        eval_top: eval_top.index as u32,
        ref_top_rank,
        eval_top_rank,
        ref_top_p: p.of(ref_top.logit),
        eval_top_p: q.of(eval_top.logit),
        ref_unknown_p: match pair.ref_floor {
            Some(floor) => {
                let n_known = count_above(simd, reference, 0, n, floor);
                at_most_one((n - n_known as usize) as f64 * f64::from(floor).exp())
            }
            None => 0.0,
        },
        token,
        acceptance,
        ..TokenRecord::default()
    }
}

/// The record of a pair in which a row has no softmax: every float is NaN, and every top and rank 0.
pub(super) fn excluded(ref_is_finite: bool, eval_is_finite: bool) -> TokenRecord {
    let flag = |is_finite: bool, flag: u32| if is_finite { 0 } else { flag };
    TokenRecord {
        token: u32::MAX,
        flags: flag(ref_is_finite, TokenRecord::REF_NOT_FINITE)
            | flag(eval_is_finite, TokenRecord::EVAL_NOT_FINITE),
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

/// Returns whether KL(p‖q) and KL(q‖p) are infinite: an entry that one row allows is impossible in
/// the other.
#[inline(always)]
fn are_infinite<S: Simd, R: Source>(
    simd: S,
    reference: R,
    pair: &RowPair<'_>,
    sums: &Sums,
) -> [bool; 2] {
    // No entry that both know, or none of any weight.
    if sums.p == 0.0 || sums.q == 0.0 {
        return [true; 2];
    }
    if !sums.may_be_masked {
        return [false; 2];
    }
    let (eval, n) = (pair.eval, pair.eval.len());
    let weighs = |logit: f32, top: Top, floor: Option<f32>| {
        logit > floor.unwrap_or(f32::NEG_INFINITY)
            && f64::from(logit) - f64::from(top.logit) >= UNDERFLOW
    };
    let p_weighs = |logit| weighs(logit, sums.ref_top, pair.ref_floor);
    let q_weighs = |logit| weighs(logit, sums.eval_top, pair.eval_floor);
    [
        is_masked_elsewhere(simd, reference, p_weighs, eval, n),
        is_masked_elsewhere(simd, eval, q_weighs, reference, n),
    ]
}

/// Returns true if an entry that weighs something in `row` is −∞ in the `other` row.
#[inline(always)]
fn is_masked_elsewhere<S: Simd>(
    simd: S,
    row: impl Source,
    weighs: impl Fn(f32) -> bool,
    other: impl Source,
    n: usize,
) -> bool {
    let mut at = 0;
    while at < n {
        let end = n.min(at + S::f32s::LEN);
        let is_masked = |x: S::f32s| x.simd_lt(-f32::MAX).any_true();
        if end - at < S::f32s::LEN || is_masked(other.vector(simd, at)) {
            for i in at..end {
                if other.get(i) == f32::NEG_INFINITY && weighs(row.get(i)) {
                    return true;
                }
            }
        }
        at = end;
    }
    false
}

/// The probabilities of one row: its softmax.
struct Softmax {
    /// Where there is a floor, the row's values above it are ln p.
    floor: Option<f32>,
    shift: f64,
    /// Σ e^(logit − shift)
    sum: f64,
}

impl Softmax {
    /// −ln p of an entry; NaN if it is not known.
    #[inline(always)]
    fn nll(&self, logit: f32) -> f64 {
        let ln_p = match self.floor {
            Some(floor) if logit <= floor => f64::NAN,
            Some(_) => f64::from(logit),
            None => f64::from(logit) - self.shift - self.sum.ln(),
        };
        at_least_zero(-ln_p)
    }

    /// p of an entry that is known.
    #[inline(always)]
    fn of(&self, logit: f32) -> f64 {
        at_most_one(match self.floor {
            Some(_) => f64::from(logit).exp(),
            None => (f64::from(logit) - self.shift).exp() / self.sum,
        })
    }
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

/// The entries of a row from `whole` on, which fill no vector, with entries after them that count
/// as nothing.
#[inline(always)]
fn padded(whole: usize, n: usize, floor: Option<f32>, entry: impl Fn(usize) -> f32) -> [f32; 16] {
    let mut out = [floor.unwrap_or(f32::NEG_INFINITY); 16];
    for (out, at) in out.iter_mut().zip(whole..n) {
        *out = entry(at);
    }
    out
}

/// A row's first maximum so far.
#[derive(Clone, Copy)]
pub(super) struct Top {
    pub logit: f32,
    /// Its index; while blocks are read, the start of the first block that holds it.
    pub index: usize,
}

impl Top {
    pub const NONE: Self = Self {
        logit: f32::NEG_INFINITY,
        index: 0,
    };

    /// Updates the maximum by those of the block that starts at `start`.
    #[inline(always)]
    pub fn block<S: Simd, F: SimdFloat<S, Element = f32>>(&mut self, most: F, start: usize) {
        if most.simd_gt(self.logit).any_true() {
            let lanes = most.as_slice().iter().copied();
            self.logit = lanes.fold(f32::NEG_INFINITY, f32::max);
            self.index = start;
        }
    }

    /// Looks at the entries from `whole` on, which no block held, and finds the maximum's index.
    #[inline(always)]
    pub fn finish(mut self, row: impl Source, whole: usize, n: usize) -> Self {
        for index in whole..n {
            let logit = row.get(index);
            if logit > self.logit {
                self = Self { logit, index };
            }
        }
        // Bounded by `n`, so that the loop ends for a row with NaN.
        while self.index + 1 < n && row.get(self.index) != self.logit {
            self.index += 1;
        }
        self
    }
}

/// A row's first maximum; `None` if an entry is NaN or +∞, or if all are −∞.
#[inline(always)]
pub(super) fn top<S: Simd, R: Source>(simd: S, row: R, n: usize) -> Option<Top> {
    let whole = n - n % S::f32s::LEN;
    let mut top = Top::NONE;
    let mut is_sound = true;
    for (start, end) in blocks(whole) {
        let mut most: S::f32s = f32::NEG_INFINITY.simd_into(simd);
        let mut at = start;
        while at < end {
            let x = row.vector(simd, at);
            most = most.max(x);
            is_sound &= x.simd_lt(f32::INFINITY).all_true();
            at += S::f32s::LEN;
        }
        top.block(most, start);
    }
    is_sound &= (whole..n).all(|at| row.get(at) < f32::INFINITY);
    let top = top.finish(row, whole, n);
    (is_sound && top.logit > f32::NEG_INFINITY).then_some(top)
}

/// 1 + the number of entries above the one at `of`, equal ones at lower indices included.
#[inline(always)]
pub(super) fn rank<S: Simd>(simd: S, row: impl Source, n: usize, of: usize) -> u32 {
    let bar = row.get(of);
    let before = match bar == f32::NEG_INFINITY {
        true => of as u32,
        // x ≥ bar is x > the float below it.
        false => count_above(simd, row, 0, of, bar.next_down()),
    };
    1 + before + count_above(simd, row, of + 1, n, bar)
}

/// Counts the entries from `start` to `end` that are above `bar`.
#[inline(always)]
pub(super) fn count_above<S: Simd>(
    simd: S,
    row: impl Source,
    start: usize,
    end: usize,
    bar: f32,
) -> u32 {
    let mut count = 0;
    let mut at = start;
    while at + S::f32s::LEN <= end {
        let above = row.vector(simd, at).simd_gt(bar);
        count += above.to_bitmask().count_ones();
        at += S::f32s::LEN;
    }
    count + (at..end).filter(|&at| row.get(at) > bar).count() as u32
}
