//! The reference's side of a run: which of its windows are read, in which order, and where their rows
//! come from: stored, in blocks or a stream, or computed, from hidden states or by a second model.

use std::collections::VecDeque;
use std::io::Read;
use std::iter;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kl_engine::{EngineError, Head};
use kl_formats::{Reference, Row, Rows, Shard, States, TokenRecord, Values, WindowSpec, n_rows};
use kl_report::RowsHere;

use super::computed_rows::{FreeContexts, ModelRows, StateRows, check_computed_rows};
use super::kept_rows::KeptRows;
use super::row_source::{RowSource, ShouldStop, WindowRows};
use super::selection::{Part, choose_windows, count_rows, rows_per_window, sample};
use super::stored_rows::StoredRows;
use super::stream::Stream;
use super::timing::{DeviceClock, Timing};
use super::{Error, Pool, into_inner, locked};

/// The bytes of decoded rows that are held at once; one row is always allowed.
const BYTES_AT_ONCE: usize = 16 << 20;

/// The windows of a reference, to be evaluated one after the other; all of them, in the order of the
/// file, unless some are chosen.
pub struct ReferenceRows<'h> {
    source: Box<dyn RowSource<'h> + 'h>,
    pub(super) n_vocab: usize,
    /// True if the rows are log-probabilities with a floor.
    pub(super) is_floored: bool,
    /// Measures the accelerator that computes the rows, if one does.
    pub device: Option<DeviceClock>,
    /// The contexts of a second model that no window uses. Each source of the evaluated model's rows
    /// has one window open at a time, and so needs one of them.
    pub contexts: FreeContexts<'h>,
    /// The windows that are still to come, by their indices in the file.
    order: Mutex<VecDeque<usize>>,
    /// The number of rows of each window, in the order of the file, if it has a list of them.
    rows_per_window: Option<Vec<u32>>,
    /// True if the windows are in random order already, or in one that cannot be changed.
    is_shuffled: bool,
    /// The windows that are still wanted, in their order, each as it is to be handed out; `None`: all, as
    /// the file has them.
    wanted: Option<Mutex<VecDeque<WindowSpec>>>,
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
    pub rows_here: Option<RowsHere>,
}

/// One window, whose rows are compared with the model's as those come.
pub(super) struct OpenWindow<'r> {
    pub(super) spec: WindowSpec,
    pub(super) rows: Box<dyn WindowRows + 'r>,
    /// The part of its caller's time that reading has taken.
    pub(super) reading_time: Duration,
}

impl OpenWindow<'_> {
    /// Applies `value_of_row` to the next `n` rows, each with its index among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        value_of_row: impl Fn(usize, Row<'_>) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        // Rows come in any order, and on several cores.
        let values: Vec<Mutex<Option<T>>> = iter::repeat_with(Mutex::default).take(n).collect();
        self.reading_time += self.rows.each(n, &|i, row| {
            *locked(&values[i]) = Some(value_of_row(i, row));
        })?;
        values
            .into_iter()
            .map(into_inner)
            .collect::<Option<_>>()
            .ok_or_else(Error::too_few_rows)
    }

    /// Hands `sink` the logits of the next `n` rows, each of `n_vocab` entries, a bounded number at a
    /// time: decoded on all cores in memory of `memory`.
    pub(super) fn logits(
        &mut self,
        n: usize,
        n_vocab: usize,
        memory: &Pool<Vec<f32>>,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let n_at_once = (BYTES_AT_ONCE / (4 * n_vocab).max(1)).max(1);
        for first in (0..n).step_by(n_at_once) {
            let decoded = self.map(n_at_once.min(n - first), |_, row| {
                let mut logits = locked(memory).pop().unwrap_or_default();
                logits.resize(row.len(), 0.0);
                row.decode_into(&mut logits);
                logits
            })?;
            sink(&decoded.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
            locked(memory).extend(decoded);
        }
        Ok(())
    }
}

impl<'h> ReferenceRows<'h> {
    /// Opens the rows of `reference`. Where it holds hidden states, `load_head` prepares the head that
    /// makes rows of them, and a check shows whether it makes the right ones.
    ///
    /// # Errors
    /// Those of `load_head` and of the file; hidden states that give other rows than their model.
    pub fn open(
        reference: Reference,
        load_head: impl FnOnce(&States, &mut dyn Read) -> Result<Box<dyn Head + 'h>, EngineError>,
    ) -> Result<Self, Error> {
        let rows_per_window = rows_per_window(&reference);
        let n_listed = rows_per_window.as_ref().map_or(0, Vec::len);
        let about = reference.about();
        let n_vocab = about.n_vocab as usize;
        let n_windows = about.n_windows.map(u64::from);
        let n_rows = about.n_rows.filter(|_| rows_per_window.is_some());
        let is_floored = about.values == Values::FlooredLogProbabilities;
        let is_shuffled = reference.is_shuffled();
        let windows = reference.windows().unwrap_or_default().to_vec();
        let path = reference.path().display().to_string();
        let contexts = FreeContexts::default();
        let mut rows_here = None;
        let source: Box<dyn RowSource<'h> + 'h> = match reference.into_rows() {
            Rows::Blocks(blocks) => Box::new(StoredRows::new(blocks)),
            Rows::Stream(reader) => Box::new(Mutex::new(Stream::new(reader, n_vocab)?)),
            Rows::Model(windows) => Box::new(ModelRows {
                windows,
                contexts: contexts.clone(),
                n_vocab,
            }),
            Rows::States(file, states) => {
                let mut head =
                    load_head(&states, &mut *file.head()).map_err(|cause| match cause {
                        // The file's own error has its path.
                        EngineError::ReadHead(error)
                            if error.get_ref().is_some_and(|e| e.is::<kl_formats::Error>()) =>
                        {
                            Error::Reference(error.to_string())
                        }
                        cause => Error::Reference(format!("{path}: {cause}")),
                    })?;
                rows_here = Some(check_computed_rows(
                    &path, &file, &states, &windows, &mut *head,
                )?);
                Box::new(StateRows::new(file, states, head, n_vocab))
            }
        };
        let rows = Self {
            n_windows,
            n_rows,
            is_shuffled,
            is_floored,
            rows_per_window,
            contexts,
            rows_here,
            ..Self::new(source, n_vocab)
        };
        Ok(rows.with_order((0..n_listed).collect()))
    }

    /// The rows of these windows, by their indices, of those that are in memory.
    pub fn kept(rows: &'h KeptRows, windows: Range<usize>) -> Self {
        let chosen = rows.windows.get(windows.clone()).unwrap_or_default();
        let kept = Self {
            n_rows: Some(n_rows(chosen)),
            n_windows: Some(chosen.len() as u64),
            is_floored: rows.is_floored,
            ..Self::new(Box::new(rows), rows.n_vocab)
        };
        kept.with_order(windows.collect())
    }

    fn new(source: Box<dyn RowSource<'h> + 'h>, n_vocab: usize) -> Self {
        Self {
            source,
            n_vocab,
            is_floored: false,
            device: None,
            contexts: Pool::default(),
            order: Mutex::default(),
            rows_per_window: None,
            is_shuffled: true,
            wanted: None,
            n_windows: None,
            n_rows: None,
            max_rows: u64::MAX,
            n_entries: usize::MAX,
            rows_here: None,
        }
    }

    /// Reads at most `max_rows` rows, and of the windows that hold them only the part `shard`. A stream
    /// cannot be shared out, and keeps its own order.
    ///
    /// Where not all rows are wanted, or `is_sampled` for a caller who may stop anywhere, files in text
    /// order are read in the seeded random order of [`super::shuffled`]. Files in another order keep it: that of
    /// kl.py's, and of those written with `-n`, is random already.
    pub fn choose(self, max_rows: Option<u64>, shard: Option<Shard>, is_sampled: bool) -> Self {
        let rows = self.rows_per_window.as_deref().unwrap_or_default();
        let mut max_rows = max_rows.unwrap_or(u64::MAX);
        let mut order = if is_sampled && shard.is_none() {
            sample(rows, self.is_shuffled, max_rows)
        } else {
            choose_windows(rows, self.is_shuffled, max_rows)
        };
        if let Some(shard) = shard {
            let excess = count_rows(rows, &order).saturating_sub(shard.n_rows);
            let last = order.last().copied();
            order = Part::from(shard).keep(order);
            // Only the last window of all is cut short.
            let is_cut = order.last().copied() == last;
            max_rows = count_rows(rows, &order).saturating_sub(if is_cut { excess } else { 0 });
        }
        let (n_windows, n_rows) = match &self.rows_per_window {
            Some(rows) => (Some(order.len() as u64), Some(count_rows(rows, &order))),
            None => (self.n_windows.filter(|_| max_rows == u64::MAX), None),
        };
        if let Some(stream) = self.source.as_stream() {
            stream.end_after(max_rows);
        }
        Self {
            n_windows,
            n_rows,
            max_rows,
            ..self.with_order(order)
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
        Self {
            n_windows: Some(n_windows),
            n_rows: Some(n_rows),
            wanted: Some(Mutex::new(windows.into())),
            max_rows: max_rows.unwrap_or(u64::MAX),
            ..self.with_order(indices)
        }
    }

    /// Reads the windows at these indices, in their order; a stream keeps its own.
    pub fn with_order(mut self, indices: Vec<usize>) -> Self {
        self.set_order(indices.into());
        self
    }

    /// Asks `should_stop` while a stream brings nothing.
    pub fn stop_when(self, should_stop: ShouldStop<'h>) -> Self {
        if let Some(stream) = self.source.as_stream() {
            stream.stop_when(should_stop);
        }
        self
    }

    /// Has the windows that are still to come fetched before they are read.
    fn set_order(&mut self, order: VecDeque<usize>) {
        self.source.expect(&order);
        self.order = Mutex::new(order);
    }

    pub(super) fn is_stream(&self) -> bool {
        self.source.as_stream().is_some()
    }

    /// The most rows that will be scored; `None` where all are wanted of a file that does not state
    /// how many it has.
    pub fn n_scored(&self) -> Option<u64> {
        let limit = Some(self.max_rows).filter(|&n| n < u64::MAX);
        self.n_rows.map(|n| n.min(self.max_rows)).or(limit)
    }

    /// Leaves out the first windows, as long as `records`, which an earlier run over the same rows
    /// has measured, hold all of their rows. Returns how many records those are.
    ///
    /// # Errors
    /// Records that are not those of the first windows; a window that cannot be read.
    pub fn resume_after(&mut self, records: &[TokenRecord]) -> Result<usize, Error> {
        let mut n_kept = 0;
        let mut n_windows = 0;
        while let Some((_, spec)) = self.next_spec(false)? {
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
                let contents = format!(
                    "other positions of window {} than were measured",
                    spec.window
                );
                return Err(Error::inconsistent(&contents));
            }
            self.next_spec(true)?;
            n_kept += n_rows;
            n_windows += 1;
        }
        let order_left = std::mem::take(&mut *locked(&self.order));
        self.set_order(order_left);
        self.n_windows = self.n_windows.map(|n| n.saturating_sub(n_windows));
        self.n_rows = self.n_rows.map(|n| n.saturating_sub(n_kept as u64));
        self.max_rows -= n_kept as u64;
        Ok(n_kept)
    }

    /// True if the first of `records` is of the window that comes first, so that they are in this order.
    ///
    /// # Errors
    /// If the window cannot be read.
    pub fn begin_like(&self, records: &[TokenRecord]) -> Result<bool, Error> {
        let first = self.next_spec(false)?.zip(records.first());
        Ok(first.is_none_or(|((_, spec), record)| spec.window == record.window))
    }

    /// The window that comes next, and its index in a file that can be read in any order. `takes`: another
    /// comes after that.
    fn next_spec(&self, takes: bool) -> Result<Option<(usize, WindowSpec)>, Error> {
        if let Some(stream) = self.source.as_stream() {
            let spec = stream.next_window(takes)?;
            return Ok(spec.map(|spec| (0, spec)));
        }
        let mut order = locked(&self.order);
        let next = order.front().copied();
        order.pop_front_if(|_| takes);
        drop(order);
        let Some(index) = next else {
            return Ok(None);
        };
        Ok(self.source.window(index)?.map(|spec| (index, spec)))
    }

    /// Splits a run's time that keeps a device waiting into work of the CPU and reading of the file.
    pub(super) fn waits(&self, timing: &Timing) -> (Duration, Duration) {
        let Timing { score, read, .. } = *timing;
        match (self.source.is_computed(), self.device.is_some()) {
            (false, _) => (score, read),
            (true, false) => (score + read, Duration::ZERO),
            (true, true) => (score, Duration::ZERO),
        }
    }

    /// Opens the next window. Rows of the one before that were not used are left out.
    pub(super) fn next_window(&self) -> Result<Option<OpenWindow<'_>>, Error> {
        let Some(wanted) = &self.wanted else {
            return self.next_of_file();
        };
        let Some(spec) = locked(wanted).pop_front() else {
            return Ok(None);
        };
        let window = self.find(spec.window)?;
        Ok(Some(OpenWindow { spec, ..window }))
    }

    /// Opens the window with this number, and leaves out those before it.
    pub(super) fn find(&self, number: u32) -> Result<OpenWindow<'_>, Error> {
        while let Some(window) = self.next_of_file()? {
            if window.spec.window == number {
                return Ok(window);
            }
        }
        Err(Error::inconsistent(&format!("no window {number}")))
    }

    /// Opens the window that comes next in the file's order.
    fn next_of_file(&self) -> Result<Option<OpenWindow<'_>>, Error> {
        let started = Instant::now();
        let next = self.next_spec(true)?;
        Ok(next.map(|(index, spec)| OpenWindow {
            reading_time: started.elapsed(),
            rows: self.source.open(index, &spec, self.device.as_ref()),
            spec,
        }))
    }
}
