//! Sums and maxima in one pass, for rows like those of language models.

use super::entries::{Any, Entries};
use super::sums::{Lanes, Sums};
use super::top::Top;
use super::{BLOCK, ORDINARY, padded};
use crate::score::vector::{Simd, Source};

/// Scores rows whose logits are all within ±[`ORDINARY`], or −∞: e^x then neither overflows nor
/// underflows, so the maxima need not be known first. `None` for other rows, including those that
/// cannot be scored.
///
/// A block that `entries` cannot take, since a logit is −∞, is computed again with `any`.
#[inline(always)]
pub(super) fn one_pass<S: Simd, R: Source<S>>(
    reference: R,
    eval: &[f32],
    entries: impl Entries<S>,
    any: Any<S>,
    floors: [Option<f32>; 2],
) -> Option<Sums> {
    let n = eval.len();
    let whole = n - n % S::LANES;
    let (mut ref_top, mut eval_top) = (Top::NONE, Top::NONE);
    // `any` computes every block where the evaluated row has a floor.
    let mut may_be_masked = floors[1].is_some();
    let mut total = Lanes::<S>::zero();
    let mut start = 0;
    while start < whole {
        let end = (start + BLOCK).min(whole);
        let mut block = Block::new(reference, eval, entries, start, end);
        if !block.is_ordinary() {
            block = Block::new(reference, eval, any, start, end);
            may_be_masked = true;
            if !block.is_ordinary() {
                return None;
            }
        }
        total.merge(&block.sums);
        ref_top.block::<S>(block.most_l, start);
        eval_top.block::<S>(block.most_m, start);
        start = end;
    }
    if whole < n {
        let l = padded(whole, n, floors[0], |at| reference.get(at));
        let m = padded(whole, n, floors[1], |at| eval[at]);
        let block = Block::new(&l[..], &m[..], any, 0, S::LANES);
        may_be_masked |= l[..n - whole].contains(&f32::NEG_INFINITY);
        may_be_masked |= m[..n - whole].contains(&f32::NEG_INFINITY);
        if !block.is_ordinary() {
            return None;
        }
        total.merge(&block.sums);
    }
    let ref_top = ref_top.finish::<S, R>(reference, whole, n);
    let eval_top = eval_top.finish::<S, _>(eval, whole, n);
    let has_logits = ref_top.logit.min(eval_top.logit) > f32::NEG_INFINITY;
    let sums = total.sums([0.0; 2], [ref_top, eval_top], may_be_masked);
    // Minima and maxima may miss a NaN, but `d` is NaN wherever a logit is, and so is the sum.
    (has_logits && sums.p_d.is_finite()).then_some(sums)
}

/// The sums and the range of a block.
struct Block<S: Simd> {
    sums: Lanes<S>,
    most_l: S::F,
    most_m: S::F,
    /// The smallest of what stands for the logits of either row, or 0.
    least: S::F,
}

impl<S: Simd> Block<S> {
    #[inline(always)]
    fn new(
        reference: impl Source<S>,
        eval: &[f32],
        entries: impl Entries<S>,
        start: usize,
        end: usize,
    ) -> Self {
        let none = S::splat_f(f32::NEG_INFINITY);
        let (mut most_l, mut most_m) = (none, none);
        let (mut least_l, mut least_m) = (S::splat_f(0.0), S::splat_f(0.0));
        let mut sums = Lanes::<S>::zero();
        let mut at = start;
        while at < end {
            let l = reference.vector(at);
            let m = Source::<S>::vector(&eval, at);
            most_l = S::max_f(most_l, l);
            most_m = S::max_f(most_m, m);
            let ([l, m], factors) = entries.of(l, m);
            least_l = S::min_f(least_l, l);
            least_m = S::min_f(least_m, m);
            let (l, m) = (S::widen(l), S::widen(m));
            let exp = S::exp_ordinary([l[0], l[1], m[0], m[1]]);
            entries.push(&mut sums, l, m, exp, factors);
            at += S::LANES;
        }
        Self {
            sums,
            most_l,
            most_m,
            least: S::min_f(least_l, least_m),
        }
    }

    #[inline(always)]
    fn is_ordinary(&self) -> bool {
        let most = S::max_f(self.most_l, self.most_m);
        !(S::any_above(most, S::splat_f(ORDINARY))
            || S::any_above(S::splat_f(-ORDINARY), self.least))
    }
}
