//! The KL divergence of rows so alike that the sums of the first pass cancel.

use super::entries::{Any, Entries, STEEP, mul};
use super::sums::{Sums, lane_sum};
use super::{BLOCK, padded};
use crate::score::vector::{Simd, Source};

/// A divergence below this is computed again. The first pass is off by up to 5e-12, which is 5e-5
/// of it.
pub(super) const CLOSE: f64 = 1e-7;

/// Below this |ln(p/q)| a term is computed by its series, whose relative error there is 1e-11.
const SERIES: f32 = 0.25;

/// Rows whose logits are further apart than this have no terms computed by series: in f32, as it is
/// chosen, the distance would not be known well enough.
const FAR: f64 = 1000.0;

/// KL(p‖q) and KL(q‖p), each as a sum in which no term is below 0.
///
/// Let u = ln(p/q) of an entry. p and q both sum to 1, so that Σ (q − p) can be added:
///
/// ```text
/// KL(p‖q) = Σ p u       = Σ p (e^−u − 1 + u)
/// KL(q‖p) = Σ q (0 − u) = Σ q (e^u − 1 − u)
/// ```
///
/// Both terms are u²/2 to first order: an error ε of all u, as the first pass makes in ln(P/Q),
/// changes the sums by ε²/2 only.
#[inline(always)]
pub(super) fn close<S: Simd, R: Source<S>>(
    reference: R,
    eval: &[f32],
    entries: impl Entries<S>,
    any: Any<S>,
    floors: [Option<f32>; 2],
    sums: &Sums,
) -> [f64; 2] {
    let n = eval.len();
    let whole = n - n % S::LANES;
    let pass = Pass::new(entries, sums);
    let mut total = Terms::zero();
    let mut start = 0;
    while start < whole {
        let end = (start + BLOCK).min(whole);
        total.merge(&pass.block(reference, eval, start, end));
        start = end;
    }
    if whole < n {
        let l = padded(whole, n, floors[0], |at| reference.get(at));
        let m = padded(whole, n, floors[1], |at| eval[at]);
        total.merge(&Pass::new(any, sums).block(&l[..], &m[..], 0, S::LANES));
    }
    [lane_sum::<S>(total.forward), lane_sum::<S>(total.reverse)]
}

/// The sums of both divergences, one in each lane.
struct Terms<S: Simd> {
    forward: S::D,
    reverse: S::D,
}

impl<S: Simd> Terms<S> {
    #[inline(always)]
    fn zero() -> Self {
        Self {
            forward: S::splat(0.0),
            reverse: S::splat(0.0),
        }
    }

    #[inline(always)]
    fn merge(&mut self, other: &Self) {
        self.forward = S::add(self.forward, other.forward);
        self.reverse = S::add(self.reverse, other.reverse);
    }

    /// Adds the terms of entries with these p, q and u; `small` is 1 for those to be computed by
    /// series, else 0.
    #[inline(always)]
    fn push(&mut self, p: S::D, q: S::D, u: S::D, small: S::D) {
        // cosh x − 1 = x² · EVEN(x²) and sinh x − x = x³ · ODD(x²).
        const EVEN: [f64; 5] = [
            1.0 / 2.0,
            1.0 / 24.0,
            1.0 / 720.0,
            1.0 / 40_320.0,
            1.0 / 3_628_800.0,
        ];
        const ODD: [f64; 4] = [1.0 / 6.0, 1.0 / 120.0, 1.0 / 5040.0, 1.0 / 362_880.0];
        let x = mul::<S>(u, small);
        let square = mul::<S>(x, x);
        let even = mul::<S>(square, polynomial::<S, 5>(square, EVEN));
        let odd = mul::<S>(mul::<S>(square, x), polynomial::<S, 4>(square, ODD));
        self.forward = S::mul_add(p, S::sub(even, odd), self.forward);
        self.reverse = S::mul_add(q, S::add(even, odd), self.reverse);
        let large = S::sub(S::splat(1.0), small);
        let change = S::sub(q, p);
        let forward = S::mul_add(p, u, change);
        let reverse = S::sub(S::splat(0.0), S::mul_add(q, u, change));
        self.forward = S::mul_add(large, forward, self.forward);
        self.reverse = S::mul_add(large, reverse, self.reverse);
    }
}

/// The numbers of both rows that the terms need.
struct Pass<S: Simd, E: Entries<S>> {
    entries: E,
    ref_shift: S::D,
    eval_shift: S::D,
    /// 1/P and 1/Q.
    p_scale: S::D,
    q_scale: S::D,
    /// ln(P/Q)
    ln_ratio: S::D,
    /// The distance of logits for which u is 0, in f32.
    distance: S::F,
    /// The largest |u| to compute by series.
    series: S::F,
}

impl<S: Simd, E: Entries<S>> Pass<S, E> {
    #[inline(always)]
    fn new(entries: E, sums: &Sums) -> Self {
        let ln_ratio = (sums.p / sums.q).ln();
        let distance = ln_ratio + (sums.ref_shift - sums.eval_shift);
        let series = match distance.abs() < FAR {
            true => SERIES,
            false => -1.0,
        };
        Self {
            entries,
            ref_shift: S::splat(sums.ref_shift),
            eval_shift: S::splat(sums.eval_shift),
            p_scale: S::splat(1.0 / sums.p),
            q_scale: S::splat(1.0 / sums.q),
            ln_ratio: S::splat(ln_ratio),
            distance: S::splat_f(distance as f32),
            series: S::splat_f(series),
        }
    }

    #[inline(always)]
    fn block(&self, reference: impl Source<S>, eval: &[f32], start: usize, end: usize) -> Terms<S> {
        let mut terms = Terms::zero();
        let mut at = start;
        while at < end {
            let (l, m) = (reference.vector(at), Source::<S>::vector(&eval, at));
            let ([l, m], factors) = self.entries.of(l, m);
            let small = S::widen(self.is_small(l, m));
            let (l, m) = (S::widen(l), S::widen(m));
            let a = [S::sub(l[0], self.ref_shift), S::sub(l[1], self.ref_shift)];
            let b = [S::sub(m[0], self.eval_shift), S::sub(m[1], self.eval_shift)];
            let exp = S::exp([a[0], a[1], b[0], b[1]]);
            let exp = self.entries.counted(exp, factors);
            for half in 0..2 {
                let p = mul::<S>(exp[half], self.p_scale);
                let q = mul::<S>(exp[2 + half], self.q_scale);
                let u = S::sub(S::sub(a[half], b[half]), self.ln_ratio);
                terms.push(p, q, u, small[half]);
            }
            at += S::LANES;
        }
        terms
    }

    /// 1 for entries to be computed by series, else 0.
    #[inline(always)]
    fn is_small(&self, l: S::F, m: S::F) -> S::F {
        let minus = S::splat_f(-1.0);
        let negative = S::add_f(S::add_f(m, self.distance), S::mul_f(l, minus));
        let size = S::max_f(negative, S::mul_f(negative, minus));
        let below = S::add_f(self.series, S::mul_f(size, minus));
        let steep = S::mul_f(below, S::splat_f(STEEP));
        S::min_f(S::max_f(steep, S::splat_f(0.0)), S::splat_f(1.0))
    }
}

/// c₀ + c₁ x + c₂ x² + …
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(x: S::D, coefficients: [f64; N]) -> S::D {
    let mut sum = S::splat(coefficients[N - 1]);
    for &c in coefficients[..N - 1].iter().rev() {
        sum = S::mul_add(sum, x, S::splat(c));
    }
    sum
}
