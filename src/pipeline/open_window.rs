//! A window of the reference, whose rows are used as the evaluated model's come.

use std::time::Duration;

use kl_formats::{Row, WindowSpec};

use super::Error;
use super::source::RowSource;
use super::spare::Spare;

/// How many bytes of decoded rows are held at once; one row is always allowed.
const BYTES_AT_ONCE: usize = 16 << 20;

/// One window, whose rows are compared with the model's as those come.
pub(super) struct OpenWindow<'r> {
    pub(super) spec: WindowSpec,
    n_vocab: usize,
    /// Whether the rows are log-probabilities with a floor.
    pub(super) is_floored: bool,
    rows: RowSource<'r>,
    /// Rows that have not been read.
    left: usize,
    /// How much of its caller's time reading has taken.
    pub(super) in_reading: Duration,
}

impl<'r> OpenWindow<'r> {
    /// A window whose rows, all to come, are `rows`. Opening it has taken its caller `in_reading`.
    pub(super) fn new(
        spec: WindowSpec,
        n_vocab: usize,
        is_floored: bool,
        rows: RowSource<'r>,
        in_reading: Duration,
    ) -> Self {
        Self {
            left: spec.n_rows as usize,
            spec,
            n_vocab,
            is_floored,
            rows,
            in_reading,
        }
    }

    /// Skips all rows that are left: a stream has no other way to what comes after them.
    pub(super) fn skip_rest(&mut self) -> Result<(), Error> {
        self.skip(self.left)
    }

    /// Skips rows.
    pub(super) fn skip(&mut self, n: usize) -> Result<(), Error> {
        if self.rows.skip(n) {
            self.left = self.left.saturating_sub(n);
            return Ok(());
        }
        self.in_parts(n, |window, n| window.map(n, |_, _| ()).map(drop))
    }

    /// Applies `of_row` to the next `n` rows, each with its index among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        self.left = self.left.saturating_sub(n);
        self.rows.map(n, of_row, &mut self.in_reading)
    }

    /// Hands `sink` the logits of the next `n` rows, a bounded number at a time: those of stored rows
    /// decoded on all cores, in memory of `spare`, and computed ones where they are.
    pub(super) fn logits<E: From<Error>>(
        &mut self,
        n: usize,
        spare: &Spare<Vec<f32>>,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        if let RowSource::Computed(rows) = &mut self.rows {
            self.left = self.left.saturating_sub(n);
            let mut wanted = n;
            while wanted > 0 {
                let mut done = Ok(());
                wanted -= rows.some(wanted, &mut self.in_reading, |rows| done = sink(rows))?;
                done?;
            }
            return Ok(());
        }
        self.in_parts(n, |window, n| {
            let decoded = window.map(n, |_, row| {
                let mut logits = spare.take().unwrap_or_default();
                logits.resize(row.len(), 0.0);
                row.decode_into(&mut logits);
                logits
            })?;
            let rows: Vec<&[f32]> = decoded.iter().map(Vec::as_slice).collect();
            sink(&rows)?;
            decoded.into_iter().for_each(|logits| spare.give(logits));
            Ok(())
        })
    }

    /// Calls `of_part` for `n` rows in parts of bounded size, with the size of each.
    fn in_parts<E>(
        &mut self,
        n: usize,
        mut of_part: impl FnMut(&mut Self, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let at_once = (BYTES_AT_ONCE / (4 * self.n_vocab).max(1)).max(1);
        let mut left = n;
        while left > 0 {
            let part = left.min(at_once);
            of_part(self, part)?;
            left -= part;
        }
        Ok(())
    }
}
