//! AArch64: 4 lanes of f32, 2 of f64.

use std::arch::aarch64::*;

use super::exp::{POLYNOMIAL, ROUND, UNDERFLOW};
use super::pair::RowPair;
use super::passes;
use super::token_score::TokenScore;
use super::vector::Simd;

/// Scores two rows of the same length, at least 1; masked codes come decoded.
///
/// # Safety
///
/// The processor must have NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn score(pair: &RowPair<'_>) -> TokenScore {
    passes::score::<Neon>(pair)
}

/// Used only inside [`score`], whose caller guarantees NEON.
enum Neon {}

/// Calls intrinsics.
macro_rules! simd {
    ($e:expr) => {{
        // SAFETY: all code of `Neon` runs inside `score`, so the processor has NEON; the code that
        // uses this macro checks the bounds of what is loaded and stored.
        #[allow(unused_unsafe)]
        unsafe {
            $e
        }
    }};
}

const HALF: usize = Neon::LANES / 2;

impl Simd for Neon {
    const LANES: usize = 4;
    type F = float32x4_t;
    type D = float64x2_t;
    type Count = uint32x4_t;

    #[inline(always)]
    fn splat_f(x: f32) -> Self::F {
        simd!(vdupq_n_f32(x))
    }

    #[inline(always)]
    fn load_f(x: &[f32]) -> Self::F {
        simd!(vld1q_f32(x[..Self::LANES].as_ptr()))
    }

    #[inline(always)]
    fn load_codes(codes: &[u16]) -> Self::F {
        let codes = codes[..Self::LANES].as_ptr();
        simd!(vcvtq_f32_u32(vmovl_u16(vld1_u16(codes))))
    }

    #[inline(always)]
    fn mul_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn add_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn max_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(vmaxq_f32(a, b))
    }

    #[inline(always)]
    fn min_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(vminq_f32(a, b))
    }

    #[inline(always)]
    fn any_above(a: Self::F, b: Self::F) -> bool {
        simd!(vmaxvq_u32(vcgtq_f32(a, b))) != 0
    }

    #[inline(always)]
    fn store_f(a: Self::F, out: &mut [f32; 16]) {
        simd!(vst1q_f32(out[..Self::LANES].as_mut_ptr(), a))
    }

    #[inline(always)]
    fn count_zero() -> Self::Count {
        simd!(vdupq_n_u32(0))
    }

    #[inline(always)]
    fn count_above(count: Self::Count, a: Self::F, b: Self::F) -> Self::Count {
        // A true lane is −1.
        simd!(vsubq_u32(count, vcgtq_f32(a, b)))
    }

    #[inline(always)]
    fn count_sum(count: Self::Count) -> u32 {
        simd!(vaddvq_u32(count))
    }

    #[inline(always)]
    fn widen(a: Self::F) -> [Self::D; 2] {
        simd!([vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a)])
    }

    #[inline(always)]
    fn splat(x: f64) -> Self::D {
        simd!(vdupq_n_f64(x))
    }

    #[inline(always)]
    fn load(x: &[f64]) -> Self::D {
        simd!(vld1q_f64(x[..HALF].as_ptr()))
    }

    #[inline(always)]
    fn store(a: Self::D, out: &mut [f64; 8]) {
        simd!(vst1q_f64(out[..HALF].as_mut_ptr(), a))
    }

    #[inline(always)]
    fn add(a: Self::D, b: Self::D) -> Self::D {
        simd!(vaddq_f64(a, b))
    }

    #[inline(always)]
    fn sub(a: Self::D, b: Self::D) -> Self::D {
        simd!(vsubq_f64(a, b))
    }

    #[inline(always)]
    fn mul_add(a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        simd!(vfmaq_f64(c, a, b))
    }

    #[inline(always)]
    fn exp(x: [Self::D; 4]) -> [Self::D; 4] {
        let underflow = Self::splat(UNDERFLOW);
        let mut clamped = x;
        for i in 0..4 {
            clamped[i] = simd!(vmaxq_f64(x[i], underflow));
        }
        let mut exp = Self::exp_ordinary(clamped);
        for i in 0..4 {
            exp[i] = simd!({
                let underflows = vcltq_f64(x[i], underflow);
                vreinterpretq_f64_u64(vbicq_u64(vreinterpretq_u64_f64(exp[i]), underflows))
            });
        }
        exp
    }

    #[inline(always)]
    fn exp_ordinary(x: [Self::D; 4]) -> [Self::D; 4] {
        let log2_e = Self::splat(std::f64::consts::LOG2_E);
        let magic = Self::splat(ROUND);
        let (mut shifted, mut r) = (x, x);
        for i in 0..4 {
            shifted[i] = Self::mul_add(x[i], log2_e, magic);
            let minus_n = Self::sub(magic, shifted[i]);
            r[i] = Self::mul_add(x[i], log2_e, minus_n);
        }
        let mut sum = [Self::splat(POLYNOMIAL[POLYNOMIAL.len() - 1]); 4];
        for &c in POLYNOMIAL[..POLYNOMIAL.len() - 1].iter().rev() {
            for i in 0..4 {
                sum[i] = Self::mul_add(sum[i], r[i], Self::splat(c));
            }
        }
        for i in 0..4 {
            sum[i] = simd!({
                let exponent = vshlq_n_u64::<52>(vreinterpretq_u64_f64(shifted[i]));
                vreinterpretq_f64_u64(vaddq_u64(vreinterpretq_u64_f64(sum[i]), exponent))
            });
        }
        sum
    }
}
