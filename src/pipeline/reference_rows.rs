//! The reference's side of a run: which of its windows are read, in which order, and their rows.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kl_formats::{Reference, Shard, TokenRecord, Values, WindowSpec};

use super::open_window::OpenWindow;
use super::readable::{Readable, RowsHere};
use super::source::Source;
use super::{Error, Timing, locked};
use crate::input::{DEFAULT_SEED, Part, n_rows, shuffled};

/// The windows of a reference, to be evaluated one after the other.
pub struct ReferenceRows<'h> {
    source: Source<'h>,
    /// Whether the accelerator that is measured computes the rows.
    is_on_device: bool,
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
    /// Where the rows are computed; `None` where they are stored.
    pub here: Option<RowsHere>,
}

impl<'h> ReferenceRows<'h> {
    /// Reads at most `max_rows` rows of `reference`.
    ///
    /// Where only a part is wanted, files in text order are read in the seeded random order of
    /// [`shuffled`]; others in their own, which for a part written with `-n`, and for kl.py's
    /// files, is random already.
    #[must_use]
    pub fn new(readable: Readable<'h>, max_rows: Option<u64>) -> Self {
        let max_rows = max_rows.unwrap_or(u64::MAX);
        let reference = &readable.reference;
        let rows = rows_per_window(reference);
        let order = choose_windows(&rows, reference.is_shuffled(), max_rows);
        Self::in_order(readable, &rows, order, max_rows)
    }

    /// The same in the order of a sample, though all rows may be read: for a caller who may stop
    /// anywhere. A stream keeps its own order.
    #[must_use]
    pub fn sampled(readable: Readable<'h>, max_rows: Option<u64>) -> Self {
        let max_rows = max_rows.unwrap_or(u64::MAX);
        let reference = &readable.reference;
        let rows = rows_per_window(reference);
        let order = sample(&rows, reference.is_shuffled(), max_rows);
        Self::in_order(readable, &rows, order, max_rows)
    }

    /// Reads the windows of [`ReferenceRows::new`] that belong to one part of them. A stream cannot
    /// be shared out: it is read whole.
    #[must_use]
    pub fn part(readable: Readable<'h>, max_rows: Option<u64>, shard: Shard) -> Self {
        let reference = &readable.reference;
        let rows = rows_per_window(reference);
        let all = windows_to_share(&rows, reference, max_rows);
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
        Self::in_order(readable, &rows, order, n_rows.saturating_sub(excess))
    }

    fn in_order(readable: Readable<'h>, rows: &[u32], order: Vec<usize>, max_rows: u64) -> Self {
        let reference = &readable.reference;
        let (n_windows, n_rows) = match reference.windows() {
            Some(_) => count(rows, &order),
            None => {
                let n_windows = reference.about().n_windows.map(u64::from);
                (n_windows.filter(|_| max_rows == u64::MAX), None)
            }
        };
        Self {
            n_windows,
            n_rows,
            max_rows,
            ..Self::of_windows(readable, order, max_rows)
        }
    }

    /// The windows at these indices; of a stream, all up to the one that brings `max_rows`.
    fn of_windows(readable: Readable<'h>, order: Vec<usize>, max_rows: u64) -> Self {
        let about = readable.reference.about();
        Self {
            n_vocab: about.n_vocab as usize,
            is_floored: about.values == Values::FlooredLogProbabilities,
            wanted: None,
            n_windows: None,
            n_rows: None,
            max_rows,
            n_entries: usize::MAX,
            here: readable.here().cloned(),
            is_on_device: readable.device.is_some(),
            source: Source::new(readable, order, max_rows),
        }
    }

    /// Reads the windows of `reference` at these indices, in their order; of a stream, all windows
    /// in its own order.
    #[must_use]
    pub fn at(readable: Readable<'h>, indices: Vec<usize>, max_rows: Option<u64>) -> Self {
        Self {
            max_rows: max_rows.unwrap_or(u64::MAX),
            ..Self::of_windows(readable, indices, u64::MAX)
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

    /// The most rows that will be scored; `None` where all are wanted of a file that does not state
    /// how many it has.
    #[must_use]
    pub fn n_scored(&self) -> Option<u64> {
        let most = Some(self.max_rows).filter(|&n| n < u64::MAX);
        self.n_rows.map(|n| n.min(self.max_rows)).or(most)
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
        if !self.source.skip()
            && let Some(mut window) = self.next_of_file()?
        {
            window.skip_rest()?;
        }
        Ok(())
    }

    /// How much of a run's time went into what keeps a device waiting: into work of the CPU, and into
    /// reading the file.
    pub(super) fn waits(&self, timing: &Timing) -> (Duration, Duration) {
        let Timing { score, read, .. } = *timing;
        match (self.source.is_computed(), self.is_on_device) {
            (false, _) => (score, read),
            (true, false) => (score + read, Duration::ZERO),
            (true, true) => (score, Duration::ZERO),
        }
    }

    /// Whether several windows can be open at once.
    pub(super) fn can_share(&self) -> bool {
        self.source.can_share()
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
        let next = self.source.next_window()?;
        Ok(next.map(|(spec, rows)| {
            let in_reading = started.elapsed();
            OpenWindow::new(spec, self.n_vocab, self.is_floored, rows, in_reading)
        }))
    }
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
