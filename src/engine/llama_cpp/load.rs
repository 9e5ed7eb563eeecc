//! Loads a model to where its options want its weights.
//!
//! llama-cpp-2 cannot place weights, so models are loaded with llama-cpp-sys-2.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaSplitMode;
use llama_cpp_sys_2 as sys;

use super::device::{BufferType, Device};
use super::fit::fit;
use crate::engine::{
    EngineError, GpuLayers, ModelOptions, SplitMode, TensorOverride, TensorSplit, last_log_errors,
    while_loading,
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
    let file = file.ok_or_else(|| EngineError::Path {
        path: path.to_owned(),
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
    let model = NonNull::new(model).ok_or_else(|| EngineError::Load {
        path: path.to_owned(),
        reason: last_log_errors(),
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

/// Whether a model has experts that could lie apart.
fn has_experts(model: &LlamaModel) -> bool {
    let value = |key: &str| model.meta_val_str(key).ok();
    value("general.architecture")
        .and_then(|architecture| value(&format!("{architecture}.expert_count")))
        .is_some_and(|count| count != "0")
}

/// llama.cpp's parameters of a model, with all that they point to.
pub(super) struct Params {
    pub(super) raw: sys::llama_model_params,
    /// Of the devices, and null.
    devices: Vec<sys::ggml_backend_dev_t>,
    /// One proportion for each of llama.cpp's most devices.
    pub(super) tensor_split: Vec<f32>,
    /// The overrides, and one without a pattern.
    pub(super) overrides: Vec<sys::llama_model_tensor_buft_override>,
    _patterns: Vec<CString>,
}

impl Params {
    fn new(options: &ModelOptions, gpus: &[Device]) -> Result<Self, EngineError> {
        // SAFETY: these return plain values.
        let (mut raw, max_devices) =
            unsafe { (sys::llama_model_default_params(), sys::llama_max_devices()) };
        raw.n_gpu_layers = match options.n_gpu_layers {
            GpuLayers::Count(n) => i32::try_from(n).unwrap_or(i32::MAX),
            // Any negative number; `fit` wants the default one.
            GpuLayers::All | GpuLayers::Auto => raw.n_gpu_layers,
        };
        if let Some(mode) = options.split_mode
            && !gpus.is_empty()
        {
            raw.split_mode = match mode {
                SplitMode::None => LlamaSplitMode::None,
                SplitMode::Layer => LlamaSplitMode::Layer,
                SplitMode::Row => LlamaSplitMode::Row,
                SplitMode::Tensor => LlamaSplitMode::Tensor,
            }
            .into();
        }
        if let Some(main_gpu) = options.main_gpu {
            check_main_gpu(main_gpu, gpus)?;
            raw.main_gpu = main_gpu;
        }
        // Without AMX: llama.cpp's own list would have it.
        let mut cpus = Device::all().into_iter().filter(|device| device.is_cpu());
        raw.use_extra_bufts = cpus.any(|cpu| !cpu.extra_buffer_types().is_empty());
        raw.load_mode = match (options.use_mmap, options.use_mlock) {
            (None, false) => raw.load_mode,
            (Some(true), false) => sys::LLAMA_LOAD_MODE_MMAP,
            (Some(false), false) => sys::LLAMA_LOAD_MODE_NONE,
            (Some(true) | None, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
            (Some(false), true) => sys::LLAMA_LOAD_MODE_MLOCK,
        };
        let TensorSplit(proportions) = &options.tensor_split;
        if !gpus.is_empty() && proportions.len() > gpus.len() {
            return Err(EngineError::TensorSplit {
                n: proportions.len(),
                devices: gpus.iter().map(|device| device.name()).collect(),
            });
        }
        let mut tensor_split = proportions.clone();
        tensor_split.resize(max_devices.max(gpus.len()), 0.0);
        let overrides = options.all_overrides();
        let patterns: Vec<CString> = overrides.iter().map(pattern).collect();
        let mut list = Vec::with_capacity(overrides.len() + 1);
        for (TensorOverride { memory, .. }, pattern) in overrides.iter().zip(&patterns) {
            list.push(sys::llama_model_tensor_buft_override {
                pattern: pattern.as_ptr(),
                buft: memory_named(memory)?.as_ptr(),
            });
        }
        list.push(END);
        let devices = gpus.iter().map(|device| device.as_ptr());
        let mut params = Self {
            raw,
            devices: devices.chain([std::ptr::null_mut()]).collect(),
            tensor_split,
            overrides: list,
            _patterns: patterns,
        };
        params.raw.devices = params.devices.as_mut_ptr();
        if !proportions.is_empty() {
            params.raw.tensor_split = params.tensor_split.as_ptr();
        }
        if !overrides.is_empty() {
            params.raw.tensor_buft_overrides = params.overrides.as_ptr();
        }
        Ok(params)
    }

    /// The options, with a number of layers and what was fitted.
    fn resolved(&self, given: &ModelOptions, n_layers: u32, n_gpus: usize) -> ModelOptions {
        let mut options = given.clone();
        options.room = None;
        // llama.cpp's name of a server's memory holds its address, which is not to be recorded.
        for tensors in &mut options.tensor_overrides {
            if let Ok(memory) = memory_named(&tensors.memory)
                && let Some(device) = memory.device()
            {
                tensors.memory = device.name();
            }
        }
        let n = u32::try_from(self.raw.n_gpu_layers).unwrap_or(n_layers);
        // llama.cpp asks for it only where one device holds all.
        if options.split_mode != Some(SplitMode::None) {
            options.main_gpu = None;
        }
        options.n_gpu_layers = GpuLayers::Count(match n_gpus {
            0 => 0,
            _ => n.min(n_layers),
        });
        if given.n_gpu_layers == GpuLayers::Auto && given.tensor_split.is_empty() {
            let mut split = self.tensor_split.clone();
            split.truncate(n_gpus);
            if split.iter().any(|&n| n > 0.0) {
                options.tensor_split = TensorSplit(split);
            }
        }
        if given.n_gpu_layers == GpuLayers::Auto && given.all_overrides().is_empty() {
            options.tensor_overrides = self.fitted_overrides();
        }
        options
    }

    /// What the list of overrides holds.
    fn fitted_overrides(&self) -> Vec<TensorOverride> {
        let list = self.overrides.iter();
        list.take_while(|tensors| !tensors.pattern.is_null())
            .filter_map(|tensors| {
                let memory = BufferType::new(tensors.buft)?;
                let device = memory.device().map(Device::name);
                // SAFETY: a pattern that is not null is a text that lives as long as the list.
                let pattern = unsafe { CStr::from_ptr(tensors.pattern) };
                Some(TensorOverride {
                    pattern: pattern.to_string_lossy().into_owned(),
                    memory: device.unwrap_or_else(|| memory.name()),
                })
            })
            .collect()
    }
}

/// The end of a list of overrides.
pub(super) const END: sys::llama_model_tensor_buft_override =
    sys::llama_model_tensor_buft_override {
        pattern: std::ptr::null(),
        buft: std::ptr::null_mut(),
    };

/// A pattern for llama.cpp. It comes from the command line, where no text holds a NUL.
fn pattern(tensors: &TensorOverride) -> CString {
    CString::new(tensors.pattern.replace('\0', "")).unwrap_or_default()
}

/// llama.cpp itself ignores an index that no device has, unless it uses that device alone.
fn check_main_gpu(index: i32, gpus: &[Device]) -> Result<(), EngineError> {
    let is_there = usize::try_from(index).is_ok_and(|index| index < gpus.len());
    match is_there || gpus.is_empty() {
        true => Ok(()),
        false => Err(EngineError::MainGpu {
            index,
            devices: gpus.iter().map(|device| device.name()).collect(),
        }),
    }
}

/// The memory of a device, by the name of either.
fn memory_named(name: &str) -> Result<BufferType, EngineError> {
    let devices = Device::all();
    let mut of_devices = devices
        .iter()
        .filter_map(|device| Some((device.name(), device.buffer_type()?)));
    of_devices
        .find(|(device, memory)| device == name || memory.name() == name)
        .map(|(_, memory)| memory)
        .ok_or_else(|| EngineError::NoSuchMemory {
            name: name.to_owned(),
            known: devices.iter().map(|device| device.name()).collect(),
        })
}

/// The devices for a model, which llama.cpp is always told: those that the user names, in that order;
/// else those that it would choose itself (`llama_prepare_model_devices` in its `llama.cpp`). That
/// is RPC servers, then other GPUs, each once however many backends have it; without such, the
/// GPUs in the CPU that the first backend with some has.
fn devices(options: &ModelOptions) -> Result<Vec<Device>, EngineError> {
    let mut all = Device::all();
    all.retain(|device| !device.is_cpu());
    if options.is_cpu_only() {
        return Ok(Vec::new());
    }
    if !options.devices.is_empty() {
        let named = |name: &String| {
            let found = all.iter().find(|device| device.name() == *name).copied();
            found.ok_or_else(|| EngineError::NoSuchDevice {
                name: name.clone(),
                known: all.iter().map(|device| device.name()).collect(),
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
