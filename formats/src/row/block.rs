//! Several rows of a file at once, and the two ways in which files give them.

use std::fmt::Debug;
use std::ops::Range;

use super::{Row, RowLayout, U16Form};
use crate::error::Result;
use crate::window::WindowSpec;

/// Consecutive rows of one window, in the encoding of their file.
///
/// Give a block that you no longer need back to the reader, which reuses its memory.
#[derive(Clone, Debug)]
pub struct RowBlock {
    /// The window's index in the order of the text.
    pub window: u32,
    /// The index of the block's first row among the window's stored rows, from 0.
    pub first_row: u32,
    n_rows: usize,
    /// Numbers in a row: the vocabulary's entries, or those of a hidden state.
    row_len: usize,
    layout: RowLayout,
    /// The end of each row in bytes, if rows differ in length.
    ends: Vec<u32>,
    /// The rows. Words, not bytes, so that f32 and u16 can be viewed in place.
    pub(crate) storage: Vec<u32>,
    /// The compressed bytes last read into this block.
    pub(crate) packed: Vec<u8>,
}

impl RowBlock {
    /// A block of f32 rows, for rows that do not come from a file. `logits` holds whole rows
    /// of `n_vocab` entries; what is left over is not used.
    pub fn from_f32(window: u32, first_row: u32, n_vocab: usize, logits: &[f32]) -> Self {
        let n_rows = logits.len().checked_div(n_vocab).unwrap_or(0) as u32;
        let rows = first_row..first_row + n_rows;
        let mut block = Self::prepare(None, window, rows, n_vocab, RowLayout::F32);
        block.storage = bytemuck::cast_slice(logits).to_vec();
        block
    }

    /// A block for these rows of a window, each of `row_len` numbers; reuses the memory of `reuse`. Put
    /// their bytes into [`RowBlock::buffers`]; where rows differ in length, call
    /// [`RowBlock::find_rows`] then.
    pub(crate) fn prepare(
        reuse: Option<RowBlock>,
        window: u32,
        rows: Range<u32>,
        row_len: usize,
        layout: RowLayout,
    ) -> Self {
        let memory = reuse.map(|block| (block.ends, block.storage, block.packed));
        let (ends, storage, packed) = memory.unwrap_or_default();
        Self {
            window,
            first_row: rows.start,
            n_rows: rows.len(),
            row_len,
            layout,
            ends,
            storage,
            packed,
        }
    }

    /// Bytes of the rows, if none is stored exactly.
    pub(crate) fn usual_bytes(&self) -> usize {
        self.row_bytes().saturating_mul(self.n_rows)
    }

    /// Most bytes that the rows can have.
    pub(crate) fn most_bytes(&self) -> usize {
        let most = self.layout.most_row_bytes(self.row_len);
        most.saturating_mul(self.n_rows)
    }

    /// Bytes of a row that is not stored exactly.
    fn row_bytes(&self) -> usize {
        self.layout.row_bytes(self.row_len)
    }

    /// Finds where each row ends in the first `bytes` of the buffer. Returns whether the rows fill
    /// exactly those.
    pub(crate) fn find_rows(&mut self, bytes: usize) -> bool {
        if self.layout.is_fixed() {
            return self.row_bytes().checked_mul(self.n_rows) == Some(bytes);
        }
        let mut rest = bytemuck::cast_slice(&self.storage)
            .get(..bytes)
            .unwrap_or_default();
        self.ends.clear();
        while self.ends.len() < self.n_rows {
            let length = U16Form::of(rest).map(|form| form.row_bytes(self.row_len));
            let Some((_, after)) = length.and_then(|length| rest.split_at_checked(length)) else {
                return false;
            };
            rest = after;
            self.ends.push((bytes - rest.len()) as u32); // a member's length is a u32
        }
        rest.is_empty()
    }

    /// The bytes of the rows before row `i`.
    fn start(&self, i: usize) -> usize {
        if self.layout.is_fixed() {
            i * self.row_bytes()
        } else {
            let end = i.checked_sub(1).and_then(|last| self.ends.get(last));
            end.map_or(0, |&end| end as usize)
        }
    }

    /// Bytes of all rows.
    pub(crate) fn rows_bytes(&self) -> usize {
        self.start(self.n_rows)
    }

    /// The plain buffer: the rows and what follows them, up to a whole word.
    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.storage)
    }

    /// The compressed buffer, and room for `bytes` in the plain one.
    #[expect(clippy::indexing_slicing, reason = "the room was just made")]
    pub(crate) fn buffers(&mut self, bytes: usize) -> (&mut Vec<u8>, &mut [u8]) {
        self.storage.resize(bytes.div_ceil(4), 0);
        let plain: &mut [u8] = bytemuck::cast_slice_mut(&mut self.storage);
        (&mut self.packed, &mut plain[..bytes])
    }

    /// Rows in this block.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Entries of each row.
    pub fn n_vocab(&self) -> usize {
        self.row_len
    }

    /// Row `i` of the block: row `first_row + i` of the window.
    ///
    /// # Panics
    /// If `i` is not below [`RowBlock::n_rows`].
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "whoever prepared the block made room for all rows, in words, or found them"
    )]
    pub fn row(&self, i: usize) -> Row<'_> {
        assert!(i < self.n_rows, "row {i} of a block of {}", self.n_rows);
        let bytes = &self.bytes()[self.start(i)..self.start(i + 1)];
        let row = self.layout.view(bytes, self.row_len);
        row.expect("a row of a block is aligned and whole")
    }

    /// All rows in order.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.n_rows).map(|i| self.row(i))
    }
}

/// Rows that can be read in any order, by many threads at once: window `i` of the file, in blocks.
///
/// Methods panic if there is no such window or block.
pub trait ReadBlocks: Debug + Send + Sync {
    /// Rows in each block but a window's last.
    fn rows_per_block(&self) -> u32;

    /// Rows of a window.
    fn n_rows(&self, i: usize) -> u32;

    /// Blocks of a window's rows.
    fn n_blocks(&self, i: usize) -> u32 {
        self.n_rows(i).div_ceil(self.rows_per_block())
    }

    /// The rows of block `b`, by their indices among the window's stored rows.
    fn rows_of_block(&self, i: usize, b: u32) -> Range<u32> {
        assert!(b < self.n_blocks(i), "block {b} of window {i}");
        let first = b * self.rows_per_block();
        let end = first.saturating_add(self.rows_per_block());
        first..end.min(self.n_rows(i))
    }

    /// A window's tokens, and which of its rows are stored.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] with the window and its position, [`crate::Fault::Io`].
    fn window(&self, i: usize) -> Result<WindowSpec>;

    /// Block `b` of a window's rows, in the memory of `reuse` if given.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] with the window and its position, [`crate::Fault::Io`].
    fn block(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock>;

    /// Tells the system that a block will be read soon, so that the disk can work meanwhile.
    /// Returns at once.
    fn prefetch(&self, _i: usize, _b: u32) {}

    /// Sets the token that the model decodes in place of each window's first, where
    /// [`crate::About::hides_bos`].
    fn set_bos(&mut self, _bos: Option<u32>) {}

    /// Reads a whole window and checks all that can be checked in a file of its kind.
    ///
    /// # Errors
    /// The window's first fault.
    fn verify_window(&self, i: usize) -> Result<()> {
        self.window(i)?;
        let mut reuse = None;
        for b in 0..self.n_blocks(i) {
            reuse = Some(self.block(i, b, reuse)?);
        }
        Ok(())
    }
}

/// Rows that can only be read from the first window to the last.
pub trait ReadStream: Debug + Send {
    /// The next window; `None` after the last. Rows of the window before that were not read are
    /// skipped.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] or [`crate::Fault::Truncated`] with the window and its position,
    /// [`crate::Fault::Io`].
    fn next_window(&mut self) -> Result<Option<WindowSpec>>;

    /// Up to `max_rows` more rows of that window; `None` when there are no more.
    ///
    /// # Errors
    /// As [`ReadStream::next_window`].
    fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>>;

    /// All windows with their tokens, where they are known before the first row; `None` where the file
    /// has to be read for them.
    fn windows(&self) -> Option<Result<Vec<WindowSpec>>> {
        None
    }

    /// As [`ReadBlocks::set_bos`].
    fn set_bos(&mut self, _bos: Option<u32>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_width_and_form_are_aligned() {
        let rows = [
            [1.0, 2.0, 3.0, 4.0, 5.0],
            [1.0, f32::NAN, 3.0, 4.0, 5.0],
            [1.0, 2.0, -1e30, 4.0, -1e30],
        ];
        let mut bytes = Vec::new();
        for row in &rows {
            let start = bytes.len();
            bytes.resize(start + RowLayout::U16.row_bytes(5), 0);
            RowLayout::U16.encode(row, &mut bytes[start..]);
            if RowLayout::U16.form(&bytes[start..]) == Some(crate::row::U16Form::Exact) {
                bytes.truncate(start);
                crate::row::append_exact(row, &mut bytes);
            }
        }
        bytes.extend([9; 4]);
        let mut block = RowBlock::prepare(None, 0, 0..3, 5, RowLayout::U16);
        block.buffers(bytes.len()).1.copy_from_slice(&bytes);
        assert!(!block.find_rows(bytes.len()) && !block.find_rows(bytes.len() - 8));
        assert!(block.find_rows(bytes.len() - 4));
        assert_eq!(block.rows_bytes(), bytes.len() - 4);
        for (row, view) in rows.iter().zip(block.rows()) {
            let mut out = [0.0; 5];
            view.decode_into(&mut out);
            let is_near = |(x, y): (&f32, f32)| x.to_bits() == y.to_bits() || (x - y).abs() < 1e-4;
            assert!(row.iter().zip(out).all(is_near), "{row:?} {out:?}");
        }
        assert!(RowBlock::prepare(None, 0, 0..0, 5, RowLayout::U16).find_rows(0));
    }
}
