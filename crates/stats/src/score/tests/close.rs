//! Rows so alike that their divergence is far below the rounding errors of its parts.

use super::*;

/// Largest relative error.
const RELATIVE_IF_CLOSE: f64 = 1e-6;

/// Entries; step and base of the logits; noise of the evaluated row and what is added to all of it;
/// the logit of a top token, if not 0; whether an entry is masked in both rows.
type Shape = (usize, f64, f64, f64, f64, f64, bool);

/// Rows that numpy reproduces to the bit.
fn rows((n, step, base, noise, offset, peak, masked): Shape) -> (Vec<f32>, Vec<f32>) {
    let [step, base, noise, offset, peak] = [step, base, noise, offset, peak].map(|x| x as f32);
    let logit = |i| (i * 7919 % 1024) as f32 * step - base;
    let shift = |i| noise * ((i * 104_729 % 256) as f32 / 256.0 - 0.5);
    let mut reference: Vec<f32> = (0..n as u64).map(logit).collect();
    if peak != 0.0 {
        reference[n / 3] = peak;
    }
    let shifted = reference
        .iter()
        .zip(0u64..)
        .map(|(l, i)| (l + shift(i)) + offset);
    let mut eval: Vec<f32> = shifted.collect();
    if masked {
        reference[5] = f32::NEG_INFINITY;
        eval[5] = f32::NEG_INFINITY;
    }
    (reference, eval)
}

fn assert_relative(what: &str, got: f64, want: f64) {
    let error = (got / want - 1.0).abs();
    assert!(
        error <= RELATIVE_IF_CLOSE,
        "{what}: {got:e}, not {want:e}: off by {error:e}"
    );
}

/// Values of mpmath with 40 digits: KL(p‖q) and KL(q‖p) of the f32 rows.
#[test]
fn values_of_mpmath() {
    #[rustfmt::skip]
    let pinned: [(Shape, [f64; 2]); 17] = [
        ((1000, 0.015625, 8.0, 0.000244140625, 0.0, 0.0, false), [2.46811708252108e-9, 2.46811824426005e-9]),
        ((1000, 0.015625, 8.0, 6.103515625e-05, 0.0, 0.0, false), [1.5424531115365e-10, 1.54245329441058e-10]),
        ((1000, 0.015625, 8.0, 1.52587890625e-05, 0.0, 0.0, false), [9.67779116966653e-12, 9.67779143852877e-12]),
        ((1000, 0.015625, 8.0, 3.814697265625e-06, 0.0, 0.0, false), [6.25772135534878e-13, 6.25772147414734e-13]),
        ((1000, 0.015625, 8.0, 1.9073486328125e-06, 0.0, 0.0, false), [1.70321580710478e-13, 1.70321580829792e-13]),
        ((1000, 0.015625, 8.0, 9.5367431640625e-07, 0.0, 0.0, false), [5.59196740875507e-14, 5.59196743420402e-14]),
        ((1000, 0.015625, 8.0, 4.76837158203125e-07, 0.0, 0.0, false), [2.57563612221958e-16, 2.57563610838393e-16]),
        ((1000, 0.015625, 8.0, 0.000244140625, 8.0, 0.0, false), [2.46811708252108e-9, 2.46811824426005e-9]),
        ((1000, 0.015625, 8.0, 6.103515625e-05, -64.0, 0.0, true), [1.56468673177873e-10, 1.56468687436211e-10]),
        ((1003, 0.015625, 8.0, 3.814697265625e-06, 0.0, 0.0, true), [6.26639687766096e-13, 6.2663969888556e-13]),
        ((50, 0.015625, 8.0, 3.814697265625e-06, 0.0, 0.0, false), [4.28741060166799e-13, 4.28741036378201e-13]),
        ((4113, 0.015625, 8.0, 1.0, 0.0, 40.0, false), [3.08481149909954e-13, 2.48672845675239e-13]),
        ((4113, 0.015625, 8.0, 4.0, 0.0, 38.0, false), [2.24584270056202e-11, 1.03803971175342e-11]),
        ((1000, 2.0, 1024.0, 0.001953125, 0.0, 0.0, false), [5.68199082851801e-8, 5.68348729985115e-8]),
        ((1000, 2.0, 1024.0, 0.001953125, 4096.0, 0.0, true), [5.12728010284053e-8, 5.12858173109279e-8]),
        ((128257, 0.015625, 8.0, 1.52587890625e-05, 0.0, 0.0, false), [9.59444498147334e-12, 9.59444507662177e-12]),
        ((128257, 0.015625, 8.0, 9.5367431640625e-07, 0.0, 0.0, false), [5.54053710024767e-14, 5.54053711854455e-14]),
    ];
    for (shape, want) in pinned {
        let (reference, eval) = rows(shape);
        let pair = RowPair::new(Row::F32(&reference), &eval, None);
        check_pair(pair);
        for (kernel, score) in kernels() {
            let got = score(&pair);
            assert_relative(kernel, got.kld, want[0]);
            assert_relative(kernel, got.reverse_kld, want[1]);
        }
    }
}

#[test]
fn a_constant_is_no_difference() {
    let reference = Random(40).row(1000, 2.5);
    let reference: Vec<f32> = reference
        .iter()
        .map(|x| (x * 1024.0).round() / 1024.0)
        .collect();
    for constant in [8.0, -400.0, 2000.0] {
        let eval: Vec<f32> = reference.iter().map(|x| x + constant).collect();
        let score = check(Row::F32(&reference), &eval, None);
        assert!(score.kld < 1e-15 && score.reverse_kld < 1e-15, "{score:?}");
    }
}

/// The divergence changes by no more than its error where the second computation begins.
#[test]
fn both_computations_meet() {
    let mut random = Random(41);
    let reference = random.row(5000, 2.5);
    let noise = random.row(5000, 1.0);
    let kld = |scale: f32| {
        let eval: Vec<f32> = reference
            .iter()
            .zip(&noise)
            .map(|(x, d)| x + scale * d)
            .collect();
        check(Row::F32(&reference), &eval, None).kld
    };
    // To first order it grows with the square of the noise.
    for scale in [2e-4f32, 4e-4, 5e-4, 6e-4] {
        let (smaller, larger) = (kld(scale), kld(2.0 * scale));
        assert!(
            (larger / smaller / 4.0 - 1.0).abs() < 0.01,
            "{smaller:e} {larger:e}"
        );
    }
}
