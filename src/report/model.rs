//! The whole result, as it goes into the JSON: field names are its keys.

use std::path::Path;

use kl_formats::{BackendIdentity, Header, ModelIdentity, TextIdentity};
use serde::Serialize;

use super::condition::Verdict;
use super::prompts::PromptReport;
use super::tokens::TokenColumns;
use super::top::TopToken;
use crate::pipeline::Timing;
use crate::stats::{LlamaPerplexity, LogitSummary, Summary};

/// One run: a reference, and what each model did against it.
#[derive(Serialize, Debug)]
pub struct Report {
    /// The version of this program.
    pub kl_version: &'static str,
    /// What was evaluated against.
    pub reference: ReferenceInfo,
    /// Whether every model was tried: false while some are still to come, and in what an interrupted
    /// run leaves.
    pub complete: bool,
    /// The models evaluated, in the order given.
    pub models: Vec<ModelReport>,
    /// The models that could not be.
    pub failed: Vec<Failure>,
}

/// A reference, as far as its file tells.
#[derive(Serialize, Debug, Clone)]
pub struct ReferenceInfo {
    /// As given.
    pub path: String,
    /// `kl`, `kl.py`, `llama.cpp`, `safetensors` or `npz`.
    pub kind: String,
    /// Tokens in a window.
    pub n_ctx: u32,
    /// Entries in a row.
    pub n_vocab: u32,
    /// `f32` or `u16`; of what other programs store also `f16`, `bf16`, `f64`.
    pub encoding: String,
    /// The model that wrote it.
    pub model: Option<ModelInfo>,
    /// First scored position of a full window; kl.py's files score all.
    pub first_scored: Option<u32>,
    /// Windows in the file, where it says.
    pub n_windows: Option<u32>,
    /// The text.
    pub text: Option<TextIdentity>,
    /// How its rows were computed.
    pub backend: Option<BackendIdentity>,
    /// Seed of the windows' order; null: text order, or unknown.
    pub seed: Option<u64>,
    /// Tokens from the start of a window to that of the next, where windows overlap.
    pub stride: Option<u32>,
    /// Whether its windows are prompts, and what was made of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<PromptsInfo>,
    /// Whether its rows are log-probabilities, as other programs store them, or floored and not
    /// normalised, as llama.cpp's base file holds them.
    pub log_probabilities: bool,
}

/// Prompts that are a reference's windows.
#[derive(Serialize, Debug, Clone)]
pub struct PromptsInfo {
    /// How many there are; windows may be fewer.
    pub n_prompts: u64,
    /// SHA-256 of the chat template applied; null: none was.
    pub chat_template: Option<String>,
    /// Tokens that the reference's model put behind each; null: none.
    pub generated: Option<u32>,
}

impl PromptsInfo {
    /// From a header; `None` of one of a text.
    #[must_use]
    pub fn of(header: &Header) -> Option<Self> {
        Some(Self {
            n_prompts: header.prompts.as_ref()?.len() as u64,
            chat_template: header.chat_template.clone(),
            generated: header.generated,
        })
    }
}

/// A model's name and size.
#[derive(Serialize, Debug, Clone)]
pub struct ModelInfo {
    /// As given; of a reference's model, its file's name.
    pub path: String,
    /// `general.name` of the GGUF.
    pub name: Option<String>,
    /// `general.architecture` of the GGUF.
    pub architecture: Option<String>,
    /// Bytes of its tensors.
    pub size_bytes: u64,
    /// Its parameters.
    pub n_params: u64,
    /// Bits per weight: 8 * bytes / parameters.
    pub bpw: f64,
}

impl ModelInfo {
    /// From what a file says of a model.
    #[must_use]
    pub fn new(path: &Path, identity: &ModelIdentity) -> Self {
        Self {
            path: path.display().to_string(),
            name: identity.name.clone(),
            architecture: identity.architecture.clone(),
            size_bytes: identity.size_bytes,
            n_params: identity.n_params,
            bpw: 8.0 * identity.size_bytes as f64 / identity.n_params.max(1) as f64,
        }
    }
}

/// One model against the reference.
#[derive(Serialize, Debug)]
pub struct ModelReport {
    /// The model.
    pub model: ModelInfo,
    /// Whether its header (metadata and tensor infos) is that of the model that the reference was
    /// written with: what it then scores is the noise floor of the set-up, not a quantization.
    pub is_reference_model: bool,
    /// Entries of each row that were compared, from the first on: the reference's `n_vocab`, or
    /// less as `--vocab` says.
    pub n_vocab_compared: u32,
    /// Every statistic.
    #[serde(flatten)]
    pub summary: Summary,
    /// llama-perplexity's own statistics; null where they were not asked for, or of too few tokens.
    pub llama_perplexity: Option<LlamaPerplexity>,
    /// Distances in logit space and symmetric divergences, where they were asked for.
    #[serde(flatten)]
    pub logits: Option<LogitSummary>,
    /// Text of the token at `kld.max_at`.
    pub max_at_text: Option<String>,
    /// The per-token file.
    pub sidecar: Option<String>,
    /// How far the evaluation came, where it was interrupted: the statistics are of that part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<Interrupted>,
    /// Tokens that an earlier run had measured, which this one went on behind.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_resumed: u64,
    /// Where the time went; null where the evaluation was interrupted, or done before.
    pub timing: Option<TimingInfo>,
    /// What is left out above because the files do not tell it; absent where nothing is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_available: Vec<Lacking>,
    /// What became of the conditions, where there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Verdict>,
    /// What each prompt gave, in the order of their file; absent where the reference is of a text. All
    /// other numbers are over all tokens, not means of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<PromptReport>>,
    /// The tokens that diverge most, the worst first; absent unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<TopToken>>,
    /// What was measured of every token; absent unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenColumns>,
}

/// A part of an evaluation.
#[derive(Serialize, Debug, Clone, Copy)]
pub struct Interrupted {
    /// Windows that were evaluated.
    pub n_windows: u64,
    /// Windows that were wanted, where the reference says how many it has.
    pub of: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's way
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Numbers that cannot be had.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
pub struct Lacking {
    /// Which.
    pub what: &'static str,
    /// Why.
    pub why: &'static str,
}

impl Lacking {
    /// Where no file says which tokens were seen.
    #[must_use]
    pub fn without_tokens() -> Self {
        Self {
            what: "perplexity, change of the actual token's probability, context and next token",
            why: "no file holds token ids",
        }
    }
}

/// A model that could not be evaluated.
#[derive(Serialize, Debug)]
pub struct Failure {
    /// As given.
    pub path: String,
    /// Why, in one line.
    pub error: String,
}

/// Seconds, as seen from the thread that decodes; they add up to `wall_s` but for small change.
#[derive(Serialize, Debug, Clone, Copy)]
pub struct TimingInfo {
    /// Loading the model and making its context.
    pub load_s: f64,
    /// In llama.cpp.
    pub decode_s: f64,
    /// Scoring.
    pub score_s: f64,
    /// Waiting for the reference.
    pub read_s: f64,
    /// Writing the sidecar.
    pub write_s: f64,
    /// From before loading to after the last token.
    pub wall_s: f64,
    /// Scored tokens a second, loading left out.
    pub tokens_per_s: f64,
}

impl TimingInfo {
    /// `rows` scored in the time of `timing`, after `load_s` seconds of loading.
    #[must_use]
    pub fn new(timing: &Timing, load_s: f64, wall_s: f64, rows: u64) -> Self {
        Self {
            load_s,
            decode_s: timing.decode.as_secs_f64(),
            score_s: timing.score.as_secs_f64(),
            read_s: timing.read.as_secs_f64(),
            write_s: timing.write.as_secs_f64(),
            wall_s,
            tokens_per_s: rows as f64 / (wall_s - load_s).max(1e-9),
        }
    }
}
