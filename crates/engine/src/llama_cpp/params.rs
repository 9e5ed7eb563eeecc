//! llama.cpp's parameters of a model and of its contexts, made of the options that a user gives; and `-ngl
//! auto`, which fits them to the memory that the devices have free.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Mutex;

use llama_cpp_sys_2 as sys;

use super::device::{BufferType, GgmlDevice, names};
use super::guard::{calls, guarded};
use super::log::last_log_errors;
use super::quantize::c_path;
use crate::{
    ContextOptions, DeviceKind, EngineError, GpuLayers, ModelOptions, Room, SplitMode,
    TensorOverride, TensorSplit,
};
use kl_system::locked;

/// llama.cpp's parameters of a model, with all that they point to.
pub(super) struct ModelParams {
    pub(super) raw: sys::llama_model_params,
    /// The model's file.
    pub(super) file: CString,
    /// The devices, and null.
    devices: Vec<sys::ggml_backend_dev_t>,
    /// A proportion for each of as many devices as llama.cpp can have.
    pub(super) tensor_split: Vec<f32>,
    /// The overrides, and [`END_OF_OVERRIDES`].
    pub(super) overrides: Vec<sys::llama_model_tensor_buft_override>,
    _patterns: Vec<CString>,
}

impl ModelParams {
    /// The parameters for a model's file on these devices; `-ngl auto` is a number of layers in them.
    pub(super) fn new(
        path: &Path,
        options: &ModelOptions,
        gpus: &[GgmlDevice],
    ) -> Result<Self, EngineError> {
        check(options, gpus)?;
        // SAFETY: these return plain values.
        let (raw, max_devices) =
            unsafe { (sys::llama_model_default_params(), sys::llama_max_devices()) };
        let all = options.all_overrides();
        // Patterns come from the command line, where no text holds a NUL.
        let pattern = |of: &TensorOverride| CString::new(&*of.pattern).unwrap_or_default();
        let patterns: Vec<CString> = all.iter().map(pattern).collect();
        let mut overrides = Vec::with_capacity(all.len() + 1);
        for (
            TensorOverride {
                memory,
                pattern: text,
            },
            pattern,
        ) in all.iter().zip(&patterns)
        {
            // SAFETY: the pattern ends with NUL.
            let checked = guarded(|| unsafe { calls::kl_check_pattern(pattern.as_ptr()) });
            checked.map_err(|why| {
                let what = "is not a regular expression of C++";
                EngineError::Setup(format!("--override-tensor {text}: {what}: {why}"))
            })?;
            overrides.push(sys::llama_model_tensor_buft_override {
                pattern: pattern.as_ptr(),
                buft: memory_named(memory)?.as_ptr(),
            });
        }
        overrides.push(END_OF_OVERRIDES);
        let split = options.tensor_split.clone();
        let mut tensor_split = split.map_or(Vec::new(), |TensorSplit(split)| split);
        tensor_split.resize(max_devices.max(gpus.len()), 0.0);
        let devices = gpus.iter().map(|device| device.as_ptr());
        let mut params = Self {
            raw,
            file: c_path(path)?,
            devices: devices.chain([std::ptr::null_mut()]).collect(),
            tensor_split,
            overrides,
            _patterns: patterns,
        };
        params.raw.devices = params.devices.as_mut_ptr();
        if options.tensor_split.is_some() {
            params.raw.tensor_split = params.tensor_split.as_ptr();
        }
        if !all.is_empty() {
            params.raw.tensor_buft_overrides = params.overrides.as_ptr();
        }
        params.set_plain(options, gpus);
        if let Some(room) = &options.room
            && options.n_gpu_layers == GpuLayers::Auto
            && !gpus.is_empty()
        {
            params.fit(path, options, room)?;
        }
        Ok(params)
    }

    /// Sets the parameters that are plain values.
    fn set_plain(&mut self, options: &ModelOptions, gpus: &[GgmlDevice]) {
        let raw = &mut self.raw;
        raw.no_alloc = options.is_without_weights;
        // The default is a negative number, which means all; `fit` wants it too.
        raw.n_gpu_layers = options.n_gpu_layers.number().unwrap_or(raw.n_gpu_layers);
        if let Some(mode) = options.split_mode.filter(|_| !gpus.is_empty()) {
            raw.split_mode = mode as _;
        }
        raw.main_gpu = options.main_gpu.unwrap_or(raw.main_gpu);
        // Never with AMX, which llama.cpp's own list would include.
        let mut cpus = GgmlDevice::of_kind(DeviceKind::Cpu);
        raw.use_extra_bufts =
            !options.is_exchangeable && cpus.any(|cpu| !cpu.extra_buffer_types().is_empty());
        let is_unmapped = options.is_exchangeable || options.is_without_weights;
        let use_mmap = if is_unmapped {
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
    }

    /// True if weights may stay in the file, to be read where they are needed. Unless the user decides it,
    /// llama.cpp asks the devices.
    pub(super) fn is_mapped(&self) -> bool {
        let read_whole = [
            sys::LLAMA_LOAD_MODE_NONE,
            sys::LLAMA_LOAD_MODE_MLOCK,
            sys::LLAMA_LOAD_MODE_DIRECT_IO,
        ];
        !read_whole.contains(&self.raw.load_mode)
    }

    /// The options with which the model was loaded: with a number of layers, what `fit` chose, and without
    /// flags that made no difference.
    pub(super) fn resolved(
        &self,
        given: &ModelOptions,
        n_layers: u32,
        n_gpus: usize,
        has_experts: bool,
    ) -> ModelOptions {
        let mut options = given.clone();
        options.room = None;
        // llama.cpp uses the main GPU only where one device holds all.
        if options.split_mode != Some(SplitMode::None) {
            options.main_gpu = None;
        }
        let n = u32::try_from(self.raw.n_gpu_layers).unwrap_or(n_layers);
        options.n_gpu_layers = GpuLayers::Count(if n_gpus == 0 { 0 } else { n.min(n_layers) });
        let split = self.tensor_split.iter().take(n_gpus).copied();
        if options.tensor_split.is_none() && split.clone().any(|n| n > 0.0) {
            options.tensor_split = Some(TensorSplit(split.collect()));
        }
        // Those of experts follow those that the user gives; where there are neither, all are fitted.
        let mut n_overrides = given.tensor_overrides.len();
        if given.all_overrides().is_empty() {
            n_overrides = self.overrides.len();
        }
        let entries = self.overrides.iter().take(n_overrides);
        let named = entries.take_while(|tensors| !tensors.pattern.is_null());
        let overrides = named.filter_map(|tensors| {
            // SAFETY: a pattern that is not null is a text that lives as long as the list.
            let pattern = unsafe { CStr::from_ptr(tensors.pattern) };
            Some(TensorOverride {
                pattern: pattern.to_string_lossy().into_owned(),
                // llama.cpp's name of a server's memory holds its address, which must not be recorded.
                memory: BufferType::new(tensors.buft)?.device_name(),
            })
        });
        options.tensor_overrides = overrides.collect();
        if !has_experts {
            (options.cpu_moe, options.n_cpu_moe) = (false, 0);
        }
        // The flag concerns only weights in the CPU's memory.
        options.no_op_offload &= !options.offloads_all(n_layers);
        options
    }

    /// Chooses how many layers are offloaded and where they lie, so that the model and what needs memory
    /// besides it (`room`) leave a margin on each device. llama.cpp loads the model several times
    /// for this, without its weights.
    ///
    /// # Errors
    /// If the model cannot be fitted with the placement that the user wants.
    fn fit(&mut self, path: &Path, options: &ModelOptions, room: &Room) -> Result<(), EngineError> {
        /// llama.cpp swaps its global log while it measures.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _one = locked(&ONE_AT_A_TIME);

        if let Some(SplitMode::Row | SplitMode::Tensor) = options.split_mode {
            let why = "llama.cpp fits no model that -sm row or tensor splits";
            return Err(no_fit(path, why));
        }
        match self.fitted(options, room)? {
            Ok(0) => Ok(()),
            Ok(1) => {
                let why = "it is too large with -ts, -ot, -cmoe and -ncmoe as they are";
                Err(no_fit(path, why))
            }
            Ok(_) => Err(no_fit(path, &last_log_errors())),
            Err(exception) => Err(no_fit(path, &exception)),
        }
    }

    /// Lets llama.cpp fit the parameters, and returns its status: 0, or 1 if the model is too large; or the message of
    /// the exception that it throws.
    fn fitted(
        &mut self,
        options: &ModelOptions,
        room: &Room,
    ) -> Result<Result<i32, String>, EngineError> {
        let mut own = context_params(&room.context, options);
        // Memory is also needed for the model that will be loaded later, or else for what a second context of
        // this one adds. llama.cpp accepts one extra: if that is the second model, the margin covers second
        // contexts.
        let (mut extra_model, mut extra_context) = (self.raw, own);
        let (mut extra_file, mut n_margins) = (self.file.clone(), 1);
        if let Some(second) = &room.second_model {
            let n_layers = second.n_gpu_layers.number();
            extra_model.n_gpu_layers = n_layers.unwrap_or(extra_model.n_gpu_layers);
            extra_context = context_params(&second.context, options);
            extra_file = c_path(&second.path)?;
            n_margins = room.n_contexts.max(1) as usize;
        }
        let extra = Extra {
            path_model: extra_file.as_ptr(),
            mparams: &raw mut extra_model,
            cparams: &raw mut extra_context,
            shares_model: room.second_model.is_none(),
        };
        let has_extra = room.second_model.is_some() || room.n_contexts > 1;
        let extra_place = has_extra.then_some(&raw const extra);
        // SAFETY: plain values.
        let max_overrides = unsafe { sys::llama_max_tensor_buft_overrides() };
        let mut margins = vec![MARGIN_BYTES * n_margins; self.tensor_split.len()];
        let mut overrides = vec![END_OF_OVERRIDES; max_overrides];
        // SAFETY: all pointers are valid during the call. Proportions and margins have an element for
        // each device, and the list of overrides is as long as llama.cpp wants it. What it writes into
        // that are patterns that live as long as the process.
        let status = guarded(|| unsafe {
            calls::llama_rs_fit_params(
                self.file.as_ptr(),
                &raw mut self.raw,
                &raw mut own,
                self.tensor_split.as_mut_ptr(),
                overrides.as_mut_ptr(),
                margins.as_mut_ptr(),
                room.context.n_ctx,
                extra_place.unwrap_or(std::ptr::null()).cast(),
                sys::GGML_LOG_LEVEL_ERROR,
            )
        });
        if self.raw.tensor_buft_overrides == overrides.as_ptr() {
            self.overrides = overrides;
        }
        Ok(status)
    }
}

/// Refuses options that do not go together, or for other devices than these.
fn check(options: &ModelOptions, gpus: &[GgmlDevice]) -> Result<(), EngineError> {
    let known = names(gpus).join(", ");
    let what = match (options.split_mode, options.main_gpu, &options.tensor_split) {
        (Some(mode @ (SplitMode::Row | SplitMode::Tensor)), ..) if options.is_exchangeable => {
            format!(
                "--split-mode {mode}: weights that are split cannot be exchanged: use --split-mode layer"
            )
        }
        _ if gpus.is_empty() => return Ok(()),
        // llama.cpp ignores a wrong index, unless it uses that device alone.
        (_, Some(main), _) if usize::try_from(main).map_or(true, |main| main >= gpus.len()) => {
            format!("--main-gpu {main}: counted from 0, the devices are {known}")
        }
        (.., Some(TensorSplit(split))) if split.len() > gpus.len() => {
            let n = split.len();
            format!(
                "--tensor-split: {n} proportions, but the devices are {known}: give one for each"
            )
        }
        _ => return Ok(()),
    };
    Err(EngineError::Setup(what))
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
    params.type_k = options.type_k as sys::ggml_type;
    params.type_v = options.type_v as sys::ggml_type;
    params.offload_kqv = !model.no_kv_offload;
    params.op_offload = !model.no_op_offload;
    params.no_perf = true;
    // llama.cpp's library keeps all, and so do evaluations.
    params.swa_full = !options.is_as_deployed;
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

fn no_fit(path: &Path, why: &str) -> EngineError {
    let what = format!(
        "cannot be fitted to the free memory: {why}: give a number of layers instead of auto"
    );
    EngineError::model(path, what)
}
