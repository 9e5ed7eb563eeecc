//! llama.cpp's parameters of a model and of its contexts, made of the options that a user gives; and `-ngl
//! auto`, which fits them to the memory that the devices have free.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Mutex;

use llama_cpp_sys_2 as sys;

use super::device::{BufferType, GgmlDevice, names};
use super::log::last_log_errors;
use super::quantize::c_path;
use crate::engine::{
    ContextOptions, DeviceKind, EngineError, GpuLayers, ModelOptions, Room, SplitMode,
    TensorOverride, TensorSplit,
};
use crate::lock::locked;

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
        check(options, gpus)?;
        if let Some(mode) = options.split_mode.filter(|_| !gpus.is_empty()) {
            raw.split_mode = mode as _;
        }
        raw.main_gpu = options.main_gpu.unwrap_or(raw.main_gpu);
        // Never with AMX, which llama.cpp's own list would include.
        let mut cpus = GgmlDevice::of_kind(DeviceKind::Cpu);
        raw.use_extra_bufts =
            !options.is_exchangeable && cpus.any(|cpu| !cpu.extra_buffer_types().is_empty());
        let use_mmap = if options.is_exchangeable {
            Some(false)
        } else {
            options.use_mmap
        };
        raw.load_mode = match (use_mmap, options.use_mlock) {
            (None, false) => raw.load_mode,
            (Some(true), false) => sys::LLAMA_LOAD_MODE_MMAP,
            (Some(false), false) => sys::LLAMA_LOAD_MODE_NONE,
            (Some(true) | None, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
            (Some(false), true) => sys::LLAMA_LOAD_MODE_MLOCK,
        };
        let split = options.tensor_split.as_ref();
        let proportions = split.map_or(&[][..], |TensorSplit(proportions)| proportions);
        let mut tensor_split = proportions.to_vec();
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
        options.n_gpu_layers = GpuLayers::Count(if n_gpus == 0 { 0 } else { n.min(n_layers) });
        if given.n_gpu_layers == GpuLayers::Auto && given.tensor_split.is_none() {
            let mut split = self.tensor_split.clone();
            split.truncate(n_gpus);
            if split.iter().any(|&n| n > 0.0) {
                options.tensor_split = Some(TensorSplit(split));
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

/// Refuses options that do not go together, or for other devices than these.
fn check(options: &ModelOptions, gpus: &[GgmlDevice]) -> Result<(), EngineError> {
    let refused = |what| Err(EngineError::Setup(what));
    if let Some(mode @ (SplitMode::Row | SplitMode::Tensor)) = options.split_mode
        && options.is_exchangeable
    {
        return refused(format!(
            "--split-mode {mode}: weights that are split cannot be exchanged: use --split-mode layer"
        ));
    }
    if gpus.is_empty() {
        return Ok(());
    }
    let known = names(gpus).join(", ");
    // llama.cpp ignores a wrong index, unless it uses that device alone.
    let is_there = |main: i32| usize::try_from(main).is_ok_and(|index| index < gpus.len());
    if let Some(main_gpu) = options.main_gpu.filter(|&main| !is_there(main)) {
        return refused(format!(
            "--main-gpu {main_gpu}: counted from 0, the devices are {known}"
        ));
    }
    let n = options
        .tensor_split
        .as_ref()
        .map_or(0, |split| split.0.len());
    if n > gpus.len() {
        return refused(format!(
            "--tensor-split: {n} proportions, but the devices are {known}: give one for each"
        ));
    }
    Ok(())
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
    let named = |device: &GgmlDevice| {
        let memory = device.buffer_type()?;
        (device.name() == name || memory.name() == name).then_some(memory)
    };
    devices.iter().find_map(named).ok_or_else(|| {
        let known = names(&devices).join(", ");
        EngineError::Setup(format!(
            "--override-tensor: no device '{name}': available are {known}"
        ))
    })
}

/// llama.cpp's parameters of a context of a model that was loaded with `model`.
pub(super) fn context_params(
    options: &ContextOptions,
    model: &ModelOptions,
) -> sys::llama_context_params {
    // SAFETY: returns plain values.
    let mut params = unsafe { sys::llama_context_default_params() };
    let (calls, n_seq) = (options.calls, options.n_seq.max(1));
    params.n_ctx = options.n_ctx.saturating_mul(n_seq);
    params.n_seq_max = n_seq;
    // With one cache for all sequences, llama.cpp computes the tokens of a call in their order, so a
    // window's stay together. Otherwise it would take a few of each sequence in turn.
    params.kv_unified = n_seq > 1 && !options.has_own_caches;
    params.n_batch = calls.most_tokens(params.n_ctx);
    params.n_ubatch = if calls.is_equal {
        params.n_batch
    } else {
        calls.n_ubatch
    };
    params.n_threads = options.threads as i32;
    params.n_threads_batch = options.threads as i32;
    params.flash_attn_type = options.flash_attn as _;
    params.type_k = options.type_k.0 as sys::ggml_type;
    params.type_v = options.type_v.0 as sys::ggml_type;
    params.offload_kqv = !model.no_kv_offload;
    params.op_offload = !model.no_op_offload;
    params.no_perf = true;
    params
}

/// The memory that is to stay free on each device: llama.cpp's default.
const MARGIN_BYTES: usize = 1 << 30;

/// `common_fit_extra_model` of llama.cpp's `common/fit.h`, whose bindings lack it.
#[repr(C)]
pub(super) struct Extra {
    pub(super) path_model: *const c_char,
    pub(super) mparams: *mut sys::llama_model_params,
    pub(super) cparams: *mut sys::llama_context_params,
    pub(super) shares_model: bool,
}

/// Chooses how many layers are offloaded and where they lie, so that the model and what needs memory
/// besides it (`room`) leave a margin on each device. llama.cpp loads the model several times
/// for this, without its weights.
///
/// # Errors
/// If the model cannot be fitted with the placement that the user wants.
pub(super) fn fit(
    path: &Path,
    file: &CStr,
    params: &mut ModelParams,
    options: &ModelOptions,
    room: &Room,
) -> Result<(), EngineError> {
    /// llama.cpp swaps its global log while it measures.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = locked(&ONE_AT_A_TIME);

    let no_fit = |why: &str| {
        let what = format!(
            "cannot be fitted to the free memory: {why}: give a number of layers instead of auto"
        );
        EngineError::model(path, what)
    };
    if let Some(SplitMode::Row | SplitMode::Tensor) = options.split_mode {
        return Err(no_fit(
            "llama.cpp fits no model that -sm row or tensor splits",
        ));
    }
    let mut own = context_params(&room.context, options);
    // What memory is needed for besides: the model that will be loaded later, or else a second context of
    // this one.
    let (mut extra_model, mut extra_context, mut extra_file) = (params.raw, own, None);
    if let Some(second) = &room.second_model {
        if let GpuLayers::Count(n) = second.n_gpu_layers {
            extra_model.n_gpu_layers = i32::try_from(n).unwrap_or(i32::MAX);
        }
        extra_context = context_params(&second.context, options);
        extra_file = c_path(&second.path).ok();
    }
    let mut extra = Extra {
        path_model: extra_file.as_deref().unwrap_or(file).as_ptr(),
        mparams: &raw mut extra_model,
        cparams: &raw mut extra_context,
        // Of the second context of this model, only what it adds is counted.
        shares_model: extra_file.is_none(),
    };
    let has_second = extra_file.is_some();
    let wants_extra = has_second || room.n_contexts > 1;
    // llama.cpp takes one extra: if that is the second model, the margin covers second contexts.
    let n_margins = if has_second {
        room.n_contexts.max(1) as usize
    } else {
        1
    };
    // SAFETY: plain values.
    let max_overrides = unsafe { sys::llama_max_tensor_buft_overrides() };
    let mut margins = vec![MARGIN_BYTES * n_margins; params.tensor_split.len()];
    let mut overrides = vec![END_OF_OVERRIDES; max_overrides];
    // SAFETY: all pointers are valid during the call: the lists of the model's parameters lie in
    // `params`, which outlives it. Proportions and margins have an element for each device, and the
    // list of overrides is as long as llama.cpp wants it. What it writes into that are patterns that
    // live as long as the process.
    let status = unsafe {
        sys::llama_rs_fit_params(
            file.as_ptr(),
            &raw mut params.raw,
            &raw mut own,
            params.tensor_split.as_mut_ptr(),
            overrides.as_mut_ptr(),
            margins.as_mut_ptr(),
            room.context.n_ctx,
            if wants_extra {
                (&raw mut extra).cast_const().cast()
            } else {
                std::ptr::null()
            },
            sys::GGML_LOG_LEVEL_ERROR,
        )
    };
    if params.raw.tensor_buft_overrides == overrides.as_ptr() {
        params.overrides = overrides;
    }
    match status {
        0 => Ok(()),
        1 => Err(no_fit(
            "it is too large with -ts, -ot, -cmoe and -ncmoe as they are",
        )),
        _ => Err(no_fit(&last_log_errors())),
    }
}
