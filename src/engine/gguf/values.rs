//! Typed values of the key-value pairs: read, or skipped.

use super::cursor::Cursor;
use super::error::Result;

/// Value types (ggml's `docs/gguf.md`).
const U32: u32 = 4;
const I32: u32 = 5;
const BOOL: u32 = 7;
pub(super) const STRING: u32 = 8;
pub(super) const ARRAY: u32 = 9;

/// The deepest nesting of arrays that is skipped; llama.cpp itself reads no nested arrays.
const MAX_DEPTH: u32 = 4;

/// A value that is neither a string nor an array.
pub(super) enum Scalar {
    /// An integer, or a bool as 0 or 1.
    Integer(i128),
    Float(f64),
}

/// Reads a value of type `kind`.
pub(super) fn scalar(cursor: &mut Cursor, kind: u32) -> Result<Scalar> {
    Ok(Scalar::Integer(match kind {
        0 => cursor.array().map(u8::from_le_bytes)?.into(),
        1 => cursor.array().map(i8::from_le_bytes)?.into(),
        2 => cursor.array().map(u16::from_le_bytes)?.into(),
        3 => cursor.array().map(i16::from_le_bytes)?.into(),
        U32 => cursor.u32()?.into(),
        I32 => cursor.array().map(i32::from_le_bytes)?.into(),
        6 => {
            return Ok(Scalar::Float(
                cursor.array().map(f32::from_le_bytes)?.into(),
            ));
        }
        BOOL => match cursor.array()? {
            [value @ (0 | 1)] => value.into(),
            [value] => return Err(cursor.corrupt(format!("a bool is {value}"))),
        },
        10 => cursor.u64()?.into(),
        11 => cursor.array().map(i64::from_le_bytes)?.into(),
        12 => return Ok(Scalar::Float(cursor.array().map(f64::from_le_bytes)?)),
        _ => return Err(cursor.corrupt(format!("a value of unknown type {kind}"))),
    }))
}

/// Bytes of an array's element, if its type has a fixed size.
fn scalar_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | BOOL => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Skips an array.
pub(super) fn skip_array(cursor: &mut Cursor) -> Result<()> {
    skip_nested_array(cursor, 1)
}

fn skip_nested_array(cursor: &mut Cursor, depth: u32) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(cursor.corrupt("arrays nested too deep"));
    }
    let kind = cursor.u32()?;
    skip_elements(cursor, kind, depth)
}

/// Skips the rest of an array whose element type, `kind`, was read.
fn skip_elements(cursor: &mut Cursor, kind: u32, depth: u32) -> Result<()> {
    match (kind, scalar_bytes(kind)) {
        (_, Some(bytes)) => {
            let n = cursor.count("array elements", bytes)?;
            cursor.skip(n.saturating_mul(bytes), |_| ())
        }
        (STRING, _) => {
            let n = cursor.count("strings", 8)?;
            (0..n).try_for_each(|_| cursor.skip_string())
        }
        (ARRAY, _) => {
            let n = cursor.count("arrays", 12)?;
            (0..n).try_for_each(|_| skip_nested_array(cursor, depth + 1))
        }
        _ => Err(cursor.corrupt(format!("an array of unknown type {kind}"))),
    }
}

/// Passes the elements of an array of u32 or i32 to `on_word`, as the u32 that llama.cpp reads;
/// skips any other array.
pub(super) fn words(cursor: &mut Cursor, mut on_word: impl FnMut(u32)) -> Result<()> {
    let kind = cursor.u32()?;
    if !matches!(kind, U32 | I32) {
        return skip_elements(cursor, kind, 1);
    }
    let n = cursor.count("array elements", 4)?;
    (0..n).try_for_each(|_| cursor.u32().map(&mut on_word))
}
