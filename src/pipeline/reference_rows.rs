//! The reference's side of a run: which of its windows are read, in which order, and their rows.

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kl_formats::{
    ReadBlocks, Reference, RowBlock, Shard, States, TokenRecord, Values, WindowSpec, n_rows,
};

use super::computed::Computed;
use super::device_clock::DeviceClock;
use super::open_window::{OpenWindow, StoredRows, WindowRows};
use super::source::{RowsHere, Source};
use super::{Error, Pool, Timing, locked};
use crate::engine::{Decoder, EngineError, Head};
use crate::input::{DEFAULT_SEED, Part, shuffled};

/// The number of blocks that the system is asked to fetch before they are read: 64 MiB, at 1 MiB
/// each.
const BLOCKS_AHEAD: usize = 64;

/// The windows of a reference, to be evaluated one after the other; all of them, in the order of the
/// file, unless some are chosen.
pub struct ReferenceRows<'h> {
    pub(super) source: Source<'h>,
    order: Mutex<Order>,
    /// The number of rows of each window, in the order of the file, if it has a list of them.
    rows_per_window: Option<Vec<u32>>,
    /// True if the windows are in random order already, or in one that cannot be changed.
    is_shuffled: bool,
    /// Measures the accelerator that computes the rows, if one does.
    pub device: Option<DeviceClock>,
    /// The contexts of a second model that no window uses. Each source of the evaluated model's rows
    /// has one window open at a time, and so needs one of them.
    pub contexts: Pool<Box<dyn Decoder + Send + 'h>>,
    /// Blocks whose memory can be used again.
    pub(super) blocks: Pool<RowBlock>,
    pub(super) n_vocab: usize,
    /// True if the rows are log-probabilities with a floor.
    pub(super) is_floored: bool,
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
    /// The number of entries of each row that are compared, from the first on, in the model's rows
    /// too: the softmax of a part is a distribution again.
    pub n_entries: usize,
    /// Where the rows of hidden states are computed.
    pub here: Option<RowsHere>,
}

/// The windows that are still to come, by their indices in the file.
struct Order {
    windows: VecDeque<usize>,
    /// Those whose blocks the system has not been asked for, and the next block of the first.
    not_asked: VecDeque<usize>,
    next_block: u32,
    /// Blocks asked for and not yet read.
    ahead: usize,
}

impl Order {
    fn new(windows: Vec<usize>) -> Mutex<Self> {
        Mutex::new(Self {
            not_asked: windows.clone().into(),
            windows: windows.into(),
            next_block: 0,
            ahead: 0,
        })
    }

    /// Counts `read` more blocks as read, and asks for the next ones, a bounded number ahead.
    fn prefetch(&mut self, blocks: &dyn ReadBlocks, read: usize) {
        self.ahead = self.ahead.saturating_sub(read);
        while self.ahead < BLOCKS_AHEAD
            && let Some(&window) = self.not_asked.front()
        {
            if self.next_block == blocks.n_blocks(window) {
                self.not_asked.pop_front();
                self.next_block = 0;
            } else {
                blocks.prefetch(window, self.next_block);
                self.next_block += 1;
                self.ahead += 1;
            }
        }
    }
}

impl<'h> ReferenceRows<'h> {
    /// Opens the rows of `reference`. Where it holds hidden states, `make` prepares the head that
    /// makes rows of them, and a check shows whether it makes the right ones.
    ///
    /// # Errors
    /// Those of `make` and of the file; hidden states that give other rows than their model.
    pub fn open<H: Head + 'h>(
        reference: Reference,
        make: impl FnOnce(&States, &mut dyn Read) -> Result<H, EngineError>,
    ) -> Result<Self, Error> {
        let about = reference.about();
        let (n_vocab, values) = (about.n_vocab as usize, about.values);
        let (n_windows, n_rows) = (about.n_windows.map(u64::from), about.n_rows);
        let is_shuffled = reference.is_shuffled();
        let rows_per_window = rows_per_window(&reference);
        let (source, here) = Source::open(reference, make)?;
        let all = rows_per_window.as_ref().map_or(0, Vec::len);
        Ok(Self {
            source,
            order: Order::new((0..all).collect()),
            is_shuffled,
            device: None,
            contexts: Pool::default(),
            blocks: Pool::default(),
            n_vocab,
            is_floored: values == Values::FlooredLogProbabilities,
            wanted: None,
            n_windows,
            n_rows: n_rows.filter(|_| rows_per_window.is_some()),
            rows_per_window,
            max_rows: u64::MAX,
            n_entries: usize::MAX,
            here,
        })
    }

    /// Reads at most `max_rows` rows, and of the windows that hold them only the part `shard`. A stream
    /// cannot be shared out, and keeps its own order.
    ///
    /// Where not all rows are wanted, or `is_sampled` for a caller who may stop anywhere, files in text
    /// order are read in the seeded random order of [`shuffled`]; others in their own, which for a part
    /// written with `-n`, and for kl.py's files, is random already.
    #[must_use]
    pub fn choose(self, max_rows: Option<u64>, shard: Option<Shard>, is_sampled: bool) -> Self {
        let rows = self.rows_per_window.as_deref().unwrap_or_default();
        let most = max_rows.unwrap_or(u64::MAX);
        let (order, max_rows) = match shard {
            Some(shard) => {
                let all = windows_to_share(rows, self.is_shuffled, max_rows);
                let excess = count(rows, &all).saturating_sub(shard.n_rows);
                let last = all.last().copied();
                let order = Part::from(shard).keep(all);
                let n_rows = count(rows, &order);
                // Only the last window of all is cut short.
                let is_cut = order.last().copied() == last;
                let n_wanted = n_rows.saturating_sub(if is_cut { excess } else { 0 });
                (order, n_wanted)
            }
            None if is_sampled => (sample(rows, self.is_shuffled, most), most),
            None => (choose_windows(rows, self.is_shuffled, most), most),
        };
        let (n_windows, n_rows) = match &self.rows_per_window {
            Some(rows) => (Some(order.len() as u64), Some(count(rows, &order))),
            None => (self.n_windows.filter(|_| max_rows == u64::MAX), None),
        };
        if let Source::Stream(stream) = &self.source {
            locked(stream).max_rows = max_rows;
        }
        Self {
            order: Order::new(order),
            n_windows,
            n_rows,
            max_rows,
            ..self
        }
    }

    /// Reads only `windows`, whose numbers and rows are those of the file; `indices` are theirs in the
    /// file, in the order in which they are read. A stream keeps its own order. Their tokens may come
    /// from another file, if this one holds none.
    #[must_use]
    pub fn with_windows(
        self,
        indices: Vec<usize>,
        windows: Vec<WindowSpec>,
        max_rows: Option<u64>,
    ) -> Self {
        let n_windows = windows.len() as u64;
        let n_rows = n_rows(&windows);
        let by_number = windows.into_iter().map(|spec| (spec.window, spec));
        Self {
            order: Order::new(indices),
            n_windows: Some(n_windows),
            n_rows: Some(n_rows),
            wanted: Some(Mutex::new(by_number.collect())),
            max_rows: max_rows.unwrap_or(u64::MAX),
            ..self
        }
    }

    /// Reads the windows at these indices, in their order; a stream keeps its own.
    #[must_use]
    pub fn at(self, indices: Vec<usize>) -> Self {
        let order = Order::new(indices);
        Self { order, ..self }
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
        while let Some(spec) = self.peek()? {
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
                return Err(Error::inconsistent(&found));
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

    /// Leaves out the window that comes next.
    fn skip_window(&mut self) -> Result<(), Error> {
        if let Source::Stream(_) = &self.source {
            return self.next_of_file().map(drop);
        }
        let order = self.order.get_mut().unwrap_or_else(PoisonError::into_inner);
        order.windows.pop_front();
        order.not_asked.pop_front();
        Ok(())
    }

    /// The window that comes next.
    fn peek(&self) -> Result<Option<WindowSpec>, Error> {
        let next = locked(&self.order).windows.front().copied();
        Ok(match (&self.source, next) {
            (Source::Stream(stream), _) => locked(stream).peek()?,
            (_, None) => None,
            (Source::Blocks(blocks), Some(i)) => Some(blocks.window(i)?),
            (Source::States { file, .. }, Some(i)) => Some(file.window(i)?),
            (Source::Model(windows), Some(i)) => Some(windows[i].clone()),
        })
    }

    /// Splits a run's time that keeps a device waiting into work of the CPU and reading of the file.
    pub(super) fn waits(&self, timing: &Timing) -> (Duration, Duration) {
        let Timing { score, read, .. } = *timing;
        let is_computed = matches!(self.source, Source::States { .. } | Source::Model(_));
        match (is_computed, self.device.is_some()) {
            (false, _) => (score, read),
            (true, false) => (score + read, Duration::ZERO),
            (true, true) => (score, Duration::ZERO),
        }
    }

    /// Opens the next window. Rows of the one before that were not used are left out.
    pub(super) fn next_window(&self) -> Result<Option<OpenWindow<'_, 'h>>, Error> {
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
        }
        match wanted.keys().next() {
            None => Ok(None),
            Some(number) => Err(Error::inconsistent(&format!("no window {number}"))),
        }
    }

    fn next_of_file(&self) -> Result<Option<OpenWindow<'_, 'h>>, Error> {
        let started = Instant::now();
        let next = {
            let mut order = locked(&self.order);
            if let Some(blocks) = self.source.blocks() {
                order.prefetch(blocks, 0);
            }
            order.windows.pop_front()
        };
        let (spec, rows) = match (&self.source, next) {
            (Source::Stream(stream), _) => {
                let mut stream = locked(stream);
                match stream.next_window()? {
                    Some(spec) => (spec, WindowRows::Stream(stream)),
                    None => return Ok(None),
                }
            }
            (_, None) => return Ok(None),
            (Source::Blocks(blocks), Some(i)) => {
                let spec = blocks.window(i)?;
                let rows = StoredRows::new(&**blocks, i, spec.n_rows);
                (spec, WindowRows::Blocks(rows))
            }
            (Source::States { file, .. }, Some(i)) => {
                let computed = Computed::new(self, i, None);
                (file.window(i)?, WindowRows::Computed(computed))
            }
            (Source::Model(windows), Some(i)) => {
                let computed = Computed::new(self, i, self.contexts.take());
                (windows[i].clone(), WindowRows::Computed(computed))
            }
        };
        Ok(Some(OpenWindow {
            spec,
            of: self,
            rows,
            in_reading: started.elapsed(),
        }))
    }

    /// Notes that so many more blocks were read: the disk can fetch others.
    pub(super) fn have_read(&self, n_blocks: usize) {
        if let Some(blocks) = self.source.blocks() {
            locked(&self.order).prefetch(blocks, n_blocks);
        }
    }
}

/// Counts the windows with rows, and the rows, that [`ReferenceRows::choose`] reads: how many of them
/// there are to share out; `None` for a stream, which has no list of them.
#[must_use]
pub fn to_share(reference: &Reference, max_rows: Option<u64>) -> Option<(usize, u64)> {
    let rows = rows_per_window(reference)?;
    let order = windows_to_share(&rows, reference.is_shuffled(), max_rows);
    let n_rows = count(&rows, &order);
    Some((order.len(), n_rows.min(max_rows.unwrap_or(u64::MAX))))
}

/// The windows that [`ReferenceRows::choose`] reads, without those that have no rows.
fn windows_to_share(rows: &[u32], is_shuffled: bool, max_rows: Option<u64>) -> Vec<usize> {
    let max_rows = max_rows.unwrap_or(u64::MAX);
    let mut order = choose_windows(rows, is_shuffled, max_rows);
    order.retain(|&i| rows[i] > 0);
    order
}

/// Counts the rows of the windows of `order`.
fn count(rows: &[u32], order: &[usize]) -> u64 {
    order.iter().map(|&i| u64::from(rows[i])).sum()
}

/// Lists the number of rows of each window, in the order of the file, if the file has a list of them.
fn rows_per_window(reference: &Reference) -> Option<Vec<u32>> {
    let n_rows = reference.windows()?.iter().map(|window| window.n_rows);
    Some(n_rows.collect())
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
