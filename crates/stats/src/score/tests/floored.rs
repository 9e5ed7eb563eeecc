//! Rows with a floor, as llama.cpp's base files hold: only known entries count.

use super::*;
use crate::score::floor;

/// ln p of a row, raised to 16 below the largest.
fn floored(row: &[f32]) -> Vec<f32> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
    let ln_sum = sum.ln() as f32;
    let raised = row.iter().map(|x| x.max(max - 16.0) - max - ln_sum);
    raised.collect()
}

/// Rows whose largest logit is far above most: entries at the floor are known to weigh little.
fn peaked(random: &mut Random, n: usize) -> (Vec<f32>, Vec<f32>) {
    let mut reference = random.row(n, 2.5);
    reference[n / 3] = 20.0;
    let eval = random.noisy(&reference, 0.2);
    (reference, eval)
}

fn with_floors<'a>(reference: Row<'a>, eval: &'a [f32], floors: [bool; 2]) -> RowPair<'a> {
    RowPair {
        ref_floor: floor(reference).filter(|_| floors[0]),
        eval_floor: floor(Row::F32(eval)).filter(|_| floors[1]),
        ..RowPair::new(reference, eval, Some(1))
    }
}

#[test]
fn only_known_entries_count() {
    let mut random = Random(30);
    for n in lengths().filter(|n| *n > 3) {
        let (row, eval) = peaked(&mut random, n);
        let reference = floored(&row);
        let encoded = encode(&reference);
        let coded = coded(&encoded);
        for reference in [Row::F32(&reference), coded] {
            let pair = with_floors(reference, &eval, [true, false]);
            let score = check_pair(pair);
            assert!(pair.ref_floor.is_some() || n < 20);
            assert!(pair.ref_floor.is_none() || score.ref_unknown_p > 0.0);
            let floored_eval = floored(&eval);
            check_pair(with_floors(reference, &floored_eval, [true, true]));
            let pair = with_floors(Row::F32(&row), &floored_eval, [false, true]);
            assert_eq!(check_pair(pair).ref_unknown_p, 0.0);
        }
    }
}

#[test]
fn a_model_against_its_own_floored_row() {
    let mut random = Random(31);
    let n = 128_259;
    let (row, _) = peaked(&mut random, n);
    let reference = floored(&row);
    let encoded = encode(&reference);
    let pair = with_floors(coded(&encoded), &row, [true, false]);
    let score = check_pair(pair);
    assert!(score.kld < 1e-7, "{:e}", score.kld);
    assert!(score.ref_unknown_p > 1e-2);
    // As a distribution over all entries, the floor weighs in.
    let score = check_pair(with_floors(pair.reference, &row, [false, false]));
    assert!(score.kld > 1e-3, "{:e}", score.kld);
}

#[test]
fn the_next_tokens_likelihood_is_the_stored_one() {
    let reference = [-0.2, -3.0, -16.2, -16.2, -16.199];
    let eval = [2.0, 1.0, 0.5, -3.0, -10.0];
    for (next, nll) in [(0, 0.2f32), (1, 3.0), (4, 16.199)] {
        let pair = RowPair {
            next: Some(next),
            ..with_floors(Row::F32(&reference), &eval, [true, false])
        };
        let score = check_pair(pair);
        assert_eq!(score.ref_nll, f64::from(nll));
        let pair = with_floors(Row::F32(&eval), &reference, [false, true]);
        let pair = RowPair {
            next: Some(next),
            ..pair
        };
        assert_eq!(check_pair(pair).eval_nll, f64::from(nll));
    }
    let pair = RowPair {
        next: Some(3),
        ..with_floors(Row::F32(&reference), &eval, [true, false])
    };
    let score = check_pair(pair);
    assert!(score.ref_nll.is_nan() && score.eval_nll.is_finite());
    assert_eq!(score.ref_unknown_p, 2.0 * f64::from(-16.2f32).exp());
}

#[test]
fn equal_floored_rows_are_exactly_zero() {
    let mut random = Random(32);
    for n in [40, 64, 1000, 1031] {
        let row = floored(&peaked(&mut random, n).0);
        let score = check_pair(with_floors(Row::F32(&row), &row, [true, true]));
        assert_eq!((score.kld.to_bits(), score.reverse_kld.to_bits()), (0, 0));
    }
}

#[test]
fn masks_and_ranges_beside_a_floor() {
    let mut random = Random(33);
    for n in [40, 70, 1024, 2049] {
        let (row, eval) = peaked(&mut random, n);
        let reference = floored(&row);
        for (change, at) in [
            (f32::NEG_INFINITY, n / 3),
            (f32::NEG_INFINITY, 1),
            (-1e30, 1),
            (-1e4, n - 1),
            (1e30, 0),
            (f32::NAN, n - 1),
            (f32::INFINITY, n / 2),
        ] {
            let mut eval = eval.clone();
            eval[at] = change;
            check_pair(with_floors(Row::F32(&reference), &eval, [true, false]));
            check_pair(with_floors(Row::F32(&eval), &reference, [false, true]));
        }
    }
}

#[test]
fn rows_that_know_no_common_entry_are_infinitely_far() {
    for n in [5, 80] {
        let mut rows = [vec![-16.5; n], vec![-16.5; n]];
        rows[0][1] = -0.1;
        rows[1][2] = -0.1;
        let pair = with_floors(Row::F32(&rows[0]), &rows[1], [true, true]);
        let score = check_pair(pair);
        assert_eq!(score.kld, f64::INFINITY);
        assert_eq!(score.reverse_kld, f64::INFINITY);
        assert_eq!(score.ref_entropy, 0.0);
    }
}

proptest! {
    #[test]
    fn any_floored_rows(
        rows in prop::collection::vec((-25.0f32..0.0, -25.0f32..0.0, 0u8..9), 2..300),
        floors in any::<[bool; 2]>(),
        masked in any::<bool>(),
    ) {
        let mut reference: Vec<f32> = rows.iter().map(|row| row.0).collect();
        let mut eval: Vec<f32> = rows.iter().map(|row| row.1).collect();
        for (row, is_floored) in [&mut reference, &mut eval].into_iter().zip(floors) {
            if is_floored {
                row[0] = -0.5;
                row.iter_mut().for_each(|x| *x = x.max(-16.5));
            }
        }
        if masked && !floors[1] {
            for (m, row) in eval.iter_mut().zip(&rows).skip(1) {
                if row.2 == 0 {
                    *m = f32::NEG_INFINITY;
                }
            }
        }
        check_pair(with_floors(Row::F32(&reference), &eval, floors));
    }
}
