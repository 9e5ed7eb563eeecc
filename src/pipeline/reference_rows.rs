//! The reference's side of a run: which of its windows are read, in which order, and their rows.

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kl_formats::{Reference, Shard, States, TokenRecord, WindowSpec, n_rows};

use super::computed::Computed;
use super::kept_rows::KeptRows;
use super::open_window::{OpenWindow, StoredRows, WindowRows};
use super::selection::{Part, choose_windows, count, rows_per_window, sample};
use super::source::{Origin, ReferenceSource, RowsHere};
use super::{Error, Timing, locked};
use crate::engine::{EngineError, Head};

/// The windows of a reference, to be evaluated one after the other; all of them, in the order of the
/// file, unless some are chosen.
pub struct ReferenceRows<'h> {
    /// The rows.
    pub source: ReferenceSource<'h>,
    /// The windows that are still to come, by their indices in the file.
    order: Mutex<VecDeque<usize>>,
    /// The number of rows of each window, in the order of the file, if it has a list of them.
    rows_per_window: Option<Vec<u32>>,
    /// True if the windows are in random order already, or in one that cannot be changed.
    is_shuffled: bool,
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

impl<'h> ReferenceRows<'h> {
    /// Opens the rows of `reference`. Where it holds hidden states, `make` prepares the head that
    /// makes rows of them, and a check shows whether it makes the right ones.
    ///
    /// # Errors
    /// Those of `make` and of the file; hidden states that give other rows than their model.
    pub fn open(
        reference: Reference,
        make: impl FnOnce(&States, &mut dyn Read) -> Result<Box<dyn Head + 'h>, EngineError>,
    ) -> Result<Self, Error> {
        let about = reference.about();
        let (n_windows, n_rows) = (about.n_windows.map(u64::from), about.n_rows);
        let is_shuffled = reference.is_shuffled();
        let rows_per_window = rows_per_window(&reference);
        let (source, here) = ReferenceSource::open(reference, make)?;
        let all = rows_per_window.as_ref().map_or(0, Vec::len);
        let rows = Self {
            source,
            order: Mutex::default(),
            is_shuffled,
            wanted: None,
            n_windows,
            n_rows: n_rows.filter(|_| rows_per_window.is_some()),
            rows_per_window,
            max_rows: u64::MAX,
            n_entries: usize::MAX,
            here,
        };
        Ok(rows.at((0..all).collect()))
    }

    /// The rows of these windows, by their indices, of those that are in memory.
    pub fn kept(rows: &'h KeptRows, windows: Range<usize>) -> Self {
        let chosen = rows.windows().get(windows.clone()).unwrap_or_default();
        let kept = Self {
            source: ReferenceSource::kept(rows),
            order: Mutex::default(),
            rows_per_window: None,
            is_shuffled: true,
            wanted: None,
            n_windows: Some(chosen.len() as u64),
            n_rows: Some(n_rows(chosen)),
            max_rows: u64::MAX,
            n_entries: usize::MAX,
            here: None,
        };
        kept.at(windows.collect())
    }

    /// Reads at most `max_rows` rows, and of the windows that hold them only the part `shard`. A stream
    /// cannot be shared out, and keeps its own order.
    ///
    /// Where not all rows are wanted, or `is_sampled` for a caller who may stop anywhere, files in text
    /// order are read in the seeded random order of [`super::shuffled`]; others in their own, which for a part
    /// written with `-n`, and for kl.py's files, is random already.
    pub fn choose(self, max_rows: Option<u64>, shard: Option<Shard>, is_sampled: bool) -> Self {
        let rows = self.rows_per_window.as_deref().unwrap_or_default();
        let most = max_rows.unwrap_or(u64::MAX);
        let (order, max_rows) = match shard {
            Some(shard) => {
                let all = choose_windows(rows, self.is_shuffled, most);
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
        if let Origin::Stream(stream) = &self.source.origin {
            locked(stream).max_rows = max_rows;
        }
        Self {
            n_windows,
            n_rows,
            max_rows,
            ..self.at(order)
        }
    }

    /// Reads only `windows`, whose numbers and rows are those of the file; `indices` are theirs in the
    /// file, in the order in which they are read. A stream keeps its own order. Their tokens may come
    /// from another file, if this one holds none.
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
            n_windows: Some(n_windows),
            n_rows: Some(n_rows),
            wanted: Some(Mutex::new(by_number.collect())),
            max_rows: max_rows.unwrap_or(u64::MAX),
            ..self.at(indices)
        }
    }

    /// Reads the windows at these indices, in their order; a stream keeps its own.
    pub fn at(mut self, indices: Vec<usize>) -> Self {
        let order: VecDeque<usize> = indices.into();
        self.source.read_in_order(order.clone());
        self.order = Mutex::new(order);
        self
    }

    /// The most rows that will be scored; `None` where all are wanted of a file that does not state
    /// how many it has.
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
            match &self.source.origin {
                Origin::Stream(stream) => _ = locked(stream).next_window()?,
                _ => _ = locked(&self.order).pop_front(),
            }
            n_kept += n_rows;
            n_windows += 1;
        }
        self.source.read_in_order(locked(&self.order).clone());
        self.n_windows = self.n_windows.map(|n| n.saturating_sub(n_windows));
        self.n_rows = self.n_rows.map(|n| n.saturating_sub(n_kept as u64));
        self.max_rows -= n_kept as u64;
        Ok(n_kept)
    }

    /// The window that comes next.
    fn peek(&self) -> Result<Option<WindowSpec>, Error> {
        if let Origin::Stream(stream) = &self.source.origin {
            return locked(stream).peek();
        }
        let next = locked(&self.order).front().copied();
        next.map_or(Ok(None), |i| self.source.window(i))
    }

    /// Splits a run's time that keeps a device waiting into work of the CPU and reading of the file.
    pub(super) fn waits(&self, timing: &Timing) -> (Duration, Duration) {
        let Timing { score, read, .. } = *timing;
        let origin = &self.source.origin;
        let is_computed = matches!(origin, Origin::States { .. } | Origin::Model(_));
        match (is_computed, self.source.device.is_some()) {
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
        let (started, source) = (Instant::now(), &self.source);
        let (spec, rows) = if let Origin::Stream(stream) = &source.origin {
            let mut stream = locked(stream);
            let Some(spec) = stream.next_window()? else {
                return Ok(None);
            };
            (spec, WindowRows::Stream(stream))
        } else {
            source.have_read(0);
            let Some(i) = locked(&self.order).pop_front() else {
                return Ok(None);
            };
            let Some(spec) = source.window(i)? else {
                return Ok(None);
            };
            let rows = match &source.origin {
                Origin::Blocks(blocks) => {
                    WindowRows::Blocks(StoredRows::new(source, &**blocks, i, spec.n_rows))
                }
                Origin::Kept(rows) => WindowRows::Kept(rows.window(i)),
                _ => WindowRows::Computed(Computed::new(source, i)),
            };
            (spec, rows)
        };
        Ok(Some(OpenWindow {
            spec,
            source,
            rows,
            in_reading: started.elapsed(),
        }))
    }
}
