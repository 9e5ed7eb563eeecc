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
    Encoding, LlamaCppReader, NativeReader, Row, RowBlock, WindowHead, rows_per_piece,
};
use rayon::prelude::*;

use super::Error;
use super::spare::Spare;

/// Blocks that the system is asked to fetch before they are read: with 2 MiB each, 64 MiB.
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

/// A window, and how far it is read.
struct Current {
    place: usize,
    n_rows: usize,
    used: usize,
}

/// The rows of chosen windows, in their order.
pub(super) struct InPlace {
    file: Box<dyn BlockFile>,
    /// Windows that have not begun.
    order: VecDeque<usize>,
    current: Option<Current>,
    /// A block of which rows are left.
    carried: Option<(u32, RowBlock)>,
    spare: Spare<RowBlock>,
    prefetch: Prefetch,
    read: Duration,
}

impl InPlace {
    pub(super) fn new(file: Box<dyn BlockFile>, order: Vec<usize>) -> Self {
        let prefetch = Prefetch::new(order.clone());
        Self {
            file,
            order: order.into(),
            current: None,
            carried: None,
            spare: Spare::default(),
            prefetch,
            read: Duration::ZERO,
        }
    }

    pub(super) fn read_time(&self) -> Duration {
        self.read
    }

    pub(super) fn next_window(&mut self) -> Result<Option<WindowHead>, Error> {
        let Some(place) = self.order.pop_front() else {
            return Ok(None);
        };
        let started = Instant::now();
        self.prefetch.advance(&*self.file, 0);
        let head = self.file.head(place)?;
        self.read += started.elapsed();
        self.current = Some(Current {
            place,
            n_rows: head.n_rows as usize,
            used: 0,
        });
        Ok(Some(head))
    }

    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        let current = self.current.as_mut().filter(|c| c.n_rows - c.used >= n);
        let Some(current) = current.filter(|_| n > 0) else {
            return match n {
                0 => Ok(Vec::new()),
                _ => Err(Error::Inconsistent {
                    found: "fewer rows than a window has".to_owned(),
                }),
            };
        };
        let (place, first, end) = (current.place, current.used, current.used + n);
        current.used = end;
        let ends_window = end == current.n_rows;

        let per_block = self.file.rows_per_block() as usize;
        let blocks = (first / per_block) as u32..end.div_ceil(per_block) as u32;
        let last = blocks.end - 1;
        let carried = Mutex::new(self.carried.take());
        let carried = || carried.lock().unwrap_or_else(PoisonError::into_inner);
        let (in_reading, in_all) = (AtomicU64::new(0), AtomicU64::new(0));
        let started = Instant::now();
        let of_block = |number: u32| {
            let started = Instant::now();
            let block = match carried().take_if(|(carried, _)| *carried == number) {
                Some((_, block)) => block,
                None => self.file.block(place, number, self.spare.take())?,
            };
            add(&in_reading, started);
            let start = number as usize * per_block;
            let rows = first.max(start)..end.min(start + block.n_rows());
            let min_len = super::rows_per_task(block.n_vocab());
            let made: Vec<T> = rows
                .into_par_iter()
                .with_min_len(min_len)
                .map(|row| of_row(row - first, block.row(row - start)))
                .collect();
            if number == last && !ends_window {
                *carried() = Some((number, block));
            } else {
                self.spare.give(block);
            }
            add(&in_all, started);
            Ok(made)
        };
        let made: Vec<kl_formats::Result<Vec<T>>> = blocks
            .clone()
            .into_par_iter()
            .with_max_len(1)
            .map(of_block)
            .collect();
        let wall = started.elapsed();
        let carried = carried().take();
        self.carried = carried;
        let share = in_reading.into_inner() as f64 / in_all.into_inner().max(1) as f64;
        self.read += wall.mul_f64(share.min(1.0));
        self.prefetch.advance(&*self.file, blocks.len());

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
