//! The paired differences of rows: read once more, a few rows at a time.

use std::collections::HashMap;

use anyhow::{Context, Result};
use rayon::prelude::*;

use super::row::{Locations, Row};
use crate::commands::observer::Watch;
use crate::stats::{ClusterRule, Confidence, PairedDifference, paired_difference};

/// Rows that are in memory at once, and threads that work on them.
pub const N_THREADS: usize = 2;

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

/// The differences that are known, by the indices of their rows; `None` where the rows have no
/// token in common that both count.
#[derive(Default)]
pub struct Differences(HashMap<(usize, usize), Option<Paired>>);

impl Differences {
    /// The first row's KLD less the second's, if that is known.
    pub fn get(&self, a: usize, b: usize) -> Option<Paired> {
        let reversed = || Some((*self.0.get(&(b, a))?)?.reversed());
        self.0.get(&(a, b)).copied().flatten().or_else(reversed)
    }

    fn is_known(&self, a: usize, b: usize) -> bool {
        self.0.contains_key(&(a, b)) || self.0.contains_key(&(b, a))
    }

    /// Computes the differences of these pairs that are not known yet. Neighbouring pairs should
    /// share a row: what was read last stays in memory, and so does the best row.
    ///
    /// # Errors
    /// If a row can no longer be read, or the observer asks to stop.
    pub fn add(
        &mut self,
        pairs: &[(usize, usize)],
        best: usize,
        rows: &[Row],
        (confidence, rule): (Confidence, ClusterRule),
        watch: &Watch<'_>,
    ) -> Result<()> {
        let is_new = |(a, b): &&(usize, usize)| a != b && !self.is_known(*a, *b);
        let new: Vec<(usize, usize)> = pairs.iter().filter(is_new).copied().collect();
        let Some(best_row) = rows.get(best).filter(|_| !new.is_empty()) else {
            return Ok(());
        };
        let (best_klds, locations) = best_row.located_klds()?;
        let of_chunk = |chunk: &[(usize, usize)]| {
            let mut read = LastRead {
                rows,
                best: (best, &best_klds),
                last: Vec::new(),
            };
            let mut found = Vec::new();
            for &(a, b) in chunk {
                watch.check()?;
                let (first, second) = read.both(a, b)?;
                let paired = pair(&locations, first, second, confidence, rule);
                found.push(((a, b), paired));
            }
            anyhow::Ok(found)
        };
        let chunks: Vec<Vec<_>> = threads()?.install(|| {
            let chunks = new.par_chunks(new.len().div_ceil(N_THREADS));
            chunks.map(of_chunk).collect::<Result<_>>()
        })?;
        self.0.extend(chunks.into_iter().flatten());
        Ok(())
    }
}

/// The threads of a report.
///
/// # Errors
/// If the system gives none.
pub fn threads() -> Result<rayon::ThreadPool> {
    let threads = rayon::ThreadPoolBuilder::new().num_threads(N_THREADS);
    threads.build().context("threads cannot be started")
}

/// The KLDs of the best row, and of the two rows that were read last.
struct LastRead<'r> {
    rows: &'r [Row],
    best: (usize, &'r [f64]),
    last: Vec<(usize, Vec<f64>)>,
}

impl LastRead<'_> {
    /// The KLDs of two rows.
    fn both(&mut self, a: usize, b: usize) -> Result<(&[f64], &[f64])> {
        for wanted in [a, b] {
            if wanted == self.best.0 || self.last.iter().any(|(row, _)| *row == wanted) {
                continue;
            }
            self.last.retain(|(row, _)| *row == a || *row == b);
            if let Some(row) = self.rows.get(wanted) {
                self.last.push((wanted, row.klds(|_| ())?));
            }
        }
        Ok((self.held(a), self.held(b)))
    }

    fn held(&self, row: usize) -> &[f64] {
        let mut last = self.last.iter();
        match last.find(|(held, _)| *held == row) {
            Some((_, klds)) => klds,
            None if row == self.best.0 => self.best.1,
            None => &[],
        }
    }
}

/// The difference over the tokens that both rows count.
fn pair(
    locations: &Locations,
    a: &[f64],
    b: &[f64],
    confidence: Confidence,
    rule: ClusterRule,
) -> Option<Paired> {
    let tokens = a
        .iter()
        .zip(b)
        .zip(&locations.windows)
        .zip(&locations.groups);
    let mut kept = Locations::default();
    let (mut first, mut second) = (Vec::with_capacity(a.len()), Vec::with_capacity(a.len()));
    let (mut n_nearer, mut n_farther) = (0_u64, 0_u64);
    for (((a, b), window), group) in tokens {
        if a.is_nan() || b.is_nan() {
            continue;
        }
        n_nearer += u64::from(a < b);
        n_farther += u64::from(a > b);
        first.push(*a);
        second.push(*b);
        kept.windows.push(*window);
        kept.groups.push(*group);
    }
    let n_untied = n_nearer + n_farther;
    Some(Paired {
        difference: paired_difference(
            &kept.windows,
            &kept.groups,
            &first,
            &second,
            confidence,
            rule,
        )?,
        share_nearer: (n_untied > 0).then(|| n_nearer as f64 / n_untied as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_either_row_leaves_out_are_left_out() {
        let locations = Locations {
            windows: vec![0, 0, 1, 1, 2],
            groups: vec![0; 5],
        };
        let a = [1.0, 2.0, f64::NAN, 4.0, 5.0];
        let b = [2.0, 2.0, 3.0, f64::NAN, 1.0];
        let rule = ClusterRule::Window;
        let paired = pair(&locations, &a, &b, Confidence::default(), rule).unwrap();
        assert_eq!(
            (paired.difference.value, paired.difference.n_tokens),
            (1.0, 3)
        );
        assert_eq!(paired.share_nearer, Some(0.5));
        let back = paired.reversed();
        assert_eq!(back.difference.value, -1.0);
        assert_eq!(back.difference.lo, paired.difference.hi.map(|hi| -hi));
        let none = pair(&locations, &a, &[f64::NAN; 5], Confidence::default(), rule);
        assert!(none.is_none());
    }
}
