//! e^x and ln x of each lane of a vector.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

use fearless_simd::prelude::*;

/// Adding this to a number and subtracting it again rounds the number to an integer; the sum holds
/// that integer in its lowest bits.
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 · 2^52

/// Below this, e^x counts as 0: e^−708 = 3.3e-308 is still a normal number, so no subnormal ones
/// are computed with.
pub(super) const UNDERFLOW: f64 = -708.0;

/// Coefficients of 2^r for |r| ≤ 1/2, lowest power first: minimax in relative error, 1.1e-12, with
/// 2^0 constrained to exactly 1 (Remez exchange in 50 digits).
const POLYNOMIAL: [f64; 9] = [
    1.0,
    0.693_147_180_541_232_9,
    0.240_226_506_947_426_37,
    0.055_504_109_592_278_76,
    0.009_618_129_558_824_302,
    0.001_333_343_415_835_268_9,
    0.000_154_030_982_978_597,
    1.531_420_903_803_661e-5,
    1.334_418_095_993_795e-6,
];

/// e^x for finite x up to [`ORDINARY`](super::passes::ORDINARY): exactly 1 at 0, exactly 0 on
/// underflow.
#[inline(always)]
pub(super) fn exp<S: Simd, const N: usize>(x: [S::f64s; N]) -> [S::f64s; N] {
    let mut clamped = x;
    for i in 0..N {
        clamped[i] = x[i].max(UNDERFLOW);
    }
    let mut exp = exp_ordinary::<S, N>(clamped);
    for i in 0..N {
        let zero = 0.0.simd_into(x[i].token());
        exp[i] = x[i].simd_lt(UNDERFLOW).select(zero, exp[i]);
    }
    exp
}

/// e^x for |x| ≤ [`ORDINARY`](super::passes::ORDINARY); any bits for other x.
///
/// Several vectors at a time, so that their computations interleave: one alone is a chain of
/// dependent instructions.
#[inline(always)]
pub(super) fn exp_ordinary<S: Simd, const N: usize>(x: [S::f64s; N]) -> [S::f64s; N] {
    let (mut shifted, mut r, mut sum) = (x, x, x);
    for i in 0..N {
        shifted[i] = x[i].mul_add(LOG2_E, ROUND);
        r[i] = x[i].mul_sub(LOG2_E, shifted[i] - ROUND);
        sum[i] = POLYNOMIAL[POLYNOMIAL.len() - 1].simd_into(x[i].token());
    }
    for &c in POLYNOMIAL[..POLYNOMIAL.len() - 1].iter().rev() {
        for i in 0..N {
            sum[i] = sum[i].mul_add(r[i], c);
        }
    }
    for i in 0..N {
        let exponent = shifted[i].to_bits() << 52u32;
        sum[i] = S::f64s::from_bits(sum[i].to_bits() + exponent);
    }
    sum
}

/// c₀ + c₁ x + c₂ x² + …
#[inline(always)]
pub(super) fn polynomial<S: Simd, const N: usize>(x: S::f64s, coefficients: [f64; N]) -> S::f64s {
    let mut sum = coefficients[N - 1].simd_into(x.token());
    for &c in coefficients[..N - 1].iter().rev() {
        sum = x.mul_add(sum, c);
    }
    sum
}

/// [`ROUND`] for f32.
const ROUND_F32: f32 = 12_582_912.0; // 1.5 · 2^23

/// ln 2 in two parts: the first is a multiple of 2^−12, so that its products with small integers are
/// exact.
const LN_2_HIGH: f32 = 2839.0 / 4096.0;
const LN_2_LOW: f32 = 3.194_618_3e-5;

/// Coefficients of e^r for |r| ≤ ln(2)/2 + 0.0006, lowest power first: minimax in relative error (Remez
/// exchange in 40 digits), but for e^0, which is exact. Computed in f32, it is off by up to 2.4e-7.
const POLYNOMIAL_F32: [f32; 6] = [
    1.0,
    0.999_999_7,
    0.499_988_88,
    0.166_675_8,
    0.041_916_24,
    0.008_297_532,
];

/// e^(x − (high + low)), in f32; 0 where the exponent is below `least`, which is at least −80, and
/// where x is −∞. `high` is a multiple of 1/1024 within ±320, `low` is within ±1/2048, and `exponent` is
/// x − high, rounded.
///
/// The exponent itself is rounded at its own size, which may be that of 12 where all of 150,000 entries
/// are equal. So r is computed without it: n ln 2 + `high` is exact, and so is the difference of x and
/// that.
#[inline(always)]
pub(super) fn exp_f32<S: Simd>(
    x: S::f32s,
    [high, low]: [S::f32s; 2],
    exponent: S::f32s,
    least: f32,
) -> S::f32s {
    use std::f32::consts::LOG2_E;
    let shifted = exponent.mul_add(LOG2_E, ROUND_F32);
    let n = shifted - ROUND_F32;
    let r = (x - n.mul_add(LN_2_HIGH, high)) - n.mul_add(LN_2_LOW, low);
    let mut sum: S::f32s = POLYNOMIAL_F32[POLYNOMIAL_F32.len() - 1].simd_into(x.token());
    for &c in POLYNOMIAL_F32[..POLYNOMIAL_F32.len() - 1].iter().rev() {
        sum = sum.mul_add(r, c);
    }
    let power = shifted.to_bits() << 23u32;
    let sum = S::f32s::from_bits(sum.to_bits() + power);
    let zero = 0.0.simd_into(x.token());
    exponent.simd_ge(least).select(sum, zero)
}

/// Bits in an f64's mantissa.
const MANTISSA: u32 = 52;

/// The bias of an f64's exponent.
const BIAS: u64 = 1023;

/// 2^52: putting a smaller integer into its mantissa adds that integer to it.
const TWO_POW_52: f64 = 4_503_599_627_370_496.0;

/// Terms of the series. The rest is below 2e-16 of the sum.
const TERMS: usize = 10;

/// ln x of each lane, for normal x > 0: exactly 0 at 1, and within 3e-16 relative near 1
/// (elsewhere: see the tests).
///
/// x = 2^n · m with √½ ≤ m < √2, and with s = (m − 1)/(m + 1), |s| < 0.172:
///
/// ```text
/// ln x = n ln 2 + 2 artanh s = n ln 2 + 2 s (1 + s²/3 + s⁴/5 + …)
/// ```
///
/// (Abramowitz & Stegun 4.1.27.)
#[inline(always)]
pub(super) fn ln<S: Simd>(x: S::f64s) -> S::f64s {
    let from_bits = S::f64s::from_bits;
    let bits = x.to_bits();
    // Biased, so that it is never negative: few instruction sets shift signed lanes of 64 bits.
    let n = (bits - (SQRT_2 / 2.0).to_bits() + (BIAS << MANTISSA)) >> MANTISSA;
    let m = from_bits(bits - (n << MANTISSA) + (BIAS << MANTISSA));
    let n = from_bits(n | TWO_POW_52.to_bits()) - (TWO_POW_52 + BIAS as f64);
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut series = square * 0.0;
    for term in (0..TERMS).rev() {
        series = series.mul_add(square, 1.0 / (2 * term + 1) as f64);
    }
    n.mul_add(LN_2, s * 2.0 * series)
}

#[cfg(test)]
mod tests {
    use fearless_simd::{Level, dispatch};

    use super::*;

    fn ln(x: [f64; 1]) -> [f64; 1] {
        #[inline(always)]
        fn first<S: Simd>(simd: S, x: f64) -> f64 {
            super::ln::<S>(x.simd_into(simd))[0]
        }
        dispatch!(Level::new(), simd => [first(simd, x[0])])
    }

    #[test]
    fn agrees_with_the_standard_library() {
        for i in -2000..2000 {
            let x = 1.037_f64.powi(i / 2) * (1.0 + f64::from(i) * 1e-5);
            let [got] = ln([x]);
            let want = x.ln();
            assert!(
                (got - want).abs() <= 4e-16 * want.abs(),
                "{x:e}: {got} {want}"
            );
        }
        for x in [f64::MIN_POSITIVE, 1e-300, 1e-10, 0.5, 2.0, 1e10, f64::MAX] {
            let [got] = ln([x]);
            assert!((got - x.ln()).abs() <= 4e-16 * x.ln().abs(), "{x:e}");
        }
    }

    #[test]
    fn is_exact_at_one_and_accurate_near_it() {
        assert_eq!(ln([1.0]), [0.0]);
        for tiny in [1e-15, 1e-9, 1e-4, 0.1] {
            for x in [1.0 + tiny, 1.0 - tiny] {
                let [got] = ln([x]);
                let want = (x - 1.0).ln_1p();
                assert!((got - want).abs() <= 3e-16 * want.abs(), "{x}");
            }
        }
    }
}
