//! Loads a model to where its options want its weights.
//!
//! llama-cpp-2 cannot place weights, so models are loaded with llama-cpp-sys-2.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;

use super::device::Device;
use super::fit::fit;
use super::params::{Params, names};
use crate::engine::{
    EngineError, GpuLayers, ModelOptions, SplitMode, last_log_errors, while_loading,
};

/// A model that llama.cpp has loaded, and what came of its options.
pub(super) struct Loaded {
    pub(super) model: LlamaModel,
    /// As given, but with a number of layers and what `auto` chose.
    pub(super) options: ModelOptions,
    /// The devices that may compute parts of it, in llama.cpp's order.
    pub(super) gpus: Vec<Device>,
    /// Layers that can be offloaded, of which the output layer is one.
    pub(super) n_layers: u32,
    /// The context length that the model was trained on; 0 if its file does not record it.
    pub(super) n_ctx_train: i32,
}

/// Loads a GGUF.
///
/// # Errors
/// Devices or memory that do not exist, proportions for more devices than there are, too little
/// memory, or why llama.cpp refuses the model.
pub(super) fn load(path: &Path, options: &ModelOptions) -> Result<Loaded, EngineError> {
    let file = path.to_str().and_then(|text| CString::new(text).ok());
    let file = file.ok_or_else(|| {
        let what = "llama.cpp cannot open a path that is not valid Unicode: rename the file";
        EngineError::model(path, what)
    })?;
    let mut gpus = devices(options)?;
    let mut params = Params::new(options, &gpus)?;
    if options.n_gpu_layers == GpuLayers::Auto && !gpus.is_empty() {
        fit(path, &file, &mut params, options)?;
    }
    // SAFETY: the path is valid, and so are all lists that the parameters point to, which end as
    // llama.cpp wants them to. It copies the proportions, and reads no other list later.
    let load = || unsafe { sys::llama_model_load_from_file(file.as_ptr(), params.raw) };
    let model = while_loading(path, load);
    let model = NonNull::new(model).ok_or_else(|| {
        let reason = last_log_errors();
        let advice = load_advice(&reason);
        let what = format!("llama.cpp could not load the model: {reason}{advice}");
        EngineError::model(path, what)
    })?;
    // The layers that predict further tokens (MTP) are counted too: llama.cpp offloads them first.
    // SAFETY: the model is valid.
    let n_layers = unsafe {
        sys::llama_model_n_layer(model.as_ptr())
            + sys::llama_model_n_layer_nextn(model.as_ptr())
            + 1
    };
    let n_layers = u32::try_from(n_layers).unwrap_or(0);
    // SAFETY: the model is valid. The safe wrapper of this panics where a file is damaged.
    let n_ctx_train = unsafe { sys::llama_model_n_ctx_train(model.as_ptr()) };
    // SAFETY: `LlamaModel` is a transparent wrapper of this pointer, at the version that Cargo.toml
    // pins, and frees the model when it is dropped.
    let model: LlamaModel = unsafe { std::mem::transmute(model) };
    let mut options = params.resolved(options, n_layers, gpus.len());
    if !has_experts(&model) {
        options.n_cpu_moe = 0;
    }
    // It concerns only weights in the CPU's memory.
    if options.offloads_all(n_layers) {
        options.no_op_offload = false;
    }
    if options.split_mode == Some(SplitMode::None) {
        let main = usize::try_from(options.main_gpu.unwrap_or_default());
        let main = main.ok().and_then(|i| gpus.get(i)).copied();
        gpus = main.into_iter().collect();
    }
    Ok(Loaded {
        model,
        options,
        gpus,
        n_layers,
        n_ctx_train,
    })
}

/// Returns true if a model has experts that could lie apart.
fn has_experts(model: &LlamaModel) -> bool {
    let value = |key: &str| model.meta_val_str(key).ok();
    value("general.architecture")
        .and_then(|architecture| value(&format!("{architecture}.expert_count")))
        .is_some_and(|count| count != "0")
}

/// The devices for a model, which llama.cpp is always told: those that the user names, in that order;
/// else those that it would choose itself (`llama_prepare_model_devices` in its `llama.cpp`). That
/// is RPC servers, then other GPUs, each once however many backends have it; without such, the
/// GPUs in the CPU that the first backend with some has.
fn devices(options: &ModelOptions) -> Result<Vec<Device>, EngineError> {
    let mut all = Device::all();
    all.retain(|device| !device.is_cpu());
    if options.devices == ["none"] {
        return Ok(Vec::new());
    }
    if !options.devices.is_empty() {
        let named = |name: &String| {
            let found = all.iter().find(|device| device.name() == *name).copied();
            found.ok_or_else(|| {
                let available = available_devices(&names(&all));
                EngineError::Setup(format!("no device '{name}': {available}"))
            })
        };
        return options.devices.iter().map(named).collect();
    }
    all.retain(|device| device.is_gpu());
    let (discrete, integrated): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|device| device.is_discrete());
    let (mut chosen, own): (Vec<_>, Vec<_>) =
        discrete.into_iter().partition(|device| device.is_remote());
    let mut ids = Vec::new();
    let n_servers = chosen.len();
    for device in own {
        let id = device.hardware_id();
        if id.is_none() || !ids.contains(&id) {
            ids.push(id);
            chosen.push(device);
        }
    }
    if chosen.len() == n_servers {
        let first = integrated.first().map(|device| device.backend());
        let of_first = integrated.into_iter();
        chosen.extend(of_first.filter(|device| Some(device.backend()) == first));
    }
    Ok(chosen)
}

/// The advice to give if a reason mentions memory, what C++ finds wrong with a pattern, or a way of
/// splitting that the devices do not have.
fn load_advice(reason: &str) -> &'static str {
    let mentions = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if mentions(&["alloc", "memory"]) {
        " (out of memory? lower --n-gpu-layers, or close other programs)"
    } else if mentions(&["regular expression", "bracket expression", "regex string"]) {
        " (a pattern of --override-tensor)"
    } else if mentions(&["split buffers"]) {
        " (use --split-mode layer)"
    } else {
        ""
    }
}

/// The names to use instead of one that no device has.
fn available_devices(known: &[String]) -> String {
    match known {
        [] => "only 'none', the CPU alone, is available: this kl was built without an accelerator \
               backend, or finds no device (kl --list-devices shows what it finds)"
            .to_owned(),
        known => format!(
            "available are {} and 'none', the CPU alone (kl --list-devices describes them)",
            known.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_is_answered_with_those_available() {
        let message = |known: &[&str]| {
            let known: Vec<String> = known.iter().map(ToString::to_string).collect();
            available_devices(&known)
        };
        let none = "only 'none', the CPU alone, is available: this kl was built without an \
                    accelerator backend, or finds no device (kl --list-devices shows what it finds)";
        let one =
            "available are CUDA0 and 'none', the CPU alone (kl --list-devices describes them)";
        let two = "available are CUDA0, CUDA1 and 'none', the CPU alone (kl --list-devices describes \
                   them)";
        for (known, rest) in [
            (&[][..], none),
            (&["CUDA0"], one),
            (&["CUDA0", "CUDA1"], two),
        ] {
            assert_eq!(message(known), rest);
        }
    }
}
