//! The flags for where a model lies and how it is decoded; they are llama.cpp's.

use std::convert::Infallible;

use clap::value_parser;

use super::MODEL;
use super::values::{gpu_layers, tensor_split};
use crate::commands::settings::MAX_THREADS;
use crate::engine::{CacheType, FlashAttention, SplitMode};

/// The flags for the devices that hold and compute a model.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = MODEL)]
pub struct DeviceArgs {
    /// Layers to offload (-ngl): a number or all
    #[arg(
        long, value_name = "N", default_value = "0", value_parser = gpu_layers,
        allow_negative_numbers = true
    )]
    pub n_gpu_layers: u32,

    /// Servers (llama.cpp's ggml-rpc-server) whose devices compute too: RPC0, RPC1, ...
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        hide_short_help = true,
        value_delimiter = ','
    )]
    pub rpc: Vec<String>,

    /// Devices to offload to (-dev), by name, comma-separated
    #[arg(
        long,
        value_name = "NAMES",
        hide_short_help = true,
        value_delimiter = ','
    )]
    pub device: Vec<String>,

    /// How to split layers across several GPUs (-sm): none, layer, row or tensor
    #[arg(long, value_name = "MODE", hide_short_help = true)]
    pub split_mode: Option<SplitMode>,

    /// GPU that holds what is not split (-mg)
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub main_gpu: Option<i32>,

    /// Not available (-ts): the bindings to llama.cpp do not offer it
    #[arg(long, value_name = "N0,N1,...", hide = true, value_parser = tensor_split)]
    pub tensor_split: Option<Infallible>,
}

/// The flags for the contexts that decode.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = MODEL)]
pub struct ContextArgs {
    /// Logical batch: tokens in a decode call, and rows of logits in memory
    ///
    /// [default: as many as fit in 64 MiB, at most 512; with -r, as the reference was written]
    #[arg(short = 'b', long, value_name = "N", hide_short_help = true, value_parser = batch())]
    pub n_batch: Option<u32>,

    /// Physical batch (-ub): tokens computed at once [default: --n-batch]
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = batch())]
    pub n_ubatch: Option<u32>,

    /// Threads to decode with [default: physical cores]
    #[arg(
        long, value_name = "N", hide_short_help = true,
        value_parser = value_parser!(u32).range(1..=i64::from(MAX_THREADS))
    )]
    pub threads: Option<u32>,

    /// Flash attention (-fa) [default: auto; with -r, as the reference was written]
    #[arg(long, value_name = "on|off|auto", hide_short_help = true)]
    pub flash_attn: Option<FlashAttention>,

    /// Type of the KV cache's keys (-ctk); --ref-model's stays f16
    #[arg(
        long, value_name = "TYPE", hide_short_help = true,
        default_value_t = CacheType::default()
    )]
    pub cache_type_k: CacheType,

    /// Type of the KV cache's values (-ctv); --ref-model's stays f16
    #[arg(
        long, value_name = "TYPE", hide_short_help = true,
        default_value_t = CacheType::default()
    )]
    pub cache_type_v: CacheType,
}

/// Parses a batch size, which llama.cpp holds as a signed 32-bit number.
fn batch() -> clap::builder::RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=i64::from(i32::MAX))
}
