//! The tensor infos: their shapes, types and offsets, and whether the file holds all the data.

use kl_formats::GgmlType;

use super::cursor::Cursor;
use super::error::Result;
use super::limits;

/// Bytes of the shortest info: a name's length, no dimensions, type, offset.
pub(super) const MIN_INFO_BYTES: u64 = 8 + 4 + 4 + 8;

/// Longest tensor name that is accepted; ggml's own limit is 64.
const MAX_NAME_BYTES: u64 = 1 << 10;

/// Most dimensions (GGML_MAX_DIMS).
const MAX_DIMS: u32 = 4;

/// Tensor data must start at a multiple of this, so that it can be mapped into memory (ggml's
/// `TENSOR_ALIGNMENT`), whatever the file's own alignment is.
const MEMORY_ALIGNMENT: u64 = 32;

/// The tensor whose data ends last.
struct Last {
    end: u64,
    name: String,
}

/// A tensor's info.
pub(super) struct Info<'a> {
    pub(super) name: &'a str,
    /// Elements in each dimension, the innermost first.
    pub(super) shape: &'a [u64],
    pub(super) elements: u64,
    /// ggml's number of its type.
    pub(super) type_id: u32,
    /// First byte of its data, from the start of all data.
    pub(super) offset: u64,
    /// Bytes of its data; 1 if its type is not known here.
    pub(super) bytes: u64,
}

/// Reads all infos, passes each to `on_info`, and checks that each tensor's data ends within the
/// file. Returns where the data starts.
pub(super) fn read(
    cursor: &mut Cursor,
    n_tensors: u64,
    alignment: u64,
    mut on_info: impl FnMut(&Info<'_>),
) -> Result<u64> {
    let mut last: Option<Last> = None;
    for _ in 0..n_tensors {
        let name = cursor.string(MAX_NAME_BYTES)?;
        let too_large = |cursor: &Cursor| cursor.corrupt(format!("tensor {name:?} is too large"));
        let n_dims = cursor.u32()?;
        if n_dims > MAX_DIMS {
            return Err(cursor.corrupt(format!("tensor {name:?} has {n_dims} dimensions")));
        }
        let mut shape = Vec::new();
        let mut elements = 1u64;
        for _ in 0..n_dims {
            let n = cursor.u64()?;
            shape.push(n);
            elements = elements.checked_mul(n).ok_or_else(|| too_large(cursor))?;
        }
        let row = shape.first().copied().unwrap_or(1);
        let type_id = cursor.u32()?;
        if let Some(fault) = limits::tensor_fault(&name, n_dims, elements, type_id) {
            return Err(cursor.corrupt(format!("tensor {name:?} {fault}")));
        }
        let offset = cursor.u64()?;
        if !offset.is_multiple_of(alignment) {
            let what =
                format!("tensor {name:?} has offset {offset}, not a multiple of {alignment}");
            return Err(cursor.corrupt(what));
        }
        let bytes = match GgmlType::of(type_id) {
            // Types that are unknown here are left to llama.cpp: at least one byte.
            None => elements.min(1),
            Some(GgmlType { block, .. }) if !row.is_multiple_of(block) => {
                return Err(cursor.corrupt(format!(
                    "tensor {name:?} has rows of {row} elements, not a multiple of its type's {block}"
                )));
            }
            Some(kind) => kind.bytes(elements).ok_or_else(|| too_large(cursor))?,
        };
        on_info(&Info {
            name: &name,
            shape: &shape,
            elements,
            type_id,
            offset,
            bytes,
        });
        let end = offset.checked_add(bytes).ok_or_else(|| too_large(cursor))?;
        if last.as_ref().is_none_or(|last| end > last.end) {
            last = Some(Last { end, name });
        }
    }
    let too_far = |name: &str| cursor.corrupt(format!("tensor {name:?} ends past byte 2^64"));
    let start = cursor.offset.checked_next_multiple_of(alignment);
    let Some(last) = last else {
        return Ok(start.unwrap_or(cursor.offset));
    };
    let start = start.ok_or_else(|| too_far(&last.name))?;
    if !start.is_multiple_of(MEMORY_ALIGNMENT) {
        let what =
            format!("tensor data starts at byte {start}, not a multiple of {MEMORY_ALIGNMENT}");
        return Err(cursor.corrupt(what));
    }
    let end = start
        .checked_add(last.end)
        .ok_or_else(|| too_far(&last.name))?;
    if end > cursor.len {
        let what = format!("tensor {:?} ends at byte {end}", last.name);
        return Err(cursor.truncated(cursor.len, what));
    }
    Ok(start)
}
