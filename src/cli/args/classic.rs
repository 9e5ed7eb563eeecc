//! The flags of the classic calls: `kl -m MODEL -t TEXT -w REF`, `kl -m MODEL -r REF`, and
//! `kl -m MODEL -t TEXT --ref-model ORIGINAL`.

use std::path::PathBuf;

use clap::value_parser;
use kl_formats::{Encoding, Kind, MAX_N_CTX};

use super::headings::{EVALUATION, GENERAL, INPUT, MODEL, REFERENCE};
use super::paths::{file, input, model};
use super::results::ResultArgs;
use super::run::RunArgs;
use super::source::SourceArgs;
use super::sweep::{SweptValues, swept_values};
use super::values::{device_name, max_rows, relative_width};
use super::words::{encoding, vocab, written_kind};
use crate::commands::settings::{ComparedVocabulary, RunSettings};
use crate::engine::GpuLayers;
use crate::pipeline::Part;

/// Every flag of the classic calls.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model to run (GGUF), or -hf REPO:QUANT; may repeat
    ///
    /// Each model is loaded after the one before it is freed. A folder stands for all of its GGUFs
    /// in the order of their names, of split ones the first part. -w needs a single model.
    #[arg(
        short, long, value_name = "PATH", help_heading = INPUT, value_parser = model(),
        required_unless_present = "list_devices"
    )]
    pub model: Vec<PathBuf>,

    #[command(flatten)]
    pub input: SourceArgs,

    #[command(flatten)]
    pub write: WriteArgs,

    /// Tokens in a window [default: 512]
    ///
    /// With --prompts, the default is the length of the longest prompt; with -r, it is the
    /// reference's window.
    #[arg(
        short = 'c', long, value_name = "N", help_heading = INPUT,
        value_parser = value_parser!(u32).range(2..=i64::from(MAX_N_CTX)),
        aliases = ["ctx-size", "n_ctx"]
    )]
    pub n_ctx: Option<u32>,

    /// Stop after N scored tokens, from windows in a seeded random order; -1: all
    #[arg(
        short = 'n', long = "n-tokens", value_name = "N", help_heading = INPUT,
        default_value = "-1", value_parser = max_rows, alias = "n_tokens"
    )]
    pub max_rows: ::std::option::Option<u64>,

    /// Run only part I of N, counted from 0: every N-th window
    ///
    /// Each part may run on another machine; kl merge joins what they write. The sidecar of a part
    /// is MODEL@REFERENCE.I-of-N.kls.
    #[arg(long, value_name = "I/N", help_heading = INPUT, conflicts_with = "until")]
    pub shard: Option<Part>,

    #[command(flatten)]
    pub evaluate: EvaluateArgs,

    #[command(flatten)]
    pub results: ResultArgs,

    /// List the devices with their memory, and exit
    #[arg(long, help_heading = MODEL)]
    pub list_devices: bool,

    #[command(flatten)]
    pub run: RunArgs,

    /// Map the model's file into memory, even where a device prefers to read it
    #[arg(long, help_heading = MODEL, overrides_with = "no_mmap")]
    pub mmap: bool,

    /// Read the model's file into memory instead of mapping it
    #[arg(long, help_heading = MODEL, overrides_with = "mmap")]
    pub no_mmap: bool,

    /// Run each model with its weights dequantized to f16: what the file lost, without this machine's rounding
    ///
    /// Kernels for quantized weights round what they multiply to 8 bits, which on a CPU is most of the KLD of
    /// a q8_0 file. Each model is copied to a temporary file (TMPDIR) of 2 bytes for each parameter. The
    /// per-token file is MODEL-dequantized@REFERENCE.kls. The reference model is too, with -w or --ref-model.
    #[arg(long, help_heading = MODEL)]
    pub dequantize: bool,

    /// Resume an interrupted run with the same settings
    ///
    /// With -w, writing continues after the last whole window. Else models that are done are
    /// skipped.
    #[arg(long, help_heading = GENERAL, conflicts_with_all = ["force", "no_sidecar"])]
    pub resume: bool,

    /// Overwrite existing output files
    #[arg(long, help_heading = GENERAL)]
    pub force: bool,

    /// Show what kl runs on, as kl doctor does, and llama.cpp's log
    #[arg(short, long, help_heading = GENERAL, global = true)]
    pub verbose: bool,

    /// Print only results, warnings and errors
    #[arg(short, long, help_heading = GENERAL, global = true)]
    pub quiet: bool,
}

impl Args {
    /// The way to run the models.
    pub fn run_settings(&self) -> RunSettings {
        let mut run = RunSettings::from(self.run.clone());
        run.model.use_mmap = (self.mmap || self.no_mmap).then_some(self.mmap);
        run.model.is_dequantized = self.dequantize;
        run.max_rows = self.max_rows;
        run
    }
}

/// The flags for writing a reference.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = REFERENCE)]
pub struct WriteArgs {
    /// Reference to write
    #[arg(short, long, value_name = "PATH", value_parser = file(), alias = "write_path")]
    pub write_path: Option<PathBuf>,

    /// Format of the reference to write
    #[arg(long, value_name = "FORMAT", value_parser = written_kind(), default_value = "kl")]
    pub format: Kind,

    /// How kl's own format stores rows of logits [default: u16]
    ///
    /// Where u16 would take more than 1 GiB, the default is hidden, if that is at least four times
    /// smaller and the model's rows can be computed from hidden states.
    #[arg(long, value_name = "u16|f32|hidden", value_parser = encoding())]
    pub encoding: Option<Encoding>,
}

/// The flags for evaluating models, except those for the results.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = EVALUATION)]
pub struct EvaluateArgs {
    /// Reference to evaluate against; its format is detected
    #[arg(
        short, long, value_name = "PATH", help_heading = REFERENCE, value_parser = input(),
        alias = "read_path"
    )]
    pub read_path: Option<PathBuf>,

    /// Model to evaluate against, without a file (GGUF)
    ///
    /// Needs -t or --prompts. It stays in memory beside each evaluated model in turn, and
    /// decodes each batch right after it. The numbers are those of -w with --encoding f32 and then
    /// -r.
    #[arg(
        long, value_name = "PATH", help_heading = REFERENCE, value_parser = input(),
        conflicts_with = "read_path"
    )]
    pub ref_model: Option<PathBuf>,

    /// Layers of --ref-model to offload [default: --n-gpu-layers]
    ///
    /// With auto, as many as fit beside all layers of the evaluated model.
    #[arg(
        long, value_name = "N", help_heading = REFERENCE, requires = "ref_model",
        conflicts_with = "read_path"
    )]
    pub ref_ngl: Option<GpuLayers>,

    /// Devices for --ref-model, by name, comma-separated [default: --device]
    #[arg(
        long, value_name = "NAMES", help_heading = REFERENCE, value_parser = device_name,
        value_delimiter = ',', requires = "ref_model", conflicts_with = "read_path"
    )]
    pub ref_device: Vec<String>,

    /// Evaluate every file of the -hf repository whose quant matches, as in 'Q4_*,Q5_K_M,IQ*'
    ///
    /// While one is evaluated, the next ones are loaded.
    #[arg(
        long,
        value_name = "GLOBS",
        value_delimiter = ',',
        conflicts_with = "label"
    )]
    pub quants: Vec<String>,

    /// Remove each -hf model that kl has loaded once it is evaluated
    ///
    /// So there is never more than two of them on the disk. With --resume, those that are done are not loaded
    /// again.
    #[arg(long, conflicts_with = "no_sidecar")]
    pub discard: bool,

    /// Vocabulary entries to compare if the sizes differ [default: same]
    ///
    /// Probabilities are renormalised over the entries compared.
    #[arg(long, value_name = "same|common|tokenizer", value_parser = vocab())]
    pub vocab: Option<ComparedVocabulary>,

    /// Stop when the interval of the mean KLD is narrower than the mean ± REL, as in 5%
    ///
    /// Windows come in a seeded random order, at least 100 of them. Each model stops where its
    /// own interval is narrow enough.
    #[arg(long, value_name = "REL", value_parser = relative_width)]
    pub until: Option<f64>,

    /// Run each model with each pair of these types of the KV cache (-ctk, -ctv), and of weights
    ///
    /// As in --sweep ctk=f16,q8_0,q4_0 ctv=f16,q8_0, which are six evaluations. Keys or values that
    /// are left out stay f16. Each pair has its own sidecar, MODEL-k_q8_0-v_f16@REFERENCE.kls,
    /// and a table at the end has the size of each cache. With weights=file,f16, each model runs as it is and
    /// as with --dequantize.
    #[arg(
        long, value_name = "ctk=TYPES|ctv=TYPES|weights=file,f16", num_args = 1..=3,
        value_parser = swept_values, conflicts_with_all = ["type_k", "type_v"]
    )]
    pub sweep: Vec<SweptValues>,

    /// Measure each model's speed too: a prompt of 512 tokens, and 64 tokens generated after it
    ///
    /// Three times, after one that does not count, with the threads, batches and devices of the evaluation. The
    /// per-token file keeps the speeds, and kl report shows them.
    #[arg(long)]
    pub speed: bool,

    /// Size models by weights and KV cache together, with a context of N tokens
    ///
    /// The Pareto front is then that of the memory which each takes at your context.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub for_context: Option<u64>,
}
