//! The operations that the passes need from an instruction set, and from a row.

use kl_formats::Row;

/// The vectors of one instruction set: `Self::F` holds [`Simd::LANES`] f32, `Self::D` half as many
/// f64.
pub(super) trait Simd {
    /// Lanes of `F`: even, at most 16, a power of 2.
    const LANES: usize;
    type F: Copy;
    type D: Copy;
    /// One count for each lane of `F`.
    type Count: Copy;

    fn splat_f(x: f32) -> Self::F;
    /// Loads `LANES` entries; `x` has at least as many.
    fn load_f(x: &[f32]) -> Self::F;
    /// Loads `LANES` codes as numbers; `codes` has at least as many.
    fn load_codes(codes: &[u16]) -> Self::F;
    fn mul_f(a: Self::F, b: Self::F) -> Self::F;
    fn add_f(a: Self::F, b: Self::F) -> Self::F;
    /// The larger of each lane; NaN if `b` is, anything if only `a` is.
    fn max_f(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller of each lane; anything if one is NaN.
    fn min_f(a: Self::F, b: Self::F) -> Self::F;
    fn store_f(a: Self::F, out: &mut [f32; 16]);
    /// Returns true if `a > b` in any lane.
    fn any_above(a: Self::F, b: Self::F) -> bool;
    fn count_zero() -> Self::Count;
    /// Adds 1 to the lanes in which `a > b`.
    fn count_above(count: Self::Count, a: Self::F, b: Self::F) -> Self::Count;
    fn count_sum(count: Self::Count) -> u32;

    /// Both halves, low lanes first.
    fn widen(a: Self::F) -> [Self::D; 2];
    fn splat(x: f64) -> Self::D;
    /// Loads `LANES / 2` numbers; `x` has at least as many.
    fn load(x: &[f64]) -> Self::D;
    fn store(a: Self::D, out: &mut [f64; 8]);
    fn add(a: Self::D, b: Self::D) -> Self::D;
    fn sub(a: Self::D, b: Self::D) -> Self::D;
    /// a·b + c
    fn mul_add(a: Self::D, b: Self::D, c: Self::D) -> Self::D;
    /// e^x for finite x up to [`ORDINARY`](super::passes::ORDINARY): exactly 1 at 0, exactly 0 on underflow. Four at a time, so that a
    /// kernel can interleave them: one alone is a chain of dependent instructions.
    fn exp(x: [Self::D; 4]) -> [Self::D; 4];
    /// e^x for |x| ≤ [`ORDINARY`](super::passes::ORDINARY); any bits for other x.
    fn exp_ordinary(x: [Self::D; 4]) -> [Self::D; 4];
}

/// A row of logits, read one vector at a time from entry `at` on.
pub(super) trait Source<S: Simd>: Copy {
    fn vector(&self, at: usize) -> S::F;
    fn get(&self, at: usize) -> f32;
}

impl<S: Simd> Source<S> for &[f32] {
    #[inline(always)]
    fn vector(&self, at: usize) -> S::F {
        S::load_f(&self[at..])
    }

    #[inline(always)]
    fn get(&self, at: usize) -> f32 {
        self[at]
    }
}

/// A row in 16-bit codes.
pub(super) struct Codes<'a, S: Simd> {
    row: Row<'a>,
    min: S::F,
    step: S::F,
    codes: &'a [u16],
}

impl<'a, S: Simd> Codes<'a, S> {
    #[inline(always)]
    pub(super) fn new(min: f32, step: f32, codes: &'a [u16]) -> Self {
        Self {
            row: Row::U16 { min, step, codes },
            min: S::splat_f(min),
            step: S::splat_f(step),
            codes,
        }
    }
}

impl<S: Simd> Clone for Codes<'_, S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Simd> Copy for Codes<'_, S> {}

impl<S: Simd> Source<S> for Codes<'_, S> {
    #[inline(always)]
    fn vector(&self, at: usize) -> S::F {
        // Two roundings, as the format specifies: a fused multiply-add would give other logits.
        let scaled = S::mul_f(self.step, S::load_codes(&self.codes[at..]));
        S::add_f(self.min, scaled)
    }

    #[inline(always)]
    fn get(&self, at: usize) -> f32 {
        self.row.get(at)
    }
}
