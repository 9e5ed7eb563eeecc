//! Fits a model to the memory that its devices have free: llama.cpp's `-ngl auto`.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Mutex;

use llama_cpp_sys_2 as sys;

use super::context;
use super::log::last_log_errors;
use super::model_params::{END_OF_OVERRIDES, ModelParams};
use crate::engine::{EngineError, GpuLayers, ModelOptions, Room, SecondModel, SplitMode};
use crate::lock::locked;

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
    let mut own = context::context_params(&room.context, options);
    let mut second_model = params.raw;
    let (second_file, mut second_context) = match &room.second_model {
        Some(SecondModel {
            path,
            n_gpu_layers,
            context,
        }) => {
            if let GpuLayers::Count(n) = *n_gpu_layers {
                second_model.n_gpu_layers = i32::try_from(n).unwrap_or(i32::MAX);
            }
            let file = path.to_str().and_then(|path| CString::new(path).ok());
            (file, context::context_params(context, options))
        }
        None => (None, own),
    };
    let mut extra = Extra {
        path_model: second_file.as_deref().unwrap_or(file).as_ptr(),
        mparams: &raw mut second_model,
        cparams: &raw mut second_context,
        // Of the second context of this model, only what it adds is counted.
        shares_model: second_file.is_none(),
    };
    let wants_extra = second_file.is_some() || room.n_contexts > 1;
    // llama.cpp takes one extra: if that is the second model, the margin covers second contexts.
    let n_margins = match second_file {
        Some(_) => room.n_contexts.max(1) as usize,
        None => 1,
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
            match wants_extra {
                true => (&raw mut extra).cast_const().cast(),
                false => std::ptr::null(),
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
