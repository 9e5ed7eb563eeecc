//! The contents of a file, as `kl info` shows them: the fields of [`Info`] are the keys of its JSON.

mod kind;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use kl_formats::{
    BackendIdentity, Checks, GgmlType, Groups, ImatrixIdentity, ModelIdentity, Provenance,
    ReferenceSummary, SensitivityMap, Shard, States, TextIdentity, TokenizerIdentity,
};
use serde::Serialize;

use super::{PromptsInfo, Versions, Warning};

pub use kind::FileKind;
pub use text::{info_text, planned_lines, prompts_text, verified_text};

/// The contents of a file: null where it does not record them.
#[derive(Serialize, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Info {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The file's path, as given.
    pub path: String,
    /// `kl`, `kl.py`, `llama.cpp`, `safetensors`, `npz`, `sidecar`, `map`, or `model`.
    #[cfg_attr(any(test, feature = "testing"), schemars(with = "String"))]
    pub kind: FileKind,
    /// Of a sidecar: what the user calls the evaluation; absent without a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The program that wrote it.
    pub writer: Option<String>,
    /// Bytes of the file; of a folder or a split model, of all its files.
    pub file_bytes: u64,
    /// The model whose rows it holds; of a sidecar, the evaluated model; of a model, itself.
    pub model: Option<ModelIdentity>,
    /// The path of the model, as it was given.
    pub model_path: Option<String>,
    /// The model's tokenizer.
    pub tokenizer: Option<TokenizerIdentity>,
    /// The text that the windows are cut from.
    pub text: Option<TextIdentity>,
    /// The path of the text, as it was given.
    pub text_path: Option<String>,
    /// Of a sidecar: what the model was evaluated against; of a map: the file whose rows the tensors
    /// were measured against, null where the model computed them.
    pub reference: Option<ReferenceSummary>,
    /// Tokens in a window, at most; rows, where the file may hold no tokens. Of a model, the
    /// context that it was trained for, 0 where its file does not record that.
    pub n_ctx: u32,
    /// Entries of a row; of a model, of its vocabulary.
    pub n_vocab: u32,
    /// Of a sidecar: the entries of each row that were compared.
    pub n_vocab_compared: Option<u32>,
    /// True if each window starts with an inserted BOS; of a model, whether its file asks for that.
    pub add_bos: Option<bool>,
    /// The first scored position of a full window.
    pub first_scored: Option<u32>,
    /// Windows in the file.
    pub n_windows: Option<u32>,
    /// Scored rows; of a sidecar, records; of a map, those of its windows.
    pub n_rows: Option<u64>,
    /// Of a sidecar: half the width of the mean's interval over the mean, at which the evaluation
    /// was to stop; null if it was to run to its end.
    pub until: Option<f64>,
    /// The storage of a row: `f32`, `u16`, `f16`, `bf16` or `f64` for each entry; `hidden`
    /// where it is computed from a hidden state; null for a sidecar.
    pub encoding: Option<String>,
    /// The hidden states that it holds in place of rows, as its header describes them; absent where
    /// it holds rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub states: Option<States>,
    /// True if the rows are log-probabilities; null for a sidecar.
    pub log_probabilities: Option<bool>,
    /// True if it holds token ids; null where the kind always does.
    pub holds_tokens: Option<bool>,
    /// The part of a reference or of an evaluation that it holds, and the counts of the whole; null
    /// for a whole one. A part of a map holds some of the cells, over all windows.
    pub shard: Option<Shard>,
    /// Of a model: what else its file records; absent for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gguf: Option<GgufInfo>,
    /// Of a map of sensitivity: what was measured; absent for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<MapInfo>,
    /// The seed of the windows' order; null: the text's order, or unknown.
    pub seed: Option<u64>,
    /// Tokens from the start of a window to the start of the next, where windows overlap.
    pub stride: Option<u32>,
    /// The groups that the windows are of; absent without groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupInfo>,
    /// The prompts; null where the windows are not prompts.
    pub prompts: Option<PromptsInfo>,
    /// The prompts and their answers as text; absent without `--prompts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_texts: Option<Vec<PromptText>>,
    /// The set-up that computed the rows.
    pub backend: Option<BackendIdentity>,
    /// Other entries of kl.py's header, by their names.
    pub others: BTreeMap<String, String>,
    /// The contents that were read and found whole; null unless `--verify` was given, and for a model.
    pub verified: Option<Verified>,
    /// Of a model: what `--verify` found; absent without it, and for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// Warnings to read before you trust the file.
    pub warnings: Vec<Warning>,
}

impl Info {
    /// The part of a description that is the provenance of the file's rows.
    pub fn from_provenance(provenance: Provenance) -> Self {
        Self {
            writer: provenance.writer,
            model: provenance.model,
            model_path: provenance.model_path,
            tokenizer: provenance.tokenizer,
            text: provenance.text,
            text_path: provenance.text_path,
            n_ctx: provenance.n_ctx,
            n_vocab: provenance.n_vocab,
            add_bos: provenance.add_bos,
            first_scored: provenance.first_scored,
            shard: provenance.shard,
            seed: provenance.seed,
            stride: provenance.stride,
            backend: provenance.backend,
            ..Self::default()
        }
    }
}

/// The measurements of a map of sensitivity.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct MapInfo {
    /// True if the map was finished.
    pub is_complete: bool,
    /// The model's tensors.
    pub n_tensors: u64,
    /// Tensors that llama.cpp's quantizer may change.
    pub n_quantizable: u64,
    /// Tensors that were measured alone, at one type at least.
    pub n_measured: u64,
    /// Tensors whose weight errors it holds, at one type at least.
    pub n_with_errors: u64,
    /// Mixtures that were measured, the original itself among them.
    pub n_cells: u64,
    /// The tokens that were scored for these mixtures.
    pub n_tokens: u64,
    /// The type at which tensors are measured, where their rows are whole blocks of it.
    pub measured_type: GgmlType,
    /// The types that a recipe may use.
    pub types: Vec<GgmlType>,
    /// The importance matrix that tensors were quantized with; null: none.
    pub imatrix: Option<ImatrixIdentity>,
}

impl MapInfo {
    /// Counts what a map holds.
    pub fn new(map: &SensitivityMap) -> Self {
        let (header, cells) = (&map.header, &map.cells);
        let measured_alone: BTreeSet<&String> = cells
            .iter()
            .filter(|cell| cell.exchanged.len() == 1)
            .flat_map(|cell| cell.exchanged.keys())
            .collect();
        let n_tokens = cells.iter().flat_map(|cell| &cell.n_tokens);
        let tensors = header.tensors.iter();
        Self {
            is_complete: !map.is_cut_off,
            n_tensors: tensors.len() as u64,
            n_quantizable: tensors.filter(|tensor| tensor.is_quantizable).count() as u64,
            n_measured: measured_alone.len() as u64,
            n_with_errors: map.errors.len() as u64,
            n_cells: cells.len() as u64,
            n_tokens: n_tokens.copied().map(u64::from).sum(),
            measured_type: header.measured_type,
            types: header.types.clone(),
            imatrix: header.imatrix.clone(),
        }
    }
}

/// The record of a model in its own file.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct GgufInfo {
    /// `general.type`: `model`, or what it is instead, such as `adapter` or `mmproj`.
    pub kind: Option<String>,
    /// The files that it is split into.
    pub n_files: u16,
    /// Its quantization (`general.file_type`), by llama-quantize's name, such as `Q4_K_M`.
    pub file_type: Option<String>,
    /// Bits per weight: eight times the tensors' bytes over the parameters.
    pub bpw: Option<f64>,
    /// Its tensors by their type, those with the most parameters first.
    pub types: Vec<TensorTypeInfo>,
    /// The rule by which the tokenizer splits a text before it merges pieces
    /// (`tokenizer.ggml.pre`).
    pub pre_tokenizer: Option<String>,
    /// The id of the token that begins a text; null where the file leaves it to llama.cpp.
    pub bos: Option<u32>,
    /// The id of the token that ends a text; null where the file leaves it to llama.cpp.
    pub eos: Option<u32>,
    /// Bytes of its chat template; null without one.
    pub chat_template_bytes: Option<u64>,
}

/// The tensors of one type.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct TensorTypeInfo {
    /// ggml's name of the type, such as `q6_K`.
    pub name: String,
    /// Their number.
    pub n_tensors: u64,
    /// Their parameters.
    pub n_params: u64,
    /// Their bytes; null for a type that is unknown to this version.
    pub bytes: Option<u64>,
}

/// One group of windows.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct GroupInfo {
    /// Its name.
    pub name: String,
    /// Windows of it that the text was cut into. The file holds all of them unless it is a sample; null
    /// for a sidecar.
    pub n_windows: Option<u32>,
}

impl GroupInfo {
    /// Collects the groups of a reference.
    pub fn of_each(groups: &Groups) -> Vec<Self> {
        groups
            .names()
            .iter()
            .zip(0..)
            .map(|(name, group)| Self {
                name: name.clone(),
                n_windows: Some(
                    groups
                        .window_groups()
                        .iter()
                        .filter(|(run_group, _)| *run_group == group)
                        .map(|(_, n_windows)| n_windows)
                        .sum(),
                ),
            })
            .collect()
    }
}

/// A prompt as the model read it, and its answer.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct PromptText {
    /// The number of its window.
    pub window: u32,
    /// The group that it is of; null without groups.
    pub group: Option<String>,
    /// Tokens of the prompt, an inserted BOS among them.
    pub n_prompt_tokens: u32,
    /// Their text, special tokens by their names.
    pub prompt: String,
    /// Tokens of the answer: generated or given.
    pub n_answer_tokens: u32,
    /// Their text; empty without an answer.
    pub answer: String,
}

/// The contents that `--verify` read, and found to be undamaged.
#[derive(Serialize, Debug, Clone, Copy)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Verified {
    /// Windows read; of a sidecar, those that its records belong to.
    pub n_windows: u64,
    /// Rows read; of a sidecar, records.
    pub n_rows: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// The checks that this format allows.
    pub checks: Checks,
}

/// The findings of `--verify` in a model's file.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Verification {
    /// Tensors of the file. All of their weights were read.
    pub n_tensors: u64,
    /// The faults; none if nothing is wrong.
    pub findings: Vec<Finding>,
    /// The path of the original that it was compared with; null without one.
    pub original: Option<String>,
    /// The errors of the weights against the original, the largest for their type first; tensors with
    /// faults in their rows are left out.
    pub weight_errors: Vec<WeightError>,
}

/// A fault of a model's file.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Finding {
    /// Its kind, for scripts: `hash`, `overlap`, `refused`, `not_finite`, `zero`; against an original `changed`,
    /// `weight_error` or `other_original`.
    #[cfg_attr(any(test, feature = "testing"), schemars(with = "String"))]
    kind: FindingKind,
    /// The tensor, the key or, of `hash` and `other_original`, the file; empty where llama.cpp names none.
    name: String,
    /// The fault, where it is, and what to do, in one line.
    message: String,
}

/// The kind of a fault.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A file in a cache has another hash than its name states.
    Hash,
    /// Two tensors share bytes.
    Overlap,
    /// llama.cpp does not load the model.
    Refused,
    /// A tensor holds NaN or infinities.
    NotFinite,
    /// A tensor has rows of zeros alone.
    Zero,
    /// A key of the metadata has another value than in the original.
    Changed,
    /// The weights of a tensor are further from the original's than their type explains.
    WeightError,
    /// So are those of most tensors: the original is another one's.
    OtherOriginal,
}

impl Finding {
    /// A fault of this tensor, key or file.
    pub fn new(kind: FindingKind, name: &str, message: String) -> Self {
        let name = name.to_owned();
        Self {
            kind,
            name,
            message,
        }
    }
}

/// The rows of a tensor that are compared with an original's, at most, unless it has more experts.
pub const COMPARED_ROWS: usize = 128;

/// The error of a tensor's weights against an original's, in rows evenly spaced: the sum of the squared differences over the sum of
/// the original's squares.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct WeightError {
    /// The tensor's name.
    pub tensor: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: GgmlType,
    /// Its error.
    pub error: f64,
    /// The error of the original's weights, quantized to the type without an importance matrix.
    pub expected: f64,
}
