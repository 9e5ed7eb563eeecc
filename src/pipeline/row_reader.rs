//! Rows of a reference, handed out a decode call's worth at a time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use kl_formats::{Row, RowBlock, WindowHead};

use super::Error;
use super::ordered::Results;
use super::read_ahead::{Event, Item};

/// Blocks of rows, handed out a decode call's worth at a time.
pub(super) struct RowReader {
    events: Results<Item>,
    rows: VecDeque<RowBlock>,
    /// Rows of the first block that are done with.
    used: usize,
    waited: Duration,
}

impl RowReader {
    pub(super) fn new(events: Results<Item>) -> Self {
        Self {
            events,
            rows: VecDeque::new(),
            used: 0,
            waited: Duration::ZERO,
        }
    }

    /// How long reading has kept its caller waiting.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    fn next_event(&mut self) -> Result<Option<Event>, Error> {
        let started = Instant::now();
        let event = self.events.next();
        self.waited += started.elapsed();
        Ok(event.transpose()?)
    }

    pub(super) fn next_window(&mut self) -> Result<Option<WindowHead>, Error> {
        match self.next_event()? {
            Some(Event::End) => Ok(None),
            None => Err(Error::WorkerLost),
            Some(Event::Window(head)) => Ok(Some(head)),
            Some(Event::Rows(_)) => Err(Error::Inconsistent {
                found: "more rows than a window has".to_owned(),
            }),
        }
    }

    /// The next `n` rows of this window.
    pub(super) fn take(&mut self, n: usize) -> Result<Vec<Row<'_>>, Error> {
        let mut there: usize = self.rows.iter().map(RowBlock::n_rows).sum();
        while there < self.used + n {
            match self.next_event()? {
                Some(Event::Rows(block)) => {
                    there += block.n_rows();
                    self.rows.push_back(block);
                }
                Some(Event::Window(_) | Event::End) => {
                    let found = "fewer rows than a window has".to_owned();
                    return Err(Error::Inconsistent { found });
                }
                None => return Err(Error::WorkerLost),
            }
        }
        let first = self.used;
        self.used += n;
        let rows = self
            .rows
            .iter()
            .flat_map(|block| (0..block.n_rows()).map(|i| block.row(i)));
        Ok(rows.skip(first).take(n).collect())
    }

    /// Frees the blocks whose rows have all been taken.
    pub(super) fn release(&mut self) {
        while let Some(block) = self.rows.front()
            && block.n_rows() <= self.used
        {
            self.used -= block.n_rows();
            self.rows.pop_front();
        }
    }
}
