//! The size that a file of gzip members can reach.

use super::rows_per_piece;
use crate::reference::About;
use crate::row::RowLayout;
use crate::window::n_rows;
use crate::{Encoding, States, WindowSpec};

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
