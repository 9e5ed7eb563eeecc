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
//!
//! Of a reference that can only be read from its start, a thread reads and inflates a bounded number of
//! blocks ahead of the model.

use std::collections::VecDeque;
use std::iter;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kl_formats::{ReadBlocks, ReadStream, Row, RowBlock, RowLayout, WindowSpec, rows_per_piece};
use rayon::prelude::*;

use super::reference_rows::{Origin, ReferenceSource};
use super::timing::DeviceClock;
use super::{Error, Pool, depth, locked, rows_per_task};
use crate::engine::Decoder;

/// The bytes of decoded rows that are held at once; one row is always allowed.
const BYTES_AT_ONCE: usize = 16 << 20;

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
        let made: Vec<Mutex<Option<T>>> = iter::repeat_with(Mutex::default).take(n).collect();
        self.in_reading += self.rows.each(n, &|i, row| {
            *locked(&made[i]) = Some(of_row(i, row));
        })?;
        let made = made
            .into_iter()
            .map(|made| made.into_inner().unwrap_or_else(PoisonError::into_inner));
        made.collect::<Option<_>>().ok_or_else(Error::too_few_rows)
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
        let mut left = n;
        while left > 0 {
            let decoded = self.map(left.min(at_once), |_, row| {
                let mut logits = used.take().unwrap_or_default();
                logits.resize(row.len(), 0.0);
                row.decode_into(&mut logits);
                logits
            })?;
            let rows: Vec<&[f32]> = decoded.iter().map(Vec::as_slice).collect();
            sink(&rows)?;
            left -= rows.len();
            decoded.into_iter().for_each(|logits| used.give(logits));
        }
        Ok(())
    }
}

/// Rows of `n_vocab` logits each in memory, from the one that is used next on.
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
        next.par_chunks_exact(self.n_vocab)
            .enumerate()
            .with_min_len(rows_per_task(self.n_vocab))
            .for_each(|(i, row)| use_row(i, Row::F32(row)));
        Ok(Duration::ZERO)
    }
}

/// The stored rows of a window, and how far they are used.
pub(super) struct StoredRows<'r, 'h> {
    source: &'r ReferenceSource<'h>,
    blocks: &'r dyn ReadBlocks,
    /// The index of the window in the file.
    window: usize,
    n_rows: usize,
    used: usize,
    /// A block that is used in part, with its number.
    carried: Option<(u32, RowBlock)>,
}

impl<'r, 'h> StoredRows<'r, 'h> {
    pub(super) fn new(
        source: &'r ReferenceSource<'h>,
        blocks: &'r dyn ReadBlocks,
        window: usize,
        n_rows: u32,
    ) -> Self {
        Self {
            source,
            blocks,
            window,
            n_rows: n_rows as usize,
            used: 0,
            carried: None,
        }
    }
}

impl WindowRows for StoredRows<'_, '_> {
    fn skip(&mut self, n: usize) {
        self.used += n;
    }

    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error> {
        let (source, blocks, window) = (self.source, self.blocks, self.window);
        let (first, end) = (self.used, self.used + n);
        if end > self.n_rows {
            return Err(Error::too_few_rows());
        }
        self.used = end;
        let per_block = blocks.rows_per_block() as usize;
        let numbers = (first / per_block) as u32..end.div_ceil(per_block) as u32;
        // Some rows of the last block are left for the next call.
        let carries = end < self.n_rows && !end.is_multiple_of(per_block);
        let (before, after) = (Mutex::new(self.carried.take()), Mutex::new(None));
        let (read_ns, all_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        let started = Instant::now();
        let use_block = |number: u32| -> kl_formats::Result<()> {
            let started = Instant::now();
            // The lock is released before a block is read.
            let here = locked(&before).take_if(|(carried, _)| *carried == number);
            let block = match here {
                Some((_, block)) => block,
                None => blocks.block(window, number, source.blocks.take())?,
            };
            add(&read_ns, started);
            let start = number as usize * per_block;
            let rows = first.max(start)..end.min(start + block.n_rows());
            rows.into_par_iter()
                .with_min_len(rows_per_task(block.n_vocab()))
                .for_each(|row| use_row(row - first, block.row(row - start)));
            if carries && number + 1 == numbers.end {
                *locked(&after) = Some((number, block));
            } else {
                source.blocks.give(block);
            }
            add(&all_ns, started);
            Ok(())
        };
        let in_parallel = numbers.clone().into_par_iter().with_max_len(1);
        if let Some(error) = in_parallel.find_map_first(|number| use_block(number).err()) {
            return Err(error.into());
        }
        self.carried = after.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A carried block counts once all of it is used.
        source.have_read(numbers.len() - usize::from(carries));
        let share = read_ns.into_inner() as f64 / all_ns.into_inner().max(1) as f64;
        Ok(started.elapsed().mul_f64(share.min(1.0)))
    }
}

fn add(nanoseconds: &AtomicU64, since: Instant) {
    nanoseconds.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
}

/// The computed rows of a window, and how far they are used.
pub(super) struct ComputedRows<'r, 'h> {
    source: &'r ReferenceSource<'h>,
    /// The index of the window in the reference.
    window: usize,
    spec: WindowSpec,
    /// The row of the window that is used next. A product of which no row is used is not computed.
    next: usize,
    /// Rows of the window that have been computed, or left out.
    end: usize,
    /// Logits of the rows from `next` to `end`, at the end of those of the last batch.
    left: Vec<f32>,
    /// Of hidden states: the piece of the file that was read last.
    piece: Option<RowBlock>,
    /// Of a second model: a context, given back in the end, and where its next decode call starts;
    /// `None` after the last.
    context: Option<Box<dyn Decoder + Send + 'h>>,
    start: Option<usize>,
}

impl<'r, 'h> ComputedRows<'r, 'h> {
    pub(super) fn new(source: &'r ReferenceSource<'h>, window: usize, spec: WindowSpec) -> Self {
        Self {
            source,
            window,
            spec,
            next: 0,
            end: 0,
            left: Vec::new(),
            piece: None,
            context: source.contexts.take(),
            start: Some(0),
        }
    }

    /// Computes the batch that holds the next row, and hands `use_rows` its rows from that one on,
    /// where they were computed: they are gone when this returns. Meanwhile another source can decode.
    fn compute(&mut self, use_rows: &mut dyn FnMut(&[&[f32]])) -> Result<(), Error> {
        let source = self.source;
        let begin = || source.device.as_ref().map(DeviceClock::begin);
        if let Origin::States { file, states, head } = &source.origin {
            let mut groups = states.row_batches(&self.spec.entry());
            let group = groups.find(|group| group.end as usize > self.next);
            let group = group.ok_or_else(Error::too_few_rows)?;
            let per_block = file.rows_per_block();
            let n_read = group.end / per_block - group.start / per_block;
            let skip = self.next - group.start as usize;
            self.end = group.end as usize;
            let states = file.read_states(self.window, group, &mut self.piece)?;
            source.have_read(n_read as usize);
            let mut head = locked(head);
            let call = begin();
            let logits = head.rows(&states)?;
            drop(call);
            let rows: Vec<&[f32]> = logits.chunks_exact(source.n_vocab).skip(skip).collect();
            use_rows(&rows);
            return Ok(());
        }
        let context = self.context.as_mut().ok_or(Error::WorkerLost)?;
        while let Some(start) = self.start {
            let call = begin();
            let outputs = context.decode_call(&self.spec, start, true)?;
            drop(call);
            let before = self.end;
            (self.start, self.end) = (outputs.next, before + outputs.rows.len());
            if self.end > self.next {
                use_rows(&outputs.rows[self.next - before..]);
                return Ok(());
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
        let n_vocab = self.source.n_vocab.max(1);
        let (mut in_reading, mut n_used) = (Duration::ZERO, 0);
        while n_used < n {
            let use_all = |rows: &[&[f32]]| {
                rows.par_iter()
                    .enumerate()
                    .with_min_len(rows_per_task(n_vocab))
                    .for_each(|(i, row)| use_row(n_used + i, Row::F32(row)));
                rows.len()
            };
            let wanted = n - n_used;
            let used_now = if self.next < self.end {
                let first = self.left.len() - (self.end - self.next) * n_vocab;
                let rows = self.left[first..].chunks_exact(n_vocab).take(wanted);
                use_all(&rows.collect::<Vec<_>>())
            } else {
                let (started, mut in_use, mut used_now) = (Instant::now(), Duration::ZERO, 0);
                let mut left = mem::take(&mut self.left);
                left.clear();
                self.compute(&mut |rows| {
                    let started = Instant::now();
                    let (now, later) = rows.split_at(wanted.min(rows.len()));
                    used_now = use_all(now);
                    in_use = started.elapsed();
                    later.iter().for_each(|row| left.extend_from_slice(row));
                })?;
                self.left = left;
                in_reading += started.elapsed().saturating_sub(in_use);
                used_now
            };
            self.next += used_now;
            n_used += used_now;
        }
        Ok(in_reading)
    }
}

impl Drop for ComputedRows<'_, '_> {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            self.source.contexts.give(context);
        }
    }
}

/// A part of a stream, in the order in which they are read.
#[derive(Debug)]
enum StreamPart {
    /// A window begins.
    Window(WindowSpec),
    /// Rows of the window that began last, in order.
    Rows(RowBlock),
    /// Everything has come. Without this, the reader has stopped before the end.
    End,
}

/// Blocks of rows, handed out a decode call's worth at a time.
pub(super) struct Stream {
    /// The reader, until the first window is wanted.
    reader: Option<Box<dyn ReadStream>>,
    rows_per_block: usize,
    /// Windows are read up to the one that brings so many rows; set before the first is wanted.
    pub(super) max_rows: u64,
    parts: Receiver<kl_formats::Result<StreamPart>>,
    /// The item that was looked at and not handed out: a window, or the end.
    peeked: Option<Option<WindowSpec>>,
    rows: VecDeque<RowBlock>,
    /// Rows of the window, from the first of `rows` on, that have been used or left out.
    used: usize,
}

impl Stream {
    /// A stream of all windows, whose rows have `n_vocab` entries.
    pub(super) fn new(reader: Box<dyn ReadStream>, n_vocab: u32) -> Self {
        Self {
            reader: Some(reader),
            rows_per_block: rows_per_piece(RowLayout::F32, n_vocab) as usize,
            max_rows: u64::MAX,
            parts: sync_channel(0).1,
            peeked: None,
            rows: VecDeque::new(),
            used: 0,
        }
    }

    fn next_part(&mut self) -> Result<StreamPart, Error> {
        if let Some(reader) = self.reader.take() {
            let (sender, parts) = sync_channel(depth());
            let (rows_per_block, max_rows) = (self.rows_per_block, self.max_rows);
            std::thread::spawn(move || send_parts(reader, rows_per_block, max_rows, &sender));
            self.parts = parts;
        }
        Ok(self.parts.recv().map_err(|_| Error::WorkerLost)??)
    }

    /// The window that comes next.
    pub(super) fn peek(&mut self) -> Result<Option<WindowSpec>, Error> {
        let next = self.next_window()?;
        self.peeked = Some(next.clone());
        Ok(next)
    }

    /// Begins the next window. What is left of the one before is read, and dropped.
    pub(super) fn next_window(&mut self) -> Result<Option<WindowSpec>, Error> {
        if let Some(next) = self.peeked.take() {
            return Ok(next);
        }
        self.rows.clear();
        self.used = 0;
        loop {
            match self.next_part()? {
                StreamPart::End => return Ok(None),
                StreamPart::Window(window) => return Ok(Some(window)),
                StreamPart::Rows(_) => {}
            }
        }
    }

    /// Waits until the next `n` rows of the window are here.
    fn wait_for(&mut self, n: usize) -> Result<(), Error> {
        self.drop_used();
        while self.rows.iter().map(RowBlock::n_rows).sum::<usize>() < self.used + n {
            match self.next_part()? {
                StreamPart::Rows(block) => self.rows.push_back(block),
                StreamPart::Window(_) | StreamPart::End => return Err(Error::too_few_rows()),
            }
            self.drop_used();
        }
        Ok(())
    }

    /// The rows that are here, from the one that is used next on.
    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().flat_map(RowBlock::rows).skip(self.used)
    }

    /// Drops the blocks that are used.
    fn drop_used(&mut self) {
        while let Some(block) = self.rows.front()
            && block.n_rows() <= self.used
        {
            self.used -= block.n_rows();
            self.rows.pop_front();
        }
    }
}

/// Sends windows and rows of a stream, and the end or the error that comes first.
fn send_parts(
    mut reader: Box<dyn ReadStream>,
    rows_per_block: usize,
    max_rows: u64,
    sender: &SyncSender<kl_formats::Result<StreamPart>>,
) {
    let (mut left, mut is_open) = (max_rows, false);
    let mut next = || -> kl_formats::Result<StreamPart> {
        if is_open && let Some(block) = reader.next_rows(rows_per_block)? {
            return Ok(StreamPart::Rows(block));
        }
        if left > 0
            && let Some(window) = reader.next_window()?
        {
            left = left.saturating_sub(u64::from(window.n_rows));
            is_open = true;
            return Ok(StreamPart::Window(window));
        }
        Ok(StreamPart::End)
    };
    loop {
        let part = next();
        let is_last = matches!(part, Ok(StreamPart::End) | Err(_));
        // If the receiver is gone, its owner reports why.
        if sender.send(part).is_err() || is_last {
            return;
        }
    }
}

/// The open window of a stream holds the stream.
impl WindowRows for MutexGuard<'_, Stream> {
    fn skip(&mut self, n: usize) {
        self.used += n;
    }

    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error> {
        let started = Instant::now();
        self.wait_for(n)?;
        let in_reading = started.elapsed();
        let rows: Vec<Row<'_>> = self.rows().take(n).collect();
        rows.par_iter()
            .enumerate()
            .with_min_len(rows_per_task(rows.first().map_or(1, Row::len)))
            .for_each(|(i, &row)| use_row(i, row));
        self.used += n;
        Ok(in_reading)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;

    use kl_formats::{About, Kind, Reference, Rows};

    use super::*;
    use crate::engine::{Engine as _, FakeEngine};
    use crate::pipeline::ReferenceRows;

    /// Two blocks of a row each, which can only be read at the same time.
    #[derive(Debug, Default)]
    struct Together {
        reading: Mutex<usize>,
        both: Condvar,
    }

    fn window() -> WindowSpec {
        WindowSpec {
            window: 0,
            tokens: vec![0, 0],
            first_scored: 0,
            n_rows: 2,
        }
    }

    impl ReadBlocks for Together {
        fn window(&self, _i: usize) -> kl_formats::Result<WindowSpec> {
            Ok(window())
        }

        fn rows_per_block(&self) -> u32 {
            1
        }

        fn n_blocks(&self, _i: usize) -> u32 {
            2
        }

        fn block(
            &self,
            _i: usize,
            block: u32,
            _reuse: Option<RowBlock>,
        ) -> kl_formats::Result<RowBlock> {
            let mut reading = locked(&self.reading);
            *reading += 1;
            self.both.notify_all();
            let patience = Duration::from_secs(20);
            let waited = self.both.wait_timeout_while(reading, patience, |n| *n < 2);
            assert!(!waited.unwrap().1.timed_out(), "one read at a time");
            Ok(RowBlock::from_f32(0, block, 1, &[block as f32]))
        }
    }

    #[test]
    fn blocks_are_read_side_by_side_and_come_in_order() {
        let (about, entries) = (About::new(Kind::Kl, "", 2, 1), vec![window().entry()]);
        let rows = Rows::Blocks(Box::new(Together::default()));
        let reference = Reference::new(about, Some(entries), rows);
        let engine = FakeEngine::default();
        let head =
            |states: &_, section: &mut dyn std::io::Read| engine.load_head(states, section, 1);
        let rows = ReferenceRows::open(reference, head).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
        let of_row = |i: usize, row: Row<'_>| (i, row.get(0));
        let made = pool.unwrap().install(|| {
            let mut window = rows.next_window().unwrap().unwrap();
            window.map(2, of_row)
        });
        assert_eq!(made.unwrap(), [(0, 0.0), (1, 1.0)]);
    }
}
