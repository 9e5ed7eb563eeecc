//! The settings of every command. Code that fills them in must keep the rules stated here.

mod check;
mod sweep;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kl_engine::{CacheType, FlashAttention, ModelOptions};
use kl_formats::Target;
use kl_report::Condition;
use kl_report::comparison::DEFAULT_NEAR;
use kl_report::pick::early::EarlyRule;
use kl_stats::stats::{ClusterRule, Confidence};

use super::folder::stem;
use super::output::Existing;
use super::shelf::Shelf;
use crate::input::Source;
use crate::pipeline::Part;
pub use check::CheckSettings;
pub use sweep::{CacheTypes, Subject, Sweep};

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
    /// True if no encoding was asked for: a new file of kl's own kind may store hidden states instead.
    pub chooses_encoding: bool,
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
    /// Files of a given folder that are not language models by themselves, and what they are.
    pub skipped: Vec<(PathBuf, String)>,
    pub reference: ReferenceSource,
    pub vocabulary: ComparedVocabulary,
    /// Half the width of the mean KLD's interval over the mean at which to stop, from 0.001 to 0.5;
    /// `None`: all windows are evaluated.
    pub until: Option<f64>,
    /// The rule by which models are not measured to the end that cannot be picked. The windows are then in random order.
    pub early: Option<EarlyRule>,
    /// True if the speed of each model is measured too.
    pub measures_speed: bool,
    /// What each model is evaluated with besides `run`.
    pub sweep: Sweep,
    pub results: ResultSettings,
    pub run: RunSettings,
    /// Models of a hub, which are loaded when their turn comes.
    pub shelf: Arc<Shelf>,
}

impl EvaluateSettings {
    /// The evaluations of the run, in order: those of one model follow one another.
    pub fn subjects(&self) -> Vec<Subject> {
        self.models
            .iter()
            .flat_map(|path| self.sweep.subjects(path))
            .collect()
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

impl ReferenceSource {
    /// The file, or the GGUF of the model.
    pub fn path(&self) -> &Path {
        match self {
            Self::File { path, .. } => path,
            Self::Model(model) => &model.path,
        }
    }
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

/// Settings for comparing logits that are already stored, without a model.
#[derive(Debug)]
pub struct CompareSettings {
    /// The reference: a file of any format, or a folder of rows.
    pub reference: PathBuf,
    /// The files to compare with it.
    pub others: Vec<PathBuf>,
    /// The most scored rows; `None`: all.
    pub max_rows: Option<u64>,
    /// The entries to compare if the sizes of the vocabularies differ.
    pub vocabulary: ComparedVocabulary,
    /// Threads that compute rows of hidden states.
    pub threads: u32,
    /// The uses of the numbers.
    pub results: ResultSettings,
}

/// Settings for comparing evaluations.
#[derive(Debug)]
pub struct ReportSettings {
    /// Their sidecars, or folders of them.
    pub paths: Vec<PathBuf>,
    /// True if two models are compared in depth.
    pub pair: bool,
    /// Conditions to check of each model, or with `pair` of the two.
    pub fail_if: Vec<Condition>,
    /// True if conditions may hold though tokens are left out or have an infinite KLD.
    pub allow_excluded: bool,
    /// The confidence level of the intervals.
    pub confidence: Confidence,
    /// The rule by which tokens are put into clusters.
    pub cluster: ClusterRule,
    /// The ratio of KLDs, at least 1, up to which a model counts as good as the best.
    pub near: f64,
    /// The tokens of the context for which models are compared by the size of their weights and KV cache
    /// together; `None`: by their weights.
    pub for_context: Option<u64>,
    /// True if every two models are compared, and not only with the best and their neighbours.
    pub compares_every_two: bool,
    /// The JSON of a check, whose floor is shown: what rounding alone does to the set-up.
    pub floor: Option<PathBuf>,
}

impl Default for ReportSettings {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            pair: false,
            fail_if: Vec::new(),
            allow_excluded: false,
            confidence: Confidence::default(),
            cluster: ClusterRule::default(),
            near: DEFAULT_NEAR,
            for_context: None,
            compares_every_two: false,
            floor: None,
        }
    }
}

/// Settings for converting a reference to another format, without the model.
#[derive(Debug)]
pub struct ConvertSettings {
    /// The reference to convert.
    pub input: PathBuf,
    /// The reference to write.
    pub output: PathBuf,
    /// Its kind, and how it stores rows.
    pub target: Target,
    /// The BOS that the model of a base file put in place of each window's first token, which llama.cpp's base files
    /// do not record; `None` if it is not known.
    pub bos: Option<Bos>,
    /// The treatment of an existing output, which cannot be resumed.
    pub existing: Existing,
    /// Threads that compute rows of hidden states.
    pub threads: u32,
}

/// The first token of each window, as the model of a base file decoded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// The text's own token.
    None,
    /// This token, in place of the text's own.
    Token(u32),
}

/// Settings for joining the parts of a reference, an evaluation or a map.
#[derive(Debug)]
pub struct MergeSettings {
    /// The file to write.
    pub output: PathBuf,
    /// The parts, in any order.
    pub parts: Vec<PathBuf>,
    /// The treatment of an existing output: to resume is to accept one that is what the parts make, and to replace
    /// a partial one.
    pub existing: Existing,
}

/// The uses of the numbers of an evaluation or a comparison.
#[derive(Debug)]
pub struct ResultSettings {
    /// The confidence level of the intervals.
    pub confidence: Confidence,
    /// The rule by which tokens are put into clusters.
    pub clusters: ClusterRule,
    /// The statistics to report in addition to kl's own.
    pub stats: Vec<Stats>,
    /// True if the result has every token's values.
    pub json_tokens: bool,
    /// The number of tokens with the largest KLD that the result lists; `None`: no list.
    pub top_k: Option<u32>,
    /// Conditions to check of each evaluation.
    pub conditions: Vec<Condition>,
    /// True if conditions may hold though tokens are left out or have an infinite KLD.
    pub allow_excluded: bool,
    /// The names of evaluations by the paths of their files, if not the files' own: those that the user
    /// gives, else those of files that have the same name. A file can have each of them.
    pub labels: BTreeMap<PathBuf, String>,
    /// The per-token file to write; `None`: one that is named after both sides, in the current folder.
    pub sidecar: Option<PathBuf>,
    /// The folder of per-token files that are named after both sides; `None`: the current one.
    pub sidecar_folder: Option<PathBuf>,
    /// True if no per-token file is written.
    pub no_sidecar: bool,
    /// The part of the windows to evaluate; `None`: all.
    pub part: Option<Part>,
    /// The tokens of the context for which models are compared by the size of their weights and KV cache
    /// together; `None` without one.
    pub for_context: Option<u64>,
    /// The reference, after which per-token files are named.
    pub reference: PathBuf,
    /// The treatment of existing outputs.
    pub existing: Existing,
}

impl Default for ResultSettings {
    fn default() -> Self {
        Self {
            confidence: Confidence::default(),
            clusters: ClusterRule::default(),
            stats: Vec::new(),
            json_tokens: false,
            top_k: None,
            conditions: Vec::new(),
            allow_excluded: false,
            labels: BTreeMap::new(),
            sidecar: None,
            sidecar_folder: None,
            no_sidecar: false,
            part: None,
            for_context: None,
            reference: PathBuf::new(),
            existing: Existing::by_flags(false, None),
        }
    }
}

impl ResultSettings {
    /// The label of an evaluation, if not its file's name. It ends with what is swept, and with how the weights
    /// are changed.
    pub fn label_of(&self, subject: &Subject) -> Option<String> {
        let label = self.labels.get(&subject.path).cloned();
        let Some(suffix) = subject.suffix() else {
            return label;
        };
        let model = label.unwrap_or_else(|| stem(&subject.path));
        Some(format!("{model}-{suffix}"))
    }

    /// The path of an evaluation's sidecar: the one that is given, or `MODEL@REFERENCE.kls` in the current
    /// folder, which are the label or the name of the model, and that of the reference, without
    /// extensions; of part I of N, `MODEL@REFERENCE.I-of-N.kls`.
    pub fn sidecar_path(&self, subject: &Subject) -> Option<PathBuf> {
        if self.sidecar.is_some() || self.no_sidecar {
            return self.sidecar.clone();
        }
        let label = self.label_of(subject);
        let model = label.unwrap_or_else(|| stem(&subject.path));
        let part = self.part.map_or(String::new(), |part| {
            format!(".{part}").replace('/', "-of-")
        });
        let name = format!("{model}@{}{part}.kls", stem(&self.reference));
        Some(match &self.sidecar_folder {
            Some(folder) => folder.join(name),
            // Not to be taken for a flag, where kl names it in a command.
            None if name.starts_with('-') => Path::new(".").join(name),
            None => name.into(),
        })
    }
}

/// The statistics that a report holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stats {
    /// kl's own, which every report holds.
    Kl,
    /// What llama-perplexity --kl-divergence prints.
    LlamaPerplexity,
    /// Distances between logits, Jensen-Shannon divergence, and KLD smoothed as in MAX.
    // They need a second pass over each pair of rows.
    Logits,
}

/// The entries of two vocabularies that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ComparedVocabulary {
    /// All entries; the sizes must not differ.
    #[default]
    Same,
    /// The first entries, as many as both have.
    Common,
    /// All but the padding at the end of the evaluated model's vocabulary.
    Tokenizer,
}

/// The way to run a model, to write a reference or to be evaluated.
#[derive(Debug, Clone)]
pub struct RunSettings {
    /// The options with which the model is loaded.
    pub model: ModelOptions,
    /// Logical batch: tokens in a decode call, and rows of logits in memory. `None`: as the reference was written,
    /// else equal calls of up to 512 tokens and 64 MiB of logits, and where a device computes 2048 tokens, as far as
    /// the logits fit in an eighth of the free memory.
    pub n_batch: Option<u32>,
    /// Physical batch: tokens computed at once. `None`: the logical batch, and where a device computes 512.
    pub n_ubatch: Option<u32>,
    /// Most windows in a decode call, from 1 to 64. `None`: as the reference was written, else 1 on the CPU, of a
    /// model larger than the memory up to 64, and where a device computes as many as fit.
    pub n_parallel: Option<u32>,
    /// Threads to decode with, at most [`MAX_THREADS`].
    pub threads: u32,
    /// The use of flash attention; `None`: as the reference was written, else auto.
    pub flash_attn: Option<FlashAttention>,
    /// The type of the KV cache's keys.
    pub type_k: CacheType,
    /// The type of the KV cache's values.
    pub type_v: CacheType,
    /// Contexts of the model to use in turn, 1 or 2; `None`: [as many as pay](Self::n_contexts).
    pub contexts: Option<u32>,
    /// Scored rows to stop after.
    pub max_rows: Option<u64>,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            model: ModelOptions::default(),
            n_batch: None,
            n_ubatch: None,
            n_parallel: None,
            threads: default_threads(),
            flash_attn: None,
            type_k: CacheType::default(),
            type_v: CacheType::default(),
            contexts: None,
            max_rows: None,
        }
    }
}

impl RunSettings {
    /// The number of contexts of a model to use in turn: two where an accelerator computes all
    /// layers, since the CPU has time for the rows of one while the other decodes.
    pub fn n_contexts(&self, is_offloaded: bool) -> u32 {
        self.contexts.unwrap_or(if is_offloaded { 2 } else { 1 })
    }
}

/// llama.cpp crashes with more threads than this (`GGML_MAX_N_THREADS`).
pub const MAX_THREADS: u32 = 512;

/// Threads that compute by default: one for each physical core that this process may use, since more would wait for
/// each other.
pub fn default_threads() -> u32 {
    let n_cores = num_cpus::get_physical().min(num_cpus::get());
    (n_cores as u32).min(MAX_THREADS)
}
