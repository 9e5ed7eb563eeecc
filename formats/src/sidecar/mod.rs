//! The sidecar: one record per scored token, with all that the printed statistics are computed
//! from, and the texts of the tokens that occur. The layout is specified in `SIDECAR.md`, beside
//! this crate's manifest.
//! [`verify()`] reads all of it to check that it is whole.

mod header;
mod possible;
mod reader;
mod record;
mod texts;
mod trailer;
mod verify;
mod writer;

#[cfg(test)]
mod tests;

pub use crate::header_lines::MAX_HEADER_BYTES;
pub use header::{ReferenceSummary, SIDECAR_VERSION, SidecarHeader};
pub use reader::{CutOffSidecar, SidecarReader, is_sidecar};
pub use record::{RECORD_BYTES, TokenRecord};
pub use texts::TokenTexts;
pub use trailer::TRAILER_BYTES;
pub use verify::{VerifyReport, verify};
pub use writer::SidecarWriter;

/// The file's first line.
pub const MAGIC_LINE: &str = "kl_sidecar_v1\n";
