//! A reference that can only be read from its start: a thread reads and inflates a bounded number of
//! blocks ahead of the model.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kl_formats::{ReadStream, Row, RowBlock, RowLayout, WindowSpec, rows_per_piece};
use kl_system::threads;
use rayon::prelude::*;

use super::row_source::{RowSource, RowStream, ShouldStop, UseRow, WindowRows, use_all};
use super::timing::DeviceClock;
use super::{Error, locked, max_pieces};

/// A part of a stream: a window that begins, or rows of the one that began last, in order.
enum StreamPart {
    Window(WindowSpec),
    Rows(RowBlock),
}

/// The next part, or the end. A channel that closes before the end: the reader has panicked.
type SentPart = kl_formats::Result<Option<StreamPart>>;

/// The time between two looks at whether to stop: a pipe may bring nothing for minutes.
const STEP: Duration = Duration::from_millis(100);

/// Blocks of rows, handed out a decode call's worth at a time.
pub(super) struct Stream<'s> {
    parts: Receiver<SentPart>,
    should_stop: ShouldStop<'s>,
    /// Rows that are still wanted: at 0, no window begins.
    max_rows: u64,
    /// The item that was looked at and not handed out: a window, or the end.
    peeked: Option<Option<WindowSpec>>,
    rows: VecDeque<RowBlock>,
    /// Rows of the window, from the first of `rows` on, that have been used or left out.
    n_used: usize,
}

impl Stream<'_> {
    /// A stream of all windows, whose rows have `n_vocab` entries.
    ///
    /// # Errors
    /// If the system allows no thread to read it.
    pub(super) fn new(mut reader: Box<dyn ReadStream>, n_vocab: usize) -> Result<Self, Error> {
        let rows_per_block = rows_per_piece(RowLayout::F32, n_vocab as u32) as usize;
        let (sender, parts) = sync_channel::<SentPart>(max_pieces());
        threads::spawn(move || {
            let mut is_open = false;
            let mut next = || -> SentPart {
                if is_open && let Some(block) = reader.next_rows(rows_per_block)? {
                    return Ok(Some(StreamPart::Rows(block)));
                }
                is_open = true;
                Ok(reader.next_window()?.map(StreamPart::Window))
            };
            loop {
                let part = next();
                let is_last = !matches!(part, Ok(Some(_)));
                // If the receiver is gone, its owner reports why.
                if sender.send(part).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(Self {
            parts,
            should_stop: Box::new(|| false),
            max_rows: u64::MAX,
            peeked: None,
            rows: VecDeque::new(),
            n_used: 0,
        })
    }

    fn next_part(&mut self) -> Result<Option<StreamPart>, Error> {
        loop {
            match self.parts.recv_timeout(STEP) {
                Ok(part) => return Ok(part?),
                Err(RecvTimeoutError::Disconnected) => return Err(Error::WorkerLost),
                Err(RecvTimeoutError::Timeout) if (self.should_stop)() => {
                    return Err(Error::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The window that comes next.
    fn peek(&mut self) -> Result<Option<WindowSpec>, Error> {
        let next = self.next_window()?;
        self.peeked = Some(next.clone());
        Ok(next)
    }

    /// Begins the next window. What is left of the one before is read, and dropped.
    fn next_window(&mut self) -> Result<Option<WindowSpec>, Error> {
        if let Some(next) = self.peeked.take() {
            return Ok(next);
        }
        self.rows.clear();
        self.n_used = 0;
        while self.max_rows > 0
            && let Some(part) = self.next_part()?
        {
            if let StreamPart::Window(window) = part {
                self.max_rows = self.max_rows.saturating_sub(window.n_rows.into());
                return Ok(Some(window));
            }
        }
        Ok(None)
    }

    /// Waits until the next `n` rows of the window are here.
    fn wait_for(&mut self, n: usize) -> Result<(), Error> {
        self.drop_used();
        while self.rows.iter().map(RowBlock::n_rows).sum::<usize>() < self.n_used + n {
            let Some(StreamPart::Rows(block)) = self.next_part()? else {
                return Err(Error::too_few_rows());
            };
            self.rows.push_back(block);
            self.drop_used();
        }
        Ok(())
    }

    /// Drops the blocks that are used.
    fn drop_used(&mut self) {
        while let Some(block) = self.rows.front()
            && block.n_rows() <= self.n_used
        {
            self.n_used -= block.n_rows();
            self.rows.pop_front();
        }
    }
}

impl<'s> RowSource<'s> for Mutex<Stream<'s>> {
    /// The window that comes next: a stream has no indices.
    fn window(&self, _index: usize) -> Result<Option<WindowSpec>, Error> {
        locked(self).peek()
    }

    fn open<'r>(
        &'r self,
        _index: usize,
        _spec: &WindowSpec,
        _device: Option<&'r DeviceClock>,
    ) -> Box<dyn WindowRows + 'r> {
        Box::new(locked(self))
    }

    fn as_stream(&self) -> Option<&dyn RowStream<'s>> {
        Some(self)
    }
}

impl<'s> RowStream<'s> for Mutex<Stream<'s>> {
    fn next_window(&self, takes: bool) -> Result<Option<WindowSpec>, Error> {
        let mut stream = locked(self);
        if takes {
            stream.next_window()
        } else {
            stream.peek()
        }
    }

    fn end_after(&self, n_rows: u64) {
        locked(self).max_rows = n_rows;
    }

    fn stop_when(&self, should_stop: ShouldStop<'s>) {
        locked(self).should_stop = should_stop;
    }
}

/// The open window of a stream holds the lock on it.
impl WindowRows for MutexGuard<'_, Stream<'_>> {
    fn skip(&mut self, n: usize) {
        self.n_used += n;
    }

    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error> {
        let started = Instant::now();
        self.wait_for(n)?;
        let reading_time = started.elapsed();
        let rows: Vec<Row<'_>> = self
            .rows
            .iter()
            .flat_map(RowBlock::rows)
            .skip(self.n_used)
            .take(n)
            .collect();
        let n_vocab = rows.first().map_or(1, Row::len);
        use_all(rows.into_par_iter(), n_vocab, 0, use_row);
        self.n_used += n;
        Ok(reading_time)
    }
}
