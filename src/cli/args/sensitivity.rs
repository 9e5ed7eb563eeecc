//! The flags of `kl sensitivity`.

use std::path::PathBuf;

use clap::value_parser;
use kl_formats::{GgmlType, MAX_N_CTX};
use regex::Regex;

use super::headings::{GENERAL, INPUT, RESULTS};
use super::paths::{file, input, text};
use super::run::RunArgs;
use super::values::regex;
use crate::cli::request::sensitivity::SensitivityRequest;
use crate::cli::results::{Outputs, made_again};
use crate::commands::output::Existing;
use crate::commands::settings::RunSettings;
use crate::input::Source;
use crate::pipeline::{DEFAULT_SEED, Part};
use crate::recipe::settings::{MapInput, SensitivitySettings};
use crate::stats::Confidence;

/// Measure which tensors hurt when they are quantized
///
/// Writes a map, of which kl recipe makes the best mixture for a size. Exchanges the tensors of the
/// original for quantized ones, one after another in memory, and measures how far its output moves. Each
/// tensor is measured at one type; the errors of its weights predict the others, and some of these are
/// measured to check. A text of a few thousand tokens is enough.
#[derive(clap::Args, Debug)]
#[command(override_usage = "kl sensitivity -m MODEL -t TEXT -w MAP")]
pub struct SensitivityArgs {
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
    /// fewer tokens. More make the intervals narrower, and the recipe hardly better.
    ///
    /// [default: 8 windows]
    #[arg(
        short = 'n', long = "n-tokens", value_name = "N", help_heading = INPUT,
        value_parser = value_parser!(u64).range(1..), alias = "n_tokens"
    )]
    pub max_tokens: Option<u64>,

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

    /// Most tensors that are measured one by one from the start
    ///
    /// Of more, groups of neighbouring layers' tensors of one role are measured first, and one by one those of groups
    /// that cost more than the average.
    #[arg(
        long = "max-tensors", value_name = "N", help_heading = INPUT, default_value = "120",
        value_parser = value_parser!(u64).range(1..)
    )]
    pub max_singles: u64,

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
    #[arg(long, value_name = "P", help_heading = RESULTS, default_value_t)]
    pub confidence: Confidence,

    #[command(flatten)]
    pub run: RunArgs,

    /// Resume an interrupted run with the same settings
    #[arg(long, help_heading = GENERAL, conflicts_with = "force")]
    pub resume: bool,

    /// Overwrite existing output files
    #[arg(long, help_heading = GENERAL)]
    pub force: bool,
}

impl From<SensitivityArgs> for SensitivityRequest {
    fn from(args: SensitivityArgs) -> Self {
        let mut run = RunSettings::from(args.run);
        run.model.is_exchangeable = true;
        let input = match args.read_path {
            Some(path) => MapInput::Reference(path),
            // clap requires one of the two.
            None => {
                let path = args.text_path.unwrap_or_default();
                MapInput::Text(Source::one_text(&path, args.n_ctx))
            }
        };
        let settings = SensitivitySettings {
            model: args.model,
            input,
            max_tokens: args.max_tokens,
            output: args.output,
            existing: Existing::by_flags(args.force, Some(args.resume)),
            types: args.types,
            measured_type: args.measured_type,
            imatrix: args.imatrix,
            tensors: args.tensors,
            max_singles: usize::try_from(args.max_singles).unwrap_or(usize::MAX),
            seed: args.seed,
            part: args.part,
            confidence: args.confidence,
            run,
        };
        let outputs = Outputs {
            json: args.json,
            csv: args.csv,
            html: args.html,
            existing: made_again(args.force),
        };
        Self { settings, outputs }
    }
}
