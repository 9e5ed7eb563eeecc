//! Reads references that can only be read from start to end: a thread reads and inflates a bounded
//! number of blocks ahead of the model.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kl_formats::{ReadStream, Row, RowBlock, WindowSpec};
use rayon::prelude::*;

use super::{Error, depth};

/// A part of a reference, in the order in which they are read.
#[derive(Debug)]
enum Event {
    /// A window begins.
    Window(WindowSpec),
    /// Rows of the window that began last, in order.
    Rows(RowBlock),
    /// Everything has come. Without this, the reader has stopped before the end.
    End,
}

type Item = kl_formats::Result<Event>;

/// The receiver is gone; its owner reports why.
struct Closed;

/// Blocks of rows, handed out a decode call's worth at a time.
pub(super) struct Stream {
    events: Receiver<Item>,
    /// What was looked at and not handed out: a window, or the end.
    peeked: Option<Option<WindowSpec>>,
    rows: VecDeque<RowBlock>,
    /// Rows of the first block that have been used.
    used: usize,
}

impl Stream {
    /// Starts reading, `rows_per_block` rows at a time, up to the window that brings `max_rows`.
    pub(super) fn start(reader: Box<dyn ReadStream>, rows_per_block: usize, max_rows: u64) -> Self {
        let (sender, events) = sync_channel(depth());
        std::thread::spawn(move || send(reader, rows_per_block, max_rows, &sender));
        Self {
            events,
            peeked: None,
            rows: VecDeque::new(),
            used: 0,
        }
    }

    fn next_event(&mut self) -> Result<Event, Error> {
        Ok(self.events.recv().map_err(|_| Error::WorkerLost)??)
    }

    /// The window that comes next.
    pub(super) fn peek(&mut self) -> Result<Option<WindowSpec>, Error> {
        let next = self.next_window()?;
        self.peeked = Some(next.clone());
        Ok(next)
    }

    pub(super) fn next_window(&mut self) -> Result<Option<WindowSpec>, Error> {
        if let Some(next) = self.peeked.take() {
            return Ok(next);
        }
        match self.next_event()? {
            Event::End => Ok(None),
            Event::Window(window) => Ok(Some(window)),
            Event::Rows(_) => Err(Error::Inconsistent {
                found: "more rows than a window has".to_owned(),
            }),
        }
    }

    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
        in_reading: &mut Duration,
    ) -> Result<Vec<T>, Error> {
        let started = Instant::now();
        let mut available: usize = self.rows.iter().map(RowBlock::n_rows).sum();
        while available < self.used + n {
            match self.next_event()? {
                Event::Rows(block) => {
                    available += block.n_rows();
                    self.rows.push_back(block);
                }
                Event::Window(_) | Event::End => {
                    let found = "fewer rows than a window has".to_owned();
                    return Err(Error::Inconsistent { found });
                }
            }
        }
        *in_reading += started.elapsed();
        let rows = self.rows.iter().flat_map(RowBlock::rows);
        let rows: Vec<Row<'_>> = rows.skip(self.used).take(n).collect();
        let min_len = super::rows_per_task(rows.first().map_or(1, Row::len));
        let made = rows
            .par_iter()
            .enumerate()
            .with_min_len(min_len)
            .map(|(i, &row)| of_row(i, row))
            .collect();
        self.used += n;
        while let Some(block) = self.rows.front()
            && block.n_rows() <= self.used
        {
            self.used -= block.n_rows();
            self.rows.pop_front();
        }
        Ok(made)
    }
}

/// Sends windows and rows, and the end or the error that comes first.
fn send(
    reader: Box<dyn ReadStream>,
    rows_per_block: usize,
    max_rows: u64,
    sender: &SyncSender<Item>,
) {
    let give = |item| sender.send(item).map_err(|_| Closed);
    // If that fails, nobody is left to hear of it.
    let _ = match read(reader, rows_per_block, max_rows, |event| give(Ok(event))) {
        Ok(sent) => sent,
        Err(error) => give(Err(error)),
    };
}

fn read(
    mut reader: Box<dyn ReadStream>,
    rows_per_block: usize,
    max_rows: u64,
    give: impl Fn(Event) -> Result<(), Closed>,
) -> kl_formats::Result<Result<(), Closed>> {
    let mut left = max_rows;
    while left > 0
        && let Some(window) = reader.next_window()?
    {
        left = left.saturating_sub(u64::from(window.n_rows));
        if give(Event::Window(window)).is_err() {
            return Ok(Err(Closed));
        }
        while let Some(block) = reader.next_rows(rows_per_block)? {
            if give(Event::Rows(block)).is_err() {
                return Ok(Err(Closed));
            }
        }
    }
    Ok(give(Event::End))
}
