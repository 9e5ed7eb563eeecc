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
pub const MAGIC_LINE: &str = "kl_sidecar_v3\n";

/// The first line of version 2, which is read too.
const MAGIC_LINE_V2: &str = "kl_sidecar_v2\n";

/// The first line of version 1, which is read too.
const MAGIC_LINE_V1: &str = "kl_sidecar_v1\n";

/// The version of the sidecar that a first line belongs to.
pub(crate) fn version_of(first_line: &[u8]) -> Option<u32> {
    (1..)
        .zip([MAGIC_LINE_V1, MAGIC_LINE_V2, MAGIC_LINE])
        .find_map(|(version, line)| (line.as_bytes() == first_line).then_some(version))
}
