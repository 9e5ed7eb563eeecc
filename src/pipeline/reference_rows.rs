//! The reference's side of a run: which of its windows are read, in which order, and their rows.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kl_formats::{
    Reference, Row, RowLayout, Rows, Shard, TokenRecord, Values, WindowSpec, rows_per_piece,
};

use super::in_place::{BlockRows, InPlace};
use super::stream::Stream;
use super::{Error, locked};
use crate::input::{DEFAULT_SEED, Part, n_rows, shuffled};

/// How many bytes of decoded rows are held at once; one row is always allowed.
const BYTES_AT_ONCE: usize = 16 << 20;

/// The windows of a reference, to be evaluated one after the other.
pub struct ReferenceRows {
    source: Source,
    n_vocab: usize,
    /// Whether the rows are log-probabilities with a floor.
    is_floored: bool,
    /// The windows that are still wanted, by their numbers, each as it is to be handed out; `None`:
    /// all, as the file has them.
    wanted: Option<Mutex<HashMap<u32, WindowSpec>>>,
    /// Windows that will come, where the file states how many it has.
    pub n_windows: Option<u64>,
    /// Rows that will come, where the file states how many it has.
    pub n_rows: Option<u64>,
    /// Rows wanted. Windows come whole, since a model computes a part of one in batches of another
    /// shape, and so to other last bits: the last window may bring more rows than these.
    pub max_rows: u64,
    /// How many entries of each row are compared, from the first on, in the model's rows too.
    pub n_entries: usize,
}

/// Where rows come from: any part of the file, or a stream.
enum Source {
    InPlace(InPlace),
    Stream(Mutex<Stream>),
}

/// One window, whose rows are compared with the model's as those come.
pub(super) struct OpenWindow<'r> {
    pub(super) spec: WindowSpec,
    pub(super) n_vocab: usize,
    /// Whether the rows are log-probabilities with a floor.
    pub(super) is_floored: bool,
    rows: RowSource<'r>,
    /// Rows that have not been read.
    left: usize,
    /// How much of its caller's time reading has taken.
    pub(super) in_reading: Duration,
}

enum RowSource<'r> {
    InPlace(BlockRows<'r>),
    /// An open window of a stream holds the stream.
    Stream(MutexGuard<'r, Stream>),
}

impl ReferenceRows {
    /// Reads at most `max_rows` rows of `reference`.
    ///
    /// Where only a part is wanted, files in text order are read in the seeded random order of
    /// [`shuffled`]; others in their own, which for a part written with `-n`, and for kl.py's
    /// files, is random already.
    #[must_use]
    pub fn new(reference: Reference, max_rows: Option<u64>) -> Self {
        let max_rows = max_rows.unwrap_or(u64::MAX);
        let rows = rows_per_window(&reference);
        let order = choose_windows(&rows, reference.is_shuffled(), max_rows);
        Self::in_order(reference, &rows, order, max_rows)
    }

    /// The same in the order of a sample, though all rows may be read: for a caller who may stop
    /// anywhere. A stream keeps its own order.
    #[must_use]
    pub fn sampled(reference: Reference, max_rows: Option<u64>) -> Self {
        let max_rows = max_rows.unwrap_or(u64::MAX);
        let rows = rows_per_window(&reference);
        let order = sample(&rows, reference.is_shuffled(), max_rows);
        Self::in_order(reference, &rows, order, max_rows)
    }

    /// Reads the windows of [`ReferenceRows::new`] that belong to one part of them. A stream cannot
    /// be shared out: it is read whole.
    #[must_use]
    pub fn part(reference: Reference, max_rows: Option<u64>, shard: Shard) -> Self {
        let rows = rows_per_window(&reference);
        let all = windows_to_share(&rows, &reference, max_rows);
        let excess = count(&rows, &all)
            .1
            .unwrap_or(0)
            .saturating_sub(shard.n_rows);
        let last = all.last().copied();
        let order = Part::from(shard).keep(all);
        let n_rows = count(&rows, &order).1.unwrap_or(0);
        // Only the last window of all is cut short.
        let excess = if order.last().copied() == last {
            excess
        } else {
            0
        };
        Self::in_order(reference, &rows, order, n_rows.saturating_sub(excess))
    }

    fn in_order(reference: Reference, rows: &[u32], order: Vec<usize>, max_rows: u64) -> Self {
        let (n_windows, n_rows) = match reference.windows() {
            Some(_) => count(rows, &order),
            None => {
                let n_windows = reference.about().n_windows.map(u64::from);
                (n_windows.filter(|_| max_rows == u64::MAX), None)
            }
        };
        Self {
            n_vocab: reference.about().n_vocab as usize,
            is_floored: is_floored(&reference),
            source: Source::new(reference, order, max_rows),
            wanted: None,
            n_windows,
            n_rows,
            max_rows,
            n_entries: usize::MAX,
        }
    }

    /// Reads the windows of `reference` at these indices, in their order; of a stream, all windows
    /// in its own order.
    #[must_use]
    pub fn at(reference: Reference, indices: Vec<usize>, max_rows: Option<u64>) -> Self {
        Self {
            n_vocab: reference.about().n_vocab as usize,
            is_floored: is_floored(&reference),
            source: Source::new(reference, indices, u64::MAX),
            wanted: None,
            n_windows: None,
            n_rows: None,
            max_rows: max_rows.unwrap_or(u64::MAX),
            n_entries: usize::MAX,
        }
    }

    /// Hands out only these windows, whose numbers and rows are those of the file. Their tokens may
    /// come from another file, if this one holds none.
    #[must_use]
    pub fn with_windows(self, windows: Vec<WindowSpec>) -> Self {
        let n_windows = windows.len() as u64;
        let n_rows = n_rows(&windows);
        let by_number = windows.into_iter().map(|spec| (spec.window, spec));
        Self {
            n_windows: Some(n_windows),
            n_rows: Some(n_rows),
            wanted: Some(Mutex::new(by_number.collect())),
            ..self
        }
    }

    /// Compares only the first `n` entries of the rows: their softmax is a distribution again.
    #[must_use]
    pub fn cut_to(self, n: u32) -> Self {
        Self {
            n_entries: n as usize,
            ..self
        }
    }

    /// Rows that will be scored, where the file states how many it has.
    #[must_use]
    pub fn n_scored(&self) -> Option<u64> {
        self.n_rows.map(|n| n.min(self.max_rows))
    }

    /// Leaves out the first windows, as long as `records`, which an earlier run over the same rows
    /// has measured, hold all of their rows. Returns how many records those are.
    ///
    /// # Errors
    /// Records that are not those of the first windows; a window that cannot be read.
    pub fn resume_after(&mut self, records: &[TokenRecord]) -> Result<usize, Error> {
        let mut n_kept = 0;
        let mut n_windows = 0;
        while let Some(spec) = self.source.peek()? {
            let n_rows = u64::from(spec.n_rows).min(self.max_rows - n_kept as u64) as usize;
            let measured = records.get(n_kept..).unwrap_or_default();
            let Some(measured) = measured.get(..n_rows).filter(|_| n_rows > 0) else {
                break;
            };
            let positions = measured
                .iter()
                .map(|record| (record.window, record.position));
            let expected = (spec.first_scored..).map(|position| (spec.window, position));
            if !positions.eq(expected.take(n_rows)) {
                let found = format!(
                    "other positions of window {} than were measured",
                    spec.window
                );
                return Err(Error::Inconsistent { found });
            }
            self.skip_window()?;
            n_kept += n_rows;
            n_windows += 1;
        }
        self.n_windows = self.n_windows.map(|n| n.saturating_sub(n_windows));
        self.n_rows = self.n_rows.map(|n| n.saturating_sub(n_kept as u64));
        self.max_rows -= n_kept as u64;
        Ok(n_kept)
    }

    /// Whether the rows are log-probabilities with a floor.
    pub(super) fn is_floored(&self) -> bool {
        self.is_floored
    }

    /// Leaves out the window that comes next.
    fn skip_window(&mut self) -> Result<(), Error> {
        if let Source::InPlace(rows) = &mut self.source {
            rows.skip();
        } else if let Some(mut window) = self.next_of_file()? {
            window.skip_rest()?;
        }
        Ok(())
    }

    /// Whether several windows can be open at once.
    pub(super) fn can_share(&self) -> bool {
        matches!(self.source, Source::InPlace(_))
    }

    /// Opens the next window.
    pub(super) fn next_window(&self) -> Result<Option<OpenWindow<'_>>, Error> {
        let Some(wanted) = &self.wanted else {
            return self.next_of_file();
        };
        let mut wanted = locked(wanted);
        while !wanted.is_empty()
            && let Some(mut window) = self.next_of_file()?
        {
            if let Some(spec) = wanted.remove(&window.spec.window) {
                window.spec = spec;
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

    fn next_of_file(&self) -> Result<Option<OpenWindow<'_>>, Error> {
        let started = Instant::now();
        let next = match &self.source {
            Source::InPlace(rows) => rows
                .next_window()?
                .map(|(spec, rows)| (spec, RowSource::InPlace(rows))),
            Source::Stream(stream) => {
                let mut stream = locked(stream);
                stream
                    .next_window()?
                    .map(|spec| (spec, RowSource::Stream(stream)))
            }
        };
        Ok(next.map(|(spec, rows)| OpenWindow {
            left: spec.n_rows as usize,
            spec,
            n_vocab: self.n_vocab,
            is_floored: self.is_floored,
            rows,
            in_reading: started.elapsed(),
        }))
    }
}

impl Source {
    /// The window that comes next.
    fn peek(&mut self) -> Result<Option<WindowSpec>, Error> {
        match self {
            Self::InPlace(rows) => rows.peek(),
            Self::Stream(stream) => locked(stream).peek(),
        }
    }

    fn new(reference: Reference, order: Vec<usize>, max_rows: u64) -> Self {
        let rows_per_block = rows_per_piece(RowLayout::F32, reference.about().n_vocab) as usize;
        match reference.into_rows() {
            Rows::Blocks(blocks) => Self::InPlace(InPlace::new(blocks, order)),
            Rows::Stream(stream) => {
                Self::Stream(Mutex::new(Stream::start(stream, rows_per_block, max_rows)))
            }
            Rows::States(_) => todo!("rows of hidden states"),
        }
    }
}

impl OpenWindow<'_> {
    /// Skips all rows that are left: a stream has no other way to what comes after them.
    pub(super) fn skip_rest(&mut self) -> Result<(), Error> {
        self.skip(self.left)
    }

    /// Skips rows.
    pub(super) fn skip(&mut self, n: usize) -> Result<(), Error> {
        if let RowSource::InPlace(rows) = &mut self.rows {
            rows.skip(n);
            self.left = self.left.saturating_sub(n);
            return Ok(());
        }
        self.in_parts(n, |window, n| window.map(n, |_, _| ()).map(drop))
    }

    /// Calls `of_part` for `n` rows in parts of bounded size, with the size of each.
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

    /// Applies `of_row` to the next `n` rows, each with its index among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        self.left = self.left.saturating_sub(n);
        match &mut self.rows {
            RowSource::InPlace(rows) => rows.map(n, of_row, &mut self.in_reading),
            RowSource::Stream(rows) => rows.map(n, of_row, &mut self.in_reading),
        }
    }
}

fn is_floored(reference: &Reference) -> bool {
    reference.about().values == Values::FlooredLogProbabilities
}

/// Counts the windows with rows, and the rows, that [`ReferenceRows::new`] reads: how many of them
/// there are to share out; `None` for a stream, which has no list of them.
#[must_use]
pub fn to_share(reference: &Reference, max_rows: Option<u64>) -> Option<(usize, u64)> {
    reference.windows()?;
    let rows = rows_per_window(reference);
    let order = windows_to_share(&rows, reference, max_rows);
    let n_rows = count(&rows, &order).1?;
    Some((order.len(), n_rows.min(max_rows.unwrap_or(u64::MAX))))
}

/// The windows that [`ReferenceRows::new`] reads, without those that have no rows.
fn windows_to_share(rows: &[u32], reference: &Reference, max_rows: Option<u64>) -> Vec<usize> {
    let max_rows = max_rows.unwrap_or(u64::MAX);
    let mut order = choose_windows(rows, reference.is_shuffled(), max_rows);
    order.retain(|&i| rows[i] > 0);
    order
}

/// How many windows `order` has, and how many rows those have.
fn count(rows: &[u32], order: &[usize]) -> (Option<u64>, Option<u64>) {
    let n_rows = order.iter().map(|&i| u64::from(rows[i])).sum();
    (Some(order.len() as u64), Some(n_rows))
}

/// How many rows each window has, in the order of the file; empty if the file has no list of them.
fn rows_per_window(reference: &Reference) -> Vec<u32> {
    let windows = reference.windows().unwrap_or_default();
    windows.iter().map(|window| window.n_rows).collect()
}

/// Chooses the windows to read, by index; `rows[i]` is how many rows window `i` has.
#[must_use]
pub fn choose_windows(rows: &[u32], is_shuffled: bool, max_rows: u64) -> Vec<usize> {
    if max_rows >= rows.iter().map(|&rows| u64::from(rows)).sum() {
        return (0..rows.len()).collect();
    }
    sample(rows, is_shuffled, max_rows)
}

/// The first windows with `max_rows` rows, in random order.
fn sample(rows: &[u32], is_shuffled: bool, max_rows: u64) -> Vec<usize> {
    let mut order = if is_shuffled {
        (0..rows.len()).collect()
    } else {
        shuffled(rows.len(), DEFAULT_SEED)
    };
    let mut n_rows = 0;
    order.retain(|&i| {
        let wanted = n_rows < max_rows;
        n_rows += u64::from(rows[i]);
        wanted
    });
    order
}
