//! Two rows, read a vector at a time, and which of their entries count; of one row, its first maximum and
//! the entries above another.

use fearless_simd::prelude::*;

use crate::score::pair::{RowPair, range};

/// Entries summed before the sums are added to the row's: keeps rounding errors from growing with
/// the row.
const BLOCK: usize = 1024;

/// The start and the end of each block of `n` entries.
pub(super) fn blocks(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n)
        .step_by(BLOCK)
        .map(move |start| (start, n.min(start + BLOCK)))
}

/// A [`RowPair`], read with some instruction set. Of two numbers or more, the first is the
/// reference's, the second the evaluated row's.
#[derive(Clone, Copy)]
pub(in crate::score) struct SimdRows<'a, S> {
    pub simd: S,
    pub logits: [&'a [f32]; 2],
    pub next: Option<u32>,
    pub floors: [Option<f32>; 2],
}

/// The entries of two rows that enter the sums.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Counted {
    /// Every entry: neither row has a floor, and all logits are finite.
    Every,
    /// Entries above the reference's floor: all logits are finite.
    AboveFloor,
    /// Entries above the floors of both rows. A logit of −∞ weighs 0.
    Known,
}

/// A vector of entries of both rows.
pub(super) struct Entries<S: Simd> {
    /// The logits.
    pub raw: [S::f32s; 2],
    /// The logits, finite in place of −∞.
    pub logits: [S::f32s; 2],
    /// The entries of each row that are at its floor or −∞; `None` if there are none.
    unknown: [Option<S::mask32s>; 2],
    /// Set for a row with a floor: what it does not know does not count in the other one either.
    has_floor: [bool; 2],
}

impl<'a, S: Simd> SimdRows<'a, S> {
    /// The rows of `pair`, which are decoded to these logits.
    pub fn new(simd: S, logits: [&'a [f32]; 2], pair: &RowPair<'_>) -> Self {
        Self {
            simd,
            logits,
            next: pair.next,
            floors: [pair.ref_floor, pair.eval_floor],
        }
    }

    /// Shows the entries from `start` to `end` to `see`, which `counted` fits. Those that fill no vector
    /// come last, with entries after them that count as nothing.
    #[inline(always)]
    pub(super) fn each(
        &self,
        start: usize,
        end: usize,
        counted: Counted,
        mut see: impl FnMut(Entries<S>),
    ) {
        let mut at = start;
        while at + S::f32s::LEN <= end {
            see(self.entries(self.vectors(at), counted));
            at += S::f32s::LEN;
        }
        if at < end {
            let [l, m] = self.rest(at);
            let raw = [vector(self.simd, &l, 0), vector(self.simd, &m, 0)];
            see(self.entries(raw, Counted::Known));
        }
    }

    /// The entries of both rows from `at` on that fill a vector.
    #[inline(always)]
    pub(super) fn vectors(&self, at: usize) -> [S::f32s; 2] {
        let [l, m] = self.logits;
        [vector(self.simd, l, at), vector(self.simd, m, at)]
    }

    /// The entries from `at` on, which fill no vector, and entries after them that count as nothing.
    #[inline(always)]
    pub(super) fn rest(&self, at: usize) -> [[f32; 16]; 2] {
        let mut rest = self
            .floors
            .map(|floor| [floor.unwrap_or(f32::NEG_INFINITY); 16]);
        for (rest, row) in rest.iter_mut().zip(self.logits) {
            rest[..row.len() - at].copy_from_slice(&row[at..]);
        }
        rest
    }

    /// NaN stays.
    #[inline(always)]
    pub(super) fn entries(&self, raw: [S::f32s; 2], counted: Counted) -> Entries<S> {
        let (mut logits, mut unknown) = (raw, [None; 2]);
        for row in 0..2 {
            let floor = self.floors[row].unwrap_or(f32::NEG_INFINITY);
            if counted == Counted::Known || (counted == Counted::AboveFloor && row == 0) {
                unknown[row] = Some(raw[row].simd_le(floor));
            }
            if let Some(unknown) = unknown[row].filter(|_| counted == Counted::Known) {
                logits[row] = unknown.select(0.0.simd_into(self.simd), raw[row]);
            }
        }
        Entries {
            raw,
            logits,
            unknown,
            has_floor: self.floors.map(|floor| floor.is_some()),
        }
    }
}

impl<S: Simd> Entries<S> {
    /// The logits less these, in f64: both halves of the reference's, then of the evaluated row's.
    #[inline(always)]
    pub fn less(&self, shifts: [f64; 2]) -> [S::f64s; 4] {
        let (l, m) = (self.logits[0].widen(), self.logits[1].widen());
        [
            l.0 - shifts[0],
            l.1 - shifts[0],
            m.0 - shifts[1],
            m.1 - shifts[1],
        ]
    }

    /// The weights `exp`, in the order of [`Self::less`], where a row knows the entry, else 0; and the
    /// same where neither row has it at its floor.
    #[inline(always)]
    pub fn weights(&self, exp: [S::f64s; 4]) -> [[S::f64s; 4]; 2] {
        let mut each = exp;
        self.drop_unknown(&mut each, 0, 0);
        self.drop_unknown(&mut each, 1, 1);
        let mut both = each;
        if self.has_floor[1] {
            self.drop_unknown(&mut both, 0, 1);
        }
        if self.has_floor[0] {
            self.drop_unknown(&mut both, 1, 0);
        }
        [each, both]
    }

    /// Makes weights of the row `known` 0 where the row `unknown` does not know the entry.
    #[inline(always)]
    fn drop_unknown(&self, weights: &mut [S::f64s; 4], known: usize, unknown: usize) {
        if let Some(mask) = self.unknown[unknown] {
            let mask = mask.widen();
            let zero = 0.0.simd_into(weights[0].token());
            weights[2 * known] = mask.0.select(zero, weights[2 * known]);
            weights[2 * known + 1] = mask.1.select(zero, weights[2 * known + 1]);
        }
    }
}

#[inline(always)]
fn vector<S: Simd>(simd: S, row: &[f32], at: usize) -> S::f32s {
    S::f32s::from_slice(simd, &row[at..at + S::f32s::LEN])
}

#[inline(always)]
pub(super) fn lane_sum<S: Simd>(x: S::f64s) -> f64 {
    let mut lanes = [0.0; 8];
    x.store_slice(&mut lanes[..S::f64s::LEN]);
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

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
    pub fn finish(mut self, row: &[f32], whole: usize) -> Self {
        for (index, &logit) in row.iter().enumerate().skip(whole) {
            if logit > self.logit {
                self = Self { logit, index };
            }
        }
        // Bounded, so that the loop ends for a row with NaN.
        while self.index + 1 < row.len() && row[self.index] != self.logit {
            self.index += 1;
        }
        self
    }

    /// A row's first maximum; `None` if an entry is NaN or +∞, or if all are −∞.
    #[inline(always)]
    pub fn first_of(row: &[f32]) -> Option<Self> {
        let (mut top, mut is_sound) = (Self::NONE, true);
        for (start, end) in blocks(row.len()) {
            let block = &row[start..end];
            is_sound &= block
                .iter()
                .fold(true, |so_far, x| so_far & (*x < f32::INFINITY));
            let (_, logit) = range(block);
            if logit > top.logit {
                top = Self {
                    logit,
                    index: start,
                };
            }
        }
        let top = top.finish(row, row.len());
        (is_sound && top.logit > f32::NEG_INFINITY).then_some(top)
    }
}

/// True if an entry that weighs something in `row` is −∞ in the `other` row.
#[inline(always)]
pub(super) fn is_masked_elsewhere(
    row: &[f32],
    weighs: impl Fn(f32) -> bool,
    other: &[f32],
) -> bool {
    let is_masked = |logit: &f32| *logit == f32::NEG_INFINITY;
    // Most blocks have no such entry: looking for one in all of a block needs no branches.
    row.chunks(64).zip(other.chunks(64)).any(|(row, other)| {
        let has_masked = other.iter().fold(false, |so_far, x| so_far | is_masked(x));
        has_masked
            && row
                .iter()
                .zip(other)
                .any(|(x, other)| is_masked(other) && weighs(*x))
    })
}

/// 1 + the number of entries above the one at `index`, equal ones at lower indices included.
#[inline(always)]
pub(super) fn rank(row: &[f32], index: usize) -> u32 {
    let bar = row[index];
    let before: u32 = row[..index]
        .iter()
        .map(|logit| u32::from(*logit >= bar))
        .sum();
    1 + before + count_above(&row[index + 1..], bar)
}

/// Counts the entries that are above `bar`.
#[inline(always)]
pub(super) fn count_above(row: &[f32], bar: f32) -> u32 {
    row.iter().map(|logit| u32::from(*logit > bar)).sum()
}
