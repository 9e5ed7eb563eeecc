//! The flags for where a model lies and how it is decoded; they are llama.cpp's.

use clap::value_parser;

use super::values::{device, server};
use super::{DECODING, MODEL};
use crate::commands::settings::MAX_THREADS;
use crate::engine::{CacheType, FlashAttention, GpuLayers, SplitMode, TensorOverride, TensorSplit};

/// The flags for the devices that hold and compute a model.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = MODEL)]
pub struct DeviceArgs {
    /// Layers to offload (-ngl): N, all or auto
    ///
    /// With auto, as many as fit beside the contexts, with 1 GiB of each device left free. llama.cpp
    /// splits a layer that does not fit whole.
    #[arg(
        long, value_name = "N", default_value_t = GpuLayers::default(),
        aliases = ["ngl", "gpu-layers", "n_gpu_layers"]
    )]
    pub n_gpu_layers: GpuLayers,

    /// Servers (llama.cpp's ggml-rpc-server) whose devices compute too: RPC0, RPC1, ...
    #[arg(long, value_name = "HOST:PORT,...", value_parser = server, value_delimiter = ',')]
    pub rpc: Vec<String>,

    /// Devices to offload to (-dev), by name, comma-separated; none: the CPU
    #[arg(long, value_name = "NAMES", value_parser = device, value_delimiter = ',', alias = "dev")]
    pub device: Vec<String>,

    /// How to split a model across devices (-sm): none, layer, row or tensor
    #[arg(long, value_name = "MODE", hide_possible_values = true, alias = "sm")]
    pub split_mode: Option<SplitMode>,

    /// Share of the model for each device (-ts), as in 3,1
    ///
    /// [default: in proportion to their free memory]
    #[arg(
        long,
        value_name = "N0,N1,...",
        allow_hyphen_values = true,
        alias = "ts"
    )]
    pub tensor_split: Option<TensorSplit>,

    /// Device that holds what is not split (-mg), counted from 0
    #[arg(long, value_name = "N", alias = "mg")]
    pub main_gpu: Option<i32>,

    /// Tensors to keep on other devices (-ot), by regular expression; may repeat
    ///
    /// As in -ot 'blk\.[0-9]\.ffn=CPU'. The first pattern that matches anywhere in a tensor's name
    /// counts.
    #[arg(
        long,
        value_name = "PATTERN=DEVICE,...",
        value_delimiter = ',',
        alias = "ot"
    )]
    pub override_tensor: Vec<TensorOverride>,

    /// Keep the experts of all layers on the CPU (-cmoe)
    #[arg(long, alias = "cmoe")]
    pub cpu_moe: bool,

    /// Keep the experts of the first N layers on the CPU (-ncmoe)
    #[arg(long, value_name = "N", alias = "ncmoe")]
    pub n_cpu_moe: Option<u32>,

    /// Keep attention and the KV cache on the CPU (-nkvo)
    #[arg(long, alias = "nkvo")]
    pub no_kv_offload: bool,

    /// Leave what lies in the CPU's memory to the CPU, large batches too
    #[arg(long)]
    pub no_op_offload: bool,

    /// Keep the model in memory: the system must not swap it out
    #[arg(long)]
    pub mlock: bool,
}

/// The flags for the contexts that decode.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = DECODING)]
pub struct ContextArgs {
    /// Logical batch: tokens in a decode call, and rows of logits in memory
    ///
    /// [default: equal calls of up to 512 tokens and 64 MiB of logits; with layers on a GPU 2048, as
    /// far as the logits fit in an eighth of the free memory; with -r, as the reference was written]
    #[arg(
        short = 'b', long, value_name = "N", value_parser = batch(),
        aliases = ["batch-size", "n_batch"]
    )]
    pub n_batch: Option<u32>,

    /// Physical batch (-ub): tokens computed at once [default: --n-batch, with layers on a GPU 512]
    #[arg(long, value_name = "N", value_parser = batch(), aliases = ["ub", "ubatch-size"])]
    pub n_ubatch: Option<u32>,

    /// Most windows in a decode call (-np), each a sequence of its own
    ///
    /// A call holds no more windows than fit whole in --n-batch. Models with recurrent layers decode
    /// one; so do --ref-model and --encoding hidden.
    ///
    /// [default: 1 on the CPU, with layers on a GPU as many as fit; with -r, as the reference was
    /// written]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=64), alias = "np")]
    pub parallel: Option<u32>,

    /// Threads to decode with [default: the physical cores that kl may use]
    #[arg(
        long, value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(MAX_THREADS))
    )]
    pub threads: Option<u32>,

    /// Flash attention (-fa) [default: auto; with -r, as the reference was written]
    #[arg(
        long,
        value_name = "on|off|auto",
        hide_possible_values = true,
        alias = "fa"
    )]
    pub flash_attn: Option<FlashAttention>,

    /// Type of the KV cache's keys (-ctk); --ref-model's stays f16
    #[arg(
        long,
        value_name = "TYPE",
        hide_possible_values = true,
        default_value_t,
        alias = "ctk"
    )]
    pub cache_type_k: CacheType,

    /// Type of the KV cache's values (-ctv); --ref-model's stays f16
    #[arg(
        long,
        value_name = "TYPE",
        hide_possible_values = true,
        default_value_t,
        alias = "ctv"
    )]
    pub cache_type_v: CacheType,

    /// Contexts of the model to use in turn
    ///
    /// With 2, a GPU decodes while the CPU scores or encodes, for twice the memory of contexts.
    /// Reading kl.py's files and writing hidden states use 1.
    ///
    /// [default: 2 with all layers of a model on a GPU, else 1]
    #[arg(long, value_name = "1|2", value_parser = value_parser!(u32).range(1..=2))]
    pub contexts: Option<u32>,
}

/// Parses a batch size, which llama.cpp holds as a signed 32-bit number.
fn batch() -> clap::builder::RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=i64::from(i32::MAX))
}
