//! The index: which windows there are, and where their members start.

use std::collections::HashSet;

use byteorder::{LittleEndian, ReadBytesExt};

use super::Header;
use super::member::MIN_BYTES;
use crate::states::CheckRow;
use crate::window::{PlacedWindow, WindowEntry};

/// The index's first bytes in the plain stream.
const MAGIC: [u8; 8] = *b"KL_INDEX";

/// Bytes of a window's entry before its offsets.
const ENTRY_BYTES: u64 = 20;

/// True if a window's counts can be those of a window of this file.
pub(super) fn fits(window: &WindowEntry, header: &Header) -> bool {
    let end = window.first_scored.checked_add(window.n_rows);
    window.n_tokens <= header.n_ctx && end.is_some_and(|end| end <= window.n_tokens)
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
        let counts = [
            entry.window,
            entry.n_tokens,
            entry.n_rows,
            entry.first_scored,
            n_members,
        ];
        plain.extend_from_slice(bytemuck::cast_slice(&counts));
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
    let mut bytes = plain
        .strip_prefix(&MAGIC)
        .ok_or("the index does not start with KL_INDEX")?;
    let n_windows = bytes.read_u32::<LittleEndian>().map_err(short)?;
    if n_windows != header.n_windows {
        return Err(format!(
            "the index has {n_windows} windows, the header {}",
            header.n_windows
        ));
    }
    let mut windows: Vec<PlacedWindow> = Vec::new();
    let (mut seen, mut n_rows, mut next) = (HashSet::new(), 0u64, start);
    for _ in 0..n_windows {
        let placed = decode_window(&mut bytes, header, next, end)?;
        let of = |what: &str| of_window(placed.entry.window, what);
        if !seen.insert(placed.entry.window) {
            return Err(of("comes twice"));
        }
        if windows.is_empty() && placed.offset() != start {
            return Err(of("does not point at a member"));
        }
        n_rows += u64::from(placed.entry.n_rows); // at most 2^32 times 2^32
        next = placed.offsets.last().map_or(next, |last| last + MIN_BYTES);
        windows.push(placed);
    }
    if !bytes.is_empty() {
        return Err(format!("the index is {} bytes too long", bytes.len()));
    }
    if n_rows != header.n_rows {
        return Err(format!(
            "the index has {n_rows} rows, the header {}",
            header.n_rows
        ));
    }
    if n_windows == 0 && start != end {
        return Err("bytes between the header and the index".into());
    }
    check_row_fault(header, &windows).map_or(Ok(windows), Err)
}

/// Reads a window's entry. Its members must follow each other from `next` on, and end before `end`.
fn decode_window(
    bytes: &mut &[u8],
    header: &Header,
    mut next: u64,
    end: u64,
) -> Result<PlacedWindow, String> {
    let mut counts = [0; 5];
    bytes
        .read_u32_into::<LittleEndian>(&mut counts)
        .map_err(short)?;
    let [window, n_tokens, n_rows, first_scored, n_members] = counts;
    if u64::from(n_members) != u64::from(n_rows.div_ceil(header.rows_per_piece)) + 1 {
        return Err(of_window(window, "has members that do not fit its rows"));
    }
    let mut list = (n_members as usize)
        .checked_mul(8)
        .and_then(|length| bytes.split_off(..length))
        .ok_or("the index ends within an entry")?;
    let mut offsets = Vec::with_capacity(list.len() / 8);
    while let Ok(offset) = list.read_u64::<LittleEndian>() {
        if offset < next {
            return Err(of_window(window, "does not point at a member"));
        }
        next = offset
            .checked_add(MIN_BYTES)
            .filter(|&n| n <= end)
            .ok_or_else(|| of_window(window, "points past the windows"))?;
        offsets.push(offset);
    }
    let entry = WindowEntry {
        window,
        n_tokens,
        n_rows,
        first_scored,
    };
    if !fits(&entry, header) {
        return Err(of_window(window, "has counts that do not fit its tokens"));
    }
    Ok(PlacedWindow { entry, offsets })
}

fn short(_: std::io::Error) -> String {
    "the index ends within an entry".to_owned()
}

/// A fault of a window's entry.
fn of_window(window: u32, what: &str) -> String {
    format!("the index's entry of window {window} {what}")
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
    let fault = rows.into_iter().find(|row| !has_row(row))?;
    Some(format!(
        "the check row of position {} is not among the rows of window {}",
        fault.position, fault.window
    ))
}
