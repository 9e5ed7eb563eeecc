//! The passes of [`LogitMetrics`].

use std::f64::consts::LN_2;

use fearless_simd::prelude::*;

use super::rows::{Counted, SimdRows, blocks, lane_sum};
use super::sums::Sums;
use crate::score::logit_metrics::{LogitMetrics, SMOOTHING};
use crate::score::vector::{exp, ln, polynomial};

/// Compares the logits of two rows, and their softmaxes by other numbers than the KLD.
#[inline(always)]
pub(in crate::score) fn distances<S: Simd>(rows: SimdRows<'_, S>) -> LogitMetrics {
    let Ok(sums) = rows.two_passes() else {
        return LogitMetrics::EXCLUDED;
    };
    let zero: S::f64s = 0.0.simd_into(rows.simd);
    let one: S::f64s = 1.0.simd_into(rows.simd);
    let mut max_abs_diff = zero;
    let [abs_diff, n_logits, l_squares, m_squares] = sum(
        rows,
        #[inline(always)]
        |half: Half<S>| {
            let has_no_logits = half.has_no_logits;
            let [l, m] = [half.l, half.m].map(|x| has_no_logits.select(zero, x));
            let distance = (l - m).abs();
            max_abs_diff = max_abs_diff.max(distance);
            [distance, has_no_logits.select(zero, one), l * l, m * m]
        },
    );
    let squares = [l_squares, m_squares];
    let [cosine, jensen_shannon, smoothed_kld] = relative(rows, &sums, squares);
    let lanes = max_abs_diff.as_slice().iter().copied();
    LogitMetrics {
        mean_abs_diff: abs_diff / n_logits,
        max_abs_diff: lanes.fold(0.0, f64::max),
        cosine_distance: match squares.map(|squares| squares == 0.0) {
            [false, false] => cosine.min(2.0),
            [true, true] => 0.0,
            _ => 1.0,
        },
        jensen_shannon: jensen_shannon.min(LN_2),
        // Rounding may leave it below 0.
        smoothed_kld: smoothed_kld.max(0.0),
    }
}

/// In place of −∞: far below any f32, and its distances are finite.
const MASKED: f64 = -1e300;

/// Entries of both rows in f64, half of a vector; a logit of −∞ is [`MASKED`].
struct Half<S: Simd> {
    l: S::f64s,
    m: S::f64s,
    /// Entries that one of the rows has at its floor.
    is_unknown: S::mask64s,
    /// Entries that are unknown, or without a logit in one of the rows.
    has_no_logits: S::mask64s,
}

/// The sums of these terms over all entries.
#[inline(always)]
fn sum<S: Simd, const N: usize>(
    rows: SimdRows<'_, S>,
    mut terms: impl FnMut(Half<S>) -> [S::f64s; N],
) -> [f64; N] {
    let [ref_floor, eval_floor] = rows.floors.map(|floor| floor.unwrap_or(f32::NAN));
    let mut total = [0.0; N];
    for (start, end) in blocks(rows.logits[0].len()) {
        let mut of_block: [S::f64s; N] = [0.0.simd_into(rows.simd); N];
        rows.each(
            start,
            end,
            Counted::Every,
            #[inline(always)]
            |entries| {
                let [l, m] = entries.raw;
                let is_unknown = l.simd_le(ref_floor) | m.simd_le(eval_floor);
                let is_masked = l.simd_lt(-f32::MAX) | m.simd_lt(-f32::MAX);
                let has_no_logits = (is_unknown | is_masked).widen();
                let is_unknown = is_unknown.widen();
                let (l, m) = (l.widen(), m.widen());
                let first = terms(Half {
                    l: l.0.max(MASKED),
                    m: m.0.max(MASKED),
                    is_unknown: is_unknown.0,
                    has_no_logits: has_no_logits.0,
                });
                let second = terms(Half {
                    l: l.1.max(MASKED),
                    m: m.1.max(MASKED),
                    is_unknown: is_unknown.1,
                    has_no_logits: has_no_logits.1,
                });
                for i in 0..N {
                    of_block[i] += first[i] + second[i];
                }
            },
        );
        for i in 0..N {
            total[i] += lane_sum::<S>(of_block[i]);
        }
    }
    total
}

/// The cosine distance, the Jensen-Shannon divergence and the smoothed KLD, of rows with these sums, and with
/// logits whose squares have these sums.
#[inline(always)]
fn relative<S: Simd>(rows: SimdRows<'_, S>, sums: &Sums, squares: [f64; 2]) -> [f64; 3] {
    let entries = rows.logits[0].iter().zip(rows.logits[1]);
    let n = entries.len();
    let [ref_floor, eval_floor] = rows.floors.map(|floor| floor.unwrap_or(f32::NAN));
    let is_unknown = |(l, m): (&f32, &f32)| *l <= ref_floor || *m <= eval_floor;
    let n_unknown = if rows.floors == [None; 2] {
        0
    } else {
        entries.filter(|of| is_unknown(*of)).count()
    };
    // The share of the mass that smoothing does not spread.
    let kept_mass = 1.0 - (n - n_unknown) as f64 * SMOOTHING;
    // Infinite for a row of zeros.
    let [ref_inverse_norm, eval_inverse_norm] = squares.map(|squares| 1.0 / squares.sqrt());
    let [p_scale, q_scale] = sums.weights.map(f64::recip);
    // Not the logarithm of the quotient: this only changes its sign when the rows are swapped.
    let ln_ratio = sums.weights[0].ln() - sums.weights[1].ln();
    let zero: S::f64s = 0.0.simd_into(rows.simd);
    sum(
        rows,
        #[inline(always)]
        |half: Half<S>| {
            let (l, m) = (half.l, half.m);
            let angle = l * ref_inverse_norm - m * eval_inverse_norm;
            let (a, b) = (l - sums.shifts[0], m - sums.shifts[1]);
            let [p, q] = exp::<S, 2>([a, b]);
            let (p, q) = (p * p_scale, q * q_scale);
            let u = ((a - b) - ln_ratio).abs();
            let divergence = (p + q) * 0.5 * jensen_shannon::<S>(u);
            let (p, q) = (p * kept_mass + SMOOTHING, q * kept_mass + SMOOTHING);
            let smoothed = p * ln::<S>(p / q) + (q - p);
            [
                half.has_no_logits.select(zero, angle * angle * 0.5),
                half.is_unknown.select(zero, divergence),
                half.is_unknown.select(zero, smoothed),
            ]
        },
    )
}

/// Below this `u` the Jensen-Shannon divergence is computed by its series, whose relative error
/// there is 1e-13.
const SERIES: f64 = 0.25;

/// The `j(u)` of the [metrics' documentation](mod@crate::score::logit_metrics), for u ≥ 0. With v = u/2 it
/// is `v tanh v − ln cosh v = v²/2 − v⁴/4 + v⁶/9 − …`.
#[inline(always)]
fn jensen_shannon<S: Simd>(u: S::f64s) -> S::f64s {
    const COEFFICIENTS: [f64; 6] = [
        1.0 / 2.0,
        -1.0 / 4.0,
        1.0 / 9.0,
        -17.0 / 360.0,
        31.0 / 1575.0,
        -691.0 / 85050.0,
    ];
    let [z] = exp::<S, 1>([-u]);
    let sum = z + 1.0;
    let square = u * u * 0.25;
    let closed = -ln::<S>(sum) + LN_2 - u * z / sum;
    let series = square * polynomial::<S, 6>(square, COEFFICIENTS);
    u.simd_lt(SERIES).select(series, closed)
}
