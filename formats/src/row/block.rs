//! Several rows of a file at once.

use super::{Encoding, Row, RowLayout};

/// Consecutive rows of one window, in the encoding of their file.
///
/// Hand a block that you no longer need back to the reader, which reuses its memory.
#[derive(Clone, Debug)]
pub struct RowBlock {
    /// The window's index in the order of the text.
    pub window: u32,
    /// Which of the window's stored rows is the block's first, from 0.
    pub first_row: u32,
    n_rows: usize,
    n_vocab: usize,
    layout: RowLayout,
    row_bytes: usize,
    /// Words, not bytes, so that f32 and u16 can be viewed in place.
    storage: Vec<u32>,
    /// The compressed bytes last read into this block.
    pub(crate) packed: Vec<u8>,
}

/// What a block holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) window: u32,
    pub(crate) first_row: u32,
    pub(crate) n_rows: usize,
    pub(crate) n_vocab: usize,
    pub(crate) layout: RowLayout,
}

impl RowBlock {
    /// A block of f32 rows, for rows that do not come from a file. `logits` holds whole rows
    /// of `n_vocab` entries; what is left over is not used.
    pub fn from_f32(window: u32, first_row: u32, n_vocab: usize, logits: &[f32]) -> Self {
        Self {
            window,
            first_row,
            n_rows: logits.len().checked_div(n_vocab).unwrap_or(0),
            n_vocab,
            layout: RowLayout::Plain(Encoding::F32),
            row_bytes: n_vocab.saturating_mul(4),
            storage: bytemuck::cast_slice(logits).to_vec(),
            packed: Vec::new(),
        }
    }

    /// A block with memory for `shape` and for `extra` bytes after its rows; reuses the memory of
    /// `reuse`. `None` if the size overflows.
    pub(crate) fn prepare(reuse: Option<RowBlock>, shape: Shape, extra: usize) -> Option<Self> {
        let row_bytes = shape.layout.row_bytes(shape.n_vocab)?;
        let bytes = row_bytes.checked_mul(shape.n_rows)?.checked_add(extra)?;
        let (mut storage, packed) = reuse.map(|b| (b.storage, b.packed)).unwrap_or_default();
        storage.resize(bytes.div_ceil(4), 0);
        Some(Self {
            storage,
            packed,
            ..Self::empty(shape, row_bytes)
        })
    }

    /// A block over bytes that are already there; `None` if they are too few.
    pub(crate) fn over(shape: Shape, storage: Vec<u32>) -> Option<Self> {
        let row_bytes = shape.layout.row_bytes(shape.n_vocab)?;
        let needed = row_bytes.checked_mul(shape.n_rows)?;
        (storage.len().checked_mul(4)? >= needed).then(|| Self {
            storage,
            ..Self::empty(shape, row_bytes)
        })
    }

    fn empty(shape: Shape, row_bytes: usize) -> Self {
        Self {
            window: shape.window,
            first_row: shape.first_row,
            n_rows: shape.n_rows,
            n_vocab: shape.n_vocab,
            layout: shape.layout,
            row_bytes,
            storage: Vec::new(),
            packed: Vec::new(),
        }
    }

    /// The plain buffer: the rows and the `extra` bytes of [`RowBlock::prepare`], up to a whole
    /// word.
    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.storage)
    }

    /// The compressed buffer and the plain one.
    pub(crate) fn buffers(&mut self) -> (&mut Vec<u8>, &mut [u8]) {
        (
            &mut self.packed,
            bytemuck::cast_slice_mut(&mut self.storage),
        )
    }

    /// A copy of `n_rows` rows from row `start` on, or of as many as there are.
    pub(crate) fn part(&self, start: usize, n_rows: usize) -> Self {
        let start = start.min(self.n_rows);
        let n_rows = n_rows.min(self.n_rows - start);
        let (from, length) = (start * self.row_bytes, n_rows * self.row_bytes);
        let bytes = self.bytes().get(from..from + length).unwrap_or_default();
        let mut storage = vec![0u32; length.div_ceil(4)];
        let copy: &mut [u8] = bytemuck::cast_slice_mut(&mut storage);
        copy.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        Self {
            first_row: self.first_row + start as u32, // rows of a window are counted in a u32
            n_rows,
            storage,
            packed: Vec::new(),
            ..*self
        }
    }

    /// Rows in this block.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Entries of each row.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// How the rows are stored; u16 also for the codes of llama.cpp's base file.
    pub fn encoding(&self) -> Encoding {
        self.layout.encoding()
    }

    /// Row `i` of the block: row `first_row + i` of the window.
    ///
    /// # Panics
    /// If `i` is not below [`RowBlock::n_rows`].
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "every constructor made room for all rows, in words: neither can fail"
    )]
    pub fn row(&self, i: usize) -> Row<'_> {
        assert!(i < self.n_rows, "row {i} of a block of {}", self.n_rows);
        let bytes = self.bytes();
        self.layout
            .view(&bytes[i * self.row_bytes..][..self.row_bytes], self.n_vocab)
            .expect("a row of a block is aligned and whole")
    }

    /// All rows in order.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.n_rows).map(|i| self.row(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_odd_width_are_aligned() {
        let shape = Shape {
            window: 0,
            first_row: 0,
            n_rows: 3,
            n_vocab: 5,
            layout: RowLayout::Plain(Encoding::U16),
        };
        let mut block = RowBlock::prepare(None, shape, 4).unwrap();
        let row = [1.0, 2.0, 3.0, 4.0, 5.0];
        for bytes in block.buffers().1[..54].chunks_mut(18) {
            Encoding::U16.encode(&row, bytes);
        }
        for view in block.rows() {
            let mut out = [0.0; 5];
            view.decode_into(&mut out);
            assert!(row.iter().zip(out).all(|(x, y)| (x - y).abs() < 1e-4));
        }
    }

    #[test]
    fn from_f32_keeps_whole_rows() {
        let block = RowBlock::from_f32(2, 7, 2, &[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((block.n_rows(), block.window, block.first_row), (2, 2, 7));
        assert_eq!(block.row(1).get(1), 4.0);
        assert_eq!(RowBlock::from_f32(0, 0, 0, &[]).n_rows(), 0);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let shape = |n_rows| Shape {
            window: 0,
            first_row: 0,
            n_rows,
            n_vocab: usize::MAX / 8,
            layout: RowLayout::Plain(Encoding::F32),
        };
        assert!(RowBlock::prepare(None, shape(9), 0).is_none());
        assert!(RowBlock::over(shape(1), Vec::new()).is_none());
    }
}
