//! Rows of logits, read a vector at a time.

use fearless_simd::prelude::*;
use kl_formats::Row;

/// A row of logits.
pub(super) trait Source: Copy {
    /// The entries from `at` on that fill a vector.
    fn vector<S: Simd>(&self, simd: S, at: usize) -> S::f32s;
    /// One entry.
    fn get(&self, at: usize) -> f32;
}

impl Source for &[f32] {
    #[inline(always)]
    fn vector<S: Simd>(&self, simd: S, at: usize) -> S::f32s {
        S::f32s::from_slice(simd, &self[at..at + S::f32s::LEN])
    }

    #[inline(always)]
    fn get(&self, at: usize) -> f32 {
        self[at]
    }
}

/// A row in 16-bit codes.
#[derive(Clone, Copy)]
pub(super) struct Codes<'a> {
    pub min: f32,
    pub step: f32,
    pub codes: &'a [u16],
}

impl Source for Codes<'_> {
    #[inline(always)]
    fn vector<S: Simd>(&self, simd: S, at: usize) -> S::f32s {
        let codes = &self.codes[at..at + S::f32s::LEN];
        let codes = S::f32s::from_fn(
            simd,
            #[inline(always)]
            |i| f32::from(codes[i]),
        );
        // Two roundings, as the format specifies: a fused multiply-add would give other logits.
        codes * self.step + self.min
    }

    #[inline(always)]
    fn get(&self, at: usize) -> f32 {
        let Self { min, step, codes } = *self;
        Row::U16 { min, step, codes }.get(at)
    }
}
