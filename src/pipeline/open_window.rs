//! A window of the reference, whose rows are used as the evaluated model's come.
//!
//! Of stored rows, each core reads the blocks that it scores, so that they are in its cache. Reading a
//! block beforehand would cost the same work at a worse time: where the CPU decodes, its cores are busy
//! until the rows are there. Only the disk works ahead, since the system is told which blocks come next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kl_formats::{ReadBlocks, Row, RowBlock, WindowSpec};
use rayon::prelude::*;

use super::computed::Computed;
use super::kept_rows::KeptWindow;
use super::source::ReferenceSource;
use super::stream::Stream;
use super::{Error, Pool, locked, rows_per_task};

/// The bytes of decoded rows that are held at once; one row is always allowed.
const BYTES_AT_ONCE: usize = 16 << 20;

/// One window, whose rows are compared with the model's as those come.
pub(super) struct OpenWindow<'r, 'h> {
    pub(super) spec: WindowSpec,
    pub(super) source: &'r ReferenceSource<'h>,
    pub(super) rows: WindowRows<'r, 'h>,
    /// The part of its caller's time that reading has taken.
    pub(super) in_reading: Duration,
}

/// The rows of an open window.
pub(super) enum WindowRows<'r, 'h> {
    Blocks(StoredRows<'r, 'h>),
    /// An open window of a stream holds the stream.
    Stream(MutexGuard<'r, Stream>),
    Computed(Computed<'r, 'h>),
    Kept(KeptWindow<'h>),
}

impl OpenWindow<'_, '_> {
    /// Leaves out rows, which are not computed, nor read unless they are a stream's.
    pub(super) fn skip(&mut self, n: usize) {
        match &mut self.rows {
            WindowRows::Blocks(rows) => rows.used += n,
            WindowRows::Stream(stream) => stream.used += n,
            WindowRows::Computed(rows) => rows.next += n,
            WindowRows::Kept(rows) => rows.used += n,
        }
    }

    /// Applies `of_row` to the next `n` rows, each with its index among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        let in_reading = &mut self.in_reading;
        match &mut self.rows {
            WindowRows::Blocks(rows) => rows.map(n, of_row, in_reading),
            WindowRows::Stream(rows) => rows.map(n, of_row, in_reading),
            WindowRows::Computed(rows) => rows.map(n, &self.spec, of_row, in_reading),
            WindowRows::Kept(rows) => rows.map(n, of_row),
        }
    }

    /// Hands `sink` the logits of the next `n` rows, a bounded number at a time: those of stored rows
    /// decoded on all cores in memory of `used`, and computed ones where they are.
    pub(super) fn logits(
        &mut self,
        n: usize,
        used: &Pool<Vec<f32>>,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut left = n;
        if let WindowRows::Computed(rows) = &mut self.rows {
            while left > 0 {
                let mut done = Ok(());
                left -= rows.some(left, &self.spec, &mut self.in_reading, |rows| {
                    done = sink(rows);
                })?;
                done?;
            }
        }
        let at_once = (BYTES_AT_ONCE / (4 * self.source.n_vocab).max(1)).max(1);
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

    fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
        in_reading: &mut Duration,
    ) -> Result<Vec<T>, Error> {
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
        let of_block = |number: u32| {
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
            let made: Vec<T> = rows
                .into_par_iter()
                .with_min_len(rows_per_task(block.n_vocab()))
                .map(|row| of_row(row - first, block.row(row - start)))
                .collect();
            if carries && number + 1 == numbers.end {
                *locked(&after) = Some((number, block));
            } else {
                source.blocks.give(block);
            }
            add(&all_ns, started);
            Ok(made)
        };
        let made: Vec<kl_formats::Result<Vec<T>>> = numbers
            .clone()
            .into_par_iter()
            .with_max_len(1)
            .map(of_block)
            .collect();
        self.carried = after.into_inner().unwrap_or_else(PoisonError::into_inner);
        let share = read_ns.into_inner() as f64 / all_ns.into_inner().max(1) as f64;
        *in_reading += started.elapsed().mul_f64(share.min(1.0));
        // A carried block counts once all of it is used.
        source.have_read(numbers.len() - usize::from(carries));

        let mut all = Vec::with_capacity(n);
        for block in made {
            all.extend(block?);
        }
        Ok(all)
    }
}

fn add(nanoseconds: &AtomicU64, since: Instant) {
    nanoseconds.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
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
