//! The index: which windows there are, and where their members start.

use std::collections::HashSet;

use super::Header;
use super::member::MIN_BYTES;
use crate::states::CheckRow;
use crate::window::{PlacedWindow, WindowEntry};

/// The index's first bytes in the plain stream.
const MAGIC: [u8; 8] = *b"KL_INDEX";

/// Bytes of a window's entry before its offsets: its counts, and the number of the offsets.
const ENTRY_BYTES: u64 = size_of::<WindowEntry>() as u64 + 4;

/// The windows counted so far, which must be among those that a header states.
#[derive(Default)]
pub(super) struct Tally {
    seen: HashSet<u32>,
    n_rows: u64,
}

impl Tally {
    /// Counts one more; returns whether it can be a window of the header's file.
    pub(super) fn add(&mut self, window: &WindowEntry, header: &Header) -> bool {
        let end = window.first_scored.checked_add(window.n_rows);
        let is_new = self.seen.insert(window.window);
        self.n_rows += u64::from(window.n_rows); // at most 2^32 times 2^32
        is_new
            && window.n_tokens <= header.n_ctx
            && end.is_some_and(|end| end <= window.n_tokens)
            && self.seen.len() <= header.n_windows as usize
            && self.n_rows <= header.n_rows
    }
}

/// Most plain bytes of an index in a file of `file_bytes`: each offset stands for a member.
pub(super) fn max_plain_bytes(file_bytes: u64) -> u64 {
    MAGIC.len() as u64 + 4 + (file_bytes / MIN_BYTES).saturating_mul(ENTRY_BYTES + 8)
}

/// The index's plain bytes.
pub(super) fn encode(windows: &[PlacedWindow]) -> Vec<u8> {
    let mut plain = MAGIC.to_vec();
    let n_windows = windows.len() as u32; // the header counts windows in a u32
    plain.extend_from_slice(&n_windows.to_le_bytes());
    for PlacedWindow { entry, offsets } in windows {
        let n_members = offsets.len() as u32; // at most one more than its rows
        plain.extend_from_slice(bytemuck::bytes_of(entry));
        plain.extend_from_slice(&n_members.to_le_bytes());
        plain.extend_from_slice(bytemuck::cast_slice(offsets));
    }
    plain
}

/// Reads the index and checks all of it: what it states must agree with the header, and its members
/// must follow each other from `start` to before `end`.
pub(super) fn decode(
    plain: &[u8],
    header: &Header,
    start: u64,
    end: u64,
) -> Result<Vec<PlacedWindow>, String> {
    let stripped = plain.strip_prefix(&MAGIC);
    let mut rest = stripped.ok_or("the index does not start with KL_INDEX")?;
    let mut take = |n: u64| {
        let taken = usize::try_from(n).ok().and_then(|n| rest.split_off(..n));
        taken.ok_or("the index ends within an entry")
    };
    let n_windows: u32 = bytemuck::pod_read_unaligned(take(4)?);
    let (mut windows, mut tally, mut next) = (Vec::new(), Tally::default(), start);
    for _ in 0..n_windows {
        let entry: WindowEntry = bytemuck::pod_read_unaligned(take(ENTRY_BYTES - 4)?);
        let n_members: u32 = bytemuck::pod_read_unaligned(take(4)?);
        let offsets = bytemuck::pod_collect_to_vec(take(8 * u64::from(n_members))?);
        let n_pieces = entry.n_rows.div_ceil(header.rows_per_piece);
        let are_in_order = offsets.iter().all(|&offset| {
            let is_after = offset >= next;
            next = u64::saturating_add(offset, MIN_BYTES);
            is_after && next <= end
        });
        let is_as_long = u64::from(n_members) == u64::from(n_pieces) + 1;
        if !is_as_long || !are_in_order || !tally.add(&entry, header) {
            return Err(format!(
                "the index's entry of window {} does not fit the header or the members",
                entry.window
            ));
        }
        windows.push(PlacedWindow { entry, offsets });
    }
    if !rest.is_empty() {
        return Err(format!("the index is {} bytes too long", rest.len()));
    }
    let n_rows = tally.n_rows;
    if (n_windows, n_rows) != (header.n_windows, header.n_rows) {
        return Err(format!(
            "the index has {n_windows} windows with {n_rows} rows, the header {} with {}",
            header.n_windows, header.n_rows
        ));
    }
    if windows.first().map_or(end, PlacedWindow::offset) != start {
        return Err("bytes between the header and the first window".into());
    }
    check_row_fault(header, &windows).map_or(Ok(windows), Err)
}

/// Finds a check row that its window does not have. The window may be missing where the file is a
/// part of a reference.
fn check_row_fault(header: &Header, windows: &[PlacedWindow]) -> Option<String> {
    let rows = header.states.iter().flat_map(|states| &states.check.rows);
    let has_row = |row: &CheckRow| {
        let mut entries = windows.iter().map(|placed| &placed.entry);
        let entry = entries.find(|entry| entry.window == row.window);
        entry.map_or(header.shard.is_some(), |entry| {
            let row = row.position.checked_sub(entry.first_scored);
            row.is_some_and(|row| row < entry.n_rows)
        })
    };
    let CheckRow { window, position } = rows.into_iter().find(|row| !has_row(row))?;
    Some(format!(
        "the check row of position {position} is not among the rows of window {window}"
    ))
}
