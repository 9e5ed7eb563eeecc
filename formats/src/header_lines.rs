//! The magic line and the line of JSON that kl's own files begin with.

use serde::Serialize;

use crate::error::{Named, Result};

/// Most bytes that both lines may have.
pub const MAX_HEADER_BYTES: usize = 1 << 20;

/// Most bytes that both lines may have with the prompts that a native file can hold.
pub const MAX_HEADER_BYTES_WITH_PROMPTS: usize = 64 << 20;

/// The bytes of both lines.
pub(crate) fn to_lines(magic: &str, header: &impl Serialize, name: &Named) -> Result<Vec<u8>> {
    let mut lines = magic.as_bytes().to_vec();
    serde_json::to_writer(&mut lines, header)
        .map_err(|e| name.unwritable(format!("the header as JSON: {e}")))?;
    lines.push(b'\n');
    Ok(lines)
}
