//! The second passes over a pair, after the sums: the divergences of rows so alike that the sums cancel,
//! and the probability that two rows have in common.

use fearless_simd::prelude::*;

use super::sums::{Counted, Sums, lane_sum};
use super::{ORDINARY, blocks, padded};
use crate::score::pair::Source;
use crate::score::vector::{DownBy, exp, exp_f32};

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

/// Vectors that are computed side by side, and added up before their sum is widened to f64: few
/// enough that no error of f32 grows.
const TOGETHER: usize = 4;

/// Log-probabilities below this count as a probability of 0: e^−60 is 9e-27.
const LEAST: f32 = -60.0;

/// The logarithms of normalisers are split at multiples of the inverse of this.
const FRACTION: f64 = 1024.0;

/// The rows' normalisers: ln p = l − shift − (high + low).
#[derive(Clone, Copy)]
struct Normaliser {
    /// 0, or the row's largest logit if that is too large for `high` to be exact.
    shift: f32,
    /// A multiple of 1/[`FRACTION`], so that sums of it and small integers' multiples are exact.
    high: f32,
    low: f32,
}

impl Normaliser {
    /// The normaliser of a row whose entries, relative to `shift`, weigh `sum`.
    #[inline(always)]
    fn new(top: f32, shift: f64, sum: f64) -> Self {
        let own = if top.abs() <= ORDINARY { 0.0 } else { top };
        let ln = (shift - f64::from(own)) + sum.ln();
        let high = (ln * FRACTION).round() / FRACTION;
        Self {
            shift: own,
            high: high as f32,
            low: (ln - high) as f32,
        }
    }
}

/// Σ min(p, q) over the entries that both rows know, with p and q renormalised over these.
///
/// `min(p, q)` is e^x of the smaller of both log-probabilities: one exponential for each entry, in
/// f32.
#[inline(always)]
pub(super) fn acceptance<S: Simd, R: Source>(
    simd: S,
    reference: R,
    eval: &[f32],
    floors: [Option<f32>; 2],
    sums: &Sums,
) -> f64 {
    // No entry that both know.
    if sums.p == 0.0 || sums.q == 0.0 {
        return 0.0;
    }
    let of = [
        Normaliser::new(sums.ref_top.logit, sums.ref_shift, sums.p),
        Normaliser::new(sums.eval_top.logit, sums.eval_shift, sums.q),
    ];
    let is_plain = floors == [None; 2] && of.iter().all(|of| of.shift == 0.0);
    let common = match is_plain {
        true => common::<S, R, true>(simd, reference, eval, floors, of),
        false => common::<S, R, false>(simd, reference, eval, floors, of),
    };
    common.clamp(0.0, 1.0)
}

/// The sum, without looking for floors and shifts if the pair is `PLAIN`.
#[inline(always)]
fn common<S: Simd, R: Source, const PLAIN: bool>(
    simd: S,
    reference: R,
    eval: &[f32],
    floors: [Option<f32>; 2],
    of: [Normaliser; 2],
) -> f64 {
    let n = eval.len();
    let (step, whole) = (TOGETHER * S::f32s::LEN, n - n % S::f32s::LEN);
    let smaller = |l, m| smaller::<S, PLAIN>(simd, [l, m], floors, of);
    let mut total: [S::f64s; 2] = [0.0.simd_into(simd); 2];
    let mut at = 0;
    while at + step <= n {
        let mut sum = [0.0.simd_into(simd); TOGETHER];
        for (i, sum) in sum.iter_mut().enumerate() {
            let at = at + i * S::f32s::LEN;
            *sum = smaller(reference.vector(simd, at), eval.vector(simd, at));
        }
        let sum = ((sum[0] + sum[1]) + (sum[2] + sum[3])).widen();
        total[0] += sum.0;
        total[1] += sum.1;
        at += step;
    }
    let mut add = |sum: S::f32s| {
        let sum = sum.widen();
        total[0] += sum.0;
        total[1] += sum.1;
    };
    while at < whole {
        add(smaller(reference.vector(simd, at), eval.vector(simd, at)));
        at += S::f32s::LEN;
    }
    if whole < n {
        let l = padded(whole, n, floors[0], |at| reference.get(at));
        let m = padded(whole, n, floors[1], |at| eval[at]);
        add(smaller((&l[..]).vector(simd, 0), (&m[..]).vector(simd, 0)));
    }
    lane_sum::<S>(total[0] + total[1])
}

/// min(p, q) of a vector of entries; 0 where a row does not know the entry, or excludes it.
#[inline(always)]
fn smaller<S: Simd, const PLAIN: bool>(
    simd: S,
    [mut l, mut m]: [S::f32s; 2],
    floors: [Option<f32>; 2],
    [p, q]: [Normaliser; 2],
) -> S::f32s {
    let vector = |x: f32| -> S::f32s { x.simd_into(simd) };
    let mut is_unknown = None;
    if !PLAIN {
        let floors = floors.map(|floor| floor.unwrap_or(f32::NEG_INFINITY));
        is_unknown = Some(l.simd_le(floors[0]) | m.simd_le(floors[1]));
        l -= p.shift;
        m -= q.shift;
    }
    let (a, b) = (l - p.high, m - q.high);
    let p_is_less = (a - b).simd_lt(p.low - q.low);
    let pick = |p, q| p_is_less.select(p, q);
    let x = DownBy {
        x: pick(l, m),
        high: pick(vector(p.high), vector(q.high)),
        low: pick(vector(p.low), vector(q.low)),
        exponent: pick(a, b),
    };
    let common = exp_f32::<S>(x, LEAST);
    match is_unknown {
        Some(is_unknown) => is_unknown.select(vector(0.0), common),
        None => common,
    }
}
