//! The flags for running a model.

use clap::value_parser;

use super::headings::DECODING;
use super::model::ModelArgs;
use super::words::{cache_type, flash_attention};
use crate::commands::settings::{MAX_THREADS, RunSettings, default_threads};
use crate::engine::{CacheType, FlashAttention};

/// The flags for running a model, to write a reference or to be evaluated.
// The heading of the flattened flags would go on.
#[derive(clap::Args, Debug, Clone)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,

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
        value_parser = flash_attention(),
        hide_possible_values = true,
        alias = "fa"
    )]
    pub flash_attn: Option<FlashAttention>,

    /// Type of the KV cache's keys (-ctk); --ref-model's stays f16
    #[arg(
        help_heading = DECODING,
        long = "cache-type-k",
        value_name = "TYPE",
        value_parser = cache_type(),
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
        value_parser = cache_type(),
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
}

impl From<RunArgs> for RunSettings {
    fn from(args: RunArgs) -> Self {
        Self {
            model: args.model.into(),
            n_batch: args.n_batch,
            n_ubatch: args.n_ubatch,
            n_parallel: args.n_parallel,
            threads: args.threads,
            flash_attn: args.flash_attn,
            type_k: args.type_k,
            type_v: args.type_v,
            contexts: args.contexts,
            max_rows: None,
        }
    }
}

/// Parses a batch size, which llama.cpp holds as a signed 32-bit number.
fn batch() -> clap::builder::RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=i64::from(i32::MAX))
}
