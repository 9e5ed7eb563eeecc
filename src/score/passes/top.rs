//! A row's top entry, and ranks.

use super::BLOCK;
use crate::score::vector::{Simd, Source};

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
    pub fn block<S: Simd>(&mut self, most: S::F, start: usize) {
        if S::any_above(most, S::splat_f(self.logit)) {
            let mut lanes = [f32::NEG_INFINITY; 16];
            S::store_f(most, &mut lanes);
            self.logit = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
            self.index = start;
        }
    }

    /// Looks at the entries from `whole` on, which no block held, and finds the maximum's index.
    #[inline(always)]
    pub fn finish<S: Simd, R: Source<S>>(mut self, row: R, whole: usize, n: usize) -> Self {
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
}

/// A row's first maximum; `None` if an entry is NaN or +∞, or if all are −∞.
#[inline(always)]
pub(super) fn top<S: Simd, R: Source<S>>(row: R, n: usize) -> Option<Top> {
    let zero = S::splat_f(0.0);
    let lowest = S::splat_f(-f32::MAX);
    let whole = n - n % S::LANES;
    let mut top = Top::NONE;
    // x·0 is 0 only for a finite x.
    let mut zeros = zero;
    let mut start = 0;
    while start < whole {
        let end = (start + BLOCK).min(whole);
        let mut most = S::splat_f(f32::NEG_INFINITY);
        let mut at = start;
        while at < end {
            let x = row.vector(at);
            most = S::max_f(most, x);
            zeros = S::add_f(zeros, S::mul_f(S::max_f(lowest, x), zero));
            at += S::LANES;
        }
        top.block::<S>(most, start);
        start = end;
    }
    let mut lanes = [0.0; 16];
    S::store_f(zeros, &mut lanes);
    let sound = lanes.iter().all(|&x| x == 0.0) && (whole..n).all(|at| row.get(at) < f32::INFINITY);
    let top = top.finish::<S, R>(row, whole, n);
    (sound && top.logit > f32::NEG_INFINITY).then_some(top)
}

/// 1 + the number of entries above the one at `of`, equal ones at lower indices included.
#[inline(always)]
pub(super) fn rank<S: Simd, R: Source<S>>(row: R, n: usize, of: usize) -> u32 {
    let bar = row.get(of);
    let before = match bar == f32::NEG_INFINITY {
        true => of as u32,
        // x ≥ bar is x > the float below it.
        false => count_above::<S, R>(row, 0, of, bar.next_down()),
    };
    1 + before + count_above::<S, R>(row, of + 1, n, bar)
}

/// Counts the entries from `start` to `end` that are above `bar`.
#[inline(always)]
pub(super) fn count_above<S: Simd, R: Source<S>>(
    row: R,
    start: usize,
    end: usize,
    bar: f32,
) -> u32 {
    let bars = S::splat_f(bar);
    let mut counts = S::count_zero();
    let mut at = start;
    while at + S::LANES <= end {
        counts = S::count_above(counts, row.vector(at), bars);
        at += S::LANES;
    }
    let tail = (at..end).filter(|&at| row.get(at) > bar).count();
    S::count_sum(counts) + tail as u32
}
