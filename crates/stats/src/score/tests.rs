//! The kernel of each of this processor's instruction sets against the oracle.

mod floored;
mod masked;

use fearless_simd::{Level, Simd};
use kl_formats::{Row, TokenRecord};
use proptest::prelude::*;

use super::passes::{self, ORDINARY, SimdRows};
use super::{RowPair, score, testing, with_logits};

/// Tolerances: twice the errors that the module's table states.
const RELATIVE: f64 = 1e-11;
const ABSOLUTE: f64 = 1e-11;

/// The acceptance, whose exponentials are computed in f32.
const ACCEPTANCE: f64 = 5e-7;

pub(super) struct Random(pub u64);

impl Random {
    /// In [0, 1).
    pub fn uniform(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }

    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    pub fn row(&mut self, n: usize, spread: f32) -> Vec<f32> {
        (0..n).map(|_| spread * self.normal()).collect()
    }

    pub fn noisy(&mut self, row: &[f32], noise: f32) -> Vec<f32> {
        row.iter().map(|x| x + noise * self.normal()).collect()
    }
}

/// The passes compiled for an instruction set, and its name.
type Kernel = (&'static str, Box<dyn Fn(&RowPair<'_>) -> TokenRecord>);

/// The kernel that is used, and those that processors with fewer instructions use.
fn kernels() -> Vec<Kernel> {
    fn of<S: Simd>(simd: S, pair: &RowPair<'_>) -> TokenRecord {
        with_logits(pair, |logits| {
            simd.vectorize(
                #[inline(always)]
                || passes::score(SimdRows::new(simd, logits, pair)),
            )
        })
    }
    let mut kernels: Vec<Kernel> = vec![("best", Box::new(score))];
    #[cfg(target_arch = "x86_64")]
    {
        let level = Level::new();
        if let Some(simd) = level.as_avx2() {
            kernels.push(("avx2", Box::new(move |pair| of(simd, pair))));
        }
        if let Some(simd) = level.as_sse2() {
            kernels.push(("sse2", Box::new(move |pair| of(simd, pair))));
        }
    }
    kernels
}

fn lengths() -> impl Iterator<Item = usize> {
    (1..=70).chain([127, 1000, 1024, 2049, 4113])
}

fn close(what: &str, got: f64, want: f64, relative: f64) {
    let bar = (relative * want.abs()).max(ABSOLUTE);
    assert!(
        (got - want).abs() <= bar || got == want || (got.is_nan() && want.is_nan()),
        "{what}: {got:e}, but the oracle has {want:e}: off by {:e}",
        got - want
    );
}

#[track_caller]
fn check(reference: Row<'_>, eval: &[f32], next: Option<u32>) -> TokenRecord {
    check_pair(RowPair::new(reference, eval, next))
}

#[track_caller]
fn check_pair(pair: RowPair<'_>) -> TokenRecord {
    let want = testing::score(&pair);
    let mut last = None;
    for (kernel, score) in kernels() {
        let got = score(&pair);
        close("kld", got.kld, want.kld, RELATIVE);
        close("reverse", got.reverse_kld, want.reverse_kld, RELATIVE);
        close("entropy", got.ref_entropy, want.ref_entropy, RELATIVE);
        close("ref nll", got.ref_nll, want.ref_nll, RELATIVE);
        close("eval nll", got.eval_nll, want.eval_nll, RELATIVE);
        close("ref top's p", got.ref_top_p, want.ref_top_p, RELATIVE);
        close("eval top's p", got.eval_top_p, want.eval_top_p, RELATIVE);
        let error = (got.acceptance - want.acceptance).abs();
        let both_unknown = got.acceptance.is_nan() && want.acceptance.is_nan();
        assert!(
            error <= ACCEPTANCE || both_unknown,
            "{kernel}: acceptance {}, not {}",
            got.acceptance,
            want.acceptance
        );
        close("unknown", got.ref_unknown_p, want.ref_unknown_p, RELATIVE);
        assert!(!(got.ref_top_p > 1.0 || got.eval_top_p > 1.0), "{kernel}");
        assert!(!(got.acceptance < 0.0 || got.acceptance > 1.0), "{kernel}");
        assert!(!(got.kld < 0.0 || got.reverse_kld < 0.0), "{kernel}");
        let whole = |s: &TokenRecord| {
            (
                (s.ref_top, s.eval_top, s.ref_top_rank, s.eval_top_rank),
                finite(s),
            )
        };
        assert_eq!(whole(&got), whole(&want), "{kernel}");
        let again = score(&pair);
        assert_eq!(bits(&got), bits(&again), "{kernel} differs between runs");
        assert_eq!(top_p(&got), top_p(&again), "{kernel} differs between runs");
        last = Some(got);
    }
    last.unwrap()
}

fn bits(score: &TokenRecord) -> [u64; 5] {
    let s = score;
    [s.kld, s.reverse_kld, s.ref_entropy, s.ref_nll, s.eval_nll].map(f64::to_bits)
}

/// Returns for the reference's and the evaluated model's row whether it has a softmax.
fn finite(score: &TokenRecord) -> (bool, bool) {
    let lacks = |flag| score.flags & flag == 0;
    (
        lacks(TokenRecord::REF_NOT_FINITE),
        lacks(TokenRecord::EVAL_NOT_FINITE),
    )
}

/// Bits of the top tokens' probabilities.
fn top_p(score: &TokenRecord) -> [u64; 2] {
    [score.ref_top_p, score.eval_top_p].map(f64::to_bits)
}

/// The row that these codes hold.
pub(super) fn coded(&(min, step, ref codes): &(f32, f32, Vec<u16>)) -> Row<'_> {
    Row::U16 {
        masked: None,
        min,
        step,
        codes,
    }
}

/// Pairs of every length up to 130 and some longer ones: alike, apart, flat, peaked, of huge range.
pub(super) fn pairs() -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut random = Random(1);
    let mut pairs = Vec::new();
    for n in (1..=130).chain([1000, 1023, 1024, 1025, 2049, 4113, 32_000]) {
        for (spread, noise) in [
            (2.5, 0.1),
            (2.5, 1e-4),
            (0.1, 0.01),
            (0.0, 1e-3),
            (10.0, 3.0),
            (100.0, 100.0),
            (1e4, 10.0),
            (1e30, 1e28),
        ] {
            let reference = random.row(n, spread);
            let eval = random.noisy(&reference, noise);
            pairs.push((reference, eval));
        }
        for peak in [20.0, 60.0, 1e4] {
            let mut reference = random.row(n, 1.0);
            let mut eval = random.noisy(&reference, 0.2);
            reference[n / 3] = peak;
            eval[n / 3] = peak - 0.7;
            pairs.push((reference.clone(), eval.clone()));
            // Two models that are sure of different tokens.
            eval.swap(n / 3, n - 1);
            pairs.push((reference, eval));
        }
    }
    pairs
}

fn encode(row: &[f32]) -> (f32, f32, Vec<u16>) {
    let min = row.iter().copied().fold(f32::INFINITY, f32::min);
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = (max - min) / 65535.0;
    let code = |x: &f32| ((x - min) / step).round() as u16;
    (min, step, row.iter().map(code).collect())
}

#[test]
fn rows_of_every_length_and_kind() {
    for (reference, eval) in pairs() {
        check(Row::F32(&reference), &eval, Some((eval.len() / 2) as u32));
        let encoded = encode(&reference);
        let coded = coded(&encoded);
        check(coded, &eval, None);
    }
}

#[test]
fn a_wide_vocabulary() {
    let mut random = Random(2);
    let n = 128_256 + 3;
    for (spread, noise) in [(2.5, 0.15), (2.5, 1e-4), (0.0, 1e-3), (4.0, 2.0)] {
        let reference = random.row(n, spread);
        let eval = random.noisy(&reference, noise);
        check(Row::F32(&reference), &eval, Some(n as u32 - 1));
        let encoded = encode(&eval);
        check(coded(&encoded), &eval, Some(0));
    }
}

#[test]
fn equal_rows_are_exactly_zero() {
    let mut random = Random(4);
    for n in lengths().chain([128_259]) {
        for spread in [0.0, 2.5, 50.0, 1e4, 1e30] {
            let row = random.row(n, spread);
            let encoded = encode(&row);
            let coded = coded(&encoded);
            let decoded = testing::decode(coded);
            for (reference, eval) in [(Row::F32(&row), &row), (coded, &decoded)] {
                let score = check(reference, eval, Some(0));
                assert_eq!(score.kld.to_bits(), 0);
                assert_eq!(score.reverse_kld.to_bits(), 0);
                assert_eq!((score.ref_top_rank, score.eval_top_rank), (1, 1));
            }
        }
    }
}

#[test]
fn rows_that_differ_in_one_entry() {
    let mut random = Random(5);
    for n in [70, 1000, 128_259] {
        let reference = random.row(n, 2.5);
        for change in [1e-4, 1e-3, 1e-2, 0.5] {
            for at in [0, n / 2, n - 1] {
                let mut eval = reference.clone();
                eval[at] += change;
                check(Row::F32(&reference), &eval, Some(at as u32));
            }
        }
    }
}

#[test]
fn a_single_entry() {
    for (l, m) in [(0.0, 0.0), (1.5, -2.5), (-80_000.0, 1e30), (-0.0, 3e38)] {
        let score = check(Row::F32(&[l]), &[m], Some(0));
        assert_eq!(bits(&score), [0; 5]);
        assert_eq!((score.ref_top_p, score.eval_top_p), (1.0, 1.0));
        assert_eq!((score.ref_top_rank, score.eval_top_rank), (1, 1));
    }
}

#[test]
fn huge_ranges() {
    let mut random = Random(6);
    for n in [2, 15, 16, 17, 100, 1025] {
        for scale in [90.0, 299.0, 301.0, 400.0, 1e4, 8e4, 1e10, 1e30, 3e37] {
            let reference = random.row(n, scale / 6.0);
            let mut eval = random.noisy(&reference, 1e-3 * scale);
            check(Row::F32(&reference), &eval, Some(0));
            eval[n / 2] = -scale;
            check(Row::F32(&reference), &eval, Some(n as u32 / 2));
            eval[n / 2] = scale;
            check(Row::F32(&reference), &eval, Some(0));
            check(Row::F32(&eval), &reference, Some(0));
        }
    }
    let extremes = [f32::MAX, -f32::MAX, 0.0, f32::MIN_POSITIVE, -1e30, 1e30];
    for n in [6, 96, 99] {
        let reference: Vec<f32> = extremes.into_iter().cycle().take(n).collect();
        let eval: Vec<f32> = reference.iter().map(|x| -x).collect();
        check(Row::F32(&reference), &eval, Some(1));
        check(Row::F32(&vec![-f32::MAX; n]), &eval, Some(1));
        check(Row::F32(&vec![-f32::MAX; n]), &vec![f32::MAX; n], Some(1));
    }
}

#[test]
fn the_limits_of_ordinary_rows() {
    let mut random = Random(7);
    for limit in [ORDINARY.next_down(), ORDINARY, ORDINARY.next_up()] {
        for n in [64, 70, 1000] {
            for at in [0, n / 2, n - 1] {
                for sign in [1.0, -1.0] {
                    let reference = random.row(n, 60.0);
                    let reference: Vec<f32> =
                        reference.iter().map(|x| x.clamp(-limit, limit)).collect();
                    let mut eval = random.noisy(&reference, 0.1);
                    eval[at] = sign * limit;
                    check(Row::F32(&reference), &eval, Some(at as u32));
                    check(Row::F32(&eval), &reference, Some(at as u32));
                    let flat = vec![sign * limit; n];
                    check(Row::F32(&flat), &flat, Some(0));
                }
            }
        }
    }
}

#[test]
fn masked_entries() {
    // Some models mark impossible tokens by a huge negative logit.
    let mut random = Random(8);
    for mask in [-1e4, -8e4, -1e9, -1e30] {
        let mut reference = random.row(1000, 2.5);
        let mut eval = random.noisy(&reference, 0.1);
        for at in (0..1000).step_by(7) {
            reference[at] = mask;
            eval[at] = mask;
        }
        let score = check(Row::F32(&reference), &eval, Some(7));
        assert!(score.kld < 1.0);
        // An entry masked in one row only counts with its full weight in the other.
        eval[7] = 1.0;
        check(Row::F32(&reference), &eval, Some(7));
    }
}

#[test]
fn ties_rank_by_index() {
    let mut random = Random(9);
    for n in [3, 16, 33, 64, 100, 1024, 1100, 2500] {
        for levels in [1, 2, 3, 5] {
            let mut level = || -> Vec<f32> {
                (0..n)
                    .map(|_| (random.uniform() * levels as f32).floor())
                    .collect()
            };
            let (reference, eval) = (level(), level());
            check(Row::F32(&reference), &eval, None);
        }
    }
    // Zeros of either sign are equal.
    let score = check(Row::F32(&[-0.0, 0.0, -1.0]), &[-1.0, 0.0, -0.0], None);
    assert_eq!((score.ref_top, score.eval_top), (0, 1));
    assert_eq!((score.ref_top_rank, score.eval_top_rank), (3, 2));
}

#[test]
fn rows_that_are_not_finite_give_nan() {
    let mut random = Random(10);
    for n in [1, 2, 16, 40, 64, 65, 100, 1024, 1500, 3000] {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in [0, n / 2, n - 1] {
                for (in_ref, in_eval) in [(true, false), (false, true), (true, true)] {
                    let mut reference = random.row(n, 2.5);
                    let mut eval = random.noisy(&reference, 0.1);
                    if in_ref {
                        reference[at] = bad;
                    }
                    if in_eval {
                        eval[at] = bad;
                    }
                    let score = check(Row::F32(&reference), &eval, Some(0));
                    assert_eq!(finite(&score), (!in_ref, !in_eval));
                    assert!(bits(&score).into_iter().all(|x| f64::from_bits(x).is_nan()));
                    assert!(score.ref_top_p.is_nan() && score.eval_top_p.is_nan());
                    assert_eq!((score.ref_top, score.eval_top), (0, 0));
                    assert_eq!((score.ref_top_rank, score.eval_top_rank), (0, 0));
                }
            }
        }
    }
}

#[test]
fn coded_rows() {
    let mut random = Random(11);
    let codes: Vec<u16> = (0..1003)
        .map(|_| (random.uniform() * 65536.0) as u16)
        .collect();
    let eval = random.row(1003, 3.0);
    for (min, step) in [
        (-12.5, 4.5e-4),
        (3.0, 0.0),
        (-8e4, 1.5),
        (-300.0, 600.0 / 65535.0),
        (0.0, 1e-40),
        (-3e38, 9e33),
    ] {
        for n in [1, 17, 64, 1003] {
            let codes = &codes[..n];
            check(
                Row::U16 {
                    masked: None,
                    min,
                    step,
                    codes,
                },
                &eval[..n],
                Some(0),
            );
        }
    }
    // Excluded rows, and rows whose decoded logits overflow f32.
    for (min, step) in [(f32::NAN, f32::NAN), (f32::INFINITY, 0.0), (3e38, 1e35)] {
        let codes = &codes[..];
        let score = check(
            Row::U16 {
                masked: None,
                min,
                step,
                codes,
            },
            &eval,
            Some(0),
        );
        assert_eq!(finite(&score), (false, true));
    }
}

/// Values computed by numpy 2 and scipy: `log_softmax` of float64 copies of the float32 rows,
/// `entr` and `rel_entr`; the last two floats are `exp(log_softmax(row).max())`.
#[test]
fn values_of_scipy() {
    let logit = |i: u32, step: f32, base: f32| ((i * 7919) % 1024) as f32 * step - base;
    let shift = |i: u32| ((i * 104_729) % 256) as f32 / 256.0 - 0.5;
    #[rustfmt::skip]
    let pinned = [
        (1000, 1.0 / 64.0, 8.0, 3, [0.041_144_368_013_053_99, 0.040_546_429_736_612_57, 5.139_076_124_127_063, 16.921_412_125_423_98, 17.161_294_522_807_616, 0.015_673_449_302_547_83, 0.020_171_551_217_530_29], [994, 829, 29, 12]),
        (7, 1.0 / 64.0, 8.0, 6, [0.001_545_080_996_881_846, 0.001_419_350_177_942_944, 0.239_772_704_635_572_8, 8.585_221_287_540_286, 8.381_403_938_443_63, 0.947_459_309_998_526_7, 0.955_551_671_835_103_8], [4, 4, 1, 1]),
        (1000, 2.0, 1024.0, 3, [0.017_247_476_323_740_36, 0.019_521_410_133_556_47, 0.458_448_743_368_190_36, 1_634.145_413_457_869, 1_634.005_108_718_577, 0.864_664_716_763_387_4, 0.796_311_396_043_650_4], [994, 994, 1, 1]),
    ];
    for (n, step, base, next, floats, ranks) in pinned {
        let reference: Vec<f32> = (0..n).map(|i| logit(i, step, base)).collect();
        let eval: Vec<f32> = (0..n).map(|i| reference[i as usize] + shift(i)).collect();
        for (kernel, score) in kernels() {
            let s = score(&RowPair::new(Row::F32(&reference), &eval, Some(next)));
            #[rustfmt::skip]
            let got = [s.kld, s.reverse_kld, s.ref_entropy, s.ref_nll, s.eval_nll, s.ref_top_p, s.eval_top_p];
            for (got, want) in got.into_iter().zip(floats) {
                close(kernel, got, want, RELATIVE);
            }
            let got = [s.ref_top, s.eval_top, s.ref_top_rank, s.eval_top_rank];
            assert_eq!(got, ranks, "{kernel}");
        }
    }
}

#[test]
#[should_panic(expected = "different length")]
fn rows_of_different_length_panic() {
    score(&RowPair::new(Row::F32(&[0.0, 1.0]), &[0.0], None));
}

#[test]
#[should_panic(expected = "not in a row")]
fn a_next_token_outside_the_row_panics() {
    score(&RowPair::new(Row::F32(&[0.0]), &[0.0], Some(1)));
}

proptest! {
    #[test]
    fn any_rows(
        rows in prop::collection::vec((-40.0f32..40.0, -40.0f32..40.0), 1..300),
        scale in prop::sample::select(vec![1e-3f32, 0.1, 1.0, 8.0, 1e3]),
        next in any::<prop::sample::Index>(),
    ) {
        let (reference, eval): (Vec<f32>, Vec<f32>) =
            rows.iter().map(|(l, m)| (l * scale, m * scale)).unzip();
        check(Row::F32(&reference), &eval, Some(next.index(rows.len()) as u32));
    }

    #[test]
    fn any_bits(rows in prop::collection::vec((any::<u32>(), any::<u32>()), 1..200)) {
        let (reference, eval): (Vec<f32>, Vec<f32>) = rows
            .iter()
            .map(|(l, m)| (f32::from_bits(*l), f32::from_bits(*m)))
            .unzip();
        check(Row::F32(&reference), &eval, Some(0));
    }

    #[test]
    fn any_codes(
        codes in prop::collection::vec((any::<u16>(), -20.0f32..20.0), 1..300),
        min in -30.0f32..0.0,
        step in 0.0f32..1e-3,
    ) {
        let (codes, eval): (Vec<u16>, Vec<f32>) = codes.into_iter().unzip();
        check(Row::U16 { masked: None, min, step, codes: &codes }, &eval, Some(0));
    }
}
