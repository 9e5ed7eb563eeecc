//! The checked settings of every command: plain values, with no trace of the command line.
//!
//! [`cli`](crate::cli) makes them from flags. Code that fills them in without it must keep the
//! rules stated here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use kl_formats::{GgmlType, Target};
use regex::Regex;

use super::folder::stem;
use super::output::Existing;
use super::subject::{CacheTypes, Subject};
use crate::engine::{CacheType, FlashAttention, ModelOptions};
use crate::input::Source;
use crate::pipeline::Part;
use crate::recipe::Goal;
use crate::report::Condition;
use crate::stats::{ClusterRule, Confidence};

/// Settings for writing a reference.
#[derive(Debug)]
pub struct WriteSettings {
    /// The GGUF of the reference model.
    pub model: PathBuf,
    /// The text or the prompts.
    pub input: Source,
    /// The reference to write.
    pub output: PathBuf,
    /// Its kind, and how it stores rows.
    pub target: Target,
    /// The part of the windows to write; `None`: all. Needs kl's own kind of file.
    pub part: Option<Part>,
    /// The treatment of an existing output; only kl's own kind of file can be resumed.
    pub existing: Existing,
    pub run: RunSettings,
}

/// Settings for evaluating models against a reference.
#[derive(Debug)]
pub struct EvaluateSettings {
    /// The GGUFs to evaluate, one after another.
    pub models: Vec<PathBuf>,
    /// GGUFs of a given folder that hold no language model, and what they hold.
    pub skipped: Vec<(PathBuf, String)>,
    pub reference: ReferenceSource,
    pub vocabulary: Vocabulary,
    /// Half the width of the mean KLD's interval over the mean at which to stop, from 0.001 to 0.5;
    /// `None`: all windows are evaluated.
    pub until: Option<f64>,
    /// The types of the KV cache with which each model is run, one pair after another, each once;
    /// empty: those of `run`.
    pub sweep: Vec<CacheTypes>,
    pub results: ResultSettings,
    pub run: RunSettings,
}

impl EvaluateSettings {
    /// The evaluations of the run, in order: those of one model follow one another.
    pub fn subjects(&self) -> Vec<Subject> {
        let of_model = |path: &PathBuf| Subject::of_model(path, &self.sweep);
        self.models.iter().flat_map(of_model).collect()
    }
}

/// Where the rows come from that models are evaluated against.
#[derive(Debug)]
pub enum ReferenceSource {
    /// A file.
    File {
        path: PathBuf,
        /// The window size that it must have; `None`: any.
        n_ctx: Option<u32>,
    },
    /// A second model.
    Model(Box<ReferenceModel>),
}

/// A model that runs beside the evaluated ones.
#[derive(Debug)]
pub struct ReferenceModel {
    /// Its GGUF.
    pub path: PathBuf,
    /// The text or the prompts that it and they run over.
    pub input: Source,
    /// The way to run it.
    pub run: RunSettings,
}

/// Settings for comparing stored rows with stored rows.
#[derive(Debug)]
pub struct CompareSettings {
    pub reference: PathBuf,
    /// The files to compare with the reference, one after another.
    pub others: Vec<PathBuf>,
    /// Scored rows to stop after.
    pub max_rows: Option<u64>,
    /// Never [`Vocabulary::Tokenizer`], which needs a model.
    pub vocabulary: Vocabulary,
    /// Threads that compute rows of hidden states.
    pub threads: u32,
    pub results: ResultSettings,
}

/// Settings for converting a reference to another format.
#[derive(Debug)]
pub struct ConvertSettings {
    pub input: PathBuf,
    pub output: PathBuf,
    pub target: Target,
    /// The first token that the model decoded in each window of a base file; `None`: the file must
    /// make it clear.
    pub bos: Option<Bos>,
    /// Threads that compute rows of hidden states.
    pub threads: u32,
    /// The treatment of an existing output, which cannot be resumed.
    pub existing: Existing,
}

/// The first token of each window, as the model of a base file decoded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// The text's own token.
    None,
    /// This token, in place of the text's own.
    Token(u32),
}

impl FromStr for Bos {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            id => id
                .parse()
                .map(Self::Token)
                .map_err(|_| "expected a token ID or none"),
        }
    }
}

/// Settings for making one file of its parts.
#[derive(Debug)]
pub struct MergeSettings {
    pub output: PathBuf,
    /// All parts of one reference, one evaluation or one map, in any order.
    pub parts: Vec<PathBuf>,
    /// The treatment of an existing output: to resume is to accept one that is what the parts make,
    /// and to replace a partial one.
    pub existing: Existing,
}

/// Settings for measuring a map of sensitivity.
#[derive(Debug)]
pub struct SensitivitySettings {
    /// The GGUF of the original.
    pub model: PathBuf,
    pub source: SensitivitySource,
    /// The map to write.
    pub output: PathBuf,
    /// Most scored tokens for which a tensor is exchanged; windows come whole.
    pub max_tokens: u64,
    /// The types that a recipe may use; empty: the usual ones.
    pub types: Vec<GgmlType>,
    /// The type at which tensors are measured, where their rows are whole blocks of it; `None`: the
    /// usual one.
    pub measured_type: Option<GgmlType>,
    /// The importance matrix to quantize with.
    pub imatrix: Option<PathBuf>,
    /// The tensors to measure: those whose names it matches anywhere; `None`: all.
    pub tensors: Option<Regex>,
    /// The seed by which windows and checks are drawn.
    pub seed: u64,
    /// The part of the cells to measure; `None`: all.
    pub part: Option<Part>,
    /// The treatment of an existing output.
    pub existing: Existing,
    pub confidence: Confidence,
    /// The way to run the model, which must be [exchangeable](ModelOptions::is_exchangeable).
    pub run: RunSettings,
}

/// The windows that a map is measured on, and the rows that it is measured against.
#[derive(Debug)]
pub enum SensitivitySource {
    /// A text, on which the original computes its own rows.
    Text(Source),
    /// An exact reference of the original.
    Reference(PathBuf),
}

/// The files.
impl fmt::Display for SensitivitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(source) => source.fmt(f),
            Self::Reference(path) => path.display().fmt(f),
        }
    }
}

/// Settings for choosing a mixture of types by a map.
#[derive(Debug)]
pub struct RecipeSettings {
    pub map: PathBuf,
    pub goal: RecipeGoal,
    /// The types that it may use; empty: those of the map.
    pub types: Vec<GgmlType>,
    /// The importance matrix of the map.
    pub imatrix: Option<PathBuf>,
    pub confidence: Confidence,
    /// The file for llama-quantize to write.
    pub output: Option<PathBuf>,
    /// The JSON to write; `-` is stdout.
    pub json: Option<PathBuf>,
    /// The page to write.
    pub html: Option<PathBuf>,
    /// The JSON of a `kl report`, whose quants the page draws too.
    pub report: Option<PathBuf>,
    /// The treatment of existing outputs, which cannot be resumed.
    pub existing: Existing,
    /// The model that the map was made of, to measure or to quantize.
    pub original: Option<Box<OriginalSettings>>,
}

/// What a recipe should reach.
#[derive(Debug)]
pub enum RecipeGoal {
    Reach(Goal),
    /// At most the size of this model.
    Like(PathBuf),
}

/// Settings for what is done with the original of a recipe.
#[derive(Debug)]
pub struct OriginalSettings {
    pub path: PathBuf,
    /// The text to measure the recipe on.
    pub text: Option<Source>,
    /// The rule for what counts as one observation.
    pub clusters: ClusterRule,
    /// The way to run it; its tensors can be exchanged.
    pub run: RunSettings,
    /// The quantized model to write.
    pub quantized: Option<PathBuf>,
}

/// The uses of the numbers of an evaluation or a comparison.
#[derive(Debug)]
pub struct ResultSettings {
    pub confidence: Confidence,
    /// The names of evaluations by the paths of their files, if not the files' own: those that the user
    /// gives, else those of files that have the same name. A file can have each of them.
    pub labels: BTreeMap<PathBuf, String>,
    /// Statistics in addition to kl's own.
    pub stats: Vec<Stats>,
    /// The JSON to write; `-` is stdout.
    pub json: Option<PathBuf>,
    /// True if the JSON holds every token's values.
    pub json_tokens: bool,
    /// The number of tokens to list: those with the largest KLD.
    pub top_k: Option<u32>,
    /// True if the text report shows where the KLD comes from.
    pub breakdown: bool,
    /// True if the text report shows every number, and each of several models has one, not a line.
    pub full: bool,
    /// The rule for what counts as one observation in the clustered intervals.
    pub clusters: ClusterRule,
    /// A model that meets one of these fails.
    pub conditions: Vec<Condition>,
    /// True if a model may pass where tokens are left out or have an infinite KLD.
    pub allow_excluded: bool,
    /// The part of the windows to evaluate; `None`: all.
    pub part: Option<Part>,
    pub sidecar: Sidecar,
    /// The treatment of existing outputs.
    pub existing: Existing,
}

impl ResultSettings {
    /// Returns true if each of `n` models is shown in a line, and all of them in a table. What is
    /// asked for beside the numbers of the table is in the whole reports only.
    pub fn is_brief(&self, n: usize) -> bool {
        let more = self.breakdown || self.top_k.is_some();
        let more = more || self.stats.iter().any(|stats| *stats != Stats::Kl);
        n > 1 && !self.full && !more
    }

    /// The label of an evaluation, if not its file's name. That of a cell ends with its types.
    pub fn label_of(&self, subject: &Subject) -> Option<String> {
        let label = self.labels.get(&subject.path).cloned();
        match &subject.cell {
            None => label,
            Some(cell) => {
                let model = label.unwrap_or_else(|| stem(&subject.path));
                Some(format!("{model}-{cell}"))
            }
        }
    }

    /// The path of an evaluation's sidecar.
    pub fn sidecar_path(&self, subject: &Subject) -> Option<PathBuf> {
        match &self.sidecar {
            Sidecar::None => None,
            Sidecar::At(path) => Some(path.clone()),
            Sidecar::Against(reference) => {
                let label = self.label_of(subject);
                let evaluated = label.unwrap_or_else(|| stem(&subject.path));
                let part = self
                    .part
                    .map(|part| format!(".{part}").replace('/', "-of-"));
                let (reference, part) = (stem(reference), part.unwrap_or_default());
                Some(format!("{evaluated}@{reference}{part}.kls").into())
            }
        }
    }
}

/// The statistics that a report holds.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stats {
    /// kl's own, which every report holds.
    #[value(hide = true)]
    Kl,
    /// What llama-perplexity --kl-divergence prints.
    LlamaPerplexity,
    /// Distances between logits, Jensen-Shannon divergence, and KLD smoothed as in MAX.
    // They need a second pass over each pair of rows.
    Logits,
}

/// The entries of two vocabularies that are compared.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Vocabulary {
    /// All entries; the sizes must not differ.
    #[default]
    Same,
    /// The first entries, as many as both have.
    Common,
    /// All but the padding at the end of the evaluated model's vocabulary.
    Tokenizer,
}

/// Where the per-token file goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Sidecar {
    /// To `MODEL@REFERENCE.kls` in the current folder, which are the label or the name of the model,
    /// and that of this reference, without extensions; of part I of N, to
    /// `MODEL@REFERENCE.I-of-N.kls`.
    Against(PathBuf),
    /// To this path, which needs a single model.
    At(PathBuf),
    /// Nowhere: none is written.
    None,
}

/// The way to run a model, to write a reference or to be evaluated.
#[derive(Debug)]
pub struct RunSettings {
    pub model: ModelOptions,
    /// Servers whose devices compute too, each `HOST:PORT`.
    pub rpc: Vec<String>,
    /// Tokens in a decode call; `None`: what the reference or the vocabulary's size suggests.
    pub n_batch: Option<u32>,
    /// Tokens computed at once; `None`: `n_batch`.
    pub n_ubatch: Option<u32>,
    /// Most windows in a decode call; `None`: as many as the device likes.
    pub n_parallel: Option<u32>,
    /// Threads to decode with, at most [`MAX_THREADS`].
    pub threads: u32,
    /// `None`: as the reference was written.
    pub flash_attn: Option<FlashAttention>,
    pub type_k: CacheType,
    pub type_v: CacheType,
    /// Contexts of a model used in turn, 1 or 2; `None`: what suits the device.
    pub contexts: Option<u32>,
    /// Scored rows to stop after.
    pub max_rows: Option<u64>,
}

impl RunSettings {
    /// The number of contexts of a model to use in turn: two where an accelerator computes all
    /// layers, since the CPU has time for the rows of one while the other decodes.
    pub fn n_contexts(&self, is_offloaded: bool) -> u32 {
        match self.contexts {
            Some(n) => n,
            None if is_offloaded => 2,
            None => 1,
        }
    }
}

/// llama.cpp crashes with more threads than this (`GGML_MAX_N_THREADS`).
pub const MAX_THREADS: u32 = 512;

/// The window size where neither the user nor a reference gives one: llama.cpp's default.
pub const DEFAULT_N_CTX: u32 = 512;
