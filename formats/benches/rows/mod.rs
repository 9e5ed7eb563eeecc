//! Rows that look like logits: normally distributed, mean -1, deviation 3, the best few far above.

use kl_formats::Encoding;

pub const N_VOCAB: usize = 128_256;

/// `n` rows, one after the other.
pub fn logits(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..n * N_VOCAB)
        .map(|i| {
            // Sums of twelve uniform numbers are nearly normal.
            let normal = (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
            normal * 3.0 - 1.0 + if i % 10_000 == 7 { 15.0 } else { 0.0 }
        })
        .collect()
}

/// Whole rows in an encoding, in words, so that they can be viewed in place.
pub fn words_of(encoding: Encoding, rows: &[f32]) -> Vec<u32> {
    let row_bytes = encoding.layout().unwrap().row_bytes(N_VOCAB);
    let n_bytes = row_bytes * (rows.len() / N_VOCAB);
    let mut words = vec![0u32; n_bytes.div_ceil(4)];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    for (out, row) in bytes.chunks_mut(row_bytes).zip(rows.chunks(N_VOCAB)) {
        encoding.layout().unwrap().encode(row, out);
    }
    words
}
