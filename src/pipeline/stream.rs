//! Reads references that can only be read from start to end: a thread reads and inflates a bounded
//! number of blocks ahead of the model.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use kl_formats::{ReadStream, Row, RowBlock, RowLayout, WindowSpec, rows_per_piece};

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

/// Blocks of rows, handed out a decode call's worth at a time.
pub(super) struct Stream {
    /// The reader, until the first window is wanted.
    reader: Option<Box<dyn ReadStream>>,
    rows_per_block: usize,
    /// Windows are read up to the one that brings so many rows; set before the first is wanted.
    pub(super) max_rows: u64,
    events: Receiver<kl_formats::Result<Event>>,
    /// The item that was looked at and not handed out: a window, or the end.
    peeked: Option<Option<WindowSpec>>,
    rows: VecDeque<RowBlock>,
    /// Rows of the window, from the first of `rows` on, that have been used or left out.
    pub(super) used: usize,
}

impl Stream {
    /// A stream of all windows, whose rows have `n_vocab` entries.
    pub(super) fn new(reader: Box<dyn ReadStream>, n_vocab: u32) -> Self {
        Self {
            reader: Some(reader),
            rows_per_block: rows_per_piece(RowLayout::F32, n_vocab) as usize,
            max_rows: u64::MAX,
            events: sync_channel(0).1,
            peeked: None,
            rows: VecDeque::new(),
            used: 0,
        }
    }

    fn next_event(&mut self) -> Result<Event, Error> {
        if let Some(reader) = self.reader.take() {
            let (sender, events) = sync_channel(depth());
            let (rows_per_block, max_rows) = (self.rows_per_block, self.max_rows);
            std::thread::spawn(move || send(reader, rows_per_block, max_rows, &sender));
            self.events = events;
        }
        Ok(self.events.recv().map_err(|_| Error::WorkerLost)??)
    }

    /// The window that comes next.
    pub(super) fn peek(&mut self) -> Result<Option<WindowSpec>, Error> {
        let next = self.next_window()?;
        self.peeked = Some(next.clone());
        Ok(next)
    }

    /// Begins the next window. What is left of the one before is read, and dropped.
    pub(super) fn next_window(&mut self) -> Result<Option<WindowSpec>, Error> {
        if let Some(next) = self.peeked.take() {
            return Ok(next);
        }
        self.rows.clear();
        self.used = 0;
        loop {
            match self.next_event()? {
                Event::End => return Ok(None),
                Event::Window(window) => return Ok(Some(window)),
                Event::Rows(_) => {}
            }
        }
    }

    /// Waits until the next `n` rows of the window are here.
    pub(super) fn wait_for(&mut self, n: usize) -> Result<(), Error> {
        self.drop_used();
        while self.rows.iter().map(RowBlock::n_rows).sum::<usize>() < self.used + n {
            match self.next_event()? {
                Event::Rows(block) => self.rows.push_back(block),
                Event::Window(_) | Event::End => return Err(Error::too_few_rows()),
            }
            self.drop_used();
        }
        Ok(())
    }

    /// The rows that are here, from the one that is used next on.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().flat_map(RowBlock::rows).skip(self.used)
    }

    /// Drops the blocks that are used.
    fn drop_used(&mut self) {
        while let Some(block) = self.rows.front()
            && block.n_rows() <= self.used
        {
            self.used -= block.n_rows();
            self.rows.pop_front();
        }
    }
}

/// Sends windows and rows, and the end or the error that comes first.
fn send(
    mut reader: Box<dyn ReadStream>,
    rows_per_block: usize,
    max_rows: u64,
    sender: &SyncSender<kl_formats::Result<Event>>,
) {
    let (mut left, mut is_open) = (max_rows, false);
    let mut next = || -> kl_formats::Result<Event> {
        if is_open && let Some(block) = reader.next_rows(rows_per_block)? {
            return Ok(Event::Rows(block));
        }
        if left > 0
            && let Some(window) = reader.next_window()?
        {
            left = left.saturating_sub(u64::from(window.n_rows));
            is_open = true;
            return Ok(Event::Window(window));
        }
        Ok(Event::End)
    };
    loop {
        let event = next();
        let is_last = matches!(event, Ok(Event::End) | Err(_));
        // If the receiver is gone, its owner reports why.
        if sender.send(event).is_err() || is_last {
            return;
        }
    }
}
