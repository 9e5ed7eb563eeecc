//! Any processor: vectors as plain arrays, 16 lanes of f32, 8 of f64.

use std::f64::consts::LOG2_E;

use super::exp::{POLYNOMIAL, ROUND, UNDERFLOW};
use super::pair::RowPair;
use super::passes;
use super::token_score::TokenScore;
use super::vector::Simd;

const LANES: usize = 16;
const HALF: usize = LANES / 2;

pub(super) fn score(pair: &RowPair<'_>) -> TokenScore {
    passes::score::<Arrays>(pair)
}

enum Arrays {}

/// a·b + c, fused only if that is one instruction: otherwise it would be a call into the C library.
#[inline(always)]
fn mul_add(a: f64, b: f64, c: f64) -> f64 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// An array of `f(i)`. A loop and a copy, not `array::from_fn`, whose closures the compiler does
/// not always inline.
macro_rules! lanes {
    ($n:expr, $zero:expr, |$i:ident| $lane:expr) => {{
        let mut out = [$zero; $n];
        for $i in 0..$n {
            out[$i] = $lane;
        }
        out
    }};
}

#[inline(always)]
pub(super) fn exp(x: [f64; HALF]) -> [f64; HALF] {
    // Clamped, so that the exponent below stays in its field.
    let clamped = lanes!(HALF, 0.0, |i| if x[i] > UNDERFLOW {
        x[i]
    } else {
        UNDERFLOW
    });
    let shifted = lanes!(HALF, 0.0, |i| mul_add(clamped[i], LOG2_E, ROUND));
    let r = lanes!(HALF, 0.0, |i| mul_add(
        clamped[i],
        LOG2_E,
        ROUND - shifted[i]
    ));
    let mut sum = [POLYNOMIAL[POLYNOMIAL.len() - 1]; HALF];
    for &c in POLYNOMIAL[..POLYNOMIAL.len() - 1].iter().rev() {
        sum = lanes!(HALF, 0.0, |i| mul_add(sum[i], r[i], c));
    }
    lanes!(HALF, 0.0, |i| {
        let scaled = sum[i].to_bits().wrapping_add(shifted[i].to_bits() << 52);
        let underflows = u64::from(x[i] < UNDERFLOW).wrapping_neg();
        f64::from_bits(scaled & !underflows)
    })
}

impl Simd for Arrays {
    const LANES: usize = LANES;
    type F = [f32; LANES];
    type D = [f64; HALF];
    type Count = [u32; LANES];

    #[inline(always)]
    fn splat_f(x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    fn load_f(x: &[f32]) -> Self::F {
        let x = &x[..LANES];
        lanes!(LANES, 0.0, |i| x[i])
    }

    #[inline(always)]
    fn load_codes(codes: &[u16]) -> Self::F {
        let codes = &codes[..LANES];
        lanes!(LANES, 0.0, |i| f32::from(codes[i]))
    }

    #[inline(always)]
    fn mul_f(a: Self::F, b: Self::F) -> Self::F {
        lanes!(LANES, 0.0, |i| a[i] * b[i])
    }

    #[inline(always)]
    fn add_f(a: Self::F, b: Self::F) -> Self::F {
        lanes!(LANES, 0.0, |i| a[i] + b[i])
    }

    #[inline(always)]
    fn max_f(a: Self::F, b: Self::F) -> Self::F {
        lanes!(LANES, 0.0, |i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min_f(a: Self::F, b: Self::F) -> Self::F {
        lanes!(LANES, 0.0, |i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn any_above(a: Self::F, b: Self::F) -> bool {
        (0..LANES).any(|i| a[i] > b[i])
    }

    #[inline(always)]
    fn store_f(a: Self::F, out: &mut [f32; 16]) {
        out[..LANES].copy_from_slice(&a);
    }

    #[inline(always)]
    fn count_zero() -> Self::Count {
        [0; LANES]
    }

    #[inline(always)]
    fn count_above(count: Self::Count, a: Self::F, b: Self::F) -> Self::Count {
        // It never wraps: a count is at most a row's length, which fits.
        lanes!(LANES, 0, |i| count[i].wrapping_add(u32::from(a[i] > b[i])))
    }

    #[inline(always)]
    fn count_sum(count: Self::Count) -> u32 {
        count.iter().sum()
    }

    #[inline(always)]
    fn widen(a: Self::F) -> [Self::D; 2] {
        [
            lanes!(HALF, 0.0, |i| f64::from(a[i])),
            lanes!(HALF, 0.0, |i| f64::from(a[HALF + i])),
        ]
    }

    #[inline(always)]
    fn splat(x: f64) -> Self::D {
        [x; HALF]
    }

    #[inline(always)]
    fn load(x: &[f64]) -> Self::D {
        let x = &x[..HALF];
        lanes!(HALF, 0.0, |i| x[i])
    }

    #[inline(always)]
    fn store(a: Self::D, out: &mut [f64; 8]) {
        out[..HALF].copy_from_slice(&a);
    }

    #[inline(always)]
    fn add(a: Self::D, b: Self::D) -> Self::D {
        lanes!(HALF, 0.0, |i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(a: Self::D, b: Self::D) -> Self::D {
        lanes!(HALF, 0.0, |i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul_add(a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        lanes!(HALF, 0.0, |i| mul_add(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn exp(x: [Self::D; 4]) -> [Self::D; 4] {
        [exp(x[0]), exp(x[1]), exp(x[2]), exp(x[3])]
    }

    #[inline(always)]
    fn exp_ordinary(x: [Self::D; 4]) -> [Self::D; 4] {
        Self::exp(x)
    }
}
