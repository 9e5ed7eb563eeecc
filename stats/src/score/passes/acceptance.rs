//! The probability that two rows have in common.

use fearless_simd::prelude::*;

use super::sums::{Sums, lane_sum};
use super::{ORDINARY, padded};
use crate::score::exp::{DownBy, exp_f32};
use crate::score::rows::Source;

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
