//! AVX2 with FMA: 8 lanes of f32, 4 of f64.

use std::arch::x86_64::*;

use super::exp::{POLYNOMIAL, ROUND, UNDERFLOW};
use super::pair::RowPair;
use super::passes;
use super::token_score::TokenScore;
use super::vector::Simd;

/// Scores two rows of the same length, at least 1; masked codes come decoded.
///
/// # Safety
///
/// The processor must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn score(pair: &RowPair<'_>) -> TokenScore {
    passes::score::<Avx2>(pair)
}

/// Used only inside [`score`], whose caller guarantees AVX2 and FMA.
enum Avx2 {}

/// Calls intrinsics.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: all code of `Avx2` runs inside `score`, so the processor has AVX2 and FMA; the
        // code that uses this macro checks the bounds of what is loaded and stored.
        unsafe { $e }
    };
}

const HALF: usize = Avx2::LANES / 2;

impl Simd for Avx2 {
    const LANES: usize = 8;
    type F = __m256;
    type D = __m256d;
    type Count = __m256i;

    #[inline(always)]
    fn splat_f(x: f32) -> Self::F {
        simd!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load_f(x: &[f32]) -> Self::F {
        simd!(_mm256_loadu_ps(x[..Self::LANES].as_ptr()))
    }

    #[inline(always)]
    fn load_codes(codes: &[u16]) -> Self::F {
        let codes = codes[..Self::LANES].as_ptr().cast();
        simd!(_mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(_mm_loadu_si128(
            codes
        ))))
    }

    #[inline(always)]
    fn mul_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn add_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn max_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn any_above(a: Self::F, b: Self::F) -> bool {
        simd!(_mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b))) != 0
    }

    #[inline(always)]
    fn store_f(a: Self::F, out: &mut [f32; 16]) {
        simd!(_mm256_storeu_ps(out[..Self::LANES].as_mut_ptr(), a))
    }

    #[inline(always)]
    fn count_zero() -> Self::Count {
        simd!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn count_above(count: Self::Count, a: Self::F, b: Self::F) -> Self::Count {
        // A true lane is −1.
        simd!(_mm256_sub_epi32(
            count,
            _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b))
        ))
    }

    #[inline(always)]
    fn count_sum(count: Self::Count) -> u32 {
        let mut lanes = [0u32; Self::LANES];
        simd!(_mm256_storeu_si256(lanes.as_mut_ptr().cast(), count));
        lanes.iter().sum()
    }

    #[inline(always)]
    fn widen(a: Self::F) -> [Self::D; 2] {
        simd!([
            _mm256_cvtps_pd(_mm256_castps256_ps128(a)),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(a)),
        ])
    }

    #[inline(always)]
    fn splat(x: f64) -> Self::D {
        simd!(_mm256_set1_pd(x))
    }

    #[inline(always)]
    fn load(x: &[f64]) -> Self::D {
        simd!(_mm256_loadu_pd(x[..HALF].as_ptr()))
    }

    #[inline(always)]
    fn store(a: Self::D, out: &mut [f64; 8]) {
        simd!(_mm256_storeu_pd(out[..HALF].as_mut_ptr(), a))
    }

    #[inline(always)]
    fn add(a: Self::D, b: Self::D) -> Self::D {
        simd!(_mm256_add_pd(a, b))
    }

    #[inline(always)]
    fn sub(a: Self::D, b: Self::D) -> Self::D {
        simd!(_mm256_sub_pd(a, b))
    }

    #[inline(always)]
    fn mul_add(a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        simd!(_mm256_fmadd_pd(a, b, c))
    }

    #[inline(always)]
    fn exp(x: [Self::D; 4]) -> [Self::D; 4] {
        let underflow = Self::splat(UNDERFLOW);
        let mut clamped = x;
        for i in 0..4 {
            clamped[i] = simd!(_mm256_max_pd(x[i], underflow));
        }
        let mut exp = Self::exp_ordinary(clamped);
        for i in 0..4 {
            exp[i] = simd!({
                let underflows = _mm256_cmp_pd::<_CMP_LT_OQ>(x[i], underflow);
                _mm256_andnot_pd(underflows, exp[i])
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
            let n = Self::sub(shifted[i], magic);
            r[i] = simd!(_mm256_fmsub_pd(x[i], log2_e, n));
        }
        let mut sum = [Self::splat(POLYNOMIAL[POLYNOMIAL.len() - 1]); 4];
        for &c in POLYNOMIAL[..POLYNOMIAL.len() - 1].iter().rev() {
            for i in 0..4 {
                sum[i] = Self::mul_add(sum[i], r[i], Self::splat(c));
            }
        }
        for i in 0..4 {
            sum[i] = simd!({
                let exponent = _mm256_slli_epi64::<52>(_mm256_castpd_si256(shifted[i]));
                _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(sum[i]), exponent))
            });
        }
        sum
    }
}
