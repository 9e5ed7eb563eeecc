//! How the windows of a file become pieces.

use super::piece::Pack;
use crate::WindowSpec;
use crate::error::Named;
use crate::reference::Kind;
use crate::row::RowLayout;

/// Plain bytes that a piece of rows aims at.
const PIECE_BYTES: usize = 1 << 20;

/// How the windows of one file become pieces. Windows may be encoded on any thread; their pieces
/// are appended in order by the [`super::Writer`] that this comes from.
#[derive(Clone, Debug)]
pub struct WindowFormat {
    /// The file, for errors; the writer sets it.
    pub(crate) name: Named,
    pub(crate) kind: Kind,
    pub(crate) layout: RowLayout,
    pub(crate) n_ctx: u32,
    /// Tokens are below it.
    pub(crate) n_vocab: u32,
    /// Numbers in a row: `n_vocab`, or those of a hidden state.
    pub(crate) row_len: u32,
    pub(crate) rows_per_piece: u32,
    pub(crate) framing: Framing,
}

/// How a kind of file frames a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// Why the file cannot hold a window, if it cannot; the second argument is `n_ctx`.
    pub(crate) fault: fn(&WindowSpec, u32) -> Option<&'static str>,
    /// Plain bytes before a window's rows; the second argument is `n_vocab`.
    pub(crate) head: fn(&WindowSpec, u32) -> Vec<u8>,
    /// Whether a CRC-32 of a window's plain bytes follows them.
    pub(crate) has_checksum: bool,
    /// How a piece becomes bytes of the file; `None`: unchanged.
    pub(crate) pack: Option<Pack>,
}

impl WindowFormat {
    /// How its rows are stored.
    pub fn row_layout(&self) -> RowLayout {
        self.layout
    }

    /// Plain bytes of a piece of rows; rows that are stored exactly make it longer.
    pub fn piece_bytes(&self) -> usize {
        let row_bytes = self.layout.row_bytes(self.row_len as usize);
        let row_bytes = row_bytes.unwrap_or(usize::MAX);
        row_bytes.saturating_mul(self.rows_per_piece as usize)
    }
}

/// Rows of `row_len` numbers in a piece: about 1 MiB before compression, and at least one. Rows that
/// are stored exactly make a piece longer.
pub fn rows_per_piece(layout: RowLayout, row_len: u32) -> u32 {
    let row_bytes = layout
        .row_bytes(row_len as usize)
        .unwrap_or(usize::MAX)
        .max(1);
    u32::try_from(PIECE_BYTES / row_bytes)
        .unwrap_or(u32::MAX)
        .max(1)
}
