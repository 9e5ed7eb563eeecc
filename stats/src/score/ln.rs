//! The natural logarithm of each lane of a vector.

use std::f64::consts::{LN_2, SQRT_2};

use fearless_simd::prelude::*;

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
