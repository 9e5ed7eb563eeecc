//! The reference that models are evaluated against.

use kl_formats::{
    About, BackendIdentity, Float, HeadStep, HeadTensor, Kind, Prompt, Prompts, Sampling, States,
    TextIdentity, Values,
};
use kl_stats::score::RowError;
use serde::Serialize;

use super::model::ModelInfo;

/// A reference, by what its file records.
#[derive(Serialize, Debug, Clone, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ReferenceInfo {
    /// Its path, as given.
    pub path: String,
    /// `kl`, `kl.py`, `llama.cpp`, `safetensors` or `npz`; `model` where a model ran beside the
    /// evaluated ones.
    #[cfg_attr(any(test, feature = "testing"), schemars(with = "String"))]
    pub kind: Option<Kind>,
    /// Tokens in a window.
    pub n_ctx: u32,
    /// Entries in a row.
    pub n_vocab: u32,
    /// The storage of a logit: `f32` or `u16`; `hidden` where it is computed from a
    /// hidden state; in other programs' files also `f16`, `bf16`, `f64`.
    pub encoding: String,
    /// The hidden states that it holds in place of rows; absent where it holds rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub states: Option<StatesInfo>,
    /// The model that wrote it.
    pub model: Option<ModelInfo>,
    /// The first scored position of a full window; kl.py's files score all.
    pub first_scored: Option<u32>,
    /// Windows in the file, if it records how many.
    pub n_windows: Option<u32>,
    /// The text that the reference was written for.
    pub text: Option<TextIdentity>,
    /// The set-up that computed its rows.
    pub backend: Option<BackendIdentity>,
    /// The seed of the windows' order; null: the text's order, or unknown.
    pub seed: Option<u64>,
    /// Tokens from the start of a window to the start of the next, if windows overlap.
    pub stride: Option<u32>,
    /// The names of the windows' groups; absent without groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// The prompts; absent if the reference is of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<PromptsInfo>,
    /// True if its rows are log-probabilities: as other programs store them, or floored and not
    /// normalised, as llama.cpp's base file holds them.
    pub log_probabilities: bool,
    /// The meaning of the rows, which the text report explains.
    #[serde(skip)]
    pub values: Values,
}

/// The prompts that a reference's windows hold.
#[derive(Serialize, Debug, Clone, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct PromptsInfo {
    /// The number of prompts; there may be fewer windows.
    pub n_prompts: u64,
    /// SHA-256 of the chat template that was applied; null: none was.
    pub chat_template: Option<String>,
    /// The number of conversations. One with several answers has a prompt for each.
    pub n_conversations: u64,
    /// Most tokens that the reference model generated after each prompt; null: none.
    pub generated: Option<u32>,
    /// The way it chose them; null: greedily.
    pub sampling: Option<Sampling>,
    /// The spans of answers that have tokens; empty without answers.
    pub spans: Vec<SpanInfo>,
}

/// A span of answers: their reasoning, tool calls, code, or another part of them.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct SpanInfo {
    /// Its name; `answer`: what is in no other.
    pub name: String,
    /// Tokens of all answers that are in it.
    pub n_tokens: u64,
}

impl ReferenceInfo {
    /// Collects what is known of a reference.
    pub fn new(about: &About) -> Self {
        Self {
            path: about.path.display().to_string(),
            kind: Some(about.kind),
            n_ctx: about.n_ctx,
            n_vocab: about.n_vocab,
            encoding: about.encoding.to_string(),
            states: about.states.as_ref().map(StatesInfo::new),
            model: about.model.as_ref().map(ModelInfo::of_reference),
            first_scored: about.first_scored,
            n_windows: about.n_windows,
            text: about.text.clone(),
            backend: about.backend.clone(),
            seed: about.seed,
            stride: about.stride,
            groups: about.groups.as_ref().map(|groups| groups.names().to_vec()),
            prompts: about.prompts.as_ref().map(PromptsInfo::new),
            log_probabilities: about.holds_log_probabilities(),
            values: about.values,
        }
    }

    /// The word for a window.
    pub fn unit(&self) -> &'static str {
        unit(self.prompts.is_some())
    }
}

/// The word for a window, where it may be a prompt.
pub fn unit(is_prompt: bool) -> &'static str {
    if is_prompt { "prompt" } else { "window" }
}

impl PromptsInfo {
    /// Collects how many prompts there are, and what was done with them.
    pub fn new(prompts: &Prompts) -> Self {
        // A conversation may have ended before its last prompts.
        let was_asked = |prompt: &&Prompt| prompt.n_tokens > 0;
        let starts_conversation = |prompt: &&Prompt| !prompt.continues;
        Self {
            n_prompts: prompts.list.iter().filter(was_asked).count() as u64,
            n_conversations: prompts.list.iter().filter(starts_conversation).count() as u64,
            chat_template: prompts.chat_template.clone(),
            generated: prompts.generated,
            spans: spans_of_answers(prompts),
            sampling: prompts.sampling,
        }
    }
}

/// The spans of answers that have tokens: all but the first span, that of the prompts.
fn spans_of_answers(prompts: &Prompts) -> Vec<SpanInfo> {
    (0..)
        .zip(&prompts.spans)
        .skip(1)
        .map(|(index, name)| SpanInfo {
            name: name.clone(),
            n_tokens: prompts
                .list
                .iter()
                .flat_map(|prompt| &prompt.spans)
                .filter(|(span, _)| *span == index)
                .map(|(_, n_tokens)| u64::from(*n_tokens))
                .sum(),
        })
        .filter(|span| span.n_tokens > 0)
        .collect()
}

/// The hidden states of a reference, and how exact the rows are that are computed from them.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct StatesInfo {
    /// The type of their numbers: `f16`, `bf16` or `f32`.
    #[serde(rename = "type")]
    pub state_type: Float,
    /// Numbers in a state.
    pub n_embd: u32,
    /// The head that makes rows of them.
    pub head: HeadTensor,
    /// The steps that follow the product with the head, in order.
    pub then: Vec<HeadStep>,
    /// The encoding's own error: what the writer's own rows and those computed from its states
    /// differ by, on its machine.
    pub error: RowError,
    /// Where this run computed rows, and what they and the writer's own differ by; of several models
    /// or files, for the last one. Null before rows are computed.
    pub here: Option<RowsHere>,
}

impl StatesInfo {
    /// Collects what a reference records of its states.
    pub fn new(states: &States) -> Self {
        Self {
            state_type: states.state_type,
            n_embd: states.n_embd,
            head: states.head.clone(),
            then: states.then.clone(),
            error: RowError::from(&states.check),
            here: None,
        }
    }
}

/// Where rows are computed, and how far they are from the model's own.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(
    any(test, feature = "testing"),
    derive(schemars::JsonSchema),
    schemars(rename = "HereInfo")
)]
pub struct RowsHere {
    /// The device: `CPU`, `CUDA0`.
    pub device: String,
    /// The distance of the rows that the file also holds as the model gave them from those computed
    /// here. No rows: the file is a part without the window that they are of.
    #[serde(flatten)]
    pub error: RowError,
    /// True if all of them are equal to the bit; null without rows.
    pub is_exact: Option<bool>,
    /// True if the evaluated model's own head is the same, so that memory holds it once.
    pub shares_model_head: bool,
}

impl RowsHere {
    /// True if an accelerator computes them.
    pub fn is_on_device(&self) -> bool {
        self.device != "CPU"
    }
}
