//! The header: which model was evaluated, against what.

use serde::{Deserialize, Serialize};

use super::{MAGIC_LINE, MAX_HEADER_BYTES};
use crate::error::{Named, Result};
use crate::header_lines::to_lines;
use crate::{BackendIdentity, MAX_N_CTX, MAX_N_VOCAB, ModelIdentity, TextIdentity};

/// The version of the sidecar that this crate writes, and the only one it reads.
pub const SIDECAR_VERSION: u32 = 1;

/// The JSON line of a sidecar. Fields that are not known are ignored when read.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct SidecarHeader {
    /// [`SIDECAR_VERSION`].
    pub version: u32,
    /// The program that wrote the file, with its version.
    pub writer: String,
    /// The model evaluated.
    pub model: ModelIdentity,
    /// Its path, as it was given.
    pub model_path: String,
    /// What it was evaluated against.
    pub reference: ReferenceSummary,
    /// Most tokens in a window.
    pub n_ctx: u32,
    /// Entries of a row.
    pub n_vocab: u32,
    /// First scored position of a full window.
    pub first_scored: u32,
    /// Records in the file.
    pub n_records: u64,
    /// Entries of each row that were compared, from the first on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_vocab_compared: Option<u32>,
    /// How the model's rows were computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendIdentity>,
}

/// A reference, as far as it tells.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceSummary {
    /// The file's name, without its folder.
    pub file_name: Option<String>,
    /// `kl`, `kl.py` or `llama.cpp`.
    pub kind: Option<String>,
    /// The model whose logits it holds.
    pub model: Option<ModelIdentity>,
    /// The text.
    pub text: Option<TextIdentity>,
    /// What tells the file from another of its kind: SHA-256 (hex) of its length in bytes (u64), its
    /// first 64 KiB and its last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

impl SidecarHeader {
    /// Both lines.
    pub(super) fn to_lines(&self, name: &Named) -> Result<Vec<u8>> {
        if let Some(fault) = self.fault() {
            return Err(name.unwritable(fault));
        }
        let lines = to_lines(MAGIC_LINE, self, name)?;
        match lines.len() <= MAX_HEADER_BYTES {
            true => Ok(lines),
            false => Err(name.unwritable("a header of more than 1 MiB")),
        }
    }

    /// From the JSON line, whose checksum has been checked.
    pub(super) fn from_json(json: &[u8], name: &Named) -> Result<Self> {
        /// Read first: another version may have other fields.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let unusable = |e: serde_json::Error| name.header(format!("{e}"));
        let Version { version } = serde_json::from_slice(json).map_err(unusable)?;
        if version != SIDECAR_VERSION {
            return Err(name.unsupported(format!(
                "sidecar version {version}, this kl reads {SIDECAR_VERSION}: \
                 use the kl that wrote it, or evaluate anew"
            )));
        }
        let header: Self = serde_json::from_slice(json).map_err(unusable)?;
        match header.fault() {
            Some(fault) => Err(name.header(fault)),
            None => Ok(header),
        }
    }

    fn fault(&self) -> Option<String> {
        if self.version != SIDECAR_VERSION {
            Some(format!("version {}, not {SIDECAR_VERSION}", self.version))
        } else if !(1..=MAX_N_VOCAB).contains(&self.n_vocab) {
            Some(format!("n_vocab {}, not 1 to {MAX_N_VOCAB}", self.n_vocab))
        } else if !(1..=MAX_N_CTX).contains(&self.n_ctx) {
            Some(format!("n_ctx {}, not 1 to {MAX_N_CTX}", self.n_ctx))
        } else {
            None
        }
    }
}
