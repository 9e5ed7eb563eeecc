//! The sidecar: one record per scored token, with all that the printed statistics are computed
//! from, and the texts of the tokens that occur. The layout is specified in `SIDECAR.md`, beside
//! this crate's manifest. [`verify()`] reads all of it to check that it is whole.

mod end;
mod header;
mod possible;
mod reader;
mod record;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub use crate::header_lines::MAX_HEADER_BYTES;
pub use end::{TRAILER_BYTES, TokenTexts};
pub use header::{ReferenceSummary, SIDECAR_VERSION, SidecarHeader};
pub(crate) use possible::{MOST_NATS, ROUNDING};
pub use reader::{CutOffSidecar, SidecarReader, is_sidecar, verify};
pub use record::{RECORD_BYTES, TokenRecord};
pub use writer::SidecarWriter;

/// The file's first line.
pub const MAGIC_LINE: &str = "kl_sidecar_v1\n";

/// CRC-32 of the header's checksum and the bytes after it. It covers the header, and a record's index,
/// so that a record that was moved, or that belongs to another file, is found.
fn crc_of(header_crc: u32, bytes: &[&[u8]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header_crc.to_le_bytes());
    bytes.iter().for_each(|bytes| crc.update(bytes));
    crc.finalize()
}
