//! The reference's side of a run: which of its windows are read, in which order, and where their rows
//! come from: stored, in blocks or a stream, or computed, from hidden states or by a second model.

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kl_engine::{EngineError, Head};
use kl_formats::{
    CheckRow, NativeReader, ReadBlocks, Reference, RowBlock, Rows, Shard, States, TokenRecord,
    Values, WindowEntry, WindowSpec, n_rows,
};
use kl_report::RowsHere;
use kl_stats::score::RowError;

use super::in_turn::{LogitSource, UseRows};
use super::selection::{Part, choose_windows, count, rows_per_window, sample};
use super::stream::{ShouldStop, Stream};
use super::timing::{DeviceClock, Timing};
use super::window_rows::{
    BlockRows, ComputedRows, Computer, FreeContexts, KeptRows, KeptWindow, OpenWindow, ReadAhead,
    StoredStates, WindowRows,
};
use super::{Error, Pool, locked};

/// The KLD, in nats, from which a computed row cannot be the model's own: a writer stops at 1e-4, and
/// the kernels of other backends move a row by 1e-7 to 1e-4.
const WRONG_KLD: f64 = 0.1;

/// The windows of a reference, to be evaluated one after the other; all of them, in the order of the
/// file, unless some are chosen.
pub struct ReferenceRows<'h> {
    origin: Origin<'h>,
    n_vocab: usize,
    /// True if the rows are log-probabilities with a floor.
    pub(super) is_floored: bool,
    /// Measures the accelerator that computes the rows, if one does.
    pub device: Option<DeviceClock>,
    /// The contexts of a second model that no window uses. Each source of the evaluated model's rows
    /// has one window open at a time, and so needs one of them.
    pub contexts: FreeContexts<'h>,
    /// The windows that are still to come, by their indices in the file.
    order: Mutex<VecDeque<usize>>,
    /// The blocks that the system is asked to fetch ahead.
    ahead: Mutex<ReadAhead>,
    /// Blocks whose memory can be used again.
    memory: Pool<RowBlock>,
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
    pub here: Option<RowsHere>,
}

/// Where the rows of a reference come from.
enum Origin<'h> {
    /// A file whose blocks of rows can be read in any order.
    Blocks(Box<dyn ReadBlocks>),
    /// A file that can only be read from its start.
    Stream(Mutex<Stream<'h>>),
    States(StoredStates<'h>),
    /// A second model, which runs over these windows in contexts that the caller adds.
    Model(Vec<WindowSpec>),
    /// Rows in memory.
    Kept(&'h KeptRows),
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
        let rows_per_window = rows_per_window(&reference);
        let all = rows_per_window.as_ref().map_or(0, Vec::len);
        let about = reference.about();
        let mut rows = Self {
            n_windows: about.n_windows.map(u64::from),
            n_rows: about.n_rows.filter(|_| rows_per_window.is_some()),
            is_shuffled: reference.is_shuffled(),
            is_floored: about.values == Values::FlooredLogProbabilities,
            rows_per_window,
            ..Self::new(Origin::Model(Vec::new()), about.n_vocab as usize)
        };
        let windows = reference.windows().unwrap_or_default().to_vec();
        let path = reference.path().display().to_string();
        rows.origin = match reference.into_rows() {
            Rows::Blocks(blocks) => Origin::Blocks(blocks),
            Rows::Stream(reader) => Origin::Stream(Mutex::new(Stream::new(reader, rows.n_vocab)?)),
            Rows::Model(windows) => Origin::Model(windows),
            Rows::States(file, states) => {
                let mut head = make(&states, &mut *file.head()).map_err(|cause| match cause {
                    // The file's own error has its path.
                    EngineError::ReadHead(error)
                        if error.get_ref().is_some_and(|e| e.is::<kl_formats::Error>()) =>
                    {
                        Error::Reference(error.to_string())
                    }
                    cause => Error::Reference(format!("{path}: {cause}")),
                })?;
                rows.here = Some(check(&path, &file, &states, &windows, &mut *head)?);
                let head = Mutex::new(head);
                Origin::States(StoredStates { file, states, head })
            }
        };
        Ok(rows.at((0..all).collect()))
    }

    /// The rows of these windows, by their indices, of those that are in memory.
    pub fn kept(rows: &'h KeptRows, windows: Range<usize>) -> Self {
        let chosen = rows.windows.get(windows.clone()).unwrap_or_default();
        let kept = Self {
            n_rows: Some(n_rows(chosen)),
            n_windows: Some(chosen.len() as u64),
            is_floored: rows.is_floored,
            ..Self::new(Origin::Kept(rows), rows.n_vocab)
        };
        kept.at(windows.collect())
    }

    fn new(origin: Origin<'h>, n_vocab: usize) -> Self {
        Self {
            origin,
            n_vocab,
            is_floored: false,
            device: None,
            contexts: Pool::default(),
            order: Mutex::default(),
            ahead: Mutex::default(),
            memory: Pool::default(),
            rows_per_window: None,
            is_shuffled: true,
            wanted: None,
            n_windows: None,
            n_rows: None,
            max_rows: u64::MAX,
            n_entries: usize::MAX,
            here: None,
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
            let excess = count(rows, &order).saturating_sub(shard.n_rows);
            let last = order.last().copied();
            order = Part::from(shard).keep(order);
            // Only the last window of all is cut short.
            let is_cut = order.last().copied() == last;
            max_rows = count(rows, &order).saturating_sub(if is_cut { excess } else { 0 });
        }
        let (n_windows, n_rows) = match &self.rows_per_window {
            Some(rows) => (Some(order.len() as u64), Some(count(rows, &order))),
            None => (self.n_windows.filter(|_| max_rows == u64::MAX), None),
        };
        if let Origin::Stream(stream) = &self.origin {
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
        Self {
            n_windows: Some(n_windows),
            n_rows: Some(n_rows),
            wanted: Some(Mutex::new(windows.into())),
            max_rows: max_rows.unwrap_or(u64::MAX),
            ..self.at(indices)
        }
    }

    /// Reads the windows at these indices, in their order; a stream keeps its own.
    pub fn at(mut self, indices: Vec<usize>) -> Self {
        self.set_order(indices.into());
        self
    }

    /// Asks `should_stop` while a stream brings nothing.
    pub fn stop_when(mut self, should_stop: ShouldStop<'h>) -> Self {
        if let Origin::Stream(stream) = &mut self.origin {
            locked(stream).should_stop = should_stop;
        }
        self
    }

    /// Has the windows that are still to come fetched before they are read.
    fn set_order(&mut self, order: VecDeque<usize>) {
        self.ahead = Mutex::new(ReadAhead {
            windows: order.clone(),
            ..ReadAhead::default()
        });
        self.order = Mutex::new(order);
    }

    /// The file, if its blocks, of rows or of hidden states, can be read in any order.
    fn blocks(&self) -> Option<&dyn ReadBlocks> {
        match &self.origin {
            Origin::Blocks(reader) => Some(&**reader),
            Origin::States(states) => Some(&*states.file),
            Origin::Stream(_) | Origin::Model(_) | Origin::Kept(_) => None,
        }
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self.origin, Origin::Stream(_))
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
                let found = format!(
                    "other positions of window {} than were measured",
                    spec.window
                );
                return Err(Error::inconsistent(&found));
            }
            self.next_spec(true)?;
            n_kept += n_rows;
            n_windows += 1;
        }
        let left = std::mem::take(&mut *locked(&self.order));
        self.set_order(left);
        self.n_windows = self.n_windows.map(|n| n.saturating_sub(n_windows));
        self.n_rows = self.n_rows.map(|n| n.saturating_sub(n_kept as u64));
        self.max_rows -= n_kept as u64;
        Ok(n_kept)
    }

    /// The window that comes next, and its index in a file that can be read in any order. `takes`: another
    /// comes after that.
    fn next_spec(&self, takes: bool) -> Result<Option<(usize, WindowSpec)>, Error> {
        if let Origin::Stream(stream) = &self.origin {
            let mut stream = locked(stream);
            let spec = if takes {
                stream.next_window()
            } else {
                stream.peek()
            };
            return Ok(spec?.map(|spec| (0, spec)));
        }
        let mut order = locked(&self.order);
        let next = order.front().copied();
        order.pop_front_if(|_| takes);
        drop(order);
        let Some(i) = next else {
            return Ok(None);
        };
        let spec = match (self.blocks(), &self.origin) {
            (Some(blocks), _) => Some(blocks.window(i)?),
            (_, Origin::Model(windows)) => windows.get(i).cloned(),
            (_, Origin::Kept(rows)) => rows.windows.get(i).cloned(),
            _ => None,
        };
        Ok(spec.map(|spec| (i, spec)))
    }

    /// Splits a run's time that keeps a device waiting into work of the CPU and reading of the file.
    pub(super) fn waits(&self, timing: &Timing) -> (Duration, Duration) {
        let Timing { score, read, .. } = *timing;
        let is_computed = matches!(self.origin, Origin::States(_) | Origin::Model(_));
        match (is_computed, self.device.is_some()) {
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
    fn find(&self, number: u32) -> Result<OpenWindow<'_>, Error> {
        while let Some(window) = self.next_of_file()? {
            if window.spec.window == number {
                return Ok(window);
            }
        }
        Err(Error::inconsistent(&format!("no window {number}")))
    }

    fn next_of_file(&self) -> Result<Option<OpenWindow<'_>>, Error> {
        let started = Instant::now();
        let next = self.next_spec(true)?;
        Ok(next.map(|(window, spec)| OpenWindow {
            in_reading: started.elapsed(),
            rows: self.rows_of(window, spec.clone()),
            spec,
        }))
    }

    /// The rows of the window with this index; of a stream, those of the window that has begun.
    fn rows_of(&self, window: usize, spec: WindowSpec) -> Box<dyn WindowRows + '_> {
        if let Some(blocks) = self.blocks() {
            locked(&self.ahead).have_read(blocks, 0);
        }
        let computer = match &self.origin {
            Origin::Stream(stream) => return Box::new(locked(stream)),
            Origin::Kept(rows) => {
                let logits = rows.logits.get(window).map_or(&[][..], Vec::as_slice);
                return Box::new(KeptWindow {
                    logits,
                    n_vocab: self.n_vocab.max(1),
                });
            }
            Origin::Blocks(reader) => {
                return Box::new(BlockRows {
                    reader: &**reader,
                    ahead: &self.ahead,
                    memory: &self.memory,
                    window,
                    n_rows: spec.n_rows as usize,
                    used: 0,
                    n_passed: 0,
                    carried: None,
                });
            }
            Origin::States(states) => Some(Computer::Head(states, window, None)),
            Origin::Model(_) => {
                let context = locked(&self.contexts).pop();
                context.map(|context| Computer::Model(context, Some(0)))
            }
        };
        Box::new(ComputedRows {
            ahead: &self.ahead,
            contexts: &self.contexts,
            device: self.device.as_ref(),
            n_vocab: self.n_vocab.max(1),
            computer,
            spec,
            next: 0,
            end: 0,
            left: Vec::new(),
        })
    }
}

/// Computes the rows that the file also holds as the model gave them, each in its batch, and compares
/// both.
fn check(
    path: &str,
    file: &NativeReader,
    states: &States,
    windows: &[WindowEntry],
    head: &mut dyn Head,
) -> Result<RowsHere, Error> {
    let mut error = RowError::default();
    let own = file.check_rows()?;
    let mut piece = None;
    for (i, window) in windows.iter().enumerate() {
        for group in states.row_batches(window) {
            let column = |(row, own): (&CheckRow, _)| {
                let index = row.position.checked_sub(window.first_scored)?;
                let is_here = row.window == window.window && group.contains(&index);
                is_here.then(|| ((index - group.start) as usize, own))
            };
            let rows = states.check.rows.iter().zip(&own);
            let of_group: Vec<_> = rows.filter_map(column).collect();
            if of_group.is_empty() {
                continue;
            }
            let computed = head.rows(&file.read_states(i, group, &mut piece)?)?;
            for (column, own) in of_group {
                let again = &computed[column * own.len()..][..own.len()];
                let compared = RowError::each(&[own], again).into_iter();
                compared.for_each(|row| error += row);
            }
        }
    }
    let (device, max_kld) = (head.device(), error.max_kld);
    if max_kld >= WRONG_KLD {
        return Err(Error::Reference(format!(
            "{path}: the rows computed from its hidden states on {device} are not those of the model that wrote it, by a KLD of up to {max_kld:.3} nats: kl info --verify shows whether the file is damaged; if not, write it again with --encoding u16"
        )));
    }
    Ok(RowsHere {
        device,
        error,
        is_exact: (error.n_rows > 0).then(|| error.is_exact()),
        shares_model_head: head.is_shared(),
    })
}

/// A source of a file's rows.
pub struct FileRows<'r, 'h> {
    rows: &'r ReferenceRows<'h>,
    /// Its own windows, by the number of the window that is asked for, where they differ.
    windows: HashMap<u32, WindowSpec>,
    /// The memory of logits.
    used: Pool<Vec<f32>>,
}

impl<'r, 'h> FileRows<'r, 'h> {
    /// Hands out `rows`, whose windows come in the order in which they are asked for. `windows` holds
    /// the rows to use, by the number of the window that is asked for, where those are not its own.
    pub fn new(rows: &'r ReferenceRows<'h>, windows: HashMap<u32, WindowSpec>) -> Self {
        Self {
            rows,
            windows,
            used: Pool::default(),
        }
    }
}

impl LogitSource for FileRows<'_, '_> {
    fn n_vocab(&self) -> usize {
        self.rows.n_vocab
    }

    fn is_floored(&self) -> bool {
        self.rows.is_floored
    }

    /// Hands `sink` the logits of each window's rows, a bounded number at a time: all or some of those of
    /// the file's window with that number. Windows before it are skipped.
    fn decode(&mut self, windows: &[&WindowSpec], sink: &mut UseRows<'_>) -> Result<(), Error> {
        for (i, window) in windows.iter().enumerate() {
            let wanted = self.windows.get(&window.window).unwrap_or(window);
            let mut found = self.rows.find(wanted.window)?;
            let (spec, n_rows) = (&found.spec, wanted.n_rows);
            let n_before = wanted.first_scored.checked_sub(spec.first_scored);
            let Some(n_before) = n_before.filter(|n_before| n_before + n_rows <= spec.n_rows)
            else {
                let found = format!("different rows for window {} than before", wanted.window);
                return Err(Error::inconsistent(&found));
            };
            found.rows.skip(n_before as usize);
            let hand_out = |rows: &[&[f32]]| sink(i, rows);
            found.logits(n_rows as usize, self.n_vocab(), &self.used, hand_out)?;
        }
        Ok(())
    }
}
