//! Rows of the reference that are computed, not read: they come a batch at a time, and the evaluated
//! model's may come in batches of another size.

use std::mem;
use std::time::{Duration, Instant};

use kl_formats::Row;
use rayon::prelude::*;

use super::{Error, rows_per_task};

/// What computes the rows of a window, batch after batch.
pub(super) trait Batches {
    /// Computes the batch that holds the row after the next `skip` ones, and hands `use_rows` its
    /// rows from that one on, where they were computed: they are gone when this returns.
    ///
    /// # Errors
    /// Why they cannot be computed, or that the window has no such row.
    fn next(&mut self, skip: usize, use_rows: &mut dyn FnMut(&[&[f32]])) -> Result<(), Error>;
}

/// The rows of an open window, and how far they are used.
pub(super) struct Computed<'r> {
    batches: Box<dyn Batches + 'r>,
    n_vocab: usize,
    /// Rows to leave out of the batches to come.
    skipped: usize,
    /// The rows of the last batch that have not been used, one after another.
    left: Vec<f32>,
    /// Logits of `left` that have been used since.
    used: usize,
}

impl<'r> Computed<'r> {
    /// The rows of a window, of `n_vocab` logits each.
    pub(super) fn new(batches: impl Batches + 'r, n_vocab: usize) -> Self {
        Self {
            batches: Box::new(batches),
            n_vocab,
            skipped: 0,
            left: Vec::new(),
            used: 0,
        }
    }

    /// Leaves out rows. A batch of which no row is used is not computed.
    pub(super) fn skip(&mut self, n: usize) {
        let of_left = n.min((self.left.len() - self.used) / self.n_vocab.max(1));
        self.used += of_left * self.n_vocab;
        self.skipped += n - of_left;
    }

    /// Hands `use_rows` the next rows, at most `n` and all of one batch, and returns how many.
    pub(super) fn some(
        &mut self,
        n: usize,
        in_reading: &mut Duration,
        mut use_rows: impl FnMut(&[&[f32]]),
    ) -> Result<usize, Error> {
        let n_vocab = self.n_vocab.max(1);
        if self.used < self.left.len() {
            let left = self.left[self.used..].chunks_exact(n_vocab);
            let rows: Vec<&[f32]> = left.take(n).collect();
            use_rows(&rows);
            self.used += rows.len() * n_vocab;
            return Ok(rows.len());
        }
        self.left.clear();
        self.used = 0;
        let started = Instant::now();
        let (mut in_use, mut n_used) = (Duration::ZERO, 0);
        let left = &mut self.left;
        self.batches
            .next(mem::take(&mut self.skipped), &mut |rows| {
                let started = Instant::now();
                let (now, later) = rows.split_at(n.min(rows.len()));
                use_rows(now);
                n_used = now.len();
                in_use = started.elapsed();
                later.iter().for_each(|row| left.extend_from_slice(row));
            })?;
        *in_reading += started.elapsed().saturating_sub(in_use);
        Ok(n_used)
    }

    /// Applies `of_row` to the next `n` rows, each with its index among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
        in_reading: &mut Duration,
    ) -> Result<Vec<T>, Error> {
        let mut made = Vec::with_capacity(n);
        let min_len = rows_per_task(self.n_vocab);
        while made.len() < n {
            let first = made.len();
            self.some(n - first, in_reading, |rows| {
                let rows = rows.par_iter().enumerate().with_min_len(min_len);
                made.par_extend(rows.map(|(i, row)| of_row(first + i, Row::F32(row))));
            })?;
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of rows 0, 1, 2, ..., of one logit each, as long as these.
    struct Counting {
        batches: Vec<usize>,
        next: usize,
        /// The first rows of the batches that were computed.
        computed: Vec<usize>,
    }

    impl Batches for &mut Counting {
        fn next(&mut self, skip: usize, use_rows: &mut dyn FnMut(&[&[f32]])) -> Result<(), Error> {
            let wanted = self.next + skip;
            loop {
                let batch = self.next..self.next + self.batches.remove(0);
                self.next = batch.end;
                if batch.contains(&wanted) {
                    self.computed.push(batch.start);
                    let logits: Vec<f32> = (wanted..batch.end).map(|i| i as f32).collect();
                    use_rows(&logits.chunks(1).collect::<Vec<_>>());
                    return Ok(());
                }
            }
        }
    }

    #[test]
    fn rows_are_used_in_any_number_and_no_batch_is_computed_in_vain() {
        let mut batches = Counting {
            batches: vec![3, 4, 1, 2, 5],
            next: 0,
            computed: Vec::new(),
        };
        let mut rows = Computed::new(&mut batches, 1);
        let map = |rows: &mut Computed<'_>, n| {
            let of_row = |i, row: Row<'_>| (i, row.get(0) as usize);
            rows.map(n, of_row, &mut Duration::default()).unwrap()
        };
        assert_eq!(map(&mut rows, 2), [(0, 0), (1, 1)]);
        assert_eq!(map(&mut rows, 0), []);
        assert_eq!(map(&mut rows, 3), [(0, 2), (1, 3), (2, 4)]);
        rows.skip(1);
        assert_eq!(map(&mut rows, 1), [(0, 6)]);
        // The whole next batch, and one row of that after it.
        rows.skip(2);
        assert_eq!(map(&mut rows, 2), [(0, 9), (1, 10)]);
        rows.skip(4);
        drop(rows);
        assert_eq!(batches.computed, [0, 3, 8, 10]);
    }
}
