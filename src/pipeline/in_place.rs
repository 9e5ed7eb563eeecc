//! References that can be read at any place: each core reads the blocks that it scores, while they
//! are in its cache.
//!
//! Reading a block beforehand would cost the same work at a worse time: where the CPU decodes, its
//! cores are busy until the rows are there. The disk alone works ahead, since the system is told
//! which blocks come next.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kl_formats::{
    Encoding, LlamaCppReader, NativeReader, Row, RowBlock, SafetensorsReader, WindowHead,
    rows_per_piece,
};
use rayon::prelude::*;

use super::spare::Spare;
use super::{Error, locked};

/// Blocks that the system is asked to fetch before they are read: with 1 MiB each, 64 MiB.
const BLOCKS_AHEAD: usize = 64;

/// A file whose blocks of rows can be read in any order, by many threads at once.
pub(super) trait BlockFile: Send + Sync {
    fn head(&self, place: usize) -> kl_formats::Result<WindowHead>;
    fn rows_per_block(&self) -> u32;
    fn n_blocks(&self, place: usize) -> u32;
    fn block(
        &self,
        place: usize,
        block: u32,
        reuse: Option<RowBlock>,
    ) -> kl_formats::Result<RowBlock>;
    fn prefetch(&self, place: usize, block: u32);
}

/// Its blocks are the pieces of the format.
impl BlockFile for NativeReader {
    fn head(&self, place: usize) -> kl_formats::Result<WindowHead> {
        self.head(place)
    }

    fn rows_per_block(&self) -> u32 {
        self.header().rows_per_piece
    }

    fn n_blocks(&self, place: usize) -> u32 {
        self.n_pieces(place)
    }

    fn block(
        &self,
        place: usize,
        block: u32,
        reuse: Option<RowBlock>,
    ) -> kl_formats::Result<RowBlock> {
        self.piece(place, block, reuse)
    }

    fn prefetch(&self, place: usize, block: u32) {
        self.prefetch_piece(place, block);
    }
}

/// llama.cpp's base file, whose rows lie one behind the other.
pub(super) struct BaseFile {
    pub(super) reader: LlamaCppReader,
    pub(super) bos: Option<u32>,
}

impl BaseFile {
    /// The first row of a block, and how many it has.
    fn rows(&self, block: u32) -> (u32, u32) {
        let first = block * self.rows_per_block();
        let rest = self.reader.header().rows_per_window() - first;
        (first, rest.min(self.rows_per_block()))
    }
}

impl BlockFile for BaseFile {
    fn head(&self, place: usize) -> kl_formats::Result<WindowHead> {
        self.reader.head(place, self.bos)
    }

    fn rows_per_block(&self) -> u32 {
        rows_per_piece(Encoding::U16, self.reader.header().n_vocab)
    }

    fn n_blocks(&self, _place: usize) -> u32 {
        let n_rows = self.reader.header().rows_per_window();
        n_rows.div_ceil(self.rows_per_block())
    }

    fn block(
        &self,
        place: usize,
        block: u32,
        reuse: Option<RowBlock>,
    ) -> kl_formats::Result<RowBlock> {
        let (first, n_rows) = self.rows(block);
        self.reader.block(place, first, n_rows, reuse)
    }

    fn prefetch(&self, place: usize, block: u32) {
        let (first, n_rows) = self.rows(block);
        self.reader.prefetch(place, first, n_rows);
    }
}

/// A file a window, opened for each block: there is none to ask for what comes next.
impl BlockFile for SafetensorsReader {
    fn head(&self, place: usize) -> kl_formats::Result<WindowHead> {
        Ok(self.head(place))
    }

    fn rows_per_block(&self) -> u32 {
        self.rows_per_block()
    }

    fn n_blocks(&self, place: usize) -> u32 {
        self.n_blocks(place)
    }

    fn block(
        &self,
        place: usize,
        block: u32,
        reuse: Option<RowBlock>,
    ) -> kl_formats::Result<RowBlock> {
        self.block(place, block, reuse)
    }

    fn prefetch(&self, _place: usize, _block: u32) {}
}

/// The rows of chosen windows, in their order.
pub(super) struct InPlace {
    file: Box<dyn BlockFile>,
    spare: Spare<RowBlock>,
    next: Mutex<Next>,
}

/// What comes next.
struct Next {
    /// Windows that have not begun.
    order: VecDeque<usize>,
    prefetch: Prefetch,
}

impl InPlace {
    pub(super) fn new(file: Box<dyn BlockFile>, order: Vec<usize>) -> Self {
        let next = Next {
            prefetch: Prefetch::new(order.clone()),
            order: order.into(),
        };
        Self {
            file,
            spare: Spare::default(),
            next: Mutex::new(next),
        }
    }

    /// The window that comes next.
    pub(super) fn peek(&self) -> Result<Option<WindowHead>, Error> {
        let place = locked(&self.next).order.front().copied();
        Ok(place.map(|place| self.file.head(place)).transpose()?)
    }

    /// Leaves that window out.
    pub(super) fn skip(&mut self) {
        let next = self.next.get_mut().unwrap_or_else(PoisonError::into_inner);
        next.order.pop_front();
        next.prefetch.order.pop_front();
    }

    pub(super) fn next_window(&self) -> Result<Option<(WindowHead, WindowRows<'_>)>, Error> {
        let place = {
            let mut next = locked(&self.next);
            next.prefetch.advance(&*self.file, 0);
            next.order.pop_front()
        };
        let Some(place) = place else {
            return Ok(None);
        };
        let head = self.file.head(place)?;
        let rows = WindowRows {
            of: self,
            place,
            n_rows: head.n_rows as usize,
            used: 0,
            carried: None,
        };
        Ok(Some((head, rows)))
    }
}

/// The rows of a window, and how far they are read.
pub(super) struct WindowRows<'r> {
    of: &'r InPlace,
    place: usize,
    n_rows: usize,
    used: usize,
    /// A block of which rows are left.
    carried: Option<(u32, RowBlock)>,
}

impl WindowRows<'_> {
    /// Passes over rows without reading them.
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
        let InPlace { file, spare, .. } = self.of;
        let (place, first, end) = (self.place, self.used, self.used + n);
        self.used = end;
        let per_block = file.rows_per_block() as usize;
        let blocks = (first / per_block) as u32..end.div_ceil(per_block) as u32;
        // Some rows of the last block are left for the next call.
        let carries = end < self.n_rows && !end.is_multiple_of(per_block);
        let (before, after) = (Mutex::new(self.carried.take()), Mutex::new(None));
        let (read_ns, all_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        let started = Instant::now();
        let of_block = |number: u32| {
            let started = Instant::now();
            // The lock is let go before a block is read.
            let here = locked(&before).take_if(|(carried, _)| *carried == number);
            let block = match here {
                Some((_, block)) => block,
                None => file.block(place, number, spare.take())?,
            };
            add(&read_ns, started);
            let start = number as usize * per_block;
            let rows = first.max(start)..end.min(start + block.n_rows());
            let made: Vec<T> = rows
                .into_par_iter()
                .with_min_len(super::rows_per_task(block.n_vocab()))
                .map(|row| of_row(row - first, block.row(row - start)))
                .collect();
            if carries && number + 1 == blocks.end {
                *locked(&after) = Some((number, block));
            } else {
                spare.give(block);
            }
            add(&all_ns, started);
            Ok(made)
        };
        let made: Vec<kl_formats::Result<Vec<T>>> = blocks
            .clone()
            .into_par_iter()
            .with_max_len(1)
            .map(of_block)
            .collect();
        self.carried = after.into_inner().unwrap_or_else(PoisonError::into_inner);
        let share = read_ns.into_inner() as f64 / all_ns.into_inner().max(1) as f64;
        *in_reading += started.elapsed().mul_f64(share.min(1.0));
        // A carried block counts when it is done with.
        let n_read = blocks.len() - usize::from(carries);
        locked(&self.of.next).prefetch.advance(&**file, n_read);

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

/// Asks for the blocks that come next, so many before they are read.
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

    /// So many blocks have been read.
    fn advance(&mut self, file: &dyn BlockFile, read: usize) {
        self.ahead = self.ahead.saturating_sub(read);
        while self.ahead < BLOCKS_AHEAD
            && let Some(&place) = self.order.front()
        {
            if self.next_block == file.n_blocks(place) {
                self.order.pop_front();
                self.next_block = 0;
            } else {
                file.prefetch(place, self.next_block);
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
    #[derive(Default)]
    struct Together {
        reading: Mutex<usize>,
        both: Condvar,
    }

    impl BlockFile for Together {
        fn head(&self, _place: usize) -> kl_formats::Result<WindowHead> {
            Ok(WindowHead {
                window: 0,
                tokens: vec![0, 0],
                first_scored: 0,
                n_rows: 2,
            })
        }

        fn rows_per_block(&self) -> u32 {
            1
        }

        fn n_blocks(&self, _place: usize) -> u32 {
            2
        }

        fn block(
            &self,
            _place: usize,
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

        fn prefetch(&self, _place: usize, _block: u32) {}
    }

    #[test]
    fn blocks_are_read_side_by_side_and_come_in_order() {
        let file = InPlace::new(Box::new(Together::default()), vec![0]);
        let (_, mut rows) = file.next_window().unwrap().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
        let of_row = |place: usize, row: Row<'_>| (place, row.get(0));
        let made = pool
            .unwrap()
            .install(|| rows.map(2, of_row, &mut Duration::default()));
        assert_eq!(made.unwrap(), [(0, 0.0), (1, 1.0)]);
    }
}
