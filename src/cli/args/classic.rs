//! The flags of the classic calls: `kl -m MODEL -t TEXT -w REF`, `kl -m MODEL -r REF`, and
//! `kl -m MODEL -t TEXT --ref-model ORIGINAL`.

use std::path::PathBuf;

use clap::value_parser;
use kl_formats::{Kind, MAX_N_CTX};

use super::values::{EncodingChoice, device, file, input, model, n_tokens, written_kind};
use super::{
    ContextArgs, DeviceArgs, EVALUATION, GENERAL, INPUT, InputArgs, REFERENCE, ResultArgs,
};
use crate::commands::settings::{RelativeWidth, Vocabulary};
use crate::engine::GpuLayers;
use crate::input::Part;

/// Every flag of the classic calls.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model to run (GGUF); may repeat, but not with -w
    ///
    /// Each model is loaded after the one before it is freed. A folder stands for all of its GGUFs
    /// in the order of their names, of split ones the first part; not with -w.
    #[arg(short, long, value_name = "PATH", help_heading = INPUT, value_parser = model(), required_unless_present = "list_devices")]
    pub model: Vec<PathBuf>,

    #[command(flatten)]
    pub input: InputArgs,

    #[command(flatten)]
    pub write: WriteArgs,

    /// Tokens in a window [default: 512]
    ///
    /// With --prompts-file, the default is the length of the longest prompt; with -r, it is the
    /// reference's window.
    #[arg(
        short = 'c', long, value_name = "N", help_heading = INPUT,
        value_parser = value_parser!(u32).range(2..=i64::from(MAX_N_CTX))
    )]
    pub n_ctx: Option<u32>,

    /// Stop after N scored tokens, from windows in a seeded random order; -1: all
    #[arg(
        short = 'n', long, value_name = "N", help_heading = INPUT, hide_short_help = true,
        default_value = "-1", value_parser = n_tokens
    )]
    pub n_tokens: i64,

    /// Run only part I of N, counted from 0: every N-th window
    ///
    /// Each part may run on another machine; kl merge joins what they write. The sidecar of a part
    /// is MODEL@REFERENCE.I-of-N.kls.
    #[arg(
        long, value_name = "I/N", help_heading = INPUT, hide_short_help = true,
        conflicts_with = "until"
    )]
    pub shard: Option<Part>,

    #[command(flatten)]
    pub evaluate: EvaluateArgs,

    #[command(flatten)]
    pub results: ResultArgs,

    #[command(flatten)]
    pub devices: DeviceArgs,

    #[command(flatten)]
    pub context: ContextArgs,

    /// Resume an interrupted run with the same settings
    ///
    /// With -w, writing continues after the last whole window. Else models that are done are
    /// skipped.
    #[arg(
        long, help_heading = GENERAL, hide_short_help = true,
        conflicts_with_all = ["force", "no_sidecar"]
    )]
    pub resume: bool,

    /// Overwrite existing output files
    #[arg(long, help_heading = GENERAL, hide_short_help = true)]
    pub force: bool,

    /// Show what kl runs on, as kl doctor does, and llama.cpp's log
    #[arg(short, long, help_heading = GENERAL, hide_short_help = true)]
    pub verbose: bool,

    /// Print only results, warnings and errors
    #[arg(short, long, help_heading = GENERAL, hide_short_help = true)]
    pub quiet: bool,
}

/// The flags for writing a reference.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = REFERENCE)]
pub struct WriteArgs {
    /// Reference to write
    #[arg(short, long, value_name = "PATH", value_parser = file())]
    pub write_path: Option<PathBuf>,

    /// Format of the reference to write
    #[arg(
        long, value_name = "FORMAT", hide_short_help = true,
        value_parser = written_kind(), default_value = "kl"
    )]
    pub format: Kind,

    /// How kl's own format stores rows of logits [default: u16]
    #[arg(
        long,
        value_name = "u16|f32|hidden|hidden16|auto",
        hide_short_help = true
    )]
    pub encoding: Option<EncodingChoice>,
}

/// The flags for evaluating models, except those for the results.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = EVALUATION)]
pub struct EvaluateArgs {
    /// Reference to evaluate against; its format is detected
    #[arg(short, long, value_name = "PATH", help_heading = REFERENCE, value_parser = input())]
    pub read_path: Option<PathBuf>,

    /// Model to evaluate against, without a file (GGUF)
    ///
    /// Needs -t or --prompts-file. It stays in memory beside each evaluated model in turn, and
    /// decodes each batch right after it. The numbers are those of -w with --encoding f32 and then
    /// -r.
    #[arg(
        long, value_name = "PATH", help_heading = REFERENCE,
        value_parser = input(), conflicts_with = "read_path"
    )]
    pub ref_model: Option<PathBuf>,

    /// Layers of --ref-model to offload [default: --n-gpu-layers]
    ///
    /// With auto, as many as fit beside all layers of the evaluated model.
    #[arg(
        long, value_name = "N", help_heading = REFERENCE, hide_short_help = true,
        requires = "ref_model", conflicts_with = "read_path"
    )]
    pub ref_ngl: Option<GpuLayers>,

    /// Devices for --ref-model, by name, comma-separated [default: --device]
    #[arg(
        long, value_name = "NAMES", help_heading = REFERENCE, hide_short_help = true,
        value_parser = device, value_delimiter = ',', requires = "ref_model", conflicts_with = "read_path"
    )]
    pub ref_device: Vec<String>,

    /// Vocabulary entries to compare if the sizes differ [default: same]
    ///
    /// Probabilities are renormalised over the entries compared.
    #[arg(long, value_name = "same|common|tokenizer", hide_short_help = true)]
    pub vocab: Option<Vocabulary>,

    /// Stop when the interval of the mean KLD is narrower than the mean ± REL, as in 5%
    ///
    /// Windows come in a seeded random order, at least 30 clusters of them. Each model stops where
    /// its own interval is narrow enough.
    #[arg(long, value_name = "REL", hide_short_help = true)]
    pub until: Option<RelativeWidth>,
}
