//! A row of llama.cpp's base file: scale and smallest log-probability, then a code for each entry.

use super::Row;
use super::u16::{finite_range, numbers_and_codes, padded_bytes};

/// The largest distance of a logit below its row's largest; llama-perplexity raises lower ones to
/// this floor.
pub const FLOOR: f32 = 16.0;

/// Bytes before the codes: f32 scale, f32 min_log_prob.
const PREFIX_BYTES: usize = 8;

/// The largest code.
const MAX_CODE: f32 = u16::MAX as f32;

/// Bytes of a row of `n_vocab` entries, which are padded to an even count; `usize::MAX` where that
/// overflows.
pub fn row_bytes(n_vocab: usize) -> usize {
    padded_bytes(n_vocab).saturating_add(PREFIX_BYTES)
}

/// The row that `bytes` hold; `None` if they are not exactly one row of `n_vocab` entries, or not
/// aligned to their elements. Without a floor code 0 is a probability of 0, and code 1 the smallest
/// log-probability.
pub(crate) fn view(bytes: &[u8], n_vocab: usize, is_floored: bool) -> Option<Row<'_>> {
    if bytes.len() != row_bytes(n_vocab) {
        return None;
    }
    let ([step, min], codes) = numbers_and_codes(bytes, n_vocab)?;
    Some(Row::U16 {
        masked: (!is_floored).then_some(f32::NEG_INFINITY),
        min,
        step,
        codes,
    })
}

/// Writes raw logits as a row of a base file: to the bit what llama-perplexity writes for them, where
/// the C library's `expf` is the same and the compiler fuses no multiply-add.
///
/// Log-probabilities more than [`FLOOR`] below the largest are raised to that floor, so the decoded
/// row sums to a little more than 1. A row with a NaN or a positive infinity gets a
/// min_log_prob of NaN, so that a reader finds and excludes it; a negative infinity is raised
/// like any small logit.
///
/// Source: `log_softmax` with `uint16_t` output in llama.cpp's `tools/perplexity/perplexity.cpp`.
///
/// # Panics
/// If `row` is empty, or `out` not [`row_bytes`] of its length long.
pub fn encode_row(row: &[f32], out: &mut [u8]) {
    assert!(!row.is_empty(), "a row has entries");
    assert_eq!(
        out.len(),
        row_bytes(row.len()),
        "an encoded row is as long as its vocabulary makes it"
    );
    let (min, max) = finite_range(row).unwrap_or_else(|| range(row));
    // As `std::max(min, floor)`: a NaN stays.
    let floor = max - FLOOR;
    let min = if min < floor { floor } else { min };
    // Summed in order, in f64: another order may change the last bit.
    let sum: f64 = row.iter().map(|&x| f64::from((x - max).exp())).sum();
    let log_sum_exp = sum.ln() as f32;
    let min_log_prob = min - max - log_sum_exp;
    let scale = (max - min) / MAX_CODE;
    let (prefix, bytes) = out.split_at_mut(PREFIX_BYTES);
    let numbers = [one_nan(scale), one_nan(min_log_prob)];
    prefix.copy_from_slice(bytemuck::bytes_of(&numbers));
    // The padding stays 0.
    bytes.fill(0);
    if scale == 0.0 {
        return;
    }
    let inverse = 1.0 / scale;
    let (codes, _) = bytes.as_chunks_mut::<2>();
    for (code, &x) in codes.iter_mut().zip(row) {
        let nearest = nearest(inverse * (x - min));
        *code = if x > min { nearest } else { 0 }.to_le_bytes();
    }
}

/// Smallest and largest entry of a row that holds a NaN or an infinity, as `std::min` and
/// `std::max` find them: a NaN counts only as the first entry.
fn range(row: &[f32]) -> (f32, f32) {
    let first = row.first().copied().unwrap_or(f32::NAN);
    row.iter().fold((first, first), |(min, max), &x| {
        (if x < min { x } else { min }, if max < x { x } else { max })
    })
}

/// The nearest integer, ties to even, of a number up to 2^16: adding 1.5 * 2^23 leaves no
/// fraction bits, and the low bits of the sum are the integer's.
#[inline(always)]
fn nearest(x: f32) -> u16 {
    const TWO_POW_23_AND_HALF: f32 = 12_582_912.0;
    (x + TWO_POW_23_AND_HALF).to_bits() as u16
}

/// The number itself, but always the same NaN: a NaN's bits otherwise depend on the processor.
fn one_nan(x: f32) -> f32 {
    if x.is_nan() { f32::NAN } else { x }
}
