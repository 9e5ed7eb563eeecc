//! The KL divergence of rows so alike that the sums of the first pass cancel.

use fearless_simd::prelude::*;

use super::sums::{Counted, Sums, lane_sum};
use super::{blocks, padded};
use crate::score::exp::exp;
use crate::score::rows::Source;

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
pub(super) fn close<S: Simd, R: Source>(
    simd: S,
    reference: R,
    eval: &[f32],
    counted: Counted,
    floors: [Option<f32>; 2],
    sums: &Sums,
) -> [f64; 2] {
    let n = eval.len();
    let whole = n - n % S::f32s::LEN;
    let mut total = [0.0.simd_into(simd); 2];
    for (start, end) in blocks(whole) {
        add(
            &mut total,
            block(simd, reference, eval, counted, sums, start, end),
        );
    }
    if whole < n {
        let l = padded(whole, n, floors[0], |at| reference.get(at));
        let m = padded(whole, n, floors[1], |at| eval[at]);
        let known = Counted::Known(floors);
        let end = S::f32s::LEN;
        add(&mut total, block(simd, &l[..], &m[..], known, sums, 0, end));
    }
    [lane_sum::<S>(total[0]), lane_sum::<S>(total[1])]
}

#[inline(always)]
fn add<D: std::ops::AddAssign + Copy>(total: &mut [D; 2], block: [D; 2]) {
    total[0] += block[0];
    total[1] += block[1];
}

/// The sums of both divergences over a block, one in each lane.
#[inline(always)]
fn block<S: Simd>(
    simd: S,
    reference: impl Source,
    eval: &[f32],
    counted: Counted,
    sums: &Sums,
    start: usize,
    end: usize,
) -> [S::f64s; 2] {
    let ln_ratio = (sums.p / sums.q).ln();
    // The distance of logits for which u is 0.
    let distance = ln_ratio + (sums.ref_shift - sums.eval_shift);
    let series = match distance.abs() < FAR {
        true => SERIES,
        false => -1.0,
    };
    let mut terms = [0.0.simd_into(simd); 2];
    let mut at = start;
    while at < end {
        let entries = counted.entries(simd, reference.vector(simd, at), eval.vector(simd, at));
        let size = (entries.m + distance as f32 - entries.l).abs();
        let small = size.simd_lt(series).widen();
        let (l, m) = (entries.l.widen(), entries.m.widen());
        let a = [l.0 - sums.ref_shift, l.1 - sums.ref_shift];
        let b = [m.0 - sums.eval_shift, m.1 - sums.eval_shift];
        let exp = exp::<S, 4>([a[0], a[1], b[0], b[1]]);
        let [_, weights] = counted.weights(simd, &entries, exp);
        for (half, small) in [small.0, small.1].into_iter().enumerate() {
            let p = weights[half] * (1.0 / sums.p);
            let q = weights[2 + half] * (1.0 / sums.q);
            let u = (a[half] - b[half]) - ln_ratio;
            add(&mut terms, divergences::<S>(p, q, u, small));
        }
        at += S::f32s::LEN;
    }
    terms
}

/// The terms of both divergences for entries with these p, q and u, by series for the `small` ones.
#[inline(always)]
fn divergences<S: Simd>(p: S::f64s, q: S::f64s, u: S::f64s, small: S::mask64s) -> [S::f64s; 2] {
    // cosh u − 1 = u² · EVEN(u²) and sinh u − u = u³ · ODD(u²).
    const EVEN: [f64; 5] = [
        1.0 / 2.0,
        1.0 / 24.0,
        1.0 / 720.0,
        1.0 / 40_320.0,
        1.0 / 3_628_800.0,
    ];
    const ODD: [f64; 4] = [1.0 / 6.0, 1.0 / 120.0, 1.0 / 5040.0, 1.0 / 362_880.0];
    let square = u * u;
    let even = square * polynomial::<S, 5>(square, EVEN);
    let odd = square * u * polynomial::<S, 4>(square, ODD);
    let change = q - p;
    [
        small.select(p * (even - odd), p.mul_add(u, change)),
        small.select(q * (even + odd), -q.mul_add(u, change)),
    ]
}

/// c₀ + c₁ x + c₂ x² + …
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(x: S::f64s, coefficients: [f64; N]) -> S::f64s {
    let mut sum = coefficients[N - 1].simd_into(x.token());
    for &c in coefficients[..N - 1].iter().rev() {
        sum = x.mul_add(sum, c);
    }
    sum
}
