//! How the windows of a file become pieces, and how large a file of gzip members can become.

use super::piece::Pack;
use crate::error::Named;
use crate::reference::{About, Kind};
use crate::row::RowLayout;
use crate::window::n_rows;
use crate::{Encoding, States, WindowSpec};

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

/// Header, index and end.
const FILE_OVERHEAD: u64 = 64 << 10;

/// A gzip member's header, extra field and trailer, and its entry in the index.
const MEMBER_OVERHEAD: u64 = 128;

/// Most bytes of a file whose windows are gzip members of a head and of pieces of rows, stored, if
/// codes can hold every row.
pub(crate) fn of_members(encoding: Encoding, about: &About, windows: &[WindowSpec]) -> u64 {
    let states = about.states.as_ref().filter(|_| encoding.holds_states());
    let (layout, row_len, head) = match (states, encoding.layout()) {
        (Some(states), _) => (
            RowLayout::State(states.state_type),
            states.n_embd,
            of_head(states, about.n_vocab),
        ),
        (None, Some(layout)) => (layout, about.n_vocab, 0),
        (None, None) => return u64::MAX,
    };
    let n_rows = n_rows(windows);
    let n_tokens: u64 = windows.iter().map(|spec| spec.tokens.len() as u64).sum();
    let row_bytes = layout.row_bytes(row_len as usize).unwrap_or(usize::MAX) as u64;
    let row_data = n_rows.saturating_mul(row_bytes);
    let pieces = n_rows / u64::from(rows_per_piece(layout, row_len));
    let members = pieces + 2 * windows.len() as u64;
    with_blocks(row_data)
        .saturating_add(with_blocks(head))
        .saturating_add(4 * n_tokens)
        .saturating_add(FILE_OVERHEAD + MEMBER_OVERHEAD * members)
}

/// The head's tensor and values, and the check rows.
fn of_head(states: &States, n_vocab: u32) -> u64 {
    let check_rows = states.check.rows.len() as u64 * (4 * u64::from(n_vocab) + MEMBER_OVERHEAD);
    states.head_bytes().saturating_add(check_rows)
}

/// Stored deflate blocks of 64 KiB cost 5 bytes each: less than a thousandth.
fn with_blocks(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 1000)
}
