//! The sidecar: one record per scored token, with all that the printed statistics are computed
//! from, and the texts of the tokens that occur. The layout is specified in `SIDECAR.md`, beside
//! this crate's manifest. [`verify()`] reads all of it to check that it is whole.

mod end;
mod reader;
mod record;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::about::ReferenceSummary;
pub use crate::kinds::SIDECAR as MAGIC_LINE;
pub use crate::provenance::MAX_HEADER_BYTES;
use crate::provenance::{OwnHeader, Provenance, deref_to_provenance};
use crate::speed::Speed;
use crate::window::size_fault;
pub use end::{TRAILER_BYTES, TokenTexts};
pub use reader::{CutOffSidecar, SidecarReader, verify};
pub(crate) use record::{MOST_NATS, ROUNDING};
pub use record::{RECORD_BYTES, TokenRecord};
pub use writer::SidecarWriter;

/// The version of the sidecar that this crate writes. It reads those before it too.
pub const SIDECAR_VERSION: u32 = 2;

/// The JSON line of a sidecar. `null` means unknown. A reader ignores other keys.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SidecarHeader {
    /// The version of the file that it was read from; [`SIDECAR_VERSION`] is what is written.
    pub version: u32,
    /// Where the evaluated rows come from: the model that computed them, and over which windows. The
    /// text is the reference's.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// The user's name for the evaluation; `None` if no name was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The reference that it was compared with.
    pub reference: ReferenceSummary,
    /// The names of the windows' groups: [`TokenRecord::group`] is an index into them. Empty
    /// without groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The names of the spans of answers: [`TokenRecord::span`] is an index into them. Empty
    /// without spans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<String>,
    /// True if the windows are prompts.
    pub prompts: bool,
    /// True if the evaluated rows were read from a file, as `kl compare` reads them, and not computed
    /// by the run.
    pub stored: bool,
    /// The most records that the evaluation has; `None` where that is known only at its end, as for
    /// a stream. [`SidecarReader::n_records`] is what the file holds.
    pub n_records: Option<u64>,
    /// The half width of the mean's interval, relative to the mean, at which the evaluation was to
    /// stop; `None` if it was to continue to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// Entries of each row that were compared, from the first on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_vocab_compared: Option<u32>,
    /// How fast the model ran; `None` where that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
}

deref_to_provenance!(SidecarHeader);

impl SidecarHeader {
    /// The header of a sidecar with at most `n_records` records, of windows of at most `n_ctx`
    /// tokens. Nothing else is known: set the fields that are.
    pub fn new(
        reference: ReferenceSummary,
        n_ctx: u32,
        n_vocab: u32,
        n_records: Option<u64>,
    ) -> Self {
        Self {
            version: SIDECAR_VERSION,
            provenance: Provenance {
                n_ctx,
                n_vocab,
                first_scored: Some(0),
                ..Provenance::default()
            },
            reference,
            n_records,
            ..Self::default()
        }
    }

    /// The header of the whole evaluation that this file is a part of; of a whole file, its own.
    #[must_use]
    pub fn of_whole(&self) -> Self {
        let mut whole = self.clone();
        if let Some(shard) = whole.shard.take() {
            whole.n_records = Some(shard.n_rows);
        }
        whole
    }
}

impl OwnHeader for SidecarHeader {
    const MAGIC: &'static str = MAGIC_LINE;
    const VERSION: (&'static str, RangeInclusive<u32>) = ("version", 1..=SIDECAR_VERSION);

    fn fault(&self) -> Option<String> {
        let of_shard = || self.shard?.fault(self.n_records);
        size_fault(self.n_ctx, self.n_vocab).or_else(of_shard)
    }
}

/// CRC-32 of the header's checksum and the bytes after it. It covers the header, and a record's index,
/// so that a record that was moved, or that belongs to another file, is found.
fn crc_of(header_crc: u32, bytes: &[&[u8]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header_crc.to_le_bytes());
    bytes.iter().for_each(|bytes| crc.update(bytes));
    crc.finalize()
}
