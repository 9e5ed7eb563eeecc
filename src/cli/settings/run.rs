//! The flags of write mode and read mode alike: the model, its context and the devices.

use super::usage_error::{UsageError, wrong};
use crate::cli::args::{Args, ContextArgs, DeviceArgs};
use crate::commands::settings::{MAX_THREADS, RunSettings};
use crate::engine::ModelOptions;

/// How a model is run, in both modes.
pub(super) fn run_settings(args: &Args) -> RunSettings {
    let ContextArgs {
        n_batch,
        n_ubatch,
        parallel: n_parallel,
        threads,
        flash_attn,
        cache_type_k,
        cache_type_v,
        contexts,
    } = args.context;
    RunSettings {
        model: model_options(&args.devices),
        rpc: args.devices.rpc.clone(),
        n_batch,
        n_ubatch,
        n_parallel,
        threads: threads.unwrap_or_else(default_threads),
        flash_attn,
        type_k: cache_type_k,
        type_v: cache_type_v,
        contexts,
        max_rows: max_rows(args.n_tokens),
        force: args.force,
        verbose: args.verbose,
        quiet: args.quiet,
    }
}

/// Checks a list of devices: each is named once, and `none` stands alone.
pub(super) fn check_devices(flag: &str, names: &[String]) -> Result<(), UsageError> {
    for (i, name) in names.iter().enumerate() {
        if names.iter().take(i).any(|earlier| earlier == name) {
            return wrong(format!("{flag}: names {name} twice: name each device once"));
        }
        if name == "none" && names.len() > 1 {
            return wrong(format!(
                "{flag}: 'none' means the CPU alone: leave it out, or leave out the others"
            ));
        }
    }
    Ok(())
}

fn model_options(args: &DeviceArgs) -> ModelOptions {
    ModelOptions {
        n_gpu_layers: args.n_gpu_layers,
        room: None,
        split_mode: args.split_mode,
        main_gpu: args.main_gpu,
        devices: args.device.clone(),
        tensor_split: args.tensor_split.clone().unwrap_or_default(),
        tensor_overrides: args.override_tensor.clone(),
        n_cpu_moe: match args.cpu_moe {
            true => u32::MAX,
            false => args.n_cpu_moe.unwrap_or_default(),
        },
        use_mmap: match (args.mmap, args.no_mmap) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            (false, false) => None,
        },
        use_mlock: args.mlock,
        no_kv_offload: args.no_kv_offload,
        no_op_offload: args.no_op_offload,
    }
}

/// Threads that compute where `--threads` names no other number: one for each physical core that
/// this process may use, since more would wait for each other.
pub fn default_threads() -> u32 {
    let n = num_cpus::get_physical().min(num_cpus::get());
    (n as u32).min(MAX_THREADS)
}

/// `--n-tokens`, which has been parsed to -1 or a positive number.
pub(super) fn max_rows(n_tokens: i64) -> Option<u64> {
    u64::try_from(n_tokens).ok()
}
