//! The settings of every command. Those that are flags are parsed by clap as they are; the rest is
//! filled in by the command line, which checks what the flags mean together. Code that fills them in
//! without it must keep the rules stated here.

mod check;
mod sweep;
pub mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{ValueEnum, value_parser};
use kl_engine::{CacheType, FlashAttention, ModelOptions};
use kl_formats::{Encoding, Kind, Target};
use kl_report::Condition;
use kl_report::comparison::NEAR;
use kl_stats::stats::{ClusterRule, Confidence};

use super::folder::stem;
use super::output::Existing;
use super::shelf::Shelf;
use crate::input::Source;
use crate::input::flags::{file, input};
use crate::pipeline::Part;
pub use check::CheckSettings;
pub use sweep::{CacheTypes, Subject, Sweep, SweptValues, swept_values};
use values::{cluster, compare_vocab, label, max_rows, near, row_encoding, written_kind};

/// The headings of the help.
pub const RESULTS: &str = "Results";
pub const DECODING: &str = "Decoding";
pub const GENERAL: &str = "General";

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
    /// What each model is evaluated with besides the flags of `run`.
    pub sweep: Sweep,
    pub results: ResultSettings,
    pub run: RunSettings,
    /// Models of a hub, which are loaded when their turn comes.
    pub shelf: Shelf,
}

impl EvaluateSettings {
    /// The evaluations of the run, in order: those of one model follow one another.
    pub fn subjects(&self) -> Vec<Subject> {
        let models = self.models.iter();
        models.flat_map(|path| self.sweep.subjects(path)).collect()
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

/// Compare logits that are already stored, without a model
///
/// Reports how far each OTHER is from REF.
#[derive(clap::Args, Debug)]
pub struct CompareSettings {
    /// Reference of kl, kl.py or llama-perplexity, .npz, or folder of N.safetensors; its format is
    /// detected
    #[arg(value_name = "REF", value_parser = input())]
    pub reference: PathBuf,

    /// File to compare with REF, of any of these formats; may repeat
    #[arg(value_name = "OTHER", required = true, value_parser = input())]
    pub others: Vec<PathBuf>,

    /// Stop after N rows, skipping windows that only REF has; -1: all
    #[arg(short = 'n', long = "n-tokens", value_name = "N", default_value = "-1", value_parser = max_rows)]
    pub max_rows: ::std::option::Option<u64>,

    /// Vocabulary entries to compare if the sizes differ [default: same]
    ///
    /// Probabilities are renormalised over the entries compared.
    #[arg(
        long = "vocab", value_name = "same|common", value_parser = compare_vocab(),
        default_value = "same", hide_default_value = true
    )]
    pub vocabulary: ComparedVocabulary,

    /// Threads that compute rows of hidden states.
    #[arg(skip = default_threads())]
    pub threads: u32,

    /// Overwrite existing output files
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub results: ResultSettings,
}

/// Compare evaluations: which is better, and is the difference real
///
/// Reads their sidecars, and needs no model and no reference. Evaluations against one reference are
/// compared token by token; what was not measured alike is listed apart, with the reason.
#[derive(clap::Args, Debug)]
pub struct ReportSettings {
    /// Sidecars (.kls) that kl -r or kl compare wrote, or folders of them
    #[arg(value_name = "FILE", required = true, value_parser = input())]
    pub paths: Vec<PathBuf>,

    /// Compare two models in depth
    #[arg(long, conflicts_with_all = ["breakdown", "markdown", "model_card", "csv", "html"])]
    pub pair: bool,

    /// Exit with code 3 if the condition holds for a model, as in 'kld.mean > 0.01'; may repeat
    ///
    /// With --pair, for the two compared, as in 'ratio.upper > 1.05'. A condition also fails if it
    /// cannot be checked, or if tokens are left out or have an infinite KLD; one on the ratio needs
    /// 100 windows.
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Vec<Condition>,

    /// With --fail-if, accept that tokens are left out or have an infinite KLD
    #[arg(long, requires = "fail_if")]
    pub allow_excluded: bool,

    /// Print every number, not only those that most people decide by
    #[arg(long)]
    pub full: bool,

    /// Also print KLD by the reference's confidence, by position, by group and for special tokens
    #[arg(long)]
    pub breakdown: bool,

    /// Confidence level of every interval
    #[arg(long, value_name = "P", default_value = "0.95")]
    pub confidence: Confidence,

    /// What counts as one observation in the clustered intervals
    #[arg(
        long, value_name = "window|block|auto", default_value = "auto", value_parser = cluster()
    )]
    pub cluster: ClusterRule,

    /// Times as far as the best that makes no difference
    #[arg(long, value_name = "RATIO", default_value_t = NEAR, value_parser = near)]
    pub near: f64,

    /// Size models by weights and KV cache together, with a context of N tokens
    ///
    /// The Pareto front is then that of the memory which each takes at your context. For sidecars that
    /// record the sizes of the cache.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub for_context: Option<u64>,

    /// JSON of kl check, whose floor is drawn: what rounding alone does to the set-up
    #[arg(long, value_name = "PATH", value_parser = input(), conflicts_with = "pair")]
    pub floor: Option<PathBuf>,

    /// Print Markdown
    #[arg(long, help_heading = RESULTS)]
    pub markdown: bool,

    /// Print the metadata and the table for a Hugging Face model card
    #[arg(long, help_heading = RESULTS)]
    pub model_card: bool,

    /// Write the result as JSON; '-' writes it to stdout
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub json: Option<PathBuf>,

    /// Write a row per model as CSV; '-' writes it to stdout
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub csv: Option<PathBuf>,

    /// Write a page to read in a browser, in one file
    #[arg(long, value_name = "PATH", help_heading = RESULTS, value_parser = file())]
    pub html: Option<PathBuf>,

    /// Overwrite existing output files that are not earlier reports
    #[arg(long)]
    pub force: bool,
}

/// Convert a reference to another format, without the model
///
/// Warns about what the new file will lack; what its format cannot hold at all is an error.
#[derive(clap::Args, Debug)]
pub struct ConvertSettings {
    /// Reference of kl, kl.py or llama-perplexity; its format is detected
    #[arg(value_name = "IN", value_parser = input())]
    pub input: PathBuf,

    /// Reference to write
    #[arg(value_name = "OUT", value_parser = file())]
    pub output: PathBuf,

    /// Format of the reference to write
    #[arg(long, value_name = "FORMAT", value_parser = written_kind())]
    pub format: Kind,

    /// How kl's own format stores a logit: u16 (half the size) or f32 (exact) [default: u16]
    #[arg(long, value_name = "u16|f32", value_parser = row_encoding)]
    pub encoding: Option<Encoding>,

    /// BOS that the model of a base file put in place of each window's first token
    ///
    /// llama.cpp's base files do not record it. With none, the model put no BOS there.
    #[arg(long, value_name = "ID|none")]
    pub bos: Option<Bos>,

    /// Overwrite an existing output file
    #[arg(long)]
    pub force: bool,

    /// Threads that compute rows of hidden states.
    #[arg(skip = default_threads())]
    pub threads: u32,
}

impl ConvertSettings {
    /// The kind of file to write, and how it stores rows.
    ///
    /// # Errors
    /// An encoding that the format does not have.
    pub fn target(&self) -> Result<Target, String> {
        target(self.format, self.encoding)
    }
}

/// A kind of file, and how it is to store rows.
///
/// # Errors
/// An encoding that the format does not have.
pub fn target(kind: Kind, encoding: Option<Encoding>) -> Result<Target, String> {
    let target =
        Target::new(kind, encoding).map_err(|error| format!("--encoding: {error}: omit it"))?;
    if target == Target::LlamaCpp && encoding.is_some() {
        return Err(format!(
            "--format {kind} always stores 16-bit log-probabilities: omit --encoding"
        ));
    }
    Ok(target)
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

/// Join the parts that --shard has made of a reference, an evaluation or a map
///
/// The result is byte for byte what one run would have written.
#[derive(clap::Args, Debug)]
pub struct MergeSettings {
    /// File to write
    #[arg(value_name = "OUT", value_parser = file())]
    pub output: PathBuf,

    /// Parts to join, in any order: sidecars (.kls), maps, or references of kl
    #[arg(value_name = "IN", required = true, value_parser = input())]
    pub parts: Vec<PathBuf>,

    /// Accept an OUT that already is what the parts make; otherwise make it
    #[arg(long, conflicts_with = "force")]
    pub resume: bool,

    /// Overwrite an existing output file
    #[arg(long)]
    pub force: bool,
}

impl MergeSettings {
    /// The treatment of an existing output: to resume is to accept one that is what the parts make,
    /// and to replace a partial one.
    pub fn existing(&self) -> Existing {
        Existing::asked(self.force, self.resume.then_some(true))
    }
}

/// The uses of the numbers of an evaluation or a comparison: the flags that `kl -r` and `kl compare`
/// share.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = RESULTS)]
pub struct ResultSettings {
    /// Confidence level of every interval
    #[arg(long, value_name = "P", default_value = "0.95")]
    pub confidence: Confidence,

    /// What counts as one observation in the clustered intervals
    #[arg(
        long = "cluster", value_name = "window|block|auto", default_value = "auto",
        value_parser = cluster()
    )]
    pub clusters: ClusterRule,

    /// Statistics to report in addition to kl's own, comma-separated
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub stats: Vec<Stats>,

    /// Write the result as JSON; '-' writes it to stdout
    ///
    /// On stdout it replaces the report.
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,

    /// Include every token's values in the JSON
    #[arg(long, requires = "json")]
    pub json_tokens: bool,

    /// Show where the KLD comes from: confidence, position, special tokens
    ///
    /// A table for each: mean KLD by the probability of the reference's top token, by position in
    /// the window, and where the next token is a special one. The JSON always has them.
    #[arg(long)]
    pub breakdown: bool,

    /// Print every number, not only those that most people decide by
    ///
    /// A run of several models prints a line for each, and a table at the end; with --full, each
    /// model's report too. --breakdown, --top-k and --stats print reports as well, and kl report X.kls
    /// --full prints one from a sidecar.
    #[arg(long)]
    pub full: bool,

    /// List the N tokens with the largest KLD, with their context
    ///
    /// With --temp it chooses among the N most probable tokens instead.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub top_k: Option<u32>,

    /// Exit with code 3 if the condition holds, as in 'kld.mean > 0.01'; may repeat
    ///
    /// A condition also fails if it cannot be checked, or if tokens are left out or have an
    /// infinite KLD.
    #[arg(long = "fail-if", value_name = "CONDITION")]
    pub conditions: Vec<Condition>,

    /// With --fail-if, accept that tokens are left out or have an infinite KLD
    #[arg(long, requires = "conditions")]
    pub allow_excluded: bool,

    /// Name of the evaluation in reports [default: the file's name without .gguf]
    ///
    /// The per-token file gets it too: LABEL@REFERENCE.kls. So one model evaluated in two ways, as
    /// with another -ctk, is two rows. Of several models, give one for each, in their order.
    #[arg(long, value_name = "LABEL", value_parser = label)]
    pub label: Vec<String>,

    /// Per-token file to write [default: named after both sides, in the current folder]
    ///
    /// The default is MODEL@REFERENCE.kls, the files' names without their extensions. A finished one
    /// that is there is replaced by the same evaluation only, or with --force.
    #[arg(long, value_name = "PATH", value_parser = file(), conflicts_with = "no_sidecar")]
    pub sidecar: Option<PathBuf>,

    /// Do not write a per-token file
    #[arg(long)]
    pub no_sidecar: bool,

    /// The names of evaluations by the paths of their files, if not the files' own: those that the user
    /// gives, else those of files that have the same name. A file can have each of them.
    #[arg(skip)]
    pub labels: BTreeMap<PathBuf, String>,

    /// The part of the windows to evaluate; `None`: all.
    #[arg(skip)]
    pub part: Option<Part>,

    /// The tokens of the context for which models are compared by the size of their weights and KV cache
    /// together; `None` without one.
    #[arg(skip)]
    pub for_context: Option<u64>,

    /// The reference, after which per-token files are named.
    #[arg(skip)]
    pub reference: PathBuf,

    /// The treatment of existing outputs.
    #[arg(skip = Existing::asked(false, None))]
    pub existing: Existing,
}

impl ResultSettings {
    /// True if each of `n` models is shown in a line, and all of them in a table. Only whole reports show
    /// what is asked for besides the numbers of the table.
    pub fn is_brief(&self, n: usize) -> bool {
        let breaks_down = self.breakdown || self.top_k.is_some();
        let more = breaks_down || self.stats.iter().any(|stats| *stats != Stats::Kl);
        n > 1 && !self.full && !more
    }

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
        let evaluated = label.unwrap_or_else(|| stem(&subject.path));
        let part = self.part.map_or(String::new(), |part| {
            format!(".{part}").replace('/', "-of-")
        });
        // Not to be taken for a flag, where kl names it in a command.
        let here = if evaluated.starts_with('-') { "./" } else { "" };
        Some(format!("{here}{evaluated}@{}{part}.kls", stem(&self.reference)).into())
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
// The heading of the flattened flags would go on.
#[derive(clap::Args, Debug, Clone)]
pub struct RunSettings {
    #[command(flatten)]
    pub model: ModelOptions,

    /// Logical batch: tokens in a decode call, and rows of logits in memory
    ///
    /// [default: equal calls of up to 512 tokens and 64 MiB of logits; with layers on a GPU 2048, as
    /// far as the logits fit in an eighth of the free memory; with -r, as the reference was written]
    #[arg(
        help_heading = DECODING,
        short = 'b', long, value_name = "N", value_parser = batch(),
        aliases = ["batch-size", "n_batch"]
    )]
    pub n_batch: Option<u32>,

    /// Physical batch (-ub): tokens computed at once [default: --n-batch, with layers on a GPU 512]
    #[arg(help_heading = DECODING, long, value_name = "N", value_parser = batch(), aliases = ["ub", "ubatch-size"])]
    pub n_ubatch: Option<u32>,

    /// Most windows in a decode call (-np), each a sequence of its own
    ///
    /// A call holds no more windows than fit whole in --n-batch. Models with recurrent layers decode
    /// one; so do --ref-model and --encoding hidden.
    ///
    /// [default: 1 on the CPU, of a model larger than the memory up to 64; with layers on a GPU as many
    /// as fit; with -r, as the reference was written]
    #[arg(
        help_heading = DECODING,
        long = "parallel", value_name = "N", value_parser = value_parser!(u32).range(1..=64),
        alias = "np"
    )]
    pub n_parallel: Option<u32>,

    /// Threads to decode with [default: the physical cores that kl may use]
    #[arg(
        help_heading = DECODING,
        long, value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(MAX_THREADS)),
        default_value_t = default_threads(), hide_default_value = true
    )]
    pub threads: u32,

    /// Flash attention (-fa) [default: auto; with -r, as the reference was written]
    #[arg(
        help_heading = DECODING,
        long,
        value_name = "on|off|auto",
        hide_possible_values = true,
        alias = "fa"
    )]
    pub flash_attn: Option<FlashAttention>,

    /// Type of the KV cache's keys (-ctk); --ref-model's stays f16
    #[arg(
        help_heading = DECODING,
        long = "cache-type-k",
        value_name = "TYPE",
        hide_possible_values = true,
        default_value_t,
        alias = "ctk"
    )]
    pub type_k: CacheType,

    /// Type of the KV cache's values (-ctv); --ref-model's stays f16
    #[arg(
        help_heading = DECODING,
        long = "cache-type-v",
        value_name = "TYPE",
        hide_possible_values = true,
        default_value_t,
        alias = "ctv"
    )]
    pub type_v: CacheType,

    /// Contexts of the model to use in turn
    ///
    /// With 2, a GPU decodes while the CPU scores or encodes, for twice the memory of contexts.
    /// Reading kl.py's files and writing hidden states use 1.
    ///
    /// [default: 2 with all layers of a model on a GPU, else 1]
    #[arg(help_heading = DECODING, long, value_name = "1|2", value_parser = value_parser!(u32).range(1..=2))]
    pub contexts: Option<u32>,

    /// Scored rows to stop after.
    #[arg(skip)]
    pub max_rows: Option<u64>,
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

/// Threads that compute where `--threads` names no other number: one for each physical core that
/// this process may use, since more would wait for each other.
pub fn default_threads() -> u32 {
    let n = num_cpus::get_physical().min(num_cpus::get());
    (n as u32).min(MAX_THREADS)
}

/// Parses a batch size, which llama.cpp holds as a signed 32-bit number.
fn batch() -> clap::builder::RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=i64::from(i32::MAX))
}
