//! The parts that all decoders share: a window's decode calls, and the choice of the top token.

use std::cmp::Ordering;
use std::ops::Range;

use kl_formats::{Calls, WindowSpec};

/// A decode call of a window.
pub(super) struct Call {
    /// The positions of its tokens.
    pub(super) positions: Range<usize>,
    /// The first scored position of the window.
    pub(super) scored_start: usize,
    /// Where the next call starts; `None` after the last scored position: nothing after that can
    /// change a row.
    pub(super) next: Option<usize>,
}

impl Call {
    /// The call of a window that starts at position `start`.
    pub(super) fn of(window: &WindowSpec, calls: Calls, start: usize) -> Self {
        let scored_start = window.first_scored as usize;
        let scored_end = scored_start + window.n_rows as usize;
        let end = if start < scored_end {
            calls.call(window.n_decoded(), start as u64).end as usize
        } else {
            start
        };
        Self {
            positions: start..end,
            scored_start,
            next: (end < scored_end).then_some(end),
        }
    }

    /// Counts the scored positions in each physical batch, without batches that hold none.
    pub(super) fn groups(&self, window: &WindowSpec, calls: Calls) -> Vec<usize> {
        let start = self.positions.start.max(self.scored_start) as u64;
        let end = self.positions.end as u64;
        let n_scored =
            |batch: Range<u64>| batch.end.min(end).saturating_sub(batch.start.max(start));
        let batches = calls.batches(start, window.n_decoded());
        let of_call = batches.take_while(|batch| batch.start < end).map(n_scored);
        of_call.filter(|&n| n > 0).map(|n| n as usize).collect()
    }
}

/// The entry with the largest logit, the first of equals; `None` where a row holds a NaN or has no
/// finite maximum.
pub fn top_token(row: &[f32]) -> Option<u32> {
    if row.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    // The last of equals from the end is the first.
    let entries = row.iter().enumerate().rev();
    let (entry, most) =
        entries.max_by(|(_, a), (_, b)| a.partial_cmp(b).unwrap_or(Ordering::Equal))?;
    most.is_finite().then_some(entry as u32)
}

#[cfg(test)]
mod tests {
    use super::top_token;

    #[test]
    fn the_top_token_is_the_first_of_equals() {
        let infinity = f32::INFINITY;
        for (row, best) in [
            (&[1.0, 3.0, 3.0, 2.0][..], Some(1)),
            (&[-infinity, -5.0], Some(1)),
            (&[-infinity, -infinity], None),
            (&[1.0, infinity], None),
            (&[1.0, f32::NAN], None),
            (&[f32::NAN, 1.0], None),
            (&[], None),
        ] {
            assert_eq!(top_token(row), best, "{row:?}");
        }
    }
}
