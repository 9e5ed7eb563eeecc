//! The contents of windows, from any thread: tokens, and rows or hidden states in blocks.

use std::ops::Range;

use super::NativeReader;
use super::member::{self, ROWS, WINDOW};
use crate::error::Result;
use crate::gzip::checksum_matches;
use crate::row::{ReadBlocks, RowBlock};
use crate::window::{WindowEntry, WindowSpec};

/// Numbers before a window's tokens: its counts.
const N_COUNTS: usize = 5;

/// Bytes of the checksum after a window's rows.
const CRC_BYTES: u64 = 4;

/// CRC-32 of any bytes followed by their own CRC-32, little-endian.
const CRC_OF_WHOLE: u32 = 0x2144_df1c;

/// A window's counts, as they stand before its tokens.
pub(super) fn counts(of: &WindowEntry, n_vocab: u32) -> [u32; N_COUNTS] {
    [of.window, of.n_tokens, of.n_rows, n_vocab, of.first_scored]
}

impl NativeReader {
    /// A window, and the bytes it was read from.
    fn window_and_bytes(&self, i: usize) -> Result<(WindowSpec, Vec<u8>)> {
        let (entry, n_vocab) = (self.placed_at(i).entry, self.header.n_vocab);
        let crc_bytes = if entry.n_rows == 0 { CRC_BYTES } else { 0 };
        let n_bytes = 4 * (N_COUNTS as u64 + u64::from(entry.n_tokens)) + crc_bytes;
        let place = self.place(i, 0);
        let corrupt = |what: String| self.name().corrupt(Some(entry.window), place.start, what);
        let plain = member::plain_at(&self.source, &place, [WINDOW, entry.window, 0], n_bytes)
            .map_err(|e| e.in_window(entry.window))?;
        let numbers: Vec<u32> = bytemuck::pod_collect_to_vec(&plain);
        let tokens = numbers
            .strip_prefix(&counts(&entry, n_vocab))
            .filter(|_| plain.len() as u64 == n_bytes)
            .and_then(|rest| rest.get(..entry.n_tokens as usize))
            .ok_or_else(|| {
                corrupt("the window's counts are not those of the index and the header".into())
            })?;
        let spec = WindowSpec {
            window: entry.window,
            tokens: tokens.to_vec(),
            first_scored: entry.first_scored,
            n_rows: entry.n_rows,
        };
        match spec.fault(n_vocab) {
            Some(fault) => Err(corrupt(fault)),
            None => Ok((spec, plain)),
        }
    }

    /// Piece `b` of a window's rows, or of its hidden states.
    pub(super) fn piece(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        let WindowEntry { window, n_rows, .. } = self.placed_at(i).entry;
        let rows = self.rows_of_block(i, b);
        let is_last = rows.end == n_rows;
        let crc_bytes = if is_last { CRC_BYTES as usize } else { 0 };
        let (layout, row_len) = self.header.row_layout();
        let place = self.place(i, b as usize + 1);
        let corrupt = |what| self.name().corrupt(Some(window), place.start, what);
        let mut block = RowBlock::prepare(reuse, window, rows, row_len as usize, layout);
        let n = member::read_at(&self.source, &place, [ROWS, window, b], &mut block.packed)
            .map_err(|e| e.in_window(window))?;
        let is_possible = (crc_bytes..=block.most_bytes() + crc_bytes).contains(&n);
        if is_possible {
            let (member, plain) = block.buffers(n);
            member::inflate(member, plain).map_err(corrupt)?;
        }
        if is_possible && block.find_rows(n - crc_bytes) {
            Ok(block)
        } else {
            Err(corrupt("a member does not hold the rows that it should"))
        }
    }

    /// The hidden states of `rows`, `n_embd` numbers each: indices among the stored rows of the `i`-th
    /// window. `last` keeps the piece that was read last, for the next rows of the same window.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] with the window and its position, [`crate::Fault::Io`];
    /// [`crate::Fault::Unsupported`] for a file of rows.
    ///
    /// # Panics
    /// If there is no such window or row.
    #[expect(clippy::panic, reason = "the caller's rows, as documented")]
    pub fn read_states(
        &self,
        i: usize,
        rows: Range<u32>,
        last: &mut Option<RowBlock>,
    ) -> Result<Vec<f32>> {
        let unsupported = || self.name().unsupported("holds rows, not hidden states");
        let states = self.header.states.as_ref().ok_or_else(unsupported)?;
        let n_rows = self.placed_at(i).entry.n_rows;
        if rows.end > n_rows {
            panic!("rows {rows:?} of {n_rows}");
        }
        let row_bytes = states.n_embd as usize * states.state_type.bytes();
        let mut bytes = Vec::new();
        let mut next = rows.start;
        while next < rows.end {
            let b = next / self.header.rows_per_piece;
            let first = b * self.header.rows_per_piece;
            let piece = match last.take() {
                Some(piece) if (piece.window, piece.first_row) == (self.number(i), first) => piece,
                other => self.piece(i, b, other)?,
            };
            let end = rows.end.min(first + piece.n_rows() as u32); // rows are counted in a u32
            let [from, to] = [next, end].map(|row| (row - first) as usize * row_bytes);
            bytes.extend_from_slice(piece.bytes().get(from..to).unwrap_or_default());
            *last = Some(piece);
            next = end;
        }
        let mut numbers = vec![0.0; bytes.len() / states.state_type.bytes()];
        states.state_type.decode(&bytes, &mut numbers);
        Ok(numbers)
    }
}

/// Blocks are the pieces of the format.
impl ReadBlocks for NativeReader {
    fn rows_per_block(&self) -> u32 {
        self.header.rows_per_piece
    }

    fn n_rows(&self, i: usize) -> u32 {
        self.placed_at(i).entry.n_rows
    }

    fn window(&self, i: usize) -> Result<WindowSpec> {
        self.window_and_bytes(i).map(|(window, _)| window)
    }

    fn block(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        match self.header.states {
            None => self.piece(i, b, reuse),
            Some(_) => Err(self
                .name()
                .unsupported("holds hidden states, not rows of logits")),
        }
    }

    fn prefetch(&self, i: usize, b: u32) {
        let place = self.place(i, b as usize + 1);
        self.source.prefetch(place.start, place.end - place.start);
    }

    /// Checks each of the window's bytes: counts and tokens, every member's checksums, and the one
    /// after its rows, which is for readers of the plain stream. Bytes outside all windows were
    /// checked when the file was opened.
    fn verify_window(&self, i: usize) -> Result<()> {
        let (window, plain) = self.window_and_bytes(i)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&plain);
        let n_blocks = self.n_blocks(i);
        let mut reuse: Option<RowBlock> = None;
        for b in 0..n_blocks {
            let block = self.piece(i, b, reuse.take())?;
            let after = if b + 1 == n_blocks { CRC_BYTES } else { 0 };
            let bytes = block.rows_bytes() + after as usize;
            crc.update(block.bytes().get(..bytes).unwrap_or_default());
            reuse = Some(block);
        }
        if checksum_matches(crc.finalize(), CRC_OF_WHOLE) {
            Ok(())
        } else {
            let what = "the checksum after the window's rows does not match";
            let start = self.placed_at(i).offset();
            Err(self.name().corrupt(Some(window.window), start, what))
        }
    }
}
