//! The reference's side of a run: which of its windows, in which order, and its rows beside those
//! of the model.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kl_formats::{Reference, Row, TokenRecord, WindowHead};

use super::in_place::{self, BaseFile, InPlace};
use super::stream::Stream;
use super::{Error, locked};
use crate::windows::{DEFAULT_SEED, shuffled};

/// The windows of a reference, to be evaluated one after the other.
pub struct ReferenceRows {
    rows: Rows,
    n_vocab: usize,
    /// Windows that will come, where the file says how many it has.
    pub n_windows: Option<u64>,
    /// Rows that will come, where the file says how many it has.
    pub n_rows: Option<u64>,
    /// Rows wanted. Windows come whole, since a model computes a part of one in batches of another
    /// shape, and so to other last bits: the last window may bring more rows than these.
    pub max_rows: u64,
    /// Entries of each row that are compared, of the model's rows too, from the first on.
    pub n_entries: usize,
}

/// How the rows are had: from anywhere in the file, or as they come.
enum Rows {
    InPlace(InPlace),
    Stream(Mutex<Stream>),
}

/// One window's rows, beside which the model's are held as they come.
pub(super) struct Window<'r> {
    pub(super) head: WindowHead,
    pub(super) n_vocab: usize,
    rows: WindowRows<'r>,
    /// How long reading has taken of its caller's time.
    pub(super) in_reading: Duration,
}

enum WindowRows<'r> {
    InPlace(in_place::WindowRows<'r>),
    /// Whoever has the stream's window has the stream.
    Stream(MutexGuard<'r, Stream>),
}

impl ReferenceRows {
    /// At most `max_rows` rows of `reference`. `bos`: the token that the model puts before a text,
    /// which llama.cpp's base files leave out.
    ///
    /// Where only a part is wanted, files in text order are read in the seeded random order of
    /// [`shuffled`]; others in their own, which for a part written with `-n`, and for kl.py's files,
    /// is random already.
    #[must_use]
    pub fn new(reference: Reference, bos: Option<u32>, max_rows: Option<u64>) -> Self {
        let max_rows = max_rows.unwrap_or(u64::MAX);
        let n_vocab = reference.n_vocab() as usize;
        let (rows, n_windows, n_rows) = match reference {
            Reference::Native(reader) => {
                let windows = reader.windows();
                let rows: Vec<u32> = windows.iter().map(|window| window.n_rows).collect();
                let order = choose_windows(&rows, reader.header().seed.is_some(), max_rows);
                let (n_windows, n_rows) = count(&rows, &order);
                let rows = InPlace::new(Box::new(reader), order);
                (Rows::InPlace(rows), n_windows, n_rows)
            }
            Reference::LlamaCpp(reader) => {
                let rows = vec![reader.header().rows_per_window(); reader.n_windows()];
                let order = choose_windows(&rows, false, max_rows);
                let (n_windows, n_rows) = count(&rows, &order);
                let rows = InPlace::new(Box::new(BaseFile { reader, bos }), order);
                (Rows::InPlace(rows), n_windows, n_rows)
            }
            Reference::KlPy(reader) => {
                let n_windows = reader.header().n_windows.map(u64::from);
                let n_windows = n_windows.filter(|_| max_rows == u64::MAX);
                (
                    Rows::Stream(Mutex::new(Stream::start(reader, max_rows))),
                    n_windows,
                    None,
                )
            }
        };
        Self {
            rows,
            n_vocab,
            n_windows,
            n_rows,
            max_rows,
            n_entries: usize::MAX,
        }
    }

    /// Compares the first `n` entries of the rows alone: what is left of both is a distribution
    /// again, renormalised as any softmax is.
    #[must_use]
    pub fn cut_to(self, n: u32) -> Self {
        Self {
            n_entries: n as usize,
            ..self
        }
    }

    /// Whether the file says how many rows it has.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.n_rows.is_some()
    }

    /// Rows that will be scored, where the file says how many it has.
    #[must_use]
    pub fn n_scored(&self) -> Option<u64> {
        self.n_rows.map(|n| n.min(self.max_rows))
    }

    /// Leaves out the first windows, as far as `records` hold all of theirs: an earlier run over the
    /// same rows has measured them. Gives how many records that are; none where the file is a
    /// stream.
    ///
    /// # Errors
    /// Records that are not those of the first windows; a window that cannot be read.
    pub fn resume_behind(&mut self, records: &[TokenRecord]) -> Result<usize, Error> {
        let Rows::InPlace(rows) = &mut self.rows else {
            return Ok(0);
        };
        let mut n_kept = 0;
        let mut n_windows = 0;
        while let Some(head) = rows.peek()? {
            let n_rows = u64::from(head.n_rows).min(self.max_rows - n_kept as u64) as usize;
            let measured = records.get(n_kept..).unwrap_or_default();
            let Some(measured) = measured.get(..n_rows).filter(|_| n_rows > 0) else {
                break;
            };
            let places = measured
                .iter()
                .map(|record| (record.window, record.position));
            let expected = (head.first_scored..).map(|position| (head.window, position));
            if !places.eq(expected.take(n_rows)) {
                let found = format!(
                    "other positions of window {} than were measured",
                    head.window
                );
                return Err(Error::Inconsistent { found });
            }
            rows.skip();
            n_kept += n_rows;
            n_windows += 1;
        }
        self.n_windows = self.n_windows.map(|n| n.saturating_sub(n_windows));
        self.n_rows = self.n_rows.map(|n| n.saturating_sub(n_kept as u64));
        self.max_rows -= n_kept as u64;
        Ok(n_kept)
    }

    /// Whether several windows can be under way at once.
    pub(super) fn can_share(&self) -> bool {
        matches!(self.rows, Rows::InPlace(_))
    }

    /// The next window.
    pub(super) fn next_window(&self) -> Result<Option<Window<'_>>, Error> {
        let started = Instant::now();
        let next = match &self.rows {
            Rows::InPlace(rows) => rows
                .next_window()?
                .map(|(head, rows)| (head, WindowRows::InPlace(rows))),
            Rows::Stream(stream) => {
                let mut stream = locked(stream);
                stream
                    .next_window()?
                    .map(|head| (head, WindowRows::Stream(stream)))
            }
        };
        Ok(next.map(|(head, rows)| Window {
            head,
            n_vocab: self.n_vocab,
            rows,
            in_reading: started.elapsed(),
        }))
    }
}

impl Window<'_> {
    /// What `of_row` makes of the next `n` rows, each with its place among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        match &mut self.rows {
            WindowRows::InPlace(rows) => rows.map(n, of_row, &mut self.in_reading),
            WindowRows::Stream(rows) => rows.map(n, of_row, &mut self.in_reading),
        }
    }
}

/// Windows and rows that come in an order of places.
fn count(rows: &[u32], order: &[usize]) -> (Option<u64>, Option<u64>) {
    let n_rows = order.iter().map(|&place| u64::from(rows[place])).sum();
    (Some(order.len() as u64), Some(n_rows))
}

/// Places of the windows to read, of a file whose windows have so many rows each.
fn choose_windows(rows: &[u32], is_shuffled: bool, max_rows: u64) -> Vec<usize> {
    let in_order = (0..rows.len()).collect();
    if max_rows >= rows.iter().map(|&rows| u64::from(rows)).sum() {
        return in_order;
    }
    let mut order = if is_shuffled {
        in_order
    } else {
        shuffled(rows.len(), DEFAULT_SEED)
    };
    let mut taken = 0;
    order.retain(|&place| {
        let wanted = taken < max_rows;
        taken += u64::from(rows[place]);
        wanted
    });
    order
}
