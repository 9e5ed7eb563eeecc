//! How large a file of gzip members can become.

use super::window_format::rows_per_piece;
use crate::window::n_rows;
use crate::{Encoding, WindowSpec};

/// Most bytes of a file whose windows are gzip members of a head and of pieces of rows, stored, if
/// codes can hold every row.
pub(crate) fn of_members(encoding: Encoding, windows: &[WindowSpec], n_vocab: u32) -> u64 {
    /// Header, index and end.
    const FILE_OVERHEAD: u64 = 64 << 10;
    /// A gzip member's header, extra field and trailer, and its entry in the index.
    const MEMBER_OVERHEAD: u64 = 128;
    let n_rows = n_rows(windows);
    let n_tokens: u64 = windows.iter().map(|spec| spec.tokens.len() as u64).sum();
    let row_bytes = encoding
        .layout()
        .row_bytes(n_vocab as usize)
        .unwrap_or(usize::MAX) as u64;
    let row_data = n_rows.saturating_mul(row_bytes);
    let pieces = n_rows / u64::from(rows_per_piece(encoding, n_vocab));
    let members = pieces + 2 * windows.len() as u64;
    // Stored deflate blocks of 64 KiB cost 5 bytes each: less than a thousandth.
    row_data
        .saturating_add(row_data / 1000 + 4 * n_tokens)
        .saturating_add(FILE_OVERHEAD + MEMBER_OVERHEAD * members)
}
