//! Rows of a file that is read in any order, in blocks.
//!
//! Each core reads the blocks that it scores, so that they are in its cache. Reading a block beforehand would cost
//! the same work at a worse time: where the CPU decodes, its cores are busy until the rows are there. Only the disk
//! works ahead, since the system is told which blocks come next.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kl_formats::{ReadBlocks, RowBlock, WindowSpec};
use rayon::prelude::*;

use super::row_source::{RowSource, UseRow, WindowRows, use_all};
use super::timing::DeviceClock;
use super::{Error, Pool, into_inner, locked};

/// A file of rows.
pub(super) struct StoredRows {
    reader: Box<dyn ReadBlocks>,
    read_ahead: Mutex<ReadAhead>,
    /// Blocks whose memory can be used again.
    memory: Pool<RowBlock>,
}

impl StoredRows {
    pub(super) fn new(reader: Box<dyn ReadBlocks>) -> Self {
        Self {
            reader,
            read_ahead: Mutex::default(),
            memory: Pool::default(),
        }
    }
}

impl RowSource<'_> for StoredRows {
    fn window(&self, index: usize) -> Result<Option<WindowSpec>, Error> {
        Ok(Some(self.reader.window(index)?))
    }

    fn open<'r>(
        &'r self,
        index: usize,
        spec: &WindowSpec,
        _device: Option<&'r DeviceClock>,
    ) -> Box<dyn WindowRows + 'r> {
        locked(&self.read_ahead).note_read(&*self.reader, 0);
        Box::new(BlockRows {
            reader: &*self.reader,
            read_ahead: &self.read_ahead,
            memory: &self.memory,
            window: index,
            n_rows: spec.n_rows as usize,
            n_used: 0,
            n_passed: 0,
            carried: None,
        })
    }

    fn expect(&mut self, order: &VecDeque<usize>) {
        self.read_ahead = Mutex::new(ReadAhead::in_order(order));
    }
}

/// The number of blocks that the system is asked to fetch before they are read: 64 MiB, at 1 MiB
/// each.
const BLOCKS_AHEAD: usize = 64;

/// The blocks that the system is asked to fetch before they are read.
#[derive(Default)]
pub(super) struct ReadAhead {
    /// The windows whose blocks it has not been asked for, and the next block of the first.
    windows: VecDeque<usize>,
    next_block: u32,
    /// Blocks asked for and not yet read.
    n_ahead: usize,
}

impl ReadAhead {
    /// Nothing asked for yet, of windows that are read in this order.
    pub(super) fn in_order(order: &VecDeque<usize>) -> Self {
        Self {
            windows: order.clone(),
            ..Self::default()
        }
    }

    /// Notes that `n_blocks` more were read, and asks for the next ones, a bounded number ahead.
    pub(super) fn note_read(&mut self, reader: &dyn ReadBlocks, n_blocks: usize) {
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
struct BlockRows<'r> {
    reader: &'r dyn ReadBlocks,
    read_ahead: &'r Mutex<ReadAhead>,
    /// Blocks whose memory can be used again.
    memory: &'r Pool<RowBlock>,
    /// The index of the window in the file.
    window: usize,
    n_rows: usize,
    /// Rows of the window that have been used or left out.
    n_used: usize,
    /// Blocks that were read, or passed over.
    n_passed: u32,
    /// A block that is used in part, with its number.
    carried: Option<(u32, RowBlock)>,
}

impl BlockRows<'_> {
    /// Notes that no block before this one is needed any more.
    fn pass(&mut self, block: u32) {
        let n_passed = block.saturating_sub(self.n_passed);
        self.n_passed += n_passed;
        locked(self.read_ahead).note_read(self.reader, n_passed as usize);
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
        self.n_used += n;
    }

    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error> {
        let (reader, memory) = (self.reader, self.memory);
        let (window, first, end) = (self.window, self.n_used, self.n_used + n);
        if end > self.n_rows {
            return Err(Error::too_few_rows());
        }
        self.n_used = end;
        let rows_per_block = reader.rows_per_block() as usize;
        let blocks = (first / rows_per_block) as u32..end.div_ceil(rows_per_block) as u32;
        // Some rows of the last block are left for the next call.
        let carries = end < self.n_rows && !end.is_multiple_of(rows_per_block);
        let (carried_in, carried_out) = (Mutex::new(self.carried.take()), Mutex::new(None));
        let (read_ns, all_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        let started = Instant::now();
        let use_block = |number: u32| -> kl_formats::Result<()> {
            let started = Instant::now();
            // The locks are released before a block is read.
            let carried = locked(&carried_in).take_if(|(carried, _)| *carried == number);
            let block = if let Some((_, block)) = carried {
                block
            } else {
                let memory = locked(memory).pop();
                reader.block(window, number, memory)?
            };
            add_elapsed(&read_ns, started);
            let start = number as usize * rows_per_block;
            let used_rows = first.max(start)..end.min(start + block.n_rows());
            let first_index = used_rows.start.saturating_sub(first);
            let rows = used_rows.into_par_iter().map(|row| block.row(row - start));
            use_all(rows, block.n_vocab(), first_index, use_row);
            if carries && number + 1 == blocks.end {
                *locked(&carried_out) = Some((number, block));
            } else {
                locked(memory).push(block);
            }
            add_elapsed(&all_ns, started);
            Ok(())
        };
        let error = blocks
            .clone()
            .into_par_iter()
            .with_max_len(1)
            .find_map_first(|number| use_block(number).err());
        if let Some(error) = error {
            return Err(error.into());
        }
        self.carried = into_inner(carried_out);
        // A carried block counts once all of it is used.
        self.pass(blocks.end - u32::from(carries));
        // Threads overlap, so reading takes the same share of the caller's time as of theirs.
        let share = read_ns.into_inner() as f64 / all_ns.into_inner().max(1) as f64;
        Ok(started.elapsed().mul_f64(share.min(1.0)))
    }
}

/// Adds the time since `started`, in nanoseconds.
fn add_elapsed(nanoseconds: &AtomicU64, started: Instant) {
    nanoseconds.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
