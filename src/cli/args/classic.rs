//! The flags of the classic calls: `kl -m MODEL -t TEXT -w REF`, `kl -m MODEL -r REF`, and
//! `kl -m MODEL -t TEXT --ref-model ORIGINAL`.

use std::path::PathBuf;

use clap::{ValueHint, value_parser};
use kl_formats::{Encoding, Kind, MAX_N_CTX};

use super::{EVALUATION, REFERENCE};
use crate::commands::settings::values::{
    encoding, file, input, input_or_stdin, max_rows, min_p, model, named_text, relative_width,
    temperature, top_p, written_kind,
};
use crate::commands::settings::{
    GENERAL, INPUT, ResultSettings, RunSettings, SweptTypes, Vocabulary, swept_types,
};
use crate::engine::{GpuLayers, MODEL_HEADING as MODEL, device_name};
use crate::input::{NamedText, ScoreFrom, SpanRule};
use crate::pipeline::Part;

/// Every flag of the classic calls.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model to run (GGUF); may repeat, but not with -w
    ///
    /// Each model is loaded after the one before it is freed. A folder stands for all of its GGUFs
    /// in the order of their names, of split ones the first part; not with -w.
    #[arg(
        short, long, value_name = "PATH", help_heading = INPUT, value_parser = model(),
        required_unless_present = "list_devices"
    )]
    pub model: Vec<PathBuf>,

    #[command(flatten)]
    pub input: InputArgs,

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
    pub results: ResultSettings,

    /// List the devices with their memory, and exit
    #[arg(long, help_heading = MODEL)]
    pub list_devices: bool,

    #[command(flatten)]
    pub run: RunSettings,

    /// Map the model's file into memory, even where a device prefers to read it
    #[arg(long, help_heading = MODEL, overrides_with = "no_mmap")]
    pub mmap: bool,

    /// Read the model's file into memory instead of mapping it
    #[arg(long, help_heading = MODEL, overrides_with = "mmap")]
    pub no_mmap: bool,

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
    #[arg(short, long, help_heading = GENERAL)]
    pub verbose: bool,

    /// Print only results, warnings and errors
    #[arg(short, long, help_heading = GENERAL)]
    pub quiet: bool,
}

/// The flags for a text or prompts, and the windows of them.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = INPUT)]
pub struct InputArgs {
    /// Text to run the reference model over; '-' reads stdin
    ///
    /// As NAME=PATH it may repeat: windows of several texts, whose groups of these names are
    /// reported apart. No window holds parts of two texts. A file that is named so is a path.
    #[arg(short, long, value_name = "PATH", value_parser = named_text(), value_hint = ValueHint::FilePath)]
    pub text_path: Vec<NamedText>,

    /// Prompts to run it over, instead of a text: a file, '-' for stdin, or 'starter'
    ///
    /// One prompt per line, or JSONL with "prompt" or "messages" in each line, and if you like
    /// "group". 'starter' stands for 200 prompts that come with kl; a file of that name is
    /// ./starter.
    #[arg(
        long, value_name = "PATH", value_parser = input_or_stdin(), alias = "prompts-file",
        conflicts_with_all = ["text_path", "stride"]
    )]
    pub prompts: Option<PathBuf>,

    /// With --prompts, tokenize prompts as they are, without a chat template
    #[arg(long)]
    pub no_chat_template: bool,

    /// With --prompts, use this chat template (Jinja) instead of the model's own
    #[arg(long, value_name = "PATH", value_parser = input(), conflicts_with = "no_chat_template")]
    pub chat_template_file: Option<PathBuf>,

    /// With --prompts, let the model answer each with at most N tokens, and score those
    ///
    /// The reference model answers, greedily, until it ends its answer. With --score all, the
    /// prompt's own tokens are scored too.
    #[arg(
        long, value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(MAX_N_CTX))
    )]
    pub generate: Option<u32>,

    /// With --generate, choose tokens by chance, at this temperature [default: 0, greedily]
    ///
    /// With --top-k N, one of the N most probable tokens is chosen.
    #[arg(long, value_name = "T", value_parser = temperature, alias = "temperature")]
    pub temp: Option<f32>,

    /// With --temp, choose among the most probable tokens that have probability P together
    /// [default: 1, all]
    #[arg(long, value_name = "P", value_parser = top_p)]
    pub top_p: Option<f32>,

    /// With --temp, leave out tokens that are less than P times as probable as the top token
    /// [default: 0, none]
    #[arg(long, value_name = "P", value_parser = min_p)]
    pub min_p: Option<f32>,

    /// With --temp, the seed of the random numbers [default: 123]
    ///
    /// The same seed gives the same answers. With any -np they are the same to the bit where an f16, bf16
    /// or f32 model runs on the CPU with flash attention.
    #[arg(long, value_name = "N")]
    pub seed: Option<u32>,

    /// Report this part of answers apart: 'NAME=OPEN..CLOSE'; may repeat
    ///
    /// It is the text from OPEN to CLOSE, both included; without CLOSE, to the answer's end. Code, and
    /// reasoning and tool calls in the markers of well-known chat templates, are found without it.
    #[arg(long, value_name = "NAME=OPEN..CLOSE")]
    pub span: Vec<SpanRule>,

    /// Tokens from one window's start to the next's [default: no overlap]
    ///
    /// With a stride shorter than a window, windows overlap, and more of the text is scored with a
    /// long context.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub stride: Option<u32>,

    /// Use only the first N windows, or prompts [default: all]
    ///
    /// With several texts, the first N windows of each.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub max_windows: Option<u32>,

    /// First position of each window that is scored
    ///
    /// [default: the first that has seen text: 1 after a BOS, else 0]
    ///
    /// - all:  every position, that of the BOS too
    /// - half: the second half of the window, as llama-perplexity does
    /// - new:  with --stride, only what no earlier window has scored
    /// - answers: what the assistant says in the conversations of --prompts
    /// - N:    from position N on
    #[arg(long, value_name = "all|half|new|answers|N", verbatim_doc_comment)]
    pub score: Option<ScoreFrom>,

    /// Parse special tokens in the text; in a chat template's output they always are
    #[arg(long)]
    pub parse_special: bool,
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

    /// Vocabulary entries to compare if the sizes differ [default: same]
    ///
    /// Probabilities are renormalised over the entries compared.
    #[arg(long, value_name = "same|common|tokenizer")]
    pub vocab: Option<Vocabulary>,

    /// Stop when the interval of the mean KLD is narrower than the mean ± REL, as in 5%
    ///
    /// Windows come in a seeded random order, at least 100 of them. Each model stops where its
    /// own interval is narrow enough.
    #[arg(long, value_name = "REL", value_parser = relative_width)]
    pub until: Option<f64>,

    /// Run each model with each pair of these types of the KV cache (-ctk, -ctv)
    ///
    /// As in --sweep ctk=f16,q8_0,q4_0 ctv=f16,q8_0, which are six evaluations. Keys or values that
    /// are left out stay f16. Each pair has its own sidecar, MODEL-k_q8_0-v_f16@REFERENCE.kls,
    /// and a table at the end has the size of each cache.
    #[arg(
        long, value_name = "ctk=TYPES|ctv=TYPES", num_args = 1..=2, value_parser = swept_types,
        conflicts_with_all = ["type_k", "type_v"]
    )]
    pub sweep: Vec<SweptTypes>,
}
