//! The second passes over a pair, after the sums: the divergences of rows so alike that the sums cancel,
//! and the probability that two rows have in common.

use fearless_simd::prelude::*;

use super::ORDINARY;
use super::rows::{Counted, SimdRows, blocks, lane_sum};
use super::sums::Sums;
use crate::score::vector::{exp, exp_f32, polynomial};

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
pub(super) fn close<S: Simd>(rows: SimdRows<'_, S>, sums: &Sums) -> [f64; 2] {
    // A literal in each, so that the loop over every entry is compiled by itself.
    if sums.may_be_masked || rows.floors != [None; 2] {
        close_of(rows, sums, Counted::Known)
    } else {
        close_of(rows, sums, Counted::Every)
    }
}

#[inline(always)]
fn close_of<S: Simd>(rows: SimdRows<'_, S>, sums: &Sums, counted: Counted) -> [f64; 2] {
    let [p_scale, q_scale] = sums.weights.map(f64::recip);
    let ln_ratio = (sums.weights[0] / sums.weights[1]).ln();
    // The distance of logits for which u is 0.
    let distance = ln_ratio + (sums.shifts[0] - sums.shifts[1]);
    let series = if distance.abs() < FAR { SERIES } else { -1.0 };
    let mut total: [S::f64s; 2] = [0.0.simd_into(rows.simd); 2];
    for (start, end) in blocks(rows.logits[0].len()) {
        let mut of_block: [S::f64s; 2] = [0.0.simd_into(rows.simd); 2];
        rows.each(
            start,
            end,
            counted,
            #[inline(always)]
            |entries| {
                let size = (entries.logits[1] + distance as f32 - entries.logits[0]).abs();
                let small = size.simd_lt(series).widen();
                let x = entries.less(sums.shifts);
                let [_, weights] = entries.weights(exp::<S, 4>(x));
                for (half, small) in [small.0, small.1].into_iter().enumerate() {
                    let u = (x[half] - x[2 + half]) - ln_ratio;
                    let (p, q) = (weights[half] * p_scale, weights[2 + half] * q_scale);
                    let terms = divergences::<S>(p, q, u, small);
                    of_block[0] += terms[0];
                    of_block[1] += terms[1];
                }
            },
        );
        total[0] += of_block[0];
        total[1] += of_block[1];
    }
    [lane_sum::<S>(total[0]), lane_sum::<S>(total[1])]
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
    #[inline(always)]
    fn new(row: usize, sums: &Sums) -> Self {
        let top = sums.tops[row].logit;
        let shift = if top.abs() <= ORDINARY { 0.0 } else { top };
        let ln = (sums.shifts[row] - f64::from(shift)) + sums.weights[row].ln();
        let high = (ln * FRACTION).round() / FRACTION;
        Self {
            shift,
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
pub(super) fn acceptance<S: Simd>(rows: SimdRows<'_, S>, sums: &Sums) -> f64 {
    // No entry that both know.
    if sums.weights.contains(&0.0) {
        return 0.0;
    }
    let normalisers = [Normaliser::new(0, sums), Normaliser::new(1, sums)];
    let is_plain =
        rows.floors == [None; 2] && normalisers[0].shift == 0.0 && normalisers[1].shift == 0.0;
    let common = if is_plain {
        common::<S, true>(rows, normalisers)
    } else {
        common::<S, false>(rows, normalisers)
    };
    common.clamp(0.0, 1.0)
}

/// The sum, without looking for floors and shifts if the pair is `PLAIN`.
#[inline(always)]
fn common<S: Simd, const PLAIN: bool>(rows: SimdRows<'_, S>, normalisers: [Normaliser; 2]) -> f64 {
    let SimdRows { simd, floors, .. } = rows;
    let n = rows.logits[0].len();
    let step = TOGETHER * S::f32s::LEN;
    let mut total: [S::f64s; 2] = [0.0.simd_into(simd); 2];
    let mut at = 0;
    while at + step <= n {
        let mut sum = [0.0.simd_into(simd); TOGETHER];
        for (i, sum) in sum.iter_mut().enumerate() {
            let logits = rows.vectors(at + i * S::f32s::LEN);
            *sum = smaller::<S, PLAIN>(simd, logits, floors, normalisers);
        }
        let sum = ((sum[0] + sum[1]) + (sum[2] + sum[3])).widen();
        total[0] += sum.0;
        total[1] += sum.1;
        at += step;
    }
    rows.each(
        at,
        n,
        Counted::Every,
        #[inline(always)]
        |entries| {
            let sum = smaller::<S, PLAIN>(simd, entries.raw, floors, normalisers).widen();
            total[0] += sum.0;
            total[1] += sum.1;
        },
    );
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
        let [ref_floor, eval_floor] = floors.map(|floor| floor.unwrap_or(f32::NEG_INFINITY));
        is_unknown = Some(l.simd_le(ref_floor) | m.simd_le(eval_floor));
        l -= p.shift;
        m -= q.shift;
    }
    let (a, b) = (l - p.high, m - q.high);
    let p_is_less = (a - b).simd_lt(p.low - q.low);
    let parts = [(p.high, q.high), (p.low, q.low)];
    let parts = parts.map(|(p, q)| p_is_less.select(vector(p), vector(q)));
    let (x, exponent) = (p_is_less.select(l, m), p_is_less.select(a, b));
    let common = exp_f32::<S>(x, parts, exponent, LEAST);
    match is_unknown {
        Some(is_unknown) => is_unknown.select(vector(0.0), common),
        None => common,
    }
}
