//! beellama.cpp's `_logits2` files, spelled out: this crate does not write them.

use super::*;
use crate::{Kind, Reference, Values};

/// ln 2 in f32: probabilities are powers of it.
const LN_2: f32 = std::f32::consts::LN_2;

/// Two windows of 4 tokens, each with the row of position 2, and 5 entries.
fn file() -> Vec<u8> {
    let mut bytes = b"_logits2".to_vec();
    let counts = [4u32, 5, 2]; // n_ctx, n_vocab, n_chunk
    let tokens = [0u32, 4, 2, 3, 1, 1, 0, 2];
    bytes.extend(counts.map(u32::to_le_bytes).concat());
    bytes.extend(tokens.map(u32::to_le_bytes).concat());
    bytes.extend(row(LN_2, -3.0 * LN_2, [3, 0, 1, 2, 1]));
    // A row without a finite logit.
    bytes.extend(row(0.0, f32::NEG_INFINITY, [0; 5]));
    bytes
}

/// A row of 5 codes, padded.
fn row(scale: f32, min: f32, codes: [u16; 5]) -> Vec<u8> {
    let mut bytes = [scale, min].map(f32::to_le_bytes).concat();
    bytes.extend(codes.map(u16::to_le_bytes).concat());
    bytes.extend([0, 0]);
    bytes
}

/// The file with another first row.
fn with_row(row: &[u8]) -> Vec<u8> {
    let mut bytes = file();
    let start = 20 + 8 * 4;
    bytes[start..start + row.len()].copy_from_slice(row);
    bytes
}

fn verify(path: &Path) -> Result<()> {
    let reader = LlamaCppReader::open(path)?;
    (0..reader.header.n_windows as usize).try_for_each(|i| reader.verify_window(i))
}

#[test]
fn code_0_is_a_probability_of_0_and_there_is_no_floor() {
    let scratch = Scratch::new();
    let path = scratch.file(&file());
    verify(path).unwrap();
    let reader = LlamaCppReader::open(path).unwrap();
    assert!(!reader.header.is_floored);
    assert_eq!(reader.window(1).unwrap().tokens, [1, 1, 0, 2]);
    let block = reader.block(0, 0, None).unwrap();
    let mut out = [0.0; 5];
    block.row(0).decode_into(&mut out);
    // min + scale * (code - 1), the product rounded before the sum.
    let eighth = -3.0 * LN_2;
    let expected = [
        eighth + LN_2 * 2.0,
        f32::NEG_INFINITY,
        eighth,
        eighth + LN_2,
        eighth,
    ];
    assert_eq!(out.map(f32::to_bits), expected.map(f32::to_bits));
    let block = reader.block(1, 0, None).unwrap();
    assert!((0..5).all(|i| block.row(0).get(i) == f32::NEG_INFINITY));
    let about = Reference::open(path).unwrap().about().clone();
    assert_eq!(about.values, Values::LogProbabilities);
    assert!(about.hides_bos);
    assert_eq!((about.kind, about.n_rows), (Kind::LlamaCpp, Some(2)));
}

#[test]
fn rows_that_do_not_sum_to_1_are_found_by_verify() {
    let scratch = Scratch::new();
    verify(scratch.file(&with_row(&row(LN_2, -3.0 * LN_2, [3, 3, 3, 2, 1])))).unwrap_err();
    verify(scratch.file(&with_row(&[0; 20]))).unwrap_err();
    // Half a step of a row that spans 1e4 moves a probability by 8 %.
    let codes = [65535, 1, 65531, 1, 0];
    verify(scratch.file(&with_row(&row(1e4 / 65534.0, -1e4 + 0.1, codes)))).unwrap_err();
    verify(scratch.file(&with_row(&row(1e4 / 65534.0, -1e4 - 0.5, codes)))).unwrap();
}
