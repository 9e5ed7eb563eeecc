//! The handle that llama.cpp's own functions take, where the bindings lack one of these.

use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;

/// llama.cpp's handle of a model.
pub(super) fn as_ptr(model: &LlamaModel) -> *mut sys::llama_model {
    // SAFETY: `LlamaModel` is a transparent wrapper of this pointer, at the version that Cargo.toml pins.
    unsafe { *(&raw const *model).cast::<*mut sys::llama_model>() }
}
