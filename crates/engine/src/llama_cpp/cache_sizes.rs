//! The bytes of a context's cache, by the number of tokens: asked of llama.cpp, which knows which layers keep what.

use std::ptr::NonNull;

use kl_formats::{CacheSizes, Calls};
use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;

use super::guard::{calls, guarded};
use super::handle::as_ptr;
use super::log::last_log_errors;
use super::params::context_params;
use crate::{ContextOptions, ModelOptions};

/// The physical batch of llama.cpp's programs unless told otherwise: a sliding window keeps as many tokens more.
const N_UBATCH: u32 = 512;

/// The tokens of a long context.
const FAR: u32 = 1 << 16;

/// Most tokens of a sliding window; a longer one passes none of a text's.
const LONGEST_WINDOW: u32 = 1 << 20;

/// The sizes of the cache of a context with the types of `options`, as llama.cpp's programs allocate it. Of a model
/// without weights, no context is allocated.
///
/// # Errors
/// Why llama.cpp makes no such context.
pub(super) fn cache_sizes(
    model: &LlamaModel,
    options: &ContextOptions,
) -> Result<CacheSizes, String> {
    // SAFETY: the model is valid.
    let n_swa = unsafe { sys::llama_model_n_swa(as_ptr(model)) };
    let (padding, window) = (CacheSizes::PADDING, u32::try_from(n_swa).unwrap_or(0));
    let ends = if (1..=LONGEST_WINDOW).contains(&window) {
        // As llama.cpp rounds it in `llama-kv-cache-iswa.cpp`.
        let kept = (window + N_UBATCH).next_multiple_of(padding);
        vec![padding, kept, FAR.max(2 * kept)]
    } else {
        vec![padding, FAR]
    };
    let point = |n_ctx: u32| Ok((n_ctx.into(), cache_bytes(model, options, n_ctx)?));
    let points = ends.into_iter().map(point);
    Ok(CacheSizes(points.collect::<Result<_, String>>()?))
}

/// The bytes of the cache of a context of `n_ctx` tokens.
pub(super) fn cache_bytes(
    model: &LlamaModel,
    options: &ContextOptions,
    n_ctx: u32,
) -> Result<u64, String> {
    let options = ContextOptions {
        n_ctx,
        n_seq: 1,
        calls: Calls::new(N_UBATCH, N_UBATCH),
        has_own_caches: false,
        ..options.clone()
    };
    let mut params = context_params(&options, &ModelOptions::default());
    // A layer with a sliding window forgets what it has passed. In llama.cpp's library, and for evaluations,
    // it keeps all.
    params.swa_full = false;
    // SAFETY: the model is valid, and outlives the context.
    let context = guarded(|| unsafe { calls::llama_init_from_model(as_ptr(model), params) })?;
    let context = NonNull::new(context).ok_or_else(last_log_errors)?;
    // SAFETY: the context is valid, and nothing uses it after it is freed.
    let bytes = guarded(|| unsafe { calls::kl_context_bytes(context.as_ptr(), false) });
    unsafe { sys::llama_free(context.as_ptr()) };
    bytes
}
