//! The reference's side of a run: which of its windows, in which order, and its rows beside those
//! of the model.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kl_formats::{Reference, Row, TokenRecord, WindowHead};

use super::in_place::{self, BaseFile, InPlace};
use super::stream::Stream;
use super::{Error, locked};
use crate::windows::{DEFAULT_SEED, n_rows, shuffled};

/// Bytes of decoded rows held at once, one row always being allowed.
const BYTES_AT_ONCE: usize = 16 << 20;

/// The windows of a reference, to be evaluated one after the other.
pub struct ReferenceRows {
    rows: Rows,
    n_vocab: usize,
    /// The windows that are still wanted, by their numbers, as they are to be handed out; `None`:
    /// all, as the file has them.
    wanted: Option<Mutex<HashMap<u32, WindowHead>>>,
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
    /// Rows that have not been read.
    left: usize,
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
        let rows = rows_per_window(&reference);
        let order = choose_windows(&rows, is_shuffled(&reference), max_rows);
        let (n_windows, n_rows) = match &reference {
            Reference::KlPy(reader) => {
                let n_windows = reader.header().n_windows.map(u64::from);
                (n_windows.filter(|_| max_rows == u64::MAX), None)
            }
            _ => count(&rows, &order),
        };
        Self {
            n_vocab: reference.n_vocab() as usize,
            rows: Rows::new(reference, bos, order, max_rows),
            wanted: None,
            n_windows,
            n_rows,
            max_rows,
            n_entries: usize::MAX,
        }
    }

    /// The windows at these places of `reference`, in their order; of a stream all, in its own.
    #[must_use]
    pub fn at_places(reference: Reference, places: Vec<usize>, max_rows: Option<u64>) -> Self {
        Self {
            n_vocab: reference.n_vocab() as usize,
            rows: Rows::new(reference, None, places, u64::MAX),
            wanted: None,
            n_windows: None,
            n_rows: None,
            max_rows: max_rows.unwrap_or(u64::MAX),
            n_entries: usize::MAX,
        }
    }

    /// Hands out these windows alone, with their numbers in the file and as many rows as there: what
    /// the file does not say of them, another may have said.
    #[must_use]
    pub fn with_heads(self, heads: Vec<WindowHead>) -> Self {
        Self {
            n_windows: Some(heads.len() as u64),
            n_rows: Some(n_rows(&heads)),
            wanted: Some(Mutex::new(
                heads.into_iter().map(|head| (head.window, head)).collect(),
            )),
            ..self
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
        let Some(wanted) = &self.wanted else {
            return self.next_of_file();
        };
        let mut wanted = locked(wanted);
        while !wanted.is_empty()
            && let Some(mut window) = self.next_of_file()?
        {
            if let Some(head) = wanted.remove(&window.head.window) {
                window.head = head;
                return Ok(Some(window));
            }
            window.skip_rest()?;
        }
        match wanted.keys().next() {
            None => Ok(None),
            Some(number) => Err(Error::Inconsistent {
                found: format!("no window {number}"),
            }),
        }
    }

    fn next_of_file(&self) -> Result<Option<Window<'_>>, Error> {
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
            left: head.n_rows as usize,
            head,
            n_vocab: self.n_vocab,
            rows,
            in_reading: started.elapsed(),
        }))
    }
}

impl Rows {
    fn new(reference: Reference, bos: Option<u32>, order: Vec<usize>, max_rows: u64) -> Self {
        match reference {
            Reference::Native(reader) => Self::InPlace(InPlace::new(Box::new(reader), order)),
            Reference::LlamaCpp(reader) => {
                Self::InPlace(InPlace::new(Box::new(BaseFile { reader, bos }), order))
            }
            Reference::Safetensors(reader) => Self::InPlace(InPlace::new(Box::new(reader), order)),
            Reference::KlPy(reader) => Self::Stream(Mutex::new(Stream::start(reader, max_rows))),
            Reference::Npz(reader) => Self::Stream(Mutex::new(Stream::start(reader, max_rows))),
        }
    }
}

impl Window<'_> {
    /// Passes over all rows that are left: a stream has no other way to what comes behind them.
    pub(super) fn skip_rest(&mut self) -> Result<(), Error> {
        self.skip(self.left)
    }

    /// Passes over rows.
    pub(super) fn skip(&mut self, n: usize) -> Result<(), Error> {
        if let WindowRows::InPlace(rows) = &mut self.rows {
            rows.skip(n);
            self.left = self.left.saturating_sub(n);
            return Ok(());
        }
        self.in_parts(n, |window, n| window.map(n, |_, _| ()).map(drop))
    }

    /// `n` rows in parts of bounded size.
    pub(super) fn in_parts<E>(
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

    /// What `of_row` makes of the next `n` rows, each with its place among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        self.left = self.left.saturating_sub(n);
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

/// Whether the windows of a file come in an order that is random already, or that cannot be
/// changed.
#[must_use]
pub fn is_shuffled(reference: &Reference) -> bool {
    match reference {
        Reference::Native(reader) => reader.header().seed.is_some(),
        Reference::KlPy(_) | Reference::Npz(_) => true,
        Reference::LlamaCpp(_) | Reference::Safetensors(_) => false,
    }
}

/// Rows of each window, in the order of the file; of kl.py's nothing is known.
fn rows_per_window(reference: &Reference) -> Vec<u32> {
    match reference {
        Reference::Native(reader) => reader
            .windows()
            .iter()
            .map(|window| window.n_rows)
            .collect(),
        Reference::LlamaCpp(reader) => {
            vec![reader.header().rows_per_window(); reader.n_windows()]
        }
        Reference::Safetensors(reader) => reader.rows_per_window().collect(),
        Reference::Npz(reader) => reader.rows_per_window().collect(),
        Reference::KlPy(_) => Vec::new(),
    }
}

/// Places of the windows to read, of a file whose windows have so many rows each.
#[must_use]
pub fn choose_windows(rows: &[u32], is_shuffled: bool, max_rows: u64) -> Vec<usize> {
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
