//! Where a reference's rows come from, one file for each way: blocks that can be read anywhere, a
//! stream, hidden states of which rows are computed, a second model.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use kl_formats::{Row, RowLayout, Rows, WindowSpec, rows_per_piece};

use super::computed::Computed;
use super::in_place::{BlockRows, InPlace};
use super::readable::{ComputedBy, Readable};
use super::second_model::ModelRows;
use super::states::StateRows;
use super::stream::Stream;
use super::{Error, locked};

/// Where the windows of a reference and their rows come from.
pub(super) enum Source<'h> {
    InPlace(InPlace),
    Stream(Mutex<Stream>),
    States(StateRows<'h>),
    Model(ModelRows<'h>),
}

/// The rows of an open window.
pub(super) enum RowSource<'r> {
    InPlace(BlockRows<'r>),
    /// An open window of a stream holds the stream.
    Stream(MutexGuard<'r, Stream>),
    Computed(Computed<'r>),
}

impl<'h> Source<'h> {
    /// The windows of `reference` at the indices of `order`, in that order; of a stream, all windows
    /// up to the one that brings `max_rows`.
    pub(super) fn new(reference: Readable<'h>, order: Vec<usize>, max_rows: u64) -> Self {
        let Readable {
            reference,
            computed_by,
            device,
            ..
        } = reference;
        let n_vocab = reference.about().n_vocab;
        match (reference.into_rows(), computed_by) {
            (Rows::Blocks(windows), Some(ComputedBy::Model(contexts))) => Self::Model(
                ModelRows::new(windows, contexts, device, n_vocab as usize, order),
            ),
            (Rows::Blocks(blocks), _) => Self::InPlace(InPlace::new(blocks, order)),
            (Rows::Stream(stream), _) => {
                let rows_per_block = rows_per_piece(RowLayout::F32, n_vocab) as usize;
                Self::Stream(Mutex::new(Stream::start(stream, rows_per_block, max_rows)))
            }
            (Rows::States(rows), Some(ComputedBy::Head(head))) => {
                Self::States(StateRows::new(rows, head, device, n_vocab as usize, order))
            }
            (Rows::States(_), _) => unreachable!("Readable::open prepares the head of states"),
        }
    }

    /// Whether several windows can be open at once.
    pub(super) fn can_share(&self) -> bool {
        !matches!(self, Self::Stream(_))
    }

    /// Whether rows are computed, not read.
    pub(super) fn is_computed(&self) -> bool {
        matches!(self, Self::States(_) | Self::Model(_))
    }

    /// The window that comes next.
    pub(super) fn peek(&mut self) -> Result<Option<WindowSpec>, Error> {
        match self {
            Self::InPlace(rows) => rows.peek(),
            Self::Stream(stream) => locked(stream).peek(),
            Self::States(rows) => rows.peek(),
            Self::Model(rows) => rows.peek(),
        }
    }

    /// Leaves out the window that comes next, if that costs nothing: a stream must be read.
    pub(super) fn skip(&mut self) -> bool {
        match self {
            Self::InPlace(rows) => rows.skip(),
            Self::States(rows) => rows.skip(),
            Self::Model(rows) => rows.skip(),
            Self::Stream(_) => return false,
        }
        true
    }

    /// Opens the next window.
    pub(super) fn next_window(&self) -> Result<Option<(WindowSpec, RowSource<'_>)>, Error> {
        Ok(match self {
            Self::InPlace(rows) => rows
                .next_window()?
                .map(|(spec, rows)| (spec, RowSource::InPlace(rows))),
            Self::States(rows) => rows
                .next_window()?
                .map(|(spec, rows)| (spec, RowSource::Computed(rows))),
            Self::Model(rows) => rows
                .next_window()?
                .map(|(spec, rows)| (spec, RowSource::Computed(rows))),
            Self::Stream(stream) => {
                let mut stream = locked(stream);
                stream
                    .next_window()?
                    .map(|spec| (spec, RowSource::Stream(stream)))
            }
        })
    }
}

impl RowSource<'_> {
    /// Skips rows, if that costs nothing: a stream must be read.
    pub(super) fn skip(&mut self, n: usize) -> bool {
        match self {
            Self::InPlace(rows) => rows.skip(n),
            Self::Computed(rows) => rows.skip(n),
            Self::Stream(_) => return false,
        }
        true
    }

    /// Applies `of_row` to the next `n` rows, each with its index among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
        in_reading: &mut Duration,
    ) -> Result<Vec<T>, Error> {
        match self {
            Self::InPlace(rows) => rows.map(n, of_row, in_reading),
            Self::Stream(rows) => rows.map(n, of_row, in_reading),
            Self::Computed(rows) => rows.map(n, of_row, in_reading),
        }
    }
}
