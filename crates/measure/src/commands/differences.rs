//! The settings in which this run differs from the one that wrote the reference, if they change rows: a warning
//! for each, with the flags that make them equal. Whether two runs are the same is [`kl_formats::RunKey`]'s question.

use kl_engine::CacheType;
use kl_formats::{Aspect, BackendIdentity, Difference, Effect, Setting};
use kl_report::Warning;

use super::context::Split;
use super::observer::Watch;

/// Warns of each setting in which the set-up of this run differs from that of the reference's rows, in windows of at
/// most `n_ctx` tokens. A model without attention has no KV cache.
pub fn warn_of_differences(
    here: &BackendIdentity,
    reference: &BackendIdentity,
    n_ctx: u32,
    has_attention: bool,
    watch: &Watch<'_>,
) {
    for (difference, flags) in differences(here, reference, n_ctx, has_attention) {
        watch.warn(warning(&difference, &flags));
    }
}

fn warning(difference: &Difference, flags: &str) -> Warning {
    let Difference {
        what, here, there, ..
    } = difference;
    let is_quantized = |value: &str| value.parse().is_ok_and(CacheType::is_quantized);
    let effect = if is_quantized(here) || is_quantized(there) {
        "the KLD includes what that loses, which may be more than the weights lose"
    } else {
        "this can move the mean KLD, of an unquantized model by 1e-4 at most, of a quantized one by 4e-3"
    };
    let setting = what.name();
    let mut message = format!("{setting} is {here} here and {there} for the reference: {effect}");
    if !flags.is_empty() {
        message += &format!(" (pass {flags} to match)");
    }
    Warning::new("set_up_differs", message)
}

/// The settings that differ, other than by choice of what is measured, each with the flags that make them equal.
fn differences(
    here: &BackendIdentity,
    reference: &BackendIdentity,
    n_ctx: u32,
    has_attention: bool,
) -> Vec<(Difference, String)> {
    // A model that is larger than the memory computes as many windows at once as there is room for.
    let [split, reference_split] =
        [here, reference].map(|set_up| Split::of_reference(set_up, n_ctx));
    let matters = |setting: Setting| match setting {
        // Who runs dequantized weights compares them with the original's.
        Setting::Weights => false,
        Setting::WindowsInCall => split != reference_split,
        setting => has_attention || !setting.is_of_attention(),
    };
    here.diff(reference, n_ctx)
        .into_iter()
        .filter(|difference| difference.effect != Effect::Recorded)
        .filter_map(|difference| {
            let Aspect::SetUp(setting) = difference.what else {
                return None;
            };
            let flags = flags(setting, &difference.there, here, reference, n_ctx);
            matters(setting).then_some((difference, flags))
        })
        .collect()
}

/// The flags that give a setting its `value` in the reference; empty if there are none.
fn flags(
    setting: Setting,
    value: &str,
    here: &BackendIdentity,
    reference: &BackendIdentity,
    n_ctx: u32,
) -> String {
    let flag = match setting {
        Setting::LlamaCpp | Setting::Devices | Setting::Weights => return String::new(),
        Setting::Batch | Setting::PhysicalBatch => return batch_flags(here, reference, n_ctx),
        Setting::Placement if value == "none" => return String::new(),
        // Its value consists of flags.
        Setting::Placement => return value.to_owned(),
        Setting::Threads => "--threads",
        Setting::FlashAttention => "--flash-attn",
        Setting::KeyType => "--cache-type-k",
        Setting::ValueType => "--cache-type-v",
        Setting::GpuLayers => "-ngl",
        Setting::WindowsInCall => "--parallel",
    };
    match reference.n_batch {
        // The windows must fit into the batch.
        Some(n_batch) if setting == Setting::WindowsInCall && value != "1" => {
            format!("{flag} {value} --n-batch {n_batch}")
        }
        _ => format!("{flag} {value}"),
    }
}

/// The flags that split windows into decode calls as the reference's were. Against a reference of equal calls, models
/// are evaluated in equal calls without any flag, unless a batch is set.
fn batch_flags(here: &BackendIdentity, reference: &BackendIdentity, n_ctx: u32) -> String {
    let Some((own_calls, reference_calls)) = here
        .calls_beside(reference, n_ctx)
        .filter(|(_, reference_calls)| !reference_calls.is_equal)
    else {
        return String::new();
    };
    let mut flags = Vec::new();
    if own_calls.is_equal || own_calls.n_batch != reference_calls.n_batch {
        flags.push(format!("--n-batch {}", reference_calls.n_batch));
    }
    if own_calls.is_equal || own_calls.n_ubatch != reference_calls.n_ubatch {
        flags.push(format!("--n-ubatch {}", reference_calls.n_ubatch));
    }
    flags.join(" ")
}

#[cfg(test)]
mod tests;
