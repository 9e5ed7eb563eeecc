//! One row: its first maximum, and the entries above another.

use fearless_simd::prelude::*;

use super::rows::blocks;
use crate::score::pair::Source;

/// A row's first maximum so far.
#[derive(Clone, Copy)]
pub(super) struct Top {
    pub logit: f32,
    /// Its index; while blocks are read, the start of the first block that holds it.
    pub index: usize,
}

impl Top {
    pub const NONE: Self = Self {
        logit: f32::NEG_INFINITY,
        index: 0,
    };

    /// Updates the maximum by those of the block that starts at `start`.
    #[inline(always)]
    pub fn block<S: Simd, F: SimdFloat<S, Element = f32>>(&mut self, most: F, start: usize) {
        if most.simd_gt(self.logit).any_true() {
            let lanes = most.as_slice().iter().copied();
            self.logit = lanes.fold(f32::NEG_INFINITY, f32::max);
            self.index = start;
        }
    }

    /// Looks at the entries from `whole` on, which no block held, and finds the maximum's index.
    #[inline(always)]
    pub fn finish(mut self, row: impl Source, whole: usize, n: usize) -> Self {
        for index in whole..n {
            let logit = row.get(index);
            if logit > self.logit {
                self = Self { logit, index };
            }
        }
        // Bounded by `n`, so that the loop ends for a row with NaN.
        while self.index + 1 < n && row.get(self.index) != self.logit {
            self.index += 1;
        }
        self
    }

    /// A row's first maximum; `None` if an entry is NaN or +∞, or if all are −∞.
    #[inline(always)]
    pub fn of<S: Simd, R: Source>(simd: S, row: R, n: usize) -> Option<Self> {
        let whole = n - n % S::f32s::LEN;
        let mut top = Self::NONE;
        let mut is_sound = true;
        for (start, end) in blocks(whole) {
            let mut most: S::f32s = f32::NEG_INFINITY.simd_into(simd);
            let mut at = start;
            while at < end {
                let x = row.vector(simd, at);
                most = most.max(x);
                is_sound &= x.simd_lt(f32::INFINITY).all_true();
                at += S::f32s::LEN;
            }
            top.block(most, start);
        }
        is_sound &= (whole..n).all(|at| row.get(at) < f32::INFINITY);
        let top = top.finish(row, whole, n);
        (is_sound && top.logit > f32::NEG_INFINITY).then_some(top)
    }
}

/// Returns true if an entry that weighs something in `row` is −∞ in the `other` row.
#[inline(always)]
pub(super) fn is_masked_elsewhere<S: Simd>(
    simd: S,
    row: impl Source,
    weighs: impl Fn(f32) -> bool,
    other: impl Source,
    n: usize,
) -> bool {
    (0..n).step_by(S::f32s::LEN).any(|at| {
        let end = n.min(at + S::f32s::LEN);
        let is_masked = |x: S::f32s| x.simd_lt(-f32::MAX).any_true();
        let may_be = end - at < S::f32s::LEN || is_masked(other.vector(simd, at));
        may_be && (at..end).any(|i| other.get(i) == f32::NEG_INFINITY && weighs(row.get(i)))
    })
}

/// 1 + the number of entries above the one at `of`, equal ones at lower indices included.
#[inline(always)]
pub(super) fn rank<S: Simd>(simd: S, row: impl Source, n: usize, of: usize) -> u32 {
    let bar = row.get(of);
    let before = if bar == f32::NEG_INFINITY {
        of as u32
    } else {
        // x ≥ bar is x > the float below it.
        count_above(simd, row, 0, of, bar.next_down())
    };
    1 + before + count_above(simd, row, of + 1, n, bar)
}

/// Counts the entries from `start` to `end` that are above `bar`.
#[inline(always)]
pub(super) fn count_above<S: Simd>(
    simd: S,
    row: impl Source,
    start: usize,
    end: usize,
    bar: f32,
) -> u32 {
    let mut count = 0;
    let mut at = start;
    while at + S::f32s::LEN <= end {
        let above = row.vector(simd, at).simd_gt(bar);
        count += above.to_bitmask().count_ones();
        at += S::f32s::LEN;
    }
    count + (at..end).filter(|&at| row.get(at) > bar).count() as u32
}
