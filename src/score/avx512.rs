//! AVX-512F: 16 lanes of f32, 8 of f64.

use std::arch::x86_64::*;

use super::exp::{POLYNOMIAL, ROUND, UNDERFLOW};
use super::fixed_point::{FIXED_POINT, FRACTION_MASK, QUARTIC, SIXTEENTHS, SIXTEENTHS_SHIFT};
use super::pair::RowPair;
use super::passes;
use super::token_score::TokenScore;
use super::vector::Simd;

/// Scores two rows of the same length, at least 1; masked codes come decoded.
///
/// # Safety
///
/// The processor must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn score(pair: &RowPair<'_>) -> TokenScore {
    passes::score::<Avx512>(pair)
}

/// Used only inside [`score`], whose caller guarantees AVX-512F.
enum Avx512 {}

/// Calls intrinsics.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: all code of `Avx512` runs inside `score`, so the processor has AVX-512F; the code
        // that uses this macro checks the bounds of what is loaded and stored.
        unsafe { $e }
    };
}

const HALF: usize = Avx512::LANES / 2;

impl Simd for Avx512 {
    const LANES: usize = 16;
    type F = __m512;
    type D = __m512d;
    type Count = __m512i;

    #[inline(always)]
    fn splat_f(x: f32) -> Self::F {
        simd!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load_f(x: &[f32]) -> Self::F {
        simd!(_mm512_loadu_ps(x[..Self::LANES].as_ptr()))
    }

    #[inline(always)]
    fn load_codes(codes: &[u16]) -> Self::F {
        let codes = codes[..Self::LANES].as_ptr().cast();
        simd!(_mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(
            _mm256_loadu_si256(codes)
        )))
    }

    #[inline(always)]
    fn mul_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn add_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn max_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min_f(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn any_above(a: Self::F, b: Self::F) -> bool {
        simd!(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)) != 0
    }

    #[inline(always)]
    fn store_f(a: Self::F, out: &mut [f32; 16]) {
        simd!(_mm512_storeu_ps(out.as_mut_ptr(), a))
    }

    #[inline(always)]
    fn count_zero() -> Self::Count {
        simd!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn count_above(count: Self::Count, a: Self::F, b: Self::F) -> Self::Count {
        simd!(_mm512_mask_add_epi32(
            count,
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b),
            count,
            _mm512_set1_epi32(1)
        ))
    }

    #[inline(always)]
    fn count_sum(count: Self::Count) -> u32 {
        simd!(_mm512_reduce_add_epi32(count)) as u32
    }

    #[inline(always)]
    fn widen(a: Self::F) -> [Self::D; 2] {
        simd!([
            _mm512_cvtps_pd(_mm512_castps512_ps256(a)),
            _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(
                _mm512_castps_pd(a)
            ))),
        ])
    }

    #[inline(always)]
    fn splat(x: f64) -> Self::D {
        simd!(_mm512_set1_pd(x))
    }

    #[inline(always)]
    fn load(x: &[f64]) -> Self::D {
        simd!(_mm512_loadu_pd(x[..HALF].as_ptr()))
    }

    #[inline(always)]
    fn store(a: Self::D, out: &mut [f64; 8]) {
        simd!(_mm512_storeu_pd(out.as_mut_ptr(), a))
    }

    #[inline(always)]
    fn add(a: Self::D, b: Self::D) -> Self::D {
        simd!(_mm512_add_pd(a, b))
    }

    #[inline(always)]
    fn sub(a: Self::D, b: Self::D) -> Self::D {
        simd!(_mm512_sub_pd(a, b))
    }

    #[inline(always)]
    fn mul_add(a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        simd!(_mm512_fmadd_pd(a, b, c))
    }

    #[inline(always)]
    fn exp(x: [Self::D; 4]) -> [Self::D; 4] {
        let log2_e = Self::splat(std::f64::consts::LOG2_E);
        let round = Self::splat(ROUND);
        let (mut n, mut r) = (x, x);
        for i in 0..4 {
            n[i] = Self::sub(Self::mul_add(x[i], log2_e, round), round);
            r[i] = simd!(_mm512_fmsub_pd(x[i], log2_e, n[i]));
        }
        let mut sum = [Self::splat(POLYNOMIAL[POLYNOMIAL.len() - 1]); 4];
        for &c in POLYNOMIAL[..POLYNOMIAL.len() - 1].iter().rev() {
            for i in 0..4 {
                sum[i] = Self::mul_add(sum[i], r[i], Self::splat(c));
            }
        }
        let underflow = Self::splat(UNDERFLOW);
        for i in 0..4 {
            sum[i] = simd!({
                let normal = _mm512_cmp_pd_mask::<_CMP_GE_OQ>(x[i], underflow);
                _mm512_maskz_scalef_pd(normal, sum[i], n[i])
            });
        }
        sum
    }

    #[inline(always)]
    fn exp_ordinary(x: [Self::D; 4]) -> [Self::D; 4] {
        let log2_e = Self::splat(std::f64::consts::LOG2_E);
        let fixed_point = Self::splat(FIXED_POINT);
        let fraction = simd!(_mm512_set1_epi64(FRACTION_MASK as i64));
        let low = Self::load(&SIXTEENTHS[..HALF]);
        let high = Self::load(&SIXTEENTHS[HALF..]);
        let (mut fixed, mut r, mut product) = (x, x, x);
        for i in 0..4 {
            fixed[i] = Self::mul_add(x[i], log2_e, fixed_point);
        }
        for i in 0..4 {
            simd!({
                let bits = _mm512_castpd_si512(fixed[i]);
                let sixteenths = _mm512_srli_epi64::<SIXTEENTHS_SHIFT>(bits);
                // The permutation uses only the lowest four bits of its index.
                let power = _mm512_castpd_si512(_mm512_permutex2var_pd(low, sixteenths, high));
                let power = _mm512_add_epi64(power, _mm512_slli_epi64::<48>(sixteenths));
                product[i] = _mm512_castsi512_pd(power);
                // fraction ? bits : fixed_point
                let upper = _mm512_castpd_si512(fixed_point);
                let bits = _mm512_ternarylogic_epi64::<0xca>(fraction, bits, upper);
                r[i] = _mm512_castsi512_pd(bits);
            });
        }
        for (root, rest) in QUARTIC {
            let (root, rest) = (Self::splat(root), Self::splat(rest));
            let mut square = r;
            for i in 0..4 {
                square[i] = Self::add(r[i], root);
            }
            for x in &mut square {
                *x = Self::mul_add(*x, *x, rest);
            }
            for i in 0..4 {
                product[i] = simd!(_mm512_mul_pd(product[i], square[i]));
            }
        }
        product
    }
}
