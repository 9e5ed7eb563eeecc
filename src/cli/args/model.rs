//! The flags for where a model lies and is computed.

use super::headings::MODEL;
use super::values::{device_name, server_address};
use super::words::split_mode;
use crate::engine::{GpuLayers, ModelOptions, SplitMode, TensorOverride, TensorSplit};

/// The flags for where a model lies and is computed, which are llama.cpp's.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = MODEL)]
pub struct ModelArgs {
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
    #[arg(long, value_name = "HOST:PORT,...", value_parser = server_address, value_delimiter = ',')]
    pub rpc: Vec<String>,

    /// Devices to offload to (-dev), by name, comma-separated; none: the CPU
    #[arg(
        long = "device", value_name = "NAMES", value_parser = device_name, value_delimiter = ',',
        alias = "dev"
    )]
    pub devices: Vec<String>,

    /// How to split a model across devices (-sm): none, layer, row or tensor
    #[arg(long, value_name = "MODE", value_parser = split_mode(), hide_possible_values = true, alias = "sm")]
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
        long = "override-tensor",
        value_name = "PATTERN=DEVICE,...",
        value_delimiter = ',',
        alias = "ot"
    )]
    pub tensor_overrides: Vec<TensorOverride>,

    /// Keep the experts of all layers on the CPU (-cmoe)
    #[arg(long, alias = "cmoe")]
    pub cpu_moe: bool,

    /// Keep the experts of the first N layers on the CPU (-ncmoe)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        alias = "ncmoe"
    )]
    pub n_cpu_moe: u32,

    /// Keep attention and the KV cache on the CPU (-nkvo)
    #[arg(long, alias = "nkvo")]
    pub no_kv_offload: bool,

    /// Leave what lies in the CPU's memory to the CPU, large batches too
    #[arg(long)]
    pub no_op_offload: bool,

    /// Keep the model in memory: the system must not swap it out
    #[arg(long = "mlock")]
    pub use_mlock: bool,
}

/// The options that these flags decide alone.
impl From<ModelArgs> for ModelOptions {
    fn from(args: ModelArgs) -> Self {
        Self {
            n_gpu_layers: args.n_gpu_layers,
            rpc: args.rpc,
            devices: args.devices,
            split_mode: args.split_mode,
            tensor_split: args.tensor_split,
            main_gpu: args.main_gpu,
            tensor_overrides: args.tensor_overrides,
            cpu_moe: args.cpu_moe,
            n_cpu_moe: args.n_cpu_moe,
            no_kv_offload: args.no_kv_offload,
            no_op_offload: args.no_op_offload,
            use_mlock: args.use_mlock,
            ..Self::default()
        }
    }
}
