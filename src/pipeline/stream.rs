//! References that can only be read from their start to their end: a thread reads and inflates
//! ahead of the model, some blocks and no more.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kl_formats::{Encoding, KlPyReader, NpzReader, Row, RowBlock, WindowHead, rows_per_piece};
use rayon::prelude::*;

use super::{Error, depth};

/// A file that is one stream of windows.
pub(super) trait WindowStream: Send + 'static {
    fn n_vocab(&self) -> u32;
    fn next_window(&mut self) -> kl_formats::Result<Option<WindowHead>>;
    fn next_rows(&mut self, max_rows: usize) -> kl_formats::Result<Option<RowBlock>>;
}

impl WindowStream for KlPyReader {
    fn n_vocab(&self) -> u32 {
        self.header().n_vocab
    }

    fn next_window(&mut self) -> kl_formats::Result<Option<WindowHead>> {
        self.next_window()
    }

    fn next_rows(&mut self, max_rows: usize) -> kl_formats::Result<Option<RowBlock>> {
        self.next_rows(max_rows)
    }
}

impl WindowStream for NpzReader {
    fn n_vocab(&self) -> u32 {
        self.n_vocab()
    }

    fn next_window(&mut self) -> kl_formats::Result<Option<WindowHead>> {
        self.next_window()
    }

    fn next_rows(&mut self, max_rows: usize) -> kl_formats::Result<Option<RowBlock>> {
        self.next_rows(max_rows)
    }
}

/// What a reference holds, in the order of its decoding.
#[derive(Debug)]
enum Event {
    /// A window begins.
    Window(WindowHead),
    /// Rows of the window that began last, in order.
    Rows(RowBlock),
    /// All there is has come. Without it, whoever reads has stopped before the end.
    End,
}

type Item = kl_formats::Result<Event>;

/// Whoever wants the items is gone, and says why.
struct Closed;

/// Blocks of rows, handed out a decode call's worth at a time.
pub(super) struct Stream {
    events: Receiver<Item>,
    rows: VecDeque<RowBlock>,
    /// Rows of the first block that are done with.
    used: usize,
}

impl Stream {
    /// Starts reading, up to the window that brings `max_rows`.
    pub(super) fn start(reader: impl WindowStream, max_rows: u64) -> Self {
        let (sender, events) = sync_channel(depth());
        std::thread::spawn(move || send(reader, max_rows, &sender));
        Self {
            events,
            rows: VecDeque::new(),
            used: 0,
        }
    }

    fn next_event(&mut self) -> Result<Event, Error> {
        Ok(self.events.recv().map_err(|_| Error::WorkerLost)??)
    }

    pub(super) fn next_window(&mut self) -> Result<Option<WindowHead>, Error> {
        match self.next_event()? {
            Event::End => Ok(None),
            Event::Window(head) => Ok(Some(head)),
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
        let mut there: usize = self.rows.iter().map(RowBlock::n_rows).sum();
        while there < self.used + n {
            match self.next_event()? {
                Event::Rows(block) => {
                    there += block.n_rows();
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
            .map(|(place, &row)| of_row(place, row))
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
fn send(reader: impl WindowStream, max_rows: u64, sender: &SyncSender<Item>) {
    let give = |item| sender.send(item).map_err(|_| Closed);
    // Nobody is left to hear of it.
    let _ = match read(reader, max_rows, |event| give(Ok(event))) {
        Ok(sent) => sent,
        Err(error) => give(Err(error)),
    };
}

fn read(
    mut reader: impl WindowStream,
    max_rows: u64,
    give: impl Fn(Event) -> Result<(), Closed>,
) -> kl_formats::Result<Result<(), Closed>> {
    let rows_per_block = rows_per_piece(Encoding::F32, reader.n_vocab()) as usize;
    let mut left = max_rows;
    while left > 0
        && let Some(head) = reader.next_window()?
    {
        left = left.saturating_sub(u64::from(head.n_rows));
        if give(Event::Window(head)).is_err() {
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
