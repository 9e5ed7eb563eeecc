//! The flags as given; what they mean together is [`settings`](super::settings)' business.

use std::path::PathBuf;

use clap::Parser;
use kl_formats::MAX_N_CTX;

use crate::engine::{CacheType, FlashAttention, SplitMode};
use crate::report::Condition;
use crate::stats::Confidence;
use crate::windows::ScoreFrom;

/// How far a quantized GGUF has moved from its full-precision original: the KL divergence of its
/// next-token distributions, with error bars.
///
///   kl -m fp16.gguf -t wiki.txt -w ref.gz     write the reference, once
///   kl -m q4.gguf -r ref.gz                   evaluate a quant against it
///   kl info ref.gz --verify                   what a file holds, and whether it is whole
///   kl convert ref.gz b --format llama.cpp    a reference into one of another kind
///   kl compare ref.gz other.npz               stored rows against stored rows
#[derive(Parser, Debug)]
#[command(
    name = "kl",
    version,
    verbatim_doc_comment,
    max_term_width = 100,
    args_override_self = true
)]
pub struct Args {
    /// GGUF to run; may repeat with -r, each model is loaded after the last is freed
    #[arg(short, long, value_name = "PATH", required = true)]
    pub model: Vec<PathBuf>,

    /// Text to write a reference of; '-' reads stdin
    #[arg(short, long, value_name = "PATH")]
    pub text_path: Option<PathBuf>,

    /// Prompts to write a reference of, in place of a text: one a line, or JSONL with a prompt or
    /// messages in each line; '-' reads stdin
    #[arg(long, value_name = "PATH")]
    pub prompts_file: Option<PathBuf>,

    /// With --prompts-file, tokenize prompts as they are, not as the model's chat template has them
    #[arg(long)]
    pub no_chat_template: bool,

    /// With --prompts-file, the chat template (Jinja) in place of the model's own
    #[arg(long, value_name = "PATH", conflicts_with = "no_chat_template")]
    pub chat_template_file: Option<PathBuf>,

    /// With --prompts-file, let the model put N tokens behind each prompt, each the likeliest, and
    /// score those (with --score all the prompt's own too)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_N_CTX)))]
    pub generate: Option<u32>,

    /// Reference to write
    #[arg(short, long, value_name = "PATH")]
    pub write_path: Option<PathBuf>,

    /// Reference to evaluate against; its kind is recognised by its bytes
    #[arg(short, long, value_name = "PATH")]
    pub read_path: Option<PathBuf>,

    /// Tokens in a window [default: 512; with --prompts-file those of the longest prompt; with -r what
    /// the reference says]
    #[arg(short = 'c', long, value_name = "N")]
    pub n_ctx: Option<u32>,

    /// Tokens in a decode call, and rows of logits in memory [default: as many as fit 64 MiB, 512 at
    /// most; with -r as the reference was written]
    #[arg(short = 'b', long, value_name = "N")]
    pub n_batch: Option<u32>,

    /// Tokens computed at once (-ub) [default: n-batch]
    #[arg(long, value_name = "N")]
    pub n_ubatch: Option<u32>,

    /// Stop after N scored tokens, from windows in a seeded random order; -1: all
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub n_tokens: i64,

    /// Layers to offload to the GPU (-ngl): a number, or all
    #[arg(long, value_name = "N", default_value = "0", value_parser = gpu_layers, allow_negative_numbers = true)]
    pub n_gpu_layers: u32,

    /// Decode threads [default: physical cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,

    /// Tokens from the start of a window to that of the next; less than a window lets windows
    /// overlap, so that more of the text is seen with a long context [default: no overlap]
    #[arg(long, value_name = "N")]
    pub stride: Option<u32>,

    /// Windows to take, from the start of the text, or prompts [default: all]
    #[arg(long, value_name = "N")]
    pub max_windows: Option<u32>,

    /// First position of each window that is scored: all, half (as llama-perplexity does), or N;
    /// new: with --stride, only what no earlier window has scored [default: all]
    #[arg(long, value_name = "all|half|new|N")]
    pub score: Option<ScoreFrom>,

    /// Tokenize special tokens in the text as such (what a chat template makes is always read so)
    #[arg(long)]
    pub parse_special: bool,

    /// Kind of reference to write
    #[arg(long, value_name = "KIND", value_enum, default_value_t = Format::Kl)]
    pub format: Format,

    /// How the native kind stores a logit: u16 (half the size) or f32 (exact) [default: u16]
    #[arg(long, value_name = "u16|f32")]
    pub encoding: Option<kl_formats::Encoding>,

    #[command(flatten)]
    pub results: ResultArgs,

    /// Flash attention (-fa) [default: auto; with -r as the reference was written]
    #[arg(long, value_name = "on|off|auto")]
    pub flash_attn: Option<FlashAttention>,

    /// Type of the KV cache's keys (-ctk)
    #[arg(long, value_name = "TYPE", default_value_t = CacheType::default())]
    pub cache_type_k: CacheType,

    /// Type of the KV cache's values (-ctv)
    #[arg(long, value_name = "TYPE", default_value_t = CacheType::default())]
    pub cache_type_v: CacheType,

    /// How layers are spread over several GPUs (-sm): none, layer, row or tensor
    #[arg(long, value_name = "MODE")]
    pub split_mode: Option<SplitMode>,

    /// Not available: the bindings to llama.cpp do not offer it (-ts)
    #[arg(long, value_name = "N0,N1,...", hide = true)]
    pub tensor_split: Option<String>,

    /// The GPU that holds what is not split (-mg)
    #[arg(long, value_name = "N")]
    pub main_gpu: Option<i32>,

    /// Devices to offload to, by name, comma-separated (-dev)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub device: Vec<String>,

    /// With -r, which entries of the vocabulary are compared: same (all; sizes must agree), common
    /// (the first ones that both have, renormalised), or tokenizer (those that are no padding at the
    /// end of the model's vocabulary, renormalised) [default: same]
    #[arg(long, value_name = "same|common|tokenizer", value_enum)]
    pub vocab: Option<Vocabulary>,

    /// With -r, contexts of the model used in turn: 2 let a GPU decode while the CPU scores, and
    /// take the memory of the context twice; kl.py's files use 1
    /// [default: 2 with all layers on a GPU, else 1]
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u32).range(1..=2))]
    pub contexts: Option<u32>,

    /// Overwrite existing output files
    #[arg(long)]
    pub force: bool,

    /// Go on with what a run of the same settings has left when it was cut off: with -w behind the
    /// last whole window, with -r also past the models that are done
    #[arg(long)]
    pub resume: bool,

    /// Show llama.cpp's log
    #[arg(short, long)]
    pub verbose: bool,

    /// No progress, and nothing else on stderr but warnings and errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// What becomes of an evaluation's numbers.
#[derive(clap::Args, Debug)]
pub struct ResultArgs {
    /// Level of every interval
    #[arg(long, value_name = "P", default_value = "0.95")]
    pub confidence: Confidence,

    /// Statistics to report besides kl's own, comma-separated: llama-perplexity (its own block), and
    /// logits (distances in logit space, Jensen-Shannon divergence, KLD smoothed as MAX does)
    /// [default: kl]
    #[arg(long, value_name = "KINDS", value_enum, value_delimiter = ',')]
    pub stats: Vec<Stats>,

    /// Write the whole result as JSON; '-': to stdout, then nothing else goes there
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,

    /// With --json, every token's values in it too
    #[arg(long)]
    pub json_tokens: bool,

    /// List the N tokens with the largest KLD in their context
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub top_k: Option<u32>,

    /// Exit with 3 if a number of the result is so, as in 'kld.mean > 0.01'; may repeat
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Vec<Condition>,

    /// Per-token file [default: the model's FILE-NAME.kls in the current folder]
    #[arg(long, value_name = "PATH", conflicts_with = "no_sidecar")]
    pub sidecar: Option<PathBuf>,

    /// Write no per-token file
    #[arg(long)]
    pub no_sidecar: bool,
}

/// Which entries of two vocabularies are compared.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Vocabulary {
    /// All, of vocabularies of one size
    #[default]
    Same,
    /// The first ones, as many as both have
    Common,
    /// All but the padding at the end of the model's
    Tokenizer,
}

/// Kinds of reference files that can be written.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The native kind: gzip members with an index and checksums
    #[value(name = "kl")]
    Kl,
    /// What kl.py reads and writes
    #[value(name = "kl.py")]
    KlPy,
    /// llama.cpp's base file: what llama-perplexity reads and writes
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// Which statistics a report holds.
#[derive(clap::ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stats {
    /// Those of this program
    #[default]
    #[value(name = "kl")]
    Kl,
    /// Besides, all that llama-perplexity --kl-divergence prints behind its table
    #[value(name = "llama-perplexity")]
    LlamaPerplexity,
    /// Besides, how far the logits themselves are apart, and symmetric and smoothed divergences;
    /// takes a second pass over each pair of rows
    #[value(name = "logits")]
    Logits,
}

fn gpu_layers(text: &str) -> Result<u32, String> {
    match text {
        // llama.cpp too takes -1 for all.
        "all" | "-1" => Ok(i32::MAX as u32),
        number => number
            .parse()
            .map_err(|_| "expected a number, or all".to_owned()),
    }
}
