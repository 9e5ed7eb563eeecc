//! The settings of `kl sensitivity`, which measures a map, and of `kl recipe`, which uses it.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, value_parser};
use kl_formats::{GgmlType, MAX_N_CTX};
use kl_stats::stats::{ClusterRule, Confidence};
use regex::Regex;

use kl_measure::commands::output::Existing;
use kl_measure::commands::settings::values::{above_0, cluster, max_rows, regex, size};
use kl_measure::commands::settings::{GENERAL, RESULTS, RunSettings};
use kl_measure::input::flags::{file, input, text};
use kl_measure::input::{DEFAULT_N_CTX, INPUT_HEADING as INPUT, Source};
use kl_measure::pipeline::{DEFAULT_SEED, Part};

/// The headings of `kl recipe --help` beside those of all commands.
const GOAL: &str = "Goal";
const CHECK: &str = "Check";
const WRITE: &str = "Quantized file";

/// Measure which tensors hurt when they are quantized
///
/// Writes a map, of which kl recipe makes the best mixture for a size. Exchanges the tensors of the
/// original for quantized ones, one after another in memory, and measures how far its output moves. Each
/// tensor is measured at one type; the errors of its weights predict the others, and some of these are
/// measured to check. A text of a few thousand tokens is enough.
#[derive(clap::Args, Debug)]
#[command(override_usage = "kl sensitivity -m MODEL -t TEXT -w MAP")]
pub struct SensitivitySettings {
    /// Original to measure (GGUF): f16, bf16, f32 or q8_0
    #[arg(short, long, value_name = "PATH", help_heading = INPUT, value_parser = input())]
    pub model: PathBuf,

    /// Text to measure on: a file, '-' for stdin, or 'starter'
    ///
    /// Judge the recipe that you make of the map on another text.
    #[arg(
        short, long, value_name = "PATH", help_heading = INPUT, value_parser = text(),
        alias = "text_path", required_unless_present = "read_path", conflicts_with = "read_path"
    )]
    pub text_path: Option<PathBuf>,

    /// Reference to measure against, in place of a text: --encoding f32 or hidden
    ///
    /// It must be of this model. Windows are drawn from those that it holds.
    #[arg(
        short, long, value_name = "PATH", help_heading = INPUT, value_parser = input(),
        alias = "read_path"
    )]
    pub read_path: Option<PathBuf>,

    /// Tokens in a window
    ///
    /// Short windows show more of the text for as many tokens.
    #[arg(
        short = 'c', long, value_name = "N", help_heading = INPUT, default_value = "128",
        value_parser = value_parser!(u32).range(2..=i64::from(MAX_N_CTX)),
        aliases = ["ctx-size", "n_ctx"], conflicts_with = "read_path"
    )]
    pub n_ctx: u32,

    /// Most scored tokens for a tensor
    ///
    /// Windows are drawn at random, the same for all tensors, and come whole. A tensor is measured
    /// until its share of the whole KLD is known well enough, or makes no difference: many need far
    /// fewer tokens.
    #[arg(
        short = 'n', long = "n-tokens", value_name = "N", help_heading = INPUT,
        default_value = "4064", value_parser = value_parser!(u64).range(1..), alias = "n_tokens"
    )]
    pub max_tokens: u64,

    /// Map to write, for kl recipe
    #[arg(
        short = 'w', long = "write-path", value_name = "PATH", help_heading = RESULTS,
        value_parser = file(), alias = "write_path"
    )]
    pub output: PathBuf,

    /// Types that a recipe may use, as in q4_K,q6_K
    ///
    /// [default: q8_0 to q2_K; with --imatrix also those of 1 to 3 bits that need one]
    #[arg(long, value_name = "TYPES", help_heading = INPUT, value_delimiter = ',')]
    pub types: Vec<GgmlType>,

    /// Type at which tensors are measured [default: q3_K]
    ///
    /// A tensor whose rows its blocks do not divide is measured at the nearest type that fits.
    #[arg(long = "type", value_name = "TYPE", help_heading = INPUT)]
    pub measured_type: Option<GgmlType>,

    /// Importance matrix to quantize with, as llama-imatrix writes it
    #[arg(long, value_name = "PATH", help_heading = INPUT, value_parser = input())]
    pub imatrix: Option<PathBuf>,

    /// Measure only tensors whose names this regular expression matches, as in 'ffn_down'
    ///
    /// In a recipe, the others keep the original's type.
    #[arg(long, value_name = "REGEX", help_heading = INPUT, value_parser = regex)]
    pub tensors: Option<Regex>,

    /// Seed by which windows are drawn
    #[arg(long, value_name = "N", help_heading = INPUT, default_value_t = DEFAULT_SEED)]
    pub seed: u64,

    /// Measure only part I of N, counted from 0: every N-th tensor
    ///
    /// Each part may run on another machine; kl merge joins what they write.
    #[arg(
        long = "shard", value_name = "I/N", help_heading = INPUT,
        conflicts_with_all = ["json", "csv", "html"]
    )]
    pub part: Option<Part>,

    /// Write the result as JSON; '-' writes it to stdout
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub json: Option<PathBuf>,

    /// Write a row per tensor and type as CSV; '-' writes it to stdout
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub csv: Option<PathBuf>,

    /// Write a heat map to read in a browser, in one file
    #[arg(long, value_name = "PATH", help_heading = RESULTS, value_parser = file())]
    pub html: Option<PathBuf>,

    /// Confidence level of every interval
    #[arg(long, value_name = "P", help_heading = RESULTS, default_value = "0.95")]
    pub confidence: Confidence,

    // The model must be exchangeable.
    #[command(flatten)]
    pub run: RunSettings,

    /// Resume an interrupted run with the same settings
    #[arg(long, help_heading = GENERAL, conflicts_with = "force")]
    pub resume: bool,

    /// Overwrite existing output files
    #[arg(long, help_heading = GENERAL)]
    pub force: bool,
}

impl SensitivitySettings {
    /// The text to measure on; `None` where a reference is given.
    pub fn text(&self) -> Option<Source> {
        let path = self.text_path.as_deref()?;
        Some(Source::one_text(path, self.n_ctx))
    }

    /// The file that the windows are drawn from.
    pub fn source_path(&self) -> &Path {
        let path = self.read_path.as_ref().or(self.text_path.as_ref());
        path.map_or(Path::new(""), PathBuf::as_path)
    }

    /// The treatment of an existing output.
    pub fn existing(&self) -> Existing {
        Existing::asked(self.force, Some(self.resume))
    }
}

/// Choose the best type for each tensor, for a size
///
/// Reads the map that kl sensitivity wrote. With -m and -t the recipe is also measured, and with
/// --quantize its file is written; without them no model is run.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "kl recipe MAP --size SIZE|--bpw BITS|--like MODEL|--kld NATS [OPTIONS]"
)]
#[command(group = ArgGroup::new("goal").required(true).args(["size", "bpw", "like", "kld"]))]
pub struct RecipeSettings {
    /// Map that kl sensitivity wrote
    #[arg(value_name = "MAP", value_parser = input())]
    pub map: PathBuf,

    /// Most bytes of the file, as in 4.2G, 900M or 5.5GB
    ///
    /// K, M and G, as KiB, MiB and GiB, are powers of 1024, as ls -h shows them; KB, MB and GB are
    /// powers of 1000, as Hugging Face shows them.
    #[arg(long, value_name = "SIZE", help_heading = GOAL, value_parser = size)]
    pub size: Option<u64>,

    /// Most bits per parameter
    #[arg(long, value_name = "BITS", help_heading = GOAL, value_parser = above_0)]
    pub bpw: Option<f64>,

    /// Model (GGUF) whose size the file must not exceed
    ///
    /// With -t, it is measured on the same tokens as the recipe.
    #[arg(long, value_name = "PATH", help_heading = GOAL, value_parser = input())]
    pub like: Option<PathBuf>,

    /// Highest predicted KLD, in nats: the smallest file that reaches it
    #[arg(long, value_name = "NATS", help_heading = GOAL, value_parser = above_0)]
    pub kld: Option<f64>,

    /// Types to choose from, as in q4_K,q6_K [default: those of the map]
    #[arg(long, value_name = "TYPES", help_heading = GOAL, value_delimiter = ',')]
    pub types: Vec<GgmlType>,

    /// File to write for llama-quantize --tensor-type-file
    #[arg(
        short = 'w', long = "write-path", value_name = "PATH", help_heading = RESULTS,
        value_parser = file(), alias = "write_path"
    )]
    pub output: Option<PathBuf>,

    /// Confidence level of every interval
    #[arg(long, value_name = "P", default_value = "0.95", help_heading = RESULTS)]
    pub confidence: Confidence,

    /// Write the recipe as JSON; '-' writes it to stdout
    ///
    /// On stdout it replaces the text.
    #[arg(long, value_name = "PATH", help_heading = RESULTS)]
    pub json: Option<PathBuf>,

    /// Write a page to read in a browser, in one file
    #[arg(long, value_name = "PATH", help_heading = RESULTS, value_parser = file())]
    pub html: Option<PathBuf>,

    /// JSON of kl report, whose quants the page draws beside the recipe
    #[arg(
        long, value_name = "PATH", help_heading = RESULTS, value_parser = input(),
        requires = "html"
    )]
    pub report: Option<PathBuf>,

    /// Original that the map was made of (GGUF)
    #[arg(short, long, value_name = "PATH", help_heading = CHECK, value_parser = input())]
    pub model: Option<PathBuf>,

    /// Text to measure the recipe on, another than the map's
    ///
    /// '-' reads stdin, 'starter' is the text that comes with kl.
    ///
    /// The original's rows stay in memory, and its tensors are exchanged there: no file is written.
    /// If prediction and measurement disagree, one more round is measured around the recipe, on
    /// windows that are kept back for it.
    #[arg(
        short, long, value_name = "PATH", help_heading = CHECK, value_parser = text(),
        requires = "model"
    )]
    pub text_path: Option<PathBuf>,

    /// Tokens in a window
    #[arg(
        short = 'c', long, value_name = "N", help_heading = CHECK, default_value_t = DEFAULT_N_CTX,
        value_parser = value_parser!(u32).range(2..=i64::from(MAX_N_CTX)),
        aliases = ["ctx-size", "n_ctx"]
    )]
    pub n_ctx: u32,

    /// Stop after N scored tokens, in whole windows in a seeded random order; -1: all
    #[arg(
        short = 'n', long = "n-tokens", value_name = "N", help_heading = CHECK,
        default_value = "-1", value_parser = max_rows, alias = "n_tokens"
    )]
    pub max_rows: ::std::option::Option<u64>,

    /// What counts as one observation in the clustered intervals
    #[arg(
        long = "cluster", value_name = "window|block|auto", help_heading = CHECK,
        default_value = "auto", value_parser = cluster()
    )]
    pub clusters: ClusterRule,

    /// Importance matrix that the map was made with
    #[arg(long, value_name = "PATH", help_heading = CHECK, value_parser = input())]
    pub imatrix: Option<PathBuf>,

    /// Quantized model to write (GGUF)
    ///
    /// llama.cpp's own quantizer writes it.
    #[arg(
        long, value_name = "PATH", help_heading = WRITE, value_parser = file(), requires = "model"
    )]
    pub quantize: Option<PathBuf>,

    // The model must be exchangeable.
    #[command(flatten)]
    pub run: RunSettings,

    /// Overwrite existing output files
    #[arg(long, help_heading = GENERAL)]
    pub force: bool,
}

impl RecipeSettings {
    /// The text to measure the recipe on.
    pub fn text(&self) -> Option<Source> {
        let path = self.text_path.as_deref()?;
        Some(Source::one_text(path, self.n_ctx))
    }
}
