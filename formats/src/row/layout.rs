//! How a row of logits becomes bytes in each kind of file.

use super::{Encoding, Row, llama_cpp};

/// How the bytes of a row are laid out, in a file and in a [`super::RowBlock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowLayout {
    /// The layout of `kl`'s own file and of kl.py's.
    Plain(Encoding),
    /// The layout of llama.cpp's base file: log-probabilities as u16 codes, padded, after a scale
    /// and a minimum.
    LlamaCpp,
}

impl RowLayout {
    /// Bytes of a row of `n_vocab` entries; `None` where that overflows.
    pub fn row_bytes(self, n_vocab: usize) -> Option<usize> {
        match self {
            RowLayout::Plain(encoding) => encoding.row_bytes(n_vocab),
            RowLayout::LlamaCpp => llama_cpp::row_bytes(n_vocab),
        }
    }

    /// Writes the logits of a row to `out`.
    ///
    /// # Panics
    /// If `row` is empty, or `out` is not [`RowLayout::row_bytes`] of its length long.
    pub fn encode(self, row: &[f32], out: &mut [u8]) {
        match self {
            RowLayout::Plain(encoding) => encoding.encode(row, out),
            RowLayout::LlamaCpp => llama_cpp::encode_row(row, out),
        }
    }

    /// The row that `bytes` hold; `None` if they are not exactly one row of `n_vocab` entries, or
    /// not aligned to their elements.
    pub fn view(self, bytes: &[u8], n_vocab: usize) -> Option<Row<'_>> {
        match self {
            RowLayout::Plain(encoding) => encoding.view(bytes, n_vocab),
            RowLayout::LlamaCpp => llama_cpp::view(bytes, n_vocab),
        }
    }

    /// How a single entry is stored.
    pub fn encoding(self) -> Encoding {
        match self {
            RowLayout::Plain(encoding) => encoding,
            RowLayout::LlamaCpp => Encoding::U16,
        }
    }
}
