//! The maxima first, then the sums relative to them, for rows of any range.

use super::entries::{Any, Entries};
use super::sums::{Lanes, Sums};
use super::top::top;
use super::{BLOCK, padded};
use crate::score::token_score::TokenScore;
use crate::score::vector::{Simd, Source};

/// Scores any rows in two passes; `Err` is the score of a pair that is left out.
#[inline(always)]
pub(super) fn two_passes<S: Simd, R: Source<S>>(
    reference: R,
    eval: &[f32],
    any: Any<S>,
    floors: [Option<f32>; 2],
) -> Result<Sums, TokenScore> {
    let n = eval.len();
    let (ref_top, eval_top) = (top::<S, R>(reference, n), top::<S, _>(eval, n));
    let (Some(ref_top), Some(eval_top)) = (ref_top, eval_top) else {
        return Err(TokenScore::excluded(ref_top.is_some(), eval_top.is_some()));
    };
    let shifts = [ref_top, eval_top].map(|top| f64::from(top.logit));
    let whole = n - n % S::LANES;
    let mut total = Lanes::<S>::zero();
    let mut start = 0;
    while start < whole {
        let end = (start + BLOCK).min(whole);
        total.merge(&block(reference, eval, any, shifts, start, end));
        start = end;
    }
    if whole < n {
        let l = padded(whole, n, floors[0], |at| reference.get(at));
        let m = padded(whole, n, floors[1], |at| eval[at]);
        total.merge(&block(&l[..], &m[..], any, shifts, 0, S::LANES));
    }
    Ok(total.sums(shifts, [ref_top, eval_top], true))
}

#[inline(always)]
fn block<S: Simd>(
    reference: impl Source<S>,
    eval: &[f32],
    any: Any<S>,
    shifts: [f64; 2],
    start: usize,
    end: usize,
) -> Lanes<S> {
    let shifts = [S::splat(shifts[0]), S::splat(shifts[1])];
    let mut sums = Lanes::zero();
    let mut at = start;
    while at < end {
        let ([l, m], factors) = any.of(reference.vector(at), Source::<S>::vector(&eval, at));
        let (l, m) = (S::widen(l), S::widen(m));
        let a = [S::sub(l[0], shifts[0]), S::sub(l[1], shifts[0])];
        let b = [S::sub(m[0], shifts[1]), S::sub(m[1], shifts[1])];
        let exp = S::exp([a[0], a[1], b[0], b[1]]);
        any.push(&mut sums, a, b, exp, factors);
        at += S::LANES;
    }
    sums
}
