//! The sidecar: one record per scored token, with all that the printed statistics are computed
//! from. The layout is specified in `SIDECAR.md`, beside this crate's manifest.
//! [`verify()`] reads all of it to check that it is whole.

mod header;
mod reader;
mod record;
mod verify;
mod writer;

#[cfg(test)]
mod tests;

pub use crate::header_lines::MAX_HEADER_BYTES;
pub use header::{ReferenceSummary, SIDECAR_VERSION, SidecarHeader};
pub use reader::{CutOffSidecar, SidecarReader, is_sidecar};
pub use record::{RECORD_BYTES, TokenRecord};
pub use verify::{VerifyReport, verify};
pub use writer::SidecarWriter;

/// The file's first line.
pub const MAGIC_LINE: &str = "kl_sidecar_v1\n";
