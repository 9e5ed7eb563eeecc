//! Where the rows of a reference come from: one trait for files that are read in any order, streams, hidden states,
//! a second model, and memory.
//!
//! A source opens one window after another, whose rows are used as the evaluated model's come; `ReferenceRows::open`
//! chooses it. The model's side is `in_turn::LogitSource`, which hands its rows to a `RowSink`.

use std::collections::VecDeque;
use std::time::Duration;

use kl_formats::{Row, WindowSpec};
use rayon::prelude::*;

use super::timing::DeviceClock;
use super::{Error, rows_per_task};

/// Where rows come from. `'h` is the lifetime of what computes them.
pub(super) trait RowSource<'h>: Send + Sync {
    /// The window at an index; `None` if there is none.
    ///
    /// # Errors
    /// A window that cannot be read.
    fn window(&self, index: usize) -> Result<Option<WindowSpec>, Error>;

    /// The rows of the window at an index; of a stream, those of the window that has begun. `device` measures the
    /// accelerator that computes them.
    fn open<'r>(
        &'r self,
        index: usize,
        spec: &WindowSpec,
        device: Option<&'r DeviceClock>,
    ) -> Box<dyn WindowRows + 'r>;

    /// Learns in which order windows will be opened.
    fn expect(&mut self, _order: &VecDeque<usize>) {}

    /// The source as a stream, where windows can only be had in its own order.
    fn as_stream(&self) -> Option<&dyn RowStream<'h>> {
        None
    }

    /// True if rows are computed, and not only read.
    fn is_computed(&self) -> bool {
        false
    }
}

/// Asked, while more of a stream is awaited, whether to stop.
pub type ShouldStop<'s> = Box<dyn Fn() -> bool + Send + Sync + 's>;

/// A source whose windows come once, in its own order.
pub(super) trait RowStream<'h> {
    /// The window that comes next. `takes`: it begins, and what is left of the one before is dropped.
    fn next_window(&self, takes: bool) -> Result<Option<WindowSpec>, Error>;

    /// Begins no window after this many rows.
    fn end_after(&self, n_rows: u64);

    /// Asks `should_stop` while the stream brings nothing.
    fn stop_when(&self, should_stop: ShouldStop<'h>);
}

/// The use of a row, which is given with its index among those that were asked for.
pub(super) type UseRow<'u> = dyn Fn(usize, Row<'_>) + Sync + 'u;

/// The rows of a window, in order.
pub(super) trait WindowRows {
    /// Leaves out the next `n` rows, which are not computed, nor read unless they are a stream's.
    fn skip(&mut self, n: usize);

    /// Calls `use_row` with each of the next `n` rows, on all cores and in any order. Returns the part of
    /// the caller's time that reading or computing them has taken.
    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error>;
}

/// Uses some rows of `n_vocab` entries on all cores; `first` is the index of the first.
pub(super) fn use_all<'r>(
    rows: impl IndexedParallelIterator<Item = Row<'r>>,
    n_vocab: usize,
    first: usize,
    use_row: &UseRow<'_>,
) {
    rows.enumerate()
        .with_min_len(rows_per_task(n_vocab))
        .for_each(|(i, row)| use_row(first + i, row));
}
