//! Converts the options that a user gives to llama.cpp's parameters of a model, and back.

use std::ffi::{CStr, CString};

use llama_cpp_sys_2 as sys;

use super::device::{BufferType, GgmlDevice, names};
use crate::engine::{
    DeviceKind, EngineError, GpuLayers, ModelOptions, SplitMode, TensorOverride, TensorSplit,
};

/// llama.cpp's parameters of a model, with all that they point to.
pub(super) struct ModelParams {
    pub(super) raw: sys::llama_model_params,
    /// The devices, and null.
    devices: Vec<sys::ggml_backend_dev_t>,
    /// A proportion for each of as many devices as llama.cpp can have.
    pub(super) tensor_split: Vec<f32>,
    /// The overrides, and [`END_OF_OVERRIDES`].
    pub(super) overrides: Vec<sys::llama_model_tensor_buft_override>,
    _patterns: Vec<CString>,
}

impl ModelParams {
    pub(super) fn new(options: &ModelOptions, gpus: &[GgmlDevice]) -> Result<Self, EngineError> {
        // SAFETY: these return plain values.
        let (mut raw, max_devices) =
            unsafe { (sys::llama_model_default_params(), sys::llama_max_devices()) };
        raw.vocab_only = options.is_vocabulary;
        raw.n_gpu_layers = match options.n_gpu_layers {
            GpuLayers::Count(n) => i32::try_from(n).unwrap_or(i32::MAX),
            // Any negative number; `fit` wants the default one.
            GpuLayers::All | GpuLayers::Auto => raw.n_gpu_layers,
        };
        if let Some(mode @ (SplitMode::Row | SplitMode::Tensor)) = options.split_mode
            && options.is_exchangeable
        {
            return Err(EngineError::Setup(format!(
                "--split-mode {mode}: weights that are split cannot be exchanged: use --split-mode layer"
            )));
        }
        if let Some(mode) = options.split_mode
            && !gpus.is_empty()
        {
            raw.split_mode = match mode {
                SplitMode::None => sys::LLAMA_SPLIT_MODE_NONE,
                SplitMode::Layer => sys::LLAMA_SPLIT_MODE_LAYER,
                SplitMode::Row => sys::LLAMA_SPLIT_MODE_ROW,
                SplitMode::Tensor => sys::LLAMA_SPLIT_MODE_TENSOR,
            };
        }
        if let Some(main_gpu) = options.main_gpu {
            let is_there = usize::try_from(main_gpu).is_ok_and(|index| index < gpus.len());
            if !is_there && !gpus.is_empty() {
                // llama.cpp ignores a wrong index, unless it uses that device alone.
                return Err(EngineError::Setup(format!(
                    "--main-gpu {main_gpu}: counted from 0, the devices are {}",
                    names(gpus).join(", ")
                )));
            }
            raw.main_gpu = main_gpu;
        }
        // Never with AMX, which llama.cpp's own list would include.
        let mut cpus = GgmlDevice::of_kind(DeviceKind::Cpu);
        raw.use_extra_bufts =
            !options.is_exchangeable && cpus.any(|cpu| !cpu.extra_buffer_types().is_empty());
        let use_mmap = options.use_mmap.filter(|_| !options.is_exchangeable);
        let use_mmap = use_mmap.or(options.is_exchangeable.then_some(false));
        raw.load_mode = match (use_mmap, options.use_mlock) {
            (None, false) => raw.load_mode,
            (Some(true), false) => sys::LLAMA_LOAD_MODE_MMAP,
            (Some(false), false) => sys::LLAMA_LOAD_MODE_NONE,
            (Some(true) | None, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
            (Some(false), true) => sys::LLAMA_LOAD_MODE_MLOCK,
        };
        let TensorSplit(proportions) = &options.tensor_split;
        if !gpus.is_empty() && proportions.len() > gpus.len() {
            return Err(EngineError::Setup(format!(
                "--tensor-split: {} proportions, but the devices are {}: give one for each",
                proportions.len(),
                names(gpus).join(", ")
            )));
        }
        let mut tensor_split = proportions.clone();
        tensor_split.resize(max_devices.max(gpus.len()), 0.0);
        let overrides = options.all_overrides();
        // Patterns come from the command line, where no text holds a NUL.
        let pattern =
            |tensors: &TensorOverride| CString::new(&*tensors.pattern).unwrap_or_default();
        let patterns: Vec<CString> = overrides.iter().map(pattern).collect();
        let mut list = Vec::with_capacity(overrides.len() + 1);
        for (TensorOverride { memory, .. }, pattern) in overrides.iter().zip(&patterns) {
            list.push(sys::llama_model_tensor_buft_override {
                pattern: pattern.as_ptr(),
                buft: memory_named(memory)?.as_ptr(),
            });
        }
        list.push(END_OF_OVERRIDES);
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

    /// The options with which the model was loaded: with a number of layers, and what `fit` chose.
    pub(super) fn resolved(
        &self,
        given: &ModelOptions,
        n_layers: u32,
        n_gpus: usize,
    ) -> ModelOptions {
        let mut options = given.clone();
        options.room = None;
        // llama.cpp's name of a server's memory holds its address, which must not be recorded.
        for tensors in &mut options.tensor_overrides {
            if let Ok(memory) = memory_named(&tensors.memory)
                && let Some(device) = memory.device()
            {
                tensors.memory = device.name();
            }
        }
        let n = u32::try_from(self.raw.n_gpu_layers).unwrap_or(n_layers);
        // llama.cpp uses the main GPU only where one device holds all.
        if options.split_mode != Some(SplitMode::None) {
            options.main_gpu = None;
        }
        options.n_gpu_layers = GpuLayers::Count(match n_gpus {
            0 => 0,
            _ => n.min(n_layers),
        });
        if given.n_gpu_layers == GpuLayers::Auto && given.tensor_split.0.is_empty() {
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

    /// Converts the list of overrides back.
    fn fitted_overrides(&self) -> Vec<TensorOverride> {
        let list = self.overrides.iter();
        list.take_while(|tensors| !tensors.pattern.is_null())
            .filter_map(|tensors| {
                let memory = BufferType::new(tensors.buft)?;
                let device = memory.device().map(GgmlDevice::name);
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
pub(super) const END_OF_OVERRIDES: sys::llama_model_tensor_buft_override =
    sys::llama_model_tensor_buft_override {
        pattern: std::ptr::null(),
        buft: std::ptr::null_mut(),
    };

/// The memory of a device, by the name of either.
fn memory_named(name: &str) -> Result<BufferType, EngineError> {
    let devices = GgmlDevice::all();
    let mut of_devices = devices
        .iter()
        .filter_map(|device| Some((device.name(), device.buffer_type()?)));
    of_devices
        .find(|(device, memory)| device == name || memory.name() == name)
        .map(|(_, memory)| memory)
        .ok_or_else(|| {
            let known = names(&devices).join(", ");
            EngineError::Setup(format!(
                "--override-tensor: no device '{name}': available are {known}"
            ))
        })
}
