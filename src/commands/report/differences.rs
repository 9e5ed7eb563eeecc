//! The paired differences of rows, which need the KLD of each token: those of a few rows are in
//! memory.

use std::iter::repeat_n;

use anyhow::Result;
use rayon::prelude::*;

use super::Comparer;
use super::row::Row;
use crate::commands::observer::Watch;
use crate::stats::{ClusterRule, Confidence, PairedDifference, Run};

/// Rows that are worked on at once, each of which is in memory.
pub const N_AT_ONCE: usize = 2;

/// Two rows on the same tokens.
#[derive(Clone, Copy, Debug)]
pub struct Paired {
    pub difference: PairedDifference,
    /// Of the tokens whose KLDs differ, the share on which the first row is nearer to the reference.
    pub share_nearer: Option<f64>,
}

impl Paired {
    /// The same with the second row first.
    pub fn reversed(self) -> Self {
        let Self { difference, .. } = self;
        let difference = PairedDifference {
            value: -difference.value,
            lo: difference.hi.map(|hi| -hi),
            hi: difference.lo.map(|lo| -lo),
            ..difference
        };
        Self {
            difference,
            share_nearer: self.share_nearer.map(|share| 1.0 - share),
        }
    }
}

impl Comparer {
    /// The first row's KLD less the second's, if that is known.
    pub(super) fn difference(&self, a: usize, b: usize) -> Option<Paired> {
        let known = |a, b| self.differences.get(&(a, b)).copied().flatten();
        known(a, b).or_else(|| known(b, a).map(Paired::reversed))
    }

    /// Computes the differences of these pairs that are not known yet. Neighbouring pairs should
    /// share a row: a row that is not in memory is read again, and stays there until the next pair.
    ///
    /// # Errors
    /// If a row can no longer be read, or the observer asks to stop.
    pub(super) fn compare_pairs(
        &mut self,
        pairs: &[(usize, usize)],
        best: usize,
        watch: &Watch<'_>,
    ) -> Result<()> {
        let is_known = |(a, b)| {
            self.differences.contains_key(&(a, b)) || self.differences.contains_key(&(b, a))
        };
        let new = pairs.iter().copied();
        let new: Vec<_> = new.filter(|&(a, b)| a != b && !is_known((a, b))).collect();
        for pairs in new.chunks(N_AT_ONCE) {
            watch.check()?;
            let mut wanted: Vec<usize> = pairs.iter().flat_map(|&(a, b)| [a, b]).collect();
            wanted.push(best);
            self.forget_klds_except(&wanted);
            let rows = self.rows.values_mut();
            let missing: Vec<&mut Row> = rows
                .filter(|row| wanted.contains(&row.model.index) && row.klds.is_none())
                .collect();
            let read: Vec<Result<()>> = missing.into_par_iter().map(Row::read_klds).collect();
            // The first in order is named, whichever failed first.
            read.into_iter().collect::<Result<()>>()?;
            let found = pairs.par_iter().map(|&(a, b)| {
                let rows = self.rows.get(&a).zip(self.rows.get(&b));
                let paired = rows.and_then(|(a, b)| {
                    let (klds_a, klds_b) = (a.klds.as_deref()?, b.klds.as_deref()?);
                    pair(&a.runs, klds_a, klds_b, self.confidence, self.rule)
                });
                ((a, b), paired)
            });
            let found: Vec<_> = found.collect();
            self.differences.extend(found);
        }
        Ok(())
    }

    /// Keeps only the KLDs of the rows with these indices in memory.
    pub(super) fn forget_klds_except(&mut self, indices: &[usize]) {
        for row in self.rows.values_mut() {
            if !indices.contains(&row.model.index) {
                row.klds = None;
            }
        }
    }
}

/// The difference over the tokens that both rows count. `runs` are the windows of all tokens.
fn pair(
    runs: &[Run],
    a: &[f64],
    b: &[f64],
    confidence: Confidence,
    rule: ClusterRule,
) -> Option<Paired> {
    let windows = runs.iter().flat_map(|run| repeat_n(run, run.n));
    let (mut kept, mut differences) = (Vec::new(), Vec::with_capacity(a.len()));
    let (mut n_nearer, mut n_farther) = (0_u64, 0_u64);
    for ((a, b), run) in a.iter().zip(b).zip(windows) {
        if a.is_nan() || b.is_nan() {
            continue;
        }
        n_nearer += u64::from(a < b);
        n_farther += u64::from(a > b);
        differences.push(a - b);
        Run::add(&mut kept, run.window, run.group);
    }
    let n_untied = n_nearer + n_farther;
    Some(Paired {
        difference: PairedDifference::of(&kept, &differences, confidence, rule)?,
        share_nearer: (n_untied > 0).then(|| n_nearer as f64 / n_untied as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_either_row_leaves_out_are_left_out() {
        let runs = Run::of_each([0, 0, 1, 1, 2].map(|window| (window, 0)));
        let a = [1.0, 2.0, f64::NAN, 4.0, 5.0];
        let b = [2.0, 2.0, 3.0, f64::NAN, 1.0];
        let rule = ClusterRule::Window;
        let paired = pair(&runs, &a, &b, Confidence::default(), rule).unwrap();
        assert_eq!(
            (paired.difference.value, paired.difference.n_tokens),
            (1.0, 3)
        );
        assert_eq!(paired.share_nearer, Some(0.5));
        let back = paired.reversed();
        assert_eq!(back.difference.value, -1.0);
        assert_eq!(back.difference.lo, paired.difference.hi.map(|hi| -hi));
        let none = pair(&runs, &a, &[f64::NAN; 5], Confidence::default(), rule);
        assert!(none.is_none());
    }
}
