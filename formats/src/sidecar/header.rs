//! The header: the model that was evaluated, and the reference that it was compared with.

use serde::{Deserialize, Serialize};

use super::{MAGIC_LINE, MAX_HEADER_BYTES};
use crate::error::{Named, Result};
use crate::header_lines::to_lines;
use crate::provenance::{deref_to_provenance, size_fault};
use crate::reference::{About, Reference, fingerprint};
use crate::{BackendIdentity, ModelIdentity, Provenance, Sampling, TextIdentity, WindowSpec};

/// The version of the sidecar that this crate writes. It reads those before it too.
pub const SIDECAR_VERSION: u32 = 2;

/// The JSON line of a sidecar. `null` means unknown. A reader ignores other keys.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
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
    /// The names of the windows' groups: [`super::TokenRecord::group`] is an index into them. Empty
    /// without groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The names of the spans of answers: [`super::TokenRecord::span`] is an index into them. Empty
    /// without spans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<String>,
    /// True if the windows are prompts.
    pub prompts: bool,
    /// True if the evaluated rows were read from a file, as `kl compare` reads them, and not computed
    /// by the run.
    pub stored: bool,
    /// The most records that the evaluation has; `None` where that is known only at its end, as for
    /// a stream. [`super::SidecarReader::n_records`] is what the file holds.
    pub n_records: Option<u64>,
    /// The half width of the mean's interval, relative to the mean, at which the evaluation was to
    /// stop; `None` if it was to continue to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// Entries of each row that were compared, from the first on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_vocab_compared: Option<u32>,
}

deref_to_provenance!(SidecarHeader);

/// The description of the reference in a sidecar.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ReferenceSummary {
    /// The file's name, without its folder; where the rows come from a model, its file's.
    pub file_name: Option<String>,
    /// Its kind: `kl`, `kl.py`, `llama.cpp`, `safetensors` or `npz`; `model` where a model ran
    /// beside the evaluated one.
    pub kind: Option<String>,
    /// The model whose logits it holds.
    pub model: Option<ModelIdentity>,
    /// The text.
    pub text: Option<TextIdentity>,
    /// A hash that distinguishes it from others of its kind: see `SIDECAR.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The set-up that computed its rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendIdentity>,
    /// The way its model chose the tokens of answers by chance; absent if it did not, or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
}

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
            label: None,
            reference,
            groups: Vec::new(),
            spans: Vec::new(),
            prompts: false,
            stored: false,
            n_records,
            until: None,
            n_vocab_compared: None,
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

    /// The bytes of both lines.
    pub(super) fn to_lines(&self, name: &Named) -> Result<Vec<u8>> {
        if let Some(fault) = self.fault() {
            return Err(name.unwritable(fault));
        }
        let written = Self {
            version: SIDECAR_VERSION,
            ..self.clone()
        };
        let lines = to_lines(MAGIC_LINE, &written, name)?;
        match lines.len() <= MAX_HEADER_BYTES {
            true => Ok(lines),
            false => Err(name.unwritable("a header of more than 1 MiB")),
        }
    }

    /// Parses the JSON line, whose checksum has been checked.
    pub(super) fn from_json(json: &[u8], name: &Named) -> Result<Self> {
        /// Read first: another version may have other fields.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let unusable = |e: serde_json::Error| name.header(format!("{e}"));
        let stated: Versioned = serde_json::from_slice(json).map_err(unusable)?;
        if !(1..=SIDECAR_VERSION).contains(&stated.version) {
            return Err(name.unsupported(format!(
                "sidecar version {}, this kl reads 1 to {SIDECAR_VERSION}: \
                 use the kl that wrote it, or evaluate again",
                stated.version
            )));
        }
        let header: Self = serde_json::from_slice(json).map_err(unusable)?;
        match header.fault() {
            Some(fault) => Err(name.header(fault)),
            None => Ok(header),
        }
    }

    /// Returns the number of groups that records may be of: 1 without groups.
    pub(super) fn n_groups(&self) -> usize {
        self.groups.len().max(1)
    }

    /// Returns the number of spans that records may be of: 1 without spans.
    pub(super) fn n_spans(&self) -> usize {
        self.spans.len().max(1)
    }

    fn fault(&self) -> Option<String> {
        let of_shard = || self.shard?.fault(self.n_records);
        size_fault(self.n_ctx, self.n_vocab).or_else(of_shard)
    }
}

impl ReferenceSummary {
    /// Describes `reference` as a sidecar records it.
    ///
    /// # Errors
    /// Those of [`Reference::fingerprint`].
    pub fn of(reference: &Reference) -> Result<Self> {
        Ok(Self::new(reference.about(), reference.fingerprint()?))
    }

    /// Describes the reference that a model computes over `windows`, of which there is no file, as
    /// a sidecar records it.
    pub fn of_model(about: &About, windows: &[WindowSpec]) -> Self {
        Self::new(about, Some(fingerprint::of_model(about, windows)))
    }

    fn new(about: &About, fingerprint: Option<String>) -> Self {
        let file_name = about.path.file_name();
        Self {
            file_name: file_name.map(|name| name.to_string_lossy().into_owned()),
            kind: Some(about.kind.to_string()),
            model: about.model.clone(),
            text: about.text.clone(),
            fingerprint,
            backend: about.backend.clone(),
            sampling: about.prompts.as_ref().and_then(|prompts| prompts.sampling),
        }
    }
}
