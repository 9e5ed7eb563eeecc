//! Rows of logits that are as good as random, each from a number of 64 bits.

/// The row that stands for a hash of tokens: logits between -8 and 8.
pub(super) fn row(n_vocab: usize, hash: u64) -> Vec<f32> {
    let entry = |entry: usize| logit(mix(hash ^ entry as u64));
    (0..n_vocab).map(entry).collect()
}

/// Hashes a number: the hashes of close numbers have nothing in common.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^ (value >> 29)
}

/// A number between -8 and 8.
fn logit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u64 << 24) as f32 * 16.0 - 8.0
}
