//! One model against the reference.

use std::ops::Deref;
use std::path::{Path, is_separator};

use kl_formats::{BackendIdentity, ModelIdentity, PROMPT_SPAN, Shard, Speed, split_gguf_name};
use kl_stats::stats::{Breakdown, Estimate, LlamaPerplexity, LogitSummary, Summary, UntilInfo};
use serde::Serialize;

use super::tokens::{DivergentToken, PromptReport, TokenColumns};
use crate::condition::Verdict;
use crate::device_time::DeviceTime;

/// A model's name and size.
#[derive(Serialize, Debug, Default, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ModelInfo {
    /// Its path, as given; for a reference's model, its file name.
    pub path: String,
    /// `general.name` of the GGUF.
    pub name: Option<String>,
    /// `general.architecture` of the GGUF.
    pub architecture: Option<String>,
    /// Bytes of its tensors; null if unknown.
    pub size_bytes: Option<u64>,
    /// Bytes of its file, of a split model those of all parts; null if unknown. Reports for people
    /// show this size, or that of the tensors where it is unknown.
    pub file_bytes: Option<u64>,
    /// Its number of parameters; null if unknown.
    pub n_params: Option<u64>,
    /// Bits per weight: 8 * bytes / parameters; null if either is unknown.
    pub bpw: Option<f64>,
    /// SHA-256 (hex) of the GGUF's header, up to the end of its tensor infos; null if unknown.
    pub metadata_sha256: Option<String>,
    /// SHA-256 (hex) of samples of the file's bytes, which distinguish models with equal headers;
    /// null if unknown.
    pub sample_sha256: Option<String>,
}

impl ModelInfo {
    /// Describes a reference's model, whose path is not known.
    pub fn of_reference(identity: &ModelIdentity) -> Self {
        let name = identity.file_name.as_deref().unwrap_or_default();
        Self::new(Path::new(name), identity)
    }

    /// The name of an evaluation of the model where the user has not named it.
    pub fn default_label(&self) -> &str {
        let file_name = self.path.rsplit(is_separator).next().unwrap_or(&self.path);
        let name = file_name.strip_suffix(".gguf").unwrap_or(file_name);
        without_part(name).unwrap_or(name)
    }

    /// Its size in bytes as `ls` shows it: the file's, or the tensors' where that is unknown.
    pub fn shown_bytes(&self) -> Option<u64> {
        self.file_bytes.or(self.size_bytes)
    }

    /// Describes the model that a file identifies.
    pub fn new(path: &Path, identity: &ModelIdentity) -> Self {
        Self {
            path: path.display().to_string(),
            name: identity.name.clone(),
            architecture: identity.architecture.clone(),
            size_bytes: identity.size_bytes,
            file_bytes: identity.file_bytes,
            n_params: identity.n_params,
            bpw: identity.bits_per_weight(),
            metadata_sha256: identity.metadata_sha256.clone(),
            sample_sha256: identity.sample_sha256.clone(),
        }
    }
}

/// The memory that a model takes with a context of some length.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ContextMemory {
    /// The tokens of the context.
    pub context: u64,
    /// Bytes of the weights: those of the file.
    pub weights: u64,
    /// Bytes of the KV cache, and of the states of recurrent layers, as llama.cpp's programs allocate them
    /// for one sequence.
    pub kv_cache: u64,
    /// Bytes of the buffers in which a physical batch is computed; absent where they are not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<u64>,
}

impl ContextMemory {
    /// The memory of a model in a set-up; `None` where a size is not recorded.
    pub fn of(model: &ModelInfo, set_up: &BackendIdentity, context: u64) -> Option<Self> {
        Some(Self {
            context,
            weights: model.shown_bytes()?,
            kv_cache: set_up.kv_cache_sizes.as_ref()?.of_context(context)?,
            compute: set_up
                .compute_sizes
                .as_ref()
                .and_then(|sizes| sizes.of_context(context)),
        })
    }

    /// All of its bytes.
    pub fn bytes(&self) -> u64 {
        let compute = self.compute.unwrap_or(0);
        self.weights
            .saturating_add(self.kv_cache)
            .saturating_add(compute)
    }
}

/// A model, and the numbers that its records give. Every report, table, page and file shows them.
#[derive(Serialize, Debug, Default, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ModelResult {
    /// The user's name for the evaluation; the file's name without `.gguf` if no name was given.
    pub label: String,
    /// The evaluated model.
    pub model: ModelInfo,
    /// True if the reference was written with this very model, by the metadata and tensor infos in
    /// its header.
    pub is_reference_model: bool,
    /// True if the numbers show how much the set-up alone moves them, not a quantization's loss:
    /// the reference's own model, with the reference's own types of the KV cache. It is never the
    /// best of a comparison, nor compared with it.
    pub is_noise_floor: bool,
    /// The number of entries of each row that were compared, counted from the first: the
    /// reference's `n_vocab`, or fewer with `--vocab`.
    pub n_vocab_compared: Option<u32>,
    /// The memory that it takes with a context as long as the user names; absent without one, and where the
    /// sidecar does not record the sizes of the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ContextMemory>,
    /// How fast it ran; absent unless that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    /// The end of an evaluation that was to stop at a narrow interval; absent for any other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UntilInfo>,
    /// The statistics over all counted tokens.
    #[serde(flatten)]
    pub summary: Summary,
    /// The mean KLD of parts of the counted tokens.
    pub breakdown: Breakdown,
}

impl ModelResult {
    /// True if tokens of answers were measured: their reader may use the model as a draft.
    pub fn measures_answers(&self) -> bool {
        self.summary.identical_output.is_some()
            || self
                .breakdown
                .by_span
                .iter()
                .any(|span| span.label != PROMPT_SPAN)
    }

    /// Counts the tokens that its mean KLD leaves out: those with a row that is not finite, and
    /// those with an infinite KLD.
    pub fn n_left_out(&self) -> u64 {
        self.summary.n_excluded + self.summary.n_infinite()
    }

    /// The mean KLD with its clustered interval.
    pub fn mean_kld(&self) -> Option<Estimate> {
        Some(self.summary.kld.as_ref()?.mean.estimate())
    }

    /// The share of tokens with the same top token.
    pub fn same_top(&self) -> Option<f64> {
        Some(self.summary.agreement.as_ref()?.ref_top1.estimate.value)
    }

    /// The ratio of the perplexities.
    pub fn ppl_ratio(&self) -> Option<f64> {
        Some(self.summary.perplexity.as_ref()?.ratio.value)
    }

    /// The 99 % quantile of the KLD.
    pub fn q99(&self) -> Option<f64> {
        let quantiles = &self.summary.kld.as_ref()?.quantiles;
        let q99 = quantiles.iter().find(|quantile| quantile.p == 0.99)?;
        Some(q99.estimate.value)
    }
}

/// A model of a run.
#[derive(Serialize, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ModelReport {
    /// Its result.
    #[serde(flatten)]
    pub result: ModelResult,
    /// The set-up that computed its rows; absent where no model ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_up: Option<BackendIdentity>,
    /// llama-perplexity's own statistics; null unless asked for, or with too few tokens.
    pub llama_perplexity: Option<LlamaPerplexity>,
    /// Distances in logit space and symmetric divergences; absent unless asked for.
    #[serde(flatten)]
    pub logits: Option<LogitSummary>,
    /// The text of the token at `kld.max_at`.
    pub max_at_text: Option<String>,
    /// The path of the per-token file.
    pub sidecar: Option<String>,
    /// The windows that were evaluated before an interruption: the statistics cover that part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<Interrupted>,
    /// The part of an evaluation that this is: the statistics cover that part; absent for a whole
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Tokens that an earlier run measured and this one resumed from.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_resumed: u64,
    /// Where the time went; null if the evaluation was interrupted, or was complete already.
    pub timing: Option<TimingInfo>,
    /// Numbers that are missing because the files lack what they need; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_available: Vec<NotAvailable>,
    /// The outcome of each condition; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Verdict>,
    /// Each prompt's numbers, in the order of the prompts' file; absent if the reference is of a
    /// text. All other numbers are over all tokens, not means of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<PromptReport>>,
    /// The tokens with the largest KLD, the largest first; absent unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<DivergentToken>>,
    /// The values of every token; absent unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenColumns>,
}

impl Deref for ModelReport {
    type Target = ModelResult;

    fn deref(&self) -> &ModelResult {
        &self.result
    }
}

impl ModelReport {
    /// True if the evaluation was ended from outside, and not because the rest was not worth it.
    pub fn was_cut_off(&self) -> bool {
        let interrupted = self.interrupted.as_ref();
        interrupted.is_some_and(|interrupted| interrupted.why.is_none())
    }
}

/// The windows that an evaluation got through which did not reach its end.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Interrupted {
    /// Windows that were evaluated.
    pub n_windows: u64,
    /// Windows that were to be evaluated, if the reference records how many it has.
    pub of: Option<u64>,
    /// The reason why the rest was not worth it; absent if the evaluation was ended from outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A split model's name without the number of its first part, `-00001-of-00003`.
pub fn without_part(name: &str) -> Option<&str> {
    let (name, part, _) = split_gguf_name(name)?;
    (part == 1).then_some(name)
}

#[allow(clippy::trivially_copy_pass_by_ref)] // The signature that serde calls.
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Numbers that the report lacks, and why.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct NotAvailable {
    /// The missing numbers.
    pub what: &'static str,
    /// The reason why they are missing.
    pub why: &'static str,
}

impl NotAvailable {
    /// The numbers that are missing if neither file holds token ids.
    pub const WITHOUT_TOKEN_IDS: Self = Self {
        what: "perplexity, change of the actual token's probability, context and next token",
        why: "no file holds token ids",
    };

    /// The numbers that are missing if the sizes of the KV cache are not recorded.
    pub const WITHOUT_CACHE_SIZES: Self = Self {
        what: "memory with --for-context",
        why: "the sidecar does not record the sizes of the KV cache: evaluate the model again",
    };
}

/// Where the decoding thread's time went, in seconds; the parts but `tokenize_s`, `generate_s`, `core_wait_s` and
/// `device` add up to about `wall_s`.
#[derive(Serialize, Debug, Clone, Copy)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct TimingInfo {
    /// Loading the model and creating its context.
    pub load_s: f64,
    /// Decoding in llama.cpp.
    pub decode_s: f64,
    /// Scoring.
    pub score_s: f64,
    /// Waiting for the reference.
    pub read_s: f64,
    /// Writing the sidecar.
    pub write_s: f64,
    /// Turning the text or the prompts of the reference into tokens, once for all models of the run, before the
    /// time that is measured here; `None` where tokens came from a file.
    pub tokenize_s: Option<f64>,
    /// Generating the answers of the reference, likewise; `None` where the run generated none.
    pub generate_s: Option<f64>,
    /// Waiting for a core because all were busy with other work, part of the times above; `None` where the
    /// system does not measure it.
    pub core_wait_s: Option<f64>,
    /// From before loading until after the last token.
    pub wall_s: f64,
    /// Scored tokens per second, not counting the time to load.
    pub tokens_per_s: f64,
    /// The use of the accelerator that computed all layers; `None` without one.
    pub device: Option<DeviceTime>,
}

/// The share of a run's time that it may wait for a core before `kl` says so.
const MAX_CORE_WAIT_SHARE: f64 = 0.1;

/// The time that a run of `wall_s` seconds waited for a core because all were busy with other work,
/// if that is notable.
pub fn notable_core_wait(core_wait_s: Option<f64>, wall_s: f64) -> Option<f64> {
    core_wait_s.filter(|waited_s| *waited_s >= MAX_CORE_WAIT_SHARE * wall_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_label_is_the_models_name() {
        for (path, label) in [
            ("models/a-q4.gguf", "a-q4"),
            ("a-q4-00001-of-00003.gguf", "a-q4"),
            ("a-q4-00002-of-00003.gguf", "a-q4-00002-of-00003"),
            ("a-00001-of-3.gguf", "a-00001-of-3"),
            ("other.npz", "other.npz"),
        ] {
            let model = ModelInfo::new(Path::new(path), &ModelIdentity::default());
            assert_eq!(model.default_label(), label);
        }
    }
}
