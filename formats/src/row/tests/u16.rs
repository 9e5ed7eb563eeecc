use proptest::prelude::*;

use super::*;
use crate::Random;
use crate::row::RowLayout;

/// The row's bytes, exact or not, in words, as [`view`] wants them.
fn stored(row: &[f32]) -> Vec<u32> {
    let mut bytes = vec![0x55; RowLayout::U16.row_bytes(row.len())];
    RowLayout::U16.encode(row, &mut bytes);
    if U16Form::of(&bytes) == Some(U16Form::Exact) {
        bytes.clear();
        append_exact(row, &mut bytes);
    }
    let mut words = vec![0; bytes.len() / 4];
    bytemuck::cast_slice_mut(&mut words).copy_from_slice(&bytes);
    words
}

/// The row as it is read back, and its form.
fn round_trip(row: &[f32]) -> (U16Form, Vec<f32>) {
    let words = stored(row);
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    let view = view(bytes, row.len()).unwrap();
    let mut out = vec![0.0; row.len()];
    view.decode_into(&mut out);
    for (i, x) in out.iter().enumerate() {
        assert_eq!(x.to_bits(), view.get(i).to_bits());
    }
    assert_eq!(view.first(1).len(), 1.min(row.len()));
    assert_eq!(view.is_finite(), out.iter().all(|x| x.is_finite()));
    (U16Form::of(bytes).unwrap(), out)
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// A softmax in f64.
fn softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().fold(f64::MIN, |max, &x| max.max(x.into()));
    let weights: Vec<f64> = row.iter().map(|&x| (f64::from(x) - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

fn kld(p: &[f64], q: &[f64]) -> f64 {
    let terms = p.iter().zip(q).filter(|(p, _)| **p > 0.0);
    terms.map(|(p, q)| p * (p / q).ln()).sum()
}

/// Normally distributed logits, mean -1, deviation 3, a few far above: splitmix64, twelve uniform
/// numbers each.
fn logits(n: usize) -> Vec<f32> {
    let mut random = Random(7);
    let mut uniform = || (random.bits() >> 40) as f32 / (1 << 24) as f32;
    let mut normal = || (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
    let mut row: Vec<f32> = (0..n).map(|_| normal() * 3.0 - 1.0).collect();
    row.iter_mut().step_by(1009).for_each(|x| *x += 12.0);
    row
}

#[test]
fn a_linear_row_spelled_out() {
    let row = [-1.0, 254.9961, 127.1];
    #[rustfmt::skip]
    let expected = [
        0, 0, 0, 0, // form: linear
        0, 0, 0, 0, // masked: none
        0x00, 0x00, 0x80, 0xbf, // min: -1
        0x00, 0x00, 0x80, 0x3b, // step: 1/256
        0x00, 0x00, // code 0
        0xff, 0xff, // code 65535
        0x1a, 0x80, // 128.1 * 256 is 32793.6, nearest to 32794
        0, 0, // padding
    ];
    assert_eq!(bytemuck::cast_slice::<u32, u8>(&stored(&row)), expected);
}

#[test]
fn a_masked_row_spelled_out() {
    let row = [-1.0, f32::NEG_INFINITY, 254.992_19, 127.1];
    #[rustfmt::skip]
    let expected = [
        1, 0, 0, 0, // form: masked
        0x00, 0x00, 0x80, 0xff, // masked: -inf
        0x00, 0x00, 0x80, 0xbf, // min: -1
        0x00, 0x00, 0x80, 0x3b, // step: 1/256
        0x01, 0x00, // code 1
        0x00, 0x00, // code 0: masked
        0xff, 0xff, // code 65535
        0x1b, 0x80, // 32794, and 1
    ];
    assert_eq!(bytemuck::cast_slice::<u32, u8>(&stored(&row)), expected);
}

#[test]
fn an_exact_row_spelled_out() {
    let row = [-1.0, f32::INFINITY];
    #[rustfmt::skip]
    let expected = [
        2, 0, 0, 0, // form: exact
        0x00, 0x00, 0x80, 0xbf, // -1
        0x00, 0x00, 0x80, 0x7f, // inf
    ];
    assert_eq!(bytemuck::cast_slice::<u32, u8>(&stored(&row)), expected);
}

#[test]
fn what_may_be_masked_leaves_a_range_that_codes_can_hold() {
    assert!(step_of::<1>(0.0, FAR_BELOW as f32).is_some());
    assert!(step_of::<0>(0.0, 321.0).is_some() && step_of::<0>(0.0, 321.2).is_none());
    assert!(step_of::<0>(f32::MIN, f32::MAX).is_none());
}

/// -1e4, -65504 and -FLT_MAX are what models mask with; all must keep their value and cost the
/// others nothing.
#[test]
fn masks_are_kept_exactly() {
    let plain = logits(20_011);
    for mask in [-1e4, -65504.0, -1e30, f32::MIN, f32::NEG_INFINITY] {
        for n_masked in [1, 64, 20_010] {
            let mut row = plain.clone();
            row[..n_masked].fill(mask);
            let (form, out) = round_trip(&row);
            assert_eq!(form, U16Form::Masked, "{mask} {n_masked}");
            assert_eq!(bits(&out[..n_masked]), bits(&row[..n_masked]));
            let error = kld(&softmax(&row), &softmax(&out));
            assert!(error < 2e-8, "{mask} {n_masked}: {error}");
        }
    }
}

#[test]
fn rows_that_codes_cannot_hold_are_exact() {
    let plain = logits(4001);
    let with = |changes: &[f32]| {
        let mut row = plain.clone();
        row[9..9 + changes.len()].copy_from_slice(changes);
        row
    };
    let wide: Vec<f32> = plain.iter().map(|x| x * 40.0).collect();
    for row in [
        with(&[f32::NAN]),
        with(&[-f32::NAN, f32::NEG_INFINITY]),
        with(&[f32::INFINITY]),
        with(&[-1e4, -1.1e4]),
        with(&[-1e4, f32::NEG_INFINITY]),
        wide,
        vec![f32::NEG_INFINITY; 3],
        vec![f32::NAN; 3],
    ] {
        let (form, out) = round_trip(&row);
        assert_eq!(form, U16Form::Exact);
        assert_eq!(bits(&out), bits(&row));
    }
}

/// The widest row that is linear costs no more than the limit, whichever way the rounding goes.
#[test]
fn the_rounding_of_the_widest_linear_rows_is_below_the_limit() {
    for scale in [0.5, 4.0, 8.0] {
        let mut row: Vec<f32> = logits(4001).iter().map(|x| x * scale).collect();
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        row[5] = max - 320.9;
        let (form, out) = round_trip(&row);
        assert_eq!(form, U16Form::Linear);
        let error = kld(&softmax(&row), &softmax(&out));
        // step²/24 is the mean over rows; where a few entries hold all the weight, up to step²/8.
        assert!(error < 3.0 * MAX_ERROR_NATS, "{scale}: {error}");
    }
}

#[test]
fn constant_and_tiny_rows_keep_their_values() {
    for row in [[7.5; 40], [f32::MAX; 40], [f32::MIN; 40], [-0.0; 40]] {
        assert_eq!(round_trip(&row), (U16Form::Linear, row.to_vec()));
    }
    assert_eq!(round_trip(&[0.0, 1e-42]).1.len(), 2);
    let (_, tiny) = round_trip(&[0.0, 1e-36, 2e-36]);
    assert!((tiny[1] - 1e-36).abs() < 2e-41, "{tiny:?}");
    let (form, tiny) = round_trip(&[0.0, -1e9, 1e-36, 2e-36]);
    assert_eq!((form, tiny[1]), (U16Form::Masked, -1e9));
    assert!((tiny[2] - 1e-36).abs() < 2e-41, "{tiny:?}");
    let one = [f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY];
    assert_eq!(round_trip(&one), (U16Form::Masked, one.to_vec()));
}

proptest! {
    #[test]
    fn an_entry_is_off_by_half_a_step(row in prop::collection::vec(-60f32..60.0, 1..200)) {
        let (min, max) = finite_range(&row).unwrap();
        let half = f64::from(max - min) / 65535.0 * 0.51;
        let (form, out) = round_trip(&row);
        prop_assert_eq!(form, U16Form::Linear);
        for (x, y) in row.iter().zip(out) {
            // Beside the code, the decoded sum is rounded to f32.
            let bound = half + f64::from(f32::EPSILON) * f64::from(x.abs().max(y.abs())) + 1e-12;
            prop_assert!(f64::from((x - y).abs()) <= bound, "{x} {y}");
        }
    }

    /// Whatever the row, nothing is invented: what is not a number or infinite stays so, and the
    /// divergence is small.
    #[test]
    fn any_row_is_close_to_itself(row in prop::collection::vec(prop_oneof![
        any::<f32>(), -20f32..20.0, Just(f32::NEG_INFINITY), Just(-1e4f32), Just(-400f32)
    ], 1..80)) {
        let (form, out) = round_trip(&row);
        if form == U16Form::Exact {
            prop_assert_eq!(bits(&out), bits(&row));
        } else {
            prop_assert!(row.iter().all(|x| *x < f32::INFINITY));
            for (x, y) in row.iter().zip(&out) {
                prop_assert_eq!(x.is_finite(), y.is_finite());
            }
            prop_assert!(kld(&softmax(&row), &softmax(&out)) < 3.0 * MAX_ERROR_NATS);
        }
    }

    #[test]
    fn view_never_panics(
        form in prop_oneof![0u32..4, any::<u32>()],
        words in prop::collection::vec(any::<u32>(), 0..16),
        n in 0usize..40,
    ) {
        let words = [vec![form], words].concat();
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        if let Some(row) = view(bytes, n) {
            prop_assert_eq!(row.len(), n);
            row.is_finite();
            row.decode_into(&mut vec![0.0; n]);
        }
    }
}
