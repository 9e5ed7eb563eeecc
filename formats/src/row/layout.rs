//! How the rows of a block lie in memory: as their file has them.

use super::{Encoding, Row};
use crate::llamacpp;

/// The layout of a row's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Those of this crate's own file and of kl.py's.
    Own(Encoding),
    /// That of llama.cpp's base file: u16 codes behind a prefix of another order, padded.
    LlamaCpp,
}

impl Layout {
    /// Bytes of a row of `n_vocab` entries; `None` where that is no size.
    pub(super) fn row_bytes(self, n_vocab: usize) -> Option<usize> {
        match self {
            Layout::Own(encoding) => encoding.row_bytes(n_vocab),
            Layout::LlamaCpp => llamacpp::row_bytes(n_vocab),
        }
    }

    /// The row that `bytes` hold; `None` if they are not exactly one, or not aligned.
    pub(super) fn view(self, bytes: &[u8], n_vocab: usize) -> Option<Row<'_>> {
        match self {
            Layout::Own(encoding) => encoding.view(bytes, n_vocab),
            Layout::LlamaCpp => llamacpp::view(bytes, n_vocab),
        }
    }

    /// What its elements are.
    pub(super) fn encoding(self) -> Encoding {
        match self {
            Layout::Own(encoding) => encoding,
            Layout::LlamaCpp => Encoding::U16,
        }
    }
}
