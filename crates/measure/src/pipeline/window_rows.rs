//! The rows of one window of a reference, which are used as the evaluated model's come: one trait for
//! all that a reference can be.
//!
//! Of stored rows, each core reads the blocks that it scores, so that they are in its cache. Reading a
//! block beforehand would cost the same work at a worse time: where the CPU decodes, its cores are busy
//! until the rows are there. Only the disk works ahead, since the system is told which blocks come next.
//!
//! Computed rows come a batch at a time, and the model's may come in batches of another size. Of hidden
//! states, a batch is one product of the head with the states that the writer's llama.cpp multiplied
//! together, so that the rows are its own to the bit. A second model decodes each batch right after the
//! evaluated one, so that both batches of rows are scored where they are.

use std::collections::VecDeque;
use std::iter;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kl_engine::{Decoder, Head};
use kl_formats::{NativeReader, ReadBlocks, Row, RowBlock, States, WindowSpec};
use rayon::prelude::*;

use super::in_turn::{RowSink, Sources, in_turn};
use super::timing::{DeviceClock, Timing};
use super::{Error, Pool, Step, locked, rows_per_task};

/// The bytes of decoded rows that are held at once; one row is always allowed.
const BYTES_AT_ONCE: usize = 16 << 20;

/// The number of blocks that the system is asked to fetch before they are read: 64 MiB, at 1 MiB
/// each.
const BLOCKS_AHEAD: usize = 64;

/// The use of a row, which is given with its index among those that were asked for.
pub(super) type UseRow<'u> = dyn Fn(usize, Row<'_>) + Sync + 'u;

/// The rows of a window, in order.
pub(super) trait WindowRows {
    /// Leaves out the next `n` rows, which are not computed, nor read unless they are a stream's.
    fn skip(&mut self, n: usize);

    /// Calls `use_row` with each of the next `n` rows, on all cores and in any order. Returns the part of
    /// the caller's time that reading or computing them has taken.
    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error>;
}

/// Uses some rows of `n_vocab` entries on all cores; `first` is the index of the first.
pub(super) fn use_all<'r>(
    rows: impl IndexedParallelIterator<Item = Row<'r>>,
    n_vocab: usize,
    first: usize,
    use_row: &UseRow<'_>,
) {
    rows.enumerate()
        .with_min_len(rows_per_task(n_vocab))
        .for_each(|(i, row)| use_row(first + i, row));
}

/// One window, whose rows are compared with the model's as those come.
pub(super) struct OpenWindow<'r> {
    pub(super) spec: WindowSpec,
    pub(super) rows: Box<dyn WindowRows + 'r>,
    /// The part of its caller's time that reading has taken.
    pub(super) in_reading: Duration,
}

impl OpenWindow<'_> {
    /// Applies `of_row` to the next `n` rows, each with its index among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        // Rows come in any order, and on several cores.
        let made: Vec<Mutex<Option<T>>> = iter::repeat_with(Mutex::default).take(n).collect();
        self.in_reading += self.rows.each(n, &|i, row| {
            *locked(&made[i]) = Some(of_row(i, row));
        })?;
        let values = made.into_iter().map(into_inner);
        values
            .collect::<Option<_>>()
            .ok_or_else(Error::too_few_rows)
    }

    /// Hands `sink` the logits of the next `n` rows, each of `n_vocab` entries, a bounded number at a
    /// time: decoded on all cores in memory of `used`.
    pub(super) fn logits(
        &mut self,
        n: usize,
        n_vocab: usize,
        used: &Pool<Vec<f32>>,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let at_once = (BYTES_AT_ONCE / (4 * n_vocab).max(1)).max(1);
        for first in (0..n).step_by(at_once) {
            let decoded = self.map(at_once.min(n - first), |_, row| {
                let mut logits = locked(used).pop().unwrap_or_default();
                logits.resize(row.len(), 0.0);
                row.decode_into(&mut logits);
                logits
            })?;
            sink(&decoded.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
            decoded
                .into_iter()
                .for_each(|logits| locked(used).push(logits));
        }
        Ok(())
    }
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Rows of logits of some windows, in memory: many models are evaluated against the same few windows.
#[derive(Debug, Default)]
pub struct KeptRows {
    /// The windows whose rows are here.
    pub windows: Vec<WindowSpec>,
    /// The logits of each window's rows, n_rows x n_vocab.
    pub(super) logits: Vec<Vec<f32>>,
    pub(super) n_vocab: usize,
    pub(super) is_floored: bool,
}

impl KeptRows {
    /// Takes the rows of these windows from their source: a model's contexts, or a file. `on_rows` is
    /// called with the number of new rows.
    ///
    /// # Errors
    /// Those of the source and of `on_rows`.
    pub fn keep(
        sources: Sources<'_>,
        windows: Vec<WindowSpec>,
        mut on_rows: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<(Self, Timing), Error> {
        let left = Mutex::new(windows.iter());
        let mut kept = Self::default();
        let next = || {
            let next = locked(&left).next();
            Ok(next.map(|window| Keeping {
                window,
                logits: Vec::new(),
                n_vocab: 0,
                is_floored: false,
            }))
        };
        let timing = in_turn(sources, next, |step| match step {
            Step::Rows(n) => on_rows(n),
            Step::Window(window) => {
                kept.logits.push(window.logits);
                (kept.n_vocab, kept.is_floored) = (window.n_vocab, window.is_floored);
                Ok(())
            }
        })?;
        kept.windows = windows;
        Ok((kept, timing))
    }

    /// Bytes that the rows of a window take, each of `n_vocab` entries.
    pub fn bytes_of(window: &WindowSpec, n_vocab: u32) -> u64 {
        4 * u64::from(window.n_rows) * u64::from(n_vocab)
    }
}

/// A window whose rows are copied as they come.
struct Keeping<'w> {
    window: &'w WindowSpec,
    logits: Vec<f32>,
    n_vocab: usize,
    is_floored: bool,
}

impl RowSink for Keeping<'_> {
    type Done = Self;

    fn window(&self) -> &WindowSpec {
        self.window
    }

    fn begin(&mut self, n_vocab: usize, is_floored: bool) -> Result<(), Error> {
        (self.n_vocab, self.is_floored) = (n_vocab, is_floored);
        let n_rows = self.window.n_rows as usize;
        self.logits.reserve_exact(n_rows * n_vocab);
        Ok(())
    }

    fn push(&mut self, rows: &[&[f32]]) -> Result<(), Error> {
        rows.iter()
            .for_each(|row| self.logits.extend_from_slice(row));
        Ok(())
    }

    fn finish(self) -> Result<Self, Error> {
        Ok(self)
    }
}

/// The rows of a window in memory, from the one that is used next on.
pub(super) struct KeptWindow<'r> {
    pub(super) logits: &'r [f32],
    pub(super) n_vocab: usize,
}

impl WindowRows for KeptWindow<'_> {
    fn skip(&mut self, n: usize) {
        self.logits = self.logits.get(n * self.n_vocab..).unwrap_or_default();
    }

    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error> {
        let next = self.logits.split_at_checked(n * self.n_vocab);
        let (next, later) = next.ok_or_else(Error::too_few_rows)?;
        self.logits = later;
        let rows = next.par_chunks_exact(self.n_vocab).map(Row::F32);
        use_all(rows, self.n_vocab, 0, use_row);
        Ok(Duration::ZERO)
    }
}

/// The blocks that the system is asked to fetch before they are read.
#[derive(Default)]
pub(super) struct ReadAhead {
    /// The windows whose blocks it has not been asked for, and the next block of the first.
    pub(super) windows: VecDeque<usize>,
    pub(super) next_block: u32,
    /// Blocks asked for and not yet read.
    pub(super) n_ahead: usize,
}

impl ReadAhead {
    /// Notes that `n_blocks` more were read, and asks for the next ones, a bounded number ahead.
    pub(super) fn have_read(&mut self, reader: &dyn ReadBlocks, n_blocks: usize) {
        self.n_ahead = self.n_ahead.saturating_sub(n_blocks);
        while self.n_ahead < BLOCKS_AHEAD
            && let Some(&window) = self.windows.front()
        {
            if self.next_block == reader.n_blocks(window) {
                self.windows.pop_front();
                self.next_block = 0;
            } else {
                reader.prefetch(window, self.next_block);
                self.next_block += 1;
                self.n_ahead += 1;
            }
        }
    }
}

/// The stored rows of a window, and how far they are used.
pub(super) struct BlockRows<'r> {
    pub(super) reader: &'r dyn ReadBlocks,
    pub(super) ahead: &'r Mutex<ReadAhead>,
    /// Blocks whose memory can be used again.
    pub(super) memory: &'r Pool<RowBlock>,
    /// The index of the window in the file.
    pub(super) window: usize,
    pub(super) n_rows: usize,
    pub(super) used: usize,
    /// Blocks that were read, or passed over.
    pub(super) n_passed: u32,
    /// A block that is used in part, with its number.
    pub(super) carried: Option<(u32, RowBlock)>,
}

impl BlockRows<'_> {
    /// Notes that no block before this one is needed any more.
    fn pass(&mut self, block: u32) {
        let n_passed = block.saturating_sub(self.n_passed);
        self.n_passed += n_passed;
        locked(self.ahead).have_read(self.reader, n_passed as usize);
    }
}

/// Rows that were not used were asked for too.
impl Drop for BlockRows<'_> {
    fn drop(&mut self) {
        self.pass(self.reader.n_blocks(self.window));
    }
}

impl WindowRows for BlockRows<'_> {
    fn skip(&mut self, n: usize) {
        self.used += n;
    }

    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error> {
        let (reader, memory) = (self.reader, self.memory);
        let (window, first, end) = (self.window, self.used, self.used + n);
        if end > self.n_rows {
            return Err(Error::too_few_rows());
        }
        self.used = end;
        let per_block = reader.rows_per_block() as usize;
        let numbers = (first / per_block) as u32..end.div_ceil(per_block) as u32;
        // Some rows of the last block are left for the next call.
        let carries = end < self.n_rows && !end.is_multiple_of(per_block);
        let (carried_in, carried_out) = (Mutex::new(self.carried.take()), Mutex::new(None));
        let (read_ns, all_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        let started = Instant::now();
        let use_block = |number: u32| -> kl_formats::Result<()> {
            let started = Instant::now();
            // The locks are released before a block is read.
            let here = locked(&carried_in).take_if(|(carried, _)| *carried == number);
            let block = if let Some((_, block)) = here {
                block
            } else {
                let memory = locked(memory).pop();
                reader.block(window, number, memory)?
            };
            add(&read_ns, started);
            let start = number as usize * per_block;
            let rows = first.max(start)..end.min(start + block.n_rows());
            let first_used = rows.start.saturating_sub(first);
            let used = rows.into_par_iter().map(|row| block.row(row - start));
            use_all(used, block.n_vocab(), first_used, use_row);
            if carries && number + 1 == numbers.end {
                *locked(&carried_out) = Some((number, block));
            } else {
                locked(memory).push(block);
            }
            add(&all_ns, started);
            Ok(())
        };
        let in_parallel = numbers.clone().into_par_iter().with_max_len(1);
        if let Some(error) = in_parallel.find_map_first(|number| use_block(number).err()) {
            return Err(error.into());
        }
        self.carried = into_inner(carried_out);
        // A carried block counts once all of it is used.
        self.pass(numbers.end - u32::from(carries));
        // Threads overlap, so reading takes the same share of the caller's time as of theirs.
        let share = read_ns.into_inner() as f64 / all_ns.into_inner().max(1) as f64;
        Ok(started.elapsed().mul_f64(share.min(1.0)))
    }
}

fn add(nanoseconds: &AtomicU64, since: Instant) {
    nanoseconds.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
}

/// Contexts of a second model that no window uses.
pub type FreeContexts<'h> = Pool<Box<dyn Decoder + 'h>>;

/// A file of hidden states, and the head that makes rows of them: several windows use it in turn, one
/// product at a time.
pub(super) struct StoredStates<'h> {
    pub(super) file: Box<NativeReader>,
    pub(super) states: States,
    pub(super) head: Mutex<Box<dyn Head + 'h>>,
}

/// The head or the model that computes the rows of a window.
pub(super) enum Computer<'r, 'h> {
    /// The head of hidden states. With them come the index of the window, and the piece of the file that
    /// was read last.
    Head(&'r StoredStates<'h>, usize, Option<RowBlock>),
    /// A context of a second model, given back in the end, and where its next decode call starts; `None`
    /// after the last.
    Model(Box<dyn Decoder + 'h>, Option<usize>),
}

/// The computed rows of a window, and how far they are used.
pub(super) struct ComputedRows<'r, 'h> {
    pub(super) ahead: &'r Mutex<ReadAhead>,
    /// Where the context of a second model is given back.
    pub(super) contexts: &'r FreeContexts<'h>,
    /// Measures the device that computes.
    pub(super) device: Option<&'r DeviceClock>,
    pub(super) n_vocab: usize,
    /// `None` once it was given back.
    pub(super) computer: Option<Computer<'r, 'h>>,
    pub(super) spec: WindowSpec,
    /// The row of the window that is used next. A product is computed only if one of its rows is used.
    pub(super) next: usize,
    /// Rows of the window that have been computed, or left out.
    pub(super) end: usize,
    /// Logits of the rows from `next` to `end`, at the end of those of the last batch.
    pub(super) left: Vec<f32>,
}

impl ComputedRows<'_, '_> {
    /// Computes the batch that holds the next row, and hands `use_rows` its rows from that one on,
    /// where they were computed: they are gone when this returns. Meanwhile another source can decode.
    fn compute(&mut self, use_rows: &mut dyn FnMut(&[&[f32]])) -> Result<(), Error> {
        let (begin, next) = (|| self.device.map(DeviceClock::begin), self.next);
        match self.computer.as_mut().ok_or(Error::WorkerLost)? {
            Computer::Head(StoredStates { file, states, head }, window, piece) => {
                let mut groups = states.row_batches(&self.spec.entry());
                let found = groups.find(|group| group.end as usize > next);
                let group = found.ok_or_else(Error::too_few_rows)?;
                let per_block = file.rows_per_block();
                let n_read = group.end / per_block - group.start / per_block;
                let skip = next - group.start as usize;
                self.end = group.end as usize;
                let states = file.read_states(*window, group, piece)?;
                locked(self.ahead).have_read(&**file, n_read as usize);
                let mut head = locked(head);
                let call = begin();
                let logits = head.rows(&states)?;
                drop(call);
                let computed = logits.chunks_exact(self.n_vocab).skip(skip);
                use_rows(&computed.collect::<Vec<_>>());
                return Ok(());
            }
            Computer::Model(context, start) => {
                while let Some(at) = *start {
                    let call = begin();
                    let outputs = context.decode_call(&self.spec, at, true)?;
                    drop(call);
                    let before = self.end;
                    (*start, self.end) = (outputs.next, before + outputs.rows.len());
                    if self.end > next {
                        use_rows(&outputs.rows[next - before..]);
                        return Ok(());
                    }
                }
            }
        }
        Err(Error::too_few_rows())
    }
}

impl WindowRows for ComputedRows<'_, '_> {
    fn skip(&mut self, n: usize) {
        self.next += n;
    }

    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error> {
        let n_vocab = self.n_vocab;
        let (mut in_reading, mut n_used) = (Duration::ZERO, 0);
        while n_used < n {
            let use_some = |rows: &[&[f32]]| {
                let rows = &rows[..rows.len().min(n - n_used)];
                let logits = rows.par_iter().map(|row| Row::F32(row));
                use_all(logits, n_vocab, n_used, use_row);
                rows.len()
            };
            let mut n_now = 0;
            if self.next < self.end {
                let first = self.left.len() - (self.end - self.next) * n_vocab;
                let rows = self.left[first..].chunks_exact(n_vocab);
                n_now = use_some(&rows.collect::<Vec<_>>());
            } else {
                let (started, mut in_use) = (Instant::now(), Duration::ZERO);
                let mut left = mem::take(&mut self.left);
                left.clear();
                self.compute(&mut |rows| {
                    let started = Instant::now();
                    n_now = use_some(rows);
                    in_use = started.elapsed();
                    let later = rows[n_now..].iter();
                    later.for_each(|row| left.extend_from_slice(row));
                })?;
                self.left = left;
                in_reading += started.elapsed().saturating_sub(in_use);
            }
            self.next += n_now;
            n_used += n_now;
        }
        Ok(in_reading)
    }
}

impl Drop for ComputedRows<'_, '_> {
    fn drop(&mut self) {
        if let Some(Computer::Model(context, _)) = self.computer.take() {
            locked(self.contexts).push(context);
        }
    }
}

#[cfg(test)]
mod tests;
