//! The description of a reference, whatever its kind; in full, and as sidecars and maps record it.

use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::kinds::{Checks, Kind};
use crate::prompt::Prompt;
use crate::provenance::{
    BackendIdentity, ModelIdentity, Provenance, TextIdentity, deref_to_provenance, hex,
};
use crate::states::States;
use crate::window::{Groups, WindowSpec};

/// All that is known about a reference, apart from its windows and rows. `None` means that this
/// file, or any file of its kind, does not record it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct About {
    /// The file's path, or the folder's.
    pub path: PathBuf,
    /// The kind of reference.
    pub kind: Kind,
    /// Bytes of the file; of a folder, of all its files.
    pub file_bytes: u64,
    /// Where its rows come from.
    pub provenance: Provenance,
    /// True if `n_ctx` was rounded up to what llama.cpp allocates: all windows may be shorter.
    pub n_ctx_is_padded: bool,
    /// Windows in the file.
    pub n_windows: Option<u32>,
    /// Rows in the file.
    pub n_rows: Option<u64>,
    /// The storage of a row's entry: `u16`, `f32`, `f16`, `bf16` or `f64`; or that of hidden states
    /// in its place: `hidden`.
    pub encoding: &'static str,
    /// The hidden states, where those are stored and not rows.
    pub states: Option<States>,
    /// The meaning of a row's entry.
    pub values: Values,
    /// True if the model may put a BOS in place of each window's first token when it decodes: see
    /// [`crate::Reference::set_bos`].
    pub hides_bos: bool,
    /// The group of each window, where there are groups.
    pub groups: Option<Groups>,
    /// The prompts, where the windows are prompts and not parts of a text.
    pub prompts: Option<Prompts>,
    /// True if it holds token ids; `None` where every file of its kind does.
    pub holds_tokens: Option<bool>,
    /// True if its tokens and settings suffice to run a model over the same windows.
    pub is_decodable: bool,
    /// The other entries of kl.py's header: key and value.
    pub others: Vec<(String, String)>,
    /// The checks that a file of its kind allows.
    pub checks: Checks,
}

deref_to_provenance!(About);

/// The meaning of a row's entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Values {
    /// Raw logits.
    #[default]
    Logits,
    /// Log-probabilities, from which logits cannot be computed.
    LogProbabilities,
    /// Log-probabilities as llama.cpp's base file holds them, floored at 16 below each row's largest:
    /// the smallest value of a row that spans 16 means "at or below", so that the probability of such
    /// an entry is not known.
    FlooredLogProbabilities,
}

/// Prompts and what was done with them. Window `i` is the `i`-th prompt's; there may be more
/// prompts than windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompts {
    /// The prompts, as they were given.
    pub list: Vec<Prompt>,
    /// SHA-256 (hex) of the chat template that was applied to them; `None` if none was.
    pub chat_template: Option<String>,
    /// The most tokens that the model itself generated as an answer, at each window's end.
    pub generated: Option<u32>,
    /// The way it chose them; `None`: greedily.
    pub sampling: Option<Sampling>,
    /// The names of the spans of windows: [`Prompt::spans`] has indices into them.
    pub spans: Vec<String>,
}

/// The way to choose a token by chance, with llama.cpp's samplers in its order: `top_k`, `top_p`,
/// `min_p`, temperature.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sampling {
    /// The temperature, above 0.
    pub temp: f32,
    /// The most tokens to choose from; 0: all.
    pub top_k: u32,
    /// The total probability of the most probable tokens, from which one is chosen; 1: all.
    pub top_p: f32,
    /// The probability, relative to that of the top token, below which no token is chosen; 0: all.
    pub min_p: f32,
    /// The seed of the random numbers.
    pub seed: u32,
}

impl Prompts {
    /// The tokens of window `window`, of `n_tokens` tokens, that the model chose greedily, and the most
    /// that it was to choose; `None` without any.
    pub fn greedy(&self, window: u32, n_tokens: u32) -> Option<(Range<u32>, u32)> {
        let most = self.generated.filter(|_| self.sampling.is_none())?;
        let prompt = self.list.get(window as usize)?;
        Some((prompt.n_tokens..n_tokens, most))
    }

    /// A label for each prompt: its text, or that of the user's last message.
    pub fn labels(&self) -> Vec<String> {
        let labels = self.list.iter().map(|prompt| prompt.content.label());
        labels.collect()
    }
}

impl About {
    /// A reference of f32 logits, with what follows from its kind. Set the fields that differ, and those
    /// that are known.
    pub fn new(kind: Kind, path: impl Into<PathBuf>, n_ctx: u32, n_vocab: u32) -> Self {
        Self {
            path: path.into(),
            kind,
            file_bytes: 0,
            provenance: Provenance {
                n_ctx,
                n_vocab,
                ..Provenance::default()
            },
            n_ctx_is_padded: kind == Kind::KlPy,
            n_windows: None,
            n_rows: None,
            encoding: "f32",
            states: None,
            values: Values::Logits,
            hides_bos: kind == Kind::LlamaCpp,
            groups: None,
            prompts: None,
            holds_tokens: None,
            is_decodable: !matches!(kind, Kind::Safetensors | Kind::Npz),
            others: Vec::new(),
            checks: kind.checks(),
        }
    }

    /// True if the rows are log-probabilities, from which logits cannot be computed.
    pub fn holds_log_probabilities(&self) -> bool {
        self.values != Values::Logits
    }
}

/// The description of the reference in a sidecar.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ReferenceSummary {
    /// The file's name, without its folder; where the rows come from a model, its file's.
    pub file_name: Option<String>,
    /// Its kind: `kl`, `kl.py`, `llama.cpp`, `safetensors` or `npz`; `model` where a model ran
    /// beside the evaluated one.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub kind: Option<Kind>,
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

impl ReferenceSummary {
    /// Describes the reference that a model computes over `windows` and writes to no file, as a
    /// sidecar records it.
    pub fn of_model(about: &About, windows: &[WindowSpec]) -> Self {
        Self::new(about, Some(fingerprint_of_model(about, windows)))
    }

    /// Describes a reference with this fingerprint; `None` where its rows are still to be computed.
    pub fn new(about: &About, fingerprint: Option<String>) -> Self {
        let file_name = about.path.file_name();
        Self {
            file_name: file_name.map(|name| name.to_string_lossy().into_owned()),
            kind: Some(about.kind),
            model: about.model.clone(),
            text: about.text.clone(),
            fingerprint,
            backend: about.backend.clone(),
            sampling: about.prompts.as_ref().and_then(|prompts| prompts.sampling),
        }
    }
}

/// SHA-256 of what determines the rows that a model computes over `windows`: the model by its
/// hashes, how it computes, the groups of the windows, and the windows with their tokens. Names of
/// files and texts do not count.
fn fingerprint_of_model(about: &About, windows: &[WindowSpec]) -> String {
    #[derive(Serialize)]
    struct Described<'a> {
        file_bytes: Option<u64>,
        metadata_sha256: Option<&'a str>,
        sample_sha256: Option<&'a str>,
        backend: Option<&'a BackendIdentity>,
        groups: &'a [String],
        window_groups: &'a [(u32, u32)],
    }
    let model = about.model.clone().unwrap_or_default();
    let groups = about.groups.as_ref();
    let described = Described {
        file_bytes: model.file_bytes,
        metadata_sha256: model.metadata_sha256.as_deref(),
        sample_sha256: model.sample_sha256.as_deref(),
        backend: about.backend.as_ref(),
        groups: groups.map_or(&[], |groups| groups.names()),
        window_groups: groups.map_or(&[], |groups| groups.window_groups()),
    };
    // Strings and numbers always have a JSON.
    let mut hash = Sha256::new_with_prefix(serde_json::to_vec(&described).unwrap_or_default());
    hash.update(b"\n");
    for of in windows {
        let n_tokens = of.tokens.len() as u32;
        let counts = [of.window, of.first_scored, of.n_rows, n_tokens];
        hash.update(bytemuck::cast_slice(&counts));
        hash.update(bytemuck::cast_slice(&of.tokens));
    }
    hex(&hash.finalize())
}
