//! The meaning of a row's codes.

use super::*;
use crate::row::llama_cpp::view;

/// The row as it is read back.
pub(super) fn decoded(row: &[f32]) -> Vec<f32> {
    let bytes = encoded(row);
    // Aligned as `view` wants them, through storage of words.
    let mut words = vec![0u32; bytes.len() / 4];
    bytemuck::cast_slice_mut(&mut words).copy_from_slice(&bytes);
    let view = view(bytemuck::cast_slice(&words), row.len(), true).unwrap();
    let mut out = vec![0.0; row.len()];
    view.decode_into(&mut out);
    out
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().fold(f64::MIN, |max, &x| max.max(x.into()));
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    row.iter().map(|&x| f64::from(x) - max - sum.ln()).collect()
}

#[test]
fn rows_are_padded_and_sizes_do_not_overflow() {
    for (n_vocab, bytes) in [(1, 12), (2, 12), (3, 16), (128_256, 256_520)] {
        assert_eq!(row_bytes(n_vocab), bytes);
    }
    assert_eq!(row_bytes(usize::MAX), usize::MAX);
    assert!(view(&[0; 12], 3, true).is_none());
}

#[test]
fn rows_that_are_not_finite_are_marked() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        for index in [0, 1, 40] {
            let mut row = [1.0; 41];
            row[index] = bad;
            let bytes = encoded(&row);
            assert_eq!(bytes[4..8], f32::NAN.to_le_bytes(), "{bad} at {index}");
            assert!(decoded(&row).iter().all(|x| x.is_nan()));
        }
    }
    assert!(decoded(&[f32::NEG_INFINITY; 3])[0].is_nan());
}

#[test]
fn real_rows_encode_to_themselves() {
    // Log-probabilities are logits too: encoded again, each code is the same or a neighbour.
    let reader = LlamaCppReader::open(&fixture("llama-perplexity-f16-c128.kld")).unwrap();
    let block = reader.block(1, 0, None).unwrap();
    let mut row = vec![0.0; 1024];
    for view in block.rows() {
        view.decode_into(&mut row);
        let again = decoded(&row);
        let far = row.iter().zip(&again).map(|(x, y)| (x - y).abs());
        // A step, and the entries raised.
        assert!(far.fold(0.0, f32::max) < 16.0 / 65535.0 + 2e-4);
    }
}

proptest! {
    #[test]
    fn an_entry_is_off_by_half_a_step(row in prop::collection::vec(-12f32..12.0, 1..200)) {
        let out = decoded(&row);
        let (min, max) = (row.iter().copied().fold(f32::MAX, f32::min), row.iter().copied().fold(f32::MIN, f32::max));
        let half_step = f64::from((max - min).min(16.0)) / 65535.0 * 0.51;
        for ((x, y), expected) in row.iter().zip(out).zip(log_softmax(&row)) {
            // Beside the code, a few sums are rounded to f32.
            let bound = half_step + 1e-5;
            if *x > max - 16.0 {
                prop_assert!((f64::from(y) - expected).abs() <= bound, "{x} {y} {expected}");
            } else {
                prop_assert!(f64::from(y) >= expected - bound, "{x} {y} {expected}");
            }
        }
    }

    #[test]
    fn anything_decodes_to_finite_or_nan(row in prop::collection::vec(any::<f32>(), 1..80)) {
        let out = decoded(&row);
        let finite = out.iter().all(|x| x.is_finite());
        prop_assert!(finite || out.iter().all(|x| x.is_nan()));
        let countable = row.iter().all(|x| x.is_finite() || *x == f32::NEG_INFINITY);
        prop_assert!(!finite || countable);
    }
}
