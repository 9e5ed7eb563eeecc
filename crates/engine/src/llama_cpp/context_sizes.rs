//! The bytes of a context, by the number of its tokens: asked of llama.cpp, which knows which layers keep what.

use std::collections::BTreeSet;
use std::ptr::NonNull;

use kl_formats::{CacheSizes, Calls};
use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;

use super::guard::{calls, guarded};
use super::handle::as_ptr;
use super::log::last_log_errors;
use super::params::context_params;
use crate::{ContextOptions, ContextSizes, ModelOptions};

/// The logical batch of llama.cpp's programs unless told otherwise.
const N_BATCH: u32 = 2048;

/// The physical batch of llama.cpp's programs unless told otherwise: a sliding window keeps as many tokens more.
const N_UBATCH: u32 = 512;

/// The tokens of a long context.
const FAR: u32 = 1 << 16;

/// Most tokens of a sliding window; a longer one passes none of a text's.
const LONGEST_WINDOW: u32 = 1 << 20;

/// Contexts whose buffers are asked for: from a physical batch on, they grow along a line that bends where another
/// step of the graph takes the most.
const OF_BUFFERS: [u32; 5] = [N_UBATCH, 2048, 8192, 32_768, FAR];

/// The sizes of a context with the types of `options`, as llama.cpp's programs allocate it for one device. Of a model
/// without weights, no context is allocated.
///
/// # Errors
/// Why llama.cpp makes no such context.
pub(super) fn context_sizes(
    model: &LlamaModel,
    options: &ContextOptions,
) -> Result<ContextSizes, String> {
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
    let mut sizes = ContextSizes::default();
    for n_ctx in BTreeSet::from_iter(ends.iter().chain(&OF_BUFFERS).copied()) {
        let (cache, compute) = context_bytes(model, options, n_ctx)?;
        if ends.contains(&n_ctx) {
            sizes.cache.0.push((n_ctx.into(), cache));
        }
        if OF_BUFFERS.contains(&n_ctx) {
            sizes.compute.0.push((n_ctx.into(), compute));
        }
    }
    Ok(sizes)
}

/// The bytes of the cache, and of the buffers to compute in, of a context of `n_ctx` tokens.
fn context_bytes(
    model: &LlamaModel,
    options: &ContextOptions,
    n_ctx: u32,
) -> Result<(u64, u64), String> {
    let options = ContextOptions {
        n_ctx,
        n_seq: 1,
        calls: Calls::new(N_BATCH, N_UBATCH),
        has_own_caches: false,
        is_as_deployed: true,
        ..options.clone()
    };
    let params = context_params(&options, &ModelOptions::default());
    // SAFETY: the model is valid, and outlives the context.
    let context = guarded(|| unsafe { calls::llama_init_from_model(as_ptr(model), params) })?;
    let context = NonNull::new(context).ok_or_else(last_log_errors)?;
    // SAFETY: the context is valid, and nothing uses it after it is freed.
    let bytes =
        |computes| guarded(|| unsafe { calls::kl_context_bytes(context.as_ptr(), computes) });
    let (cache, all) = (bytes(false), bytes(true));
    unsafe { sys::llama_free(context.as_ptr()) };
    let cache = cache?;
    Ok((cache, all?.saturating_sub(cache)))
}
