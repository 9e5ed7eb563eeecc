//! Reads references whose windows can be read in any order: each core reads the blocks that it
//! scores, so that they are in its cache.
//!
//! Reading a block beforehand would cost the same work at a worse time: where the CPU decodes, its
//! cores are busy until the rows are there. Only the disk works ahead, since the system is told
//! which blocks come next.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kl_formats::{ReadBlocks, Row, RowBlock, WindowSpec};
use rayon::prelude::*;

use super::spare::Spare;
use super::{Error, locked};

/// How many blocks the system is asked to fetch before they are read: 64 MiB, at 1 MiB each.
const BLOCKS_AHEAD: usize = 64;

/// The rows of chosen windows, in their order.
pub(super) struct InPlace {
    blocks: Box<dyn ReadBlocks>,
    spare: Spare<RowBlock>,
    next: Mutex<Next>,
}

/// What comes next.
struct Next {
    /// Windows that have not been handed out.
    order: VecDeque<usize>,
    prefetch: Prefetch,
}

impl InPlace {
    pub(super) fn new(blocks: Box<dyn ReadBlocks>, order: Vec<usize>) -> Self {
        let next = Next {
            prefetch: Prefetch::new(order.clone()),
            order: order.into(),
        };
        Self {
            blocks,
            spare: Spare::default(),
            next: Mutex::new(next),
        }
    }

    /// The window that comes next.
    pub(super) fn peek(&self) -> Result<Option<WindowSpec>, Error> {
        let next = locked(&self.next).order.front().copied();
        Ok(next.map(|i| self.blocks.window(i)).transpose()?)
    }

    /// Leaves out the window that comes next.
    pub(super) fn skip(&mut self) {
        let next = self.next.get_mut().unwrap_or_else(PoisonError::into_inner);
        next.order.pop_front();
        next.prefetch.order.pop_front();
    }

    pub(super) fn next_window(&self) -> Result<Option<(WindowSpec, BlockRows<'_>)>, Error> {
        let next = {
            let mut next = locked(&self.next);
            next.prefetch.advance(&*self.blocks, 0);
            next.order.pop_front()
        };
        let Some(i) = next else {
            return Ok(None);
        };
        let window = self.blocks.window(i)?;
        let rows = BlockRows {
            of: self,
            window: i,
            n_rows: window.n_rows as usize,
            used: 0,
            carried: None,
        };
        Ok(Some((window, rows)))
    }
}

/// The rows of a window, and how far they are read.
pub(super) struct BlockRows<'r> {
    of: &'r InPlace,
    /// The index of the window in the file.
    window: usize,
    n_rows: usize,
    used: usize,
    /// A block that is used in part, with its number.
    carried: Option<(u32, RowBlock)>,
}

impl BlockRows<'_> {
    /// Skips rows without reading them.
    pub(super) fn skip(&mut self, n: usize) {
        self.used = self.n_rows.min(self.used + n);
    }

    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
        in_reading: &mut Duration,
    ) -> Result<Vec<T>, Error> {
        if self.n_rows - self.used < n {
            let found = "fewer rows than a window has".to_owned();
            return Err(Error::Inconsistent { found });
        }
        let InPlace { blocks, spare, .. } = self.of;
        let (window, first, end) = (self.window, self.used, self.used + n);
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
                None => blocks.block(window, number, spare.take())?,
            };
            add(&read_ns, started);
            let start = number as usize * per_block;
            let rows = first.max(start)..end.min(start + block.n_rows());
            let made: Vec<T> = rows
                .into_par_iter()
                .with_min_len(super::rows_per_task(block.n_vocab()))
                .map(|row| of_row(row - first, block.row(row - start)))
                .collect();
            if carries && number + 1 == numbers.end {
                *locked(&after) = Some((number, block));
            } else {
                spare.give(block);
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
        let n_read = numbers.len() - usize::from(carries);
        locked(&self.of.next).prefetch.advance(&**blocks, n_read);

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

/// Asks for the blocks that come next, a bounded number ahead of reading.
struct Prefetch {
    order: VecDeque<usize>,
    next_block: u32,
    /// Blocks asked for and not yet read.
    ahead: usize,
}

impl Prefetch {
    fn new(order: Vec<usize>) -> Self {
        Self {
            order: order.into(),
            next_block: 0,
            ahead: 0,
        }
    }

    /// Counts `read` more blocks as read, and asks for the next ones.
    fn advance(&mut self, blocks: &dyn ReadBlocks, read: usize) {
        self.ahead = self.ahead.saturating_sub(read);
        while self.ahead < BLOCKS_AHEAD
            && let Some(&window) = self.order.front()
        {
            if self.next_block == blocks.n_blocks(window) {
                self.order.pop_front();
                self.next_block = 0;
            } else {
                blocks.prefetch(window, self.next_block);
                self.next_block += 1;
                self.ahead += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Condvar;

    /// Two blocks of a row each, which can only be read at the same time.
    #[derive(Debug, Default)]
    struct Together {
        reading: Mutex<usize>,
        both: Condvar,
    }

    impl ReadBlocks for Together {
        fn window(&self, _i: usize) -> kl_formats::Result<WindowSpec> {
            Ok(WindowSpec {
                window: 0,
                tokens: vec![0, 0],
                first_scored: 0,
                n_rows: 2,
            })
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
        let file = InPlace::new(Box::new(Together::default()), vec![0]);
        let (_, mut rows) = file.next_window().unwrap().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
        let of_row = |i: usize, row: Row<'_>| (i, row.get(0));
        let made = pool
            .unwrap()
            .install(|| rows.map(2, of_row, &mut Duration::default()));
        assert_eq!(made.unwrap(), [(0, 0.0), (1, 1.0)]);
    }
}
