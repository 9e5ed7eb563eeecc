//! The metrics against numpy and scipy, and, for rows of every kind and length, against the plain
//! definitions.

use std::f64::consts::LN_2;

use kl_formats::Row;
use proptest::prelude::*;

use super::*;
use crate::score::testing::decode;
use crate::score::tests::{Random, pairs};
use crate::score::{RowPair, logit_metrics};

/// Absolute below 1, and relative above: more than twice the errors that the module's documentation
/// states.
const TOLERANCE: f64 = 5e-12;

const NAMES: [&str; 5] = ["mean", "max", "cosine", "jensen_shannon", "smoothed_kld"];

#[track_caller]
fn assert_close(got: &LogitMetrics, want: &[f64; 5]) {
    for ((got, want), name) in got.numbers().into_iter().zip(want).zip(NAMES) {
        let error = (got - want).abs() / want.abs().max(1.0);
        assert!(
            error <= TOLERANCE,
            "{name}: {got:e}, not {want:e}: off by {error:e}"
        );
    }
}

/// The definitions, term by term.
fn definitions(l: &[f32], m: &[f32]) -> [f64; 5] {
    let wide = |row: &[f32]| row.iter().copied().map(f64::from).collect::<Vec<f64>>();
    let (l, m) = (wide(l), wide(m));
    let n = l.len() as f64;
    let softmax = |row: &[f64]| {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = row.iter().map(|x| (x - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|x| x / sum).collect::<Vec<f64>>()
    };
    let kl = |p: &[f64], q: &[f64]| -> f64 {
        // q is 0 where it is half of the smallest number above 0.
        let terms = p.iter().zip(q).filter(|(p, q)| **p > 0.0 && **q > 0.0);
        terms.map(|(p, q)| p * (p / q).ln()).sum()
    };
    let (p, q) = (softmax(&l), softmax(&m));
    let half: Vec<f64> = p.iter().zip(&q).map(|(p, q)| 0.5 * (p + q)).collect();
    let smooth = |p: &[f64]| -> Vec<f64> {
        let eps = 1e-10;
        p.iter().map(|p| (1.0 - n * eps) * p + eps).collect()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let differences = || l.iter().zip(&m).map(|(l, m)| (l - m).abs());
    let zero = |row: &[f64]| row.iter().all(|x| *x == 0.0);
    let cosine = match (zero(&l), zero(&m)) {
        (true, true) => 0.0,
        (false, false) => 1.0 - dot(&l, &m) / (dot(&l, &l).sqrt() * dot(&m, &m).sqrt()),
        _ => 1.0,
    };
    [
        differences().sum::<f64>() / n,
        differences().fold(0.0, f64::max),
        cosine,
        0.5 * kl(&p, &half) + 0.5 * kl(&q, &half),
        kl(&smooth(&p), &smooth(&q)),
    ]
}

/// Compares the metrics with the definitions, and checks the ranges, which hold for any rows.
#[track_caller]
fn check(reference: Row<'_>, eval: &[f32]) -> LogitMetrics {
    let decoded = decode(reference);
    let got = logit_metrics(&RowPair::new(reference, eval, None));
    assert!(got.is_finite());
    assert_close(&got, &definitions(&decoded, eval));
    assert!(got.numbers().into_iter().all(|x| x >= 0.0));
    assert!(got.max_abs_diff >= got.mean_abs_diff * (1.0 - 1e-15));
    assert!(got.cosine_distance <= 2.0 && got.jensen_shannon <= LN_2);
    let swapped = logit_metrics(&RowPair::new(Row::F32(eval), &decoded, None));
    let symmetric = got
        .numbers()
        .into_iter()
        .zip(swapped.numbers())
        .zip(NAMES)
        .take(4);
    for ((there, back), name) in symmetric {
        assert_eq!(there.to_bits(), back.to_bits(), "{name} is not symmetric");
    }
    got
}

/// Rows that numpy reproduces to the bit.
fn rows((n, step, base, noise, peak, elsewhere): Shape) -> (Vec<f32>, Vec<f32>) {
    let (step, base, noise, peak) = (step as f32, base as f32, noise as f32, peak as f32);
    let logit = |i| (i * 7919 % 1024) as f32 * step - base;
    let shift = |i| noise * ((i * 104_729 % 256) as f32 / 256.0 - 0.5);
    let mut reference: Vec<f32> = (0..n as u64).map(logit).collect();
    let mut eval: Vec<f32> = (0..n as u64).map(|i| logit(i) + shift(i)).collect();
    if peak != 0.0 {
        reference[n / 3] = peak;
        eval[if elsewhere { n - 1 } else { n / 3 }] = peak - 0.75;
    }
    (reference, eval)
}

/// Entries, step, base, noise, peak, whether the evaluated row's peak is elsewhere.
type Shape = (usize, f64, f64, f64, f64, bool);

#[test]
fn values_of_numpy_and_scipy() {
    for (shape, want) in PINNED {
        let (reference, eval) = rows(shape);
        assert_close(&check(Row::F32(&reference), &eval), &want);
    }
    let eval = rows((1003, 1.0 / 64.0, 8.0, 1.0, 0.0, false)).1;
    let codes: Vec<u16> = (0..1003)
        .map(|i| (i * 40_503_u64 % 65_536) as u16)
        .collect();
    let coded = Row::U16 {
        masked: None,
        min: -12.5,
        step: 4.5e-4,
        codes: &codes,
    };
    assert_close(&check(coded, &eval), &CODED);
}

/// Printed by `oracle.py`: mean and largest |l − m|, `scipy.spatial.distance.cosine`, the square of
/// `jensenshannon`, and `rel_entr` of the smoothed softmaxes.
#[rustfmt::skip]
mod pinned {
    use super::Shape;
    pub const PINNED: [(Shape, [f64; 5]); 13] = [
        ((1, 0.015625, 8.0, 1.0, 0.0, false), [0.5, 0.5, 0.0, 0.0, 0.0]),
        ((2, 0.015625, 8.0, 1.0, 0.0, false), [0.451171875, 0.5, 0.001992669715840112, 9.097528084544582e-09, 3.6996497167363995e-08]),
        ((7, 0.015625, 8.0, 1.0, 0.0, false), [0.23158482142857142, 0.5, 0.001577485690817837, 0.00036940140519396524, 0.0015450809782596832]),
        ((130, 0.015625, 8.0, 0.015625, 0.0, false), [0.003887939453125, 0.0078125, 4.698723320428755e-07, 2.219774808689376e-06, 8.87866655028581e-06]),
        ((1000, 0.015625, 8.0, 1.0, 0.0, false), [0.24990625, 0.5, 0.0019461445496875562, 0.010148311650770393, 0.041144359483302965]),
        ((1000, 0.015625, 8.0, 16.0, 0.0, false), [3.9985, 8.0, 0.29392922368440433, 0.4115618344950633, 5.275385881116774]),
        ((1025, 0.015625, 8.0, 6.103515625e-05, 0.0, false), [1.527367568597561e-05, 3.0517578125e-05, 7.276956814905589e-12, 3.820211583259094e-11, 1.5280821410865377e-10]),
        ((4113, 0.015625, 8.0, 0.125, 40.0, false), [0.031417746512582057, 0.75, 3.30582074995478e-05, 3.3053281385369633e-13, -4.6149738904946894e-17]),
        ((4113, 0.015625, 8.0, 0.125, 40.0, true), [0.049619964517991735, 40.12353515625, 0.016091444116951514, 0.6931471805567901, 23.025840968641003]),
        ((1000, 0.0, 0.5, 0.015625, 0.0, false), [0.00390478515625, 0.0078125, 4.067675429653139e-05, 2.5429014294552216e-06, 1.0171594786527325e-05]),
        ((1000, 2.0, 1024.0, 1.0, 0.0, false), [0.24990625, 0.5, 1.1907964025947848e-07, 0.004562715729226353, 0.017247474496726707]),
        ((999, 1e+27, 5e+29, 1e+27, 0.0, false), [2.5009791689792997e+26, 5.0000416320623804e+26, 4.7575875172789495e-07, 0.0, 0.0]),
        ((128257, 0.015625, 8.0, 0.25, 0.0, false), [0.06250048730283728, 0.125, 0.00012205174623514115, 0.0006403854752704547, 0.002563576113330802]),
    ];
    pub const CODED: [f64; 5] = [8.259849255486714, 24.451393127441406, 0.9968949039015141, 0.5868037945529082, 7.474936240409101];
}
use pinned::{CODED, PINNED};

#[test]
fn every_length_and_kind() {
    for (reference, eval) in pairs() {
        check(Row::F32(&reference), &eval);
    }
}

#[test]
fn equal_rows_are_exactly_zero() {
    let mut random = Random(2);
    for n in [1, 2, 7, 8, 9, 64, 130, 1024, 1031, 32_000] {
        for spread in [0.0, 1.0, 50.0, 1e4, 1e30] {
            let row = random.row(n, spread);
            let got = check(Row::F32(&row), &row);
            assert_eq!(got.numbers().map(f64::to_bits), [0; 5]);
        }
    }
}

#[test]
fn a_constant_changes_logits_but_no_probability() {
    let mut random = Random(3);
    let row: Vec<f32> = random
        .row(1000, 2.5)
        .iter()
        .map(|x| (x * 1024.0).round() / 1024.0)
        .collect();
    let shifted: Vec<f32> = row.iter().map(|x| x + 8.0).collect();
    let got = check(Row::F32(&row), &shifted);
    assert_eq!((got.mean_abs_diff, got.max_abs_diff), (8.0, 8.0));
    assert!(got.cosine_distance > 0.1);
    assert_eq!((got.jensen_shannon, got.smoothed_kld), (0.0, 0.0));
}

#[test]
fn rows_of_zeros_have_a_defined_cosine_distance() {
    for n in [1, 5, 8, 2000] {
        let zeros = vec![0.0; n];
        let minus_zeros = vec![-0.0; n];
        let ones = vec![1.0; n];
        assert_eq!(check(Row::F32(&zeros), &minus_zeros).cosine_distance, 0.0);
        assert_eq!(check(Row::F32(&zeros), &ones).cosine_distance, 1.0);
        assert_eq!(check(Row::F32(&ones), &zeros).cosine_distance, 1.0);
    }
}

#[test]
fn opposite_and_parallel_rows() {
    let row = Random(4).row(777, 3.0);
    let opposite: Vec<f32> = row.iter().map(|x| -x).collect();
    let got = check(Row::F32(&row), &opposite);
    assert!((got.cosine_distance - 2.0).abs() < 1e-14);
    let scaled: Vec<f32> = row.iter().map(|x| x * 2f32.powi(60)).collect();
    assert!(check(Row::F32(&row), &scaled).cosine_distance < 1e-30);
}

#[test]
fn close_rows_keep_their_digits() {
    // To second order in the noise, the KLD is half the variance of the difference under p, and the
    // Jensen-Shannon divergence an eighth.
    let reference = [0.0_f32, 1.0, 2.0];
    let shift = 2f32.powi(-22);
    let got = logit_metrics(&RowPair::new(
        Row::F32(&reference),
        &[0.0, 1.0, 2.0 + shift],
        None,
    ));
    let p = 2f64.exp() / (1.0 + 1f64.exp() + 2f64.exp());
    let variance = p * (1.0 - p) * f64::from(shift).powi(2);
    assert!((got.jensen_shannon / (variance / 8.0) - 1.0).abs() < 1e-6);
    let norm = 5f64.sqrt();
    // The part of the change that is perpendicular to the row.
    let sine = f64::from(shift) / norm * (1.0 / norm);
    assert!((got.cosine_distance / (sine * sine / 2.0) - 1.0).abs() < 1e-6);
}

#[test]
fn rows_that_are_not_finite_give_nan() {
    let mut random = Random(5);
    for n in [1, 8, 9, 1024, 1500] {
        for bad in [f32::NAN, f32::INFINITY] {
            for at in [0, n / 2, n - 1] {
                let row = random.row(n, 2.5);
                let mut broken = row.clone();
                broken[at] = bad;
                for (l, m) in [(&row, &broken), (&broken, &row), (&broken, &broken)] {
                    let got = logit_metrics(&RowPair::new(Row::F32(l), m, None));
                    assert!(got.numbers().into_iter().all(f64::is_nan) && !got.is_finite());
                }
            }
        }
    }
    let codes = [0, 65_535];
    let excluded = Row::U16 {
        masked: None,
        min: f32::NAN,
        step: f32::NAN,
        codes: &codes,
    };
    assert!(!logit_metrics(&RowPair::new(excluded, &[0.0, 1.0], None)).is_finite());
}

#[test]
fn what_both_rows_exclude_is_left_out_of_differences() {
    let mut random = Random(6);
    for n in [2, 9, 100, 1024, 3000] {
        let (mut reference, mut eval) = (random.row(n, 2.5), random.row(n, 2.5));
        for at in (0..n - 1).step_by(7) {
            reference[at] = f32::NEG_INFINITY;
            eval[at] = f32::NEG_INFINITY;
        }
        let got = logit_metrics(&RowPair::new(Row::F32(&reference), &eval, None));
        let kept =
            |row: &[f32]| -> Vec<f32> { row.iter().copied().filter(|x| x.is_finite()).collect() };
        let mut want = definitions(&kept(&reference), &kept(&eval));
        // Smoothing spreads its mass over all entries.
        want[4] = got.smoothed_kld;
        assert_close(&got, &want);
        let huge = |row: &[f32]| row.iter().map(|x| x.max(-1e30)).collect::<Vec<_>>();
        want[4] = definitions(&huge(&reference), &huge(&eval))[4];
        assert!((got.smoothed_kld - want[4]).abs() < TOLERANCE);
    }
}

#[test]
fn what_one_row_excludes_has_a_divergence_and_no_difference() {
    let mut random = Random(7);
    for n in [3, 9, 100, 1024, 3000] {
        let reference = random.row(n, 2.5);
        let mut eval = random.noisy(&reference, 0.1);
        eval[n / 2] = f32::NEG_INFINITY;
        let huge: Vec<f32> = eval.iter().map(|x| x.max(-1e30)).collect();
        let mut want = definitions(&reference, &huge);
        let but_one = |row: &[f32]| {
            let mut row = row.to_vec();
            row.remove(n / 2);
            row
        };
        let logits = definitions(&but_one(&reference), &but_one(&eval));
        want[..3].copy_from_slice(&logits[..3]);
        assert_close(
            &logit_metrics(&RowPair::new(Row::F32(&reference), &eval, None)),
            &want,
        );
    }
    let nothing = [f32::NEG_INFINITY; 20];
    for pair in [
        [&nothing, &[0.5; 20]],
        [&[0.5; 20], &nothing],
        [&nothing; 2],
    ] {
        let got = logit_metrics(&RowPair::new(Row::F32(pair[0]), pair[1], None));
        assert!(got.numbers().into_iter().all(f64::is_nan));
    }
}

#[test]
fn entries_at_a_floor_are_left_out() {
    let mut random = Random(8);
    for n in [9, 100, 1024, 3000] {
        let mut reference: Vec<f32> = random
            .row(n, 4.0)
            .iter()
            .map(|x| x.clamp(-8.0, 8.0))
            .collect();
        reference[0] = -8.0;
        let eval = random.noisy(&reference, 0.1);
        let pair = RowPair {
            ref_floor: Some(-8.0),
            ..RowPair::new(Row::F32(&reference), &eval, None)
        };
        let known = |row: &[f32]| -> Vec<f32> {
            let entries = row.iter().zip(&reference);
            entries
                .filter(|(_, l)| **l > -8.0)
                .map(|(x, _)| *x)
                .collect()
        };
        let got = logit_metrics(&pair);
        assert_close(&got, &definitions(&known(&reference), &known(&eval)));
    }
}

#[test]
fn the_limits_of_f32() {
    let extremes = [
        f32::MAX,
        -f32::MAX,
        0.0,
        f32::MIN_POSITIVE,
        -1e30,
        1e30,
        1e-45,
    ];
    for n in [7, 50, 2000] {
        let reference: Vec<f32> = extremes.into_iter().cycle().take(n).collect();
        let eval: Vec<f32> = reference.iter().map(|x| -x).collect();
        check(Row::F32(&reference), &eval);
        check(Row::F32(&vec![f32::MAX; n]), &vec![-f32::MAX; n]);
        check(Row::F32(&vec![1e-45; n]), &vec![2e-45; n]);
        check(Row::F32(&vec![1e-45; n]), &vec![f32::MAX; n]);
    }
}

proptest! {
    #[test]
    fn any_rows(
        rows in prop::collection::vec((-40.0f32..40.0, -40.0f32..40.0), 1..300),
        scale in prop::sample::select(vec![1e-3f32, 0.1, 1.0, 8.0, 1e3, 1e30]),
    ) {
        let (reference, eval): (Vec<f32>, Vec<f32>) =
            rows.iter().map(|(l, m)| (l * scale, m * scale)).unzip();
        check(Row::F32(&reference), &eval);
    }

    #[test]
    fn any_codes(
        codes in prop::collection::vec((any::<u16>(), -20.0f32..20.0), 1..300),
        min in -30.0f32..0.0,
        step in 0.0f32..1e-3,
    ) {
        let (codes, eval): (Vec<u16>, Vec<f32>) = codes.into_iter().unzip();
        check(Row::U16 { masked: None, min, step, codes: &codes }, &eval);
    }
}
