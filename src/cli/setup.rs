//! From settings to a model's context: what write and read mode share.

use anyhow::Result;
use kl_formats::BackendIdentity;

use super::settings::RunSettings;
use super::{Warning, warn};
use crate::engine::{
    Backend, ContextOptions, FlashAttention, LLAMA_CPP_VERSION, Model, default_batch,
};

/// Starts llama.cpp.
pub fn start_backend(run: &RunSettings) -> Result<Backend> {
    let backend = Backend::start()?;
    if run.model.n_gpu_layers > 0 && !backend.can_offload() {
        warn(&Warning::NoAccelerator(run.model.n_gpu_layers));
    }
    Ok(backend)
}

/// How the reference's own rows were computed, as far as it tells and results move with it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Precedent {
    pub n_batch: Option<u32>,
    pub n_ubatch: Option<u32>,
    pub flash_attn: Option<FlashAttention>,
}

/// What the context is made of: as asked, else as the reference was computed, else so that the
/// output buffer stays bounded.
pub fn context_options(
    run: &RunSettings,
    n_ctx: u32,
    n_vocab: u32,
    precedent: Precedent,
) -> ContextOptions {
    let n_batch = run
        .n_batch
        .or(precedent.n_batch)
        .unwrap_or_else(|| default_batch(n_vocab));
    // A batch is never larger than a window; said here, so that equal runs are seen to be equal.
    let n_batch = n_batch.min(n_ctx.max(1));
    ContextOptions {
        n_ctx,
        n_batch,
        n_ubatch: run
            .n_ubatch
            .or(precedent.n_ubatch)
            .unwrap_or(n_batch)
            .min(n_batch),
        threads: run.threads,
        flash_attn: run.flash_attn.or(precedent.flash_attn).unwrap_or_default(),
        type_k: run.type_k,
        type_v: run.type_v,
    }
}

/// Warns of windows that the model has not learned to read.
pub fn warn_long_window(n_ctx: u32, model: &Model<'_>) {
    let n_ctx_train = model.n_ctx_train();
    if n_ctx_train > 0 && n_ctx > n_ctx_train {
        warn(&Warning::LongWindow { n_ctx, n_ctx_train });
    }
}

/// How rows are computed, for the header and for comparing with one.
pub fn backend_identity(
    backend: &Backend,
    run: &RunSettings,
    options: &ContextOptions,
) -> BackendIdentity {
    BackendIdentity {
        llama_cpp: LLAMA_CPP_VERSION.to_owned(),
        devices: backend.devices(),
        n_gpu_layers: run.model.n_gpu_layers,
        n_batch: options.n_batch,
        n_ubatch: options.n_ubatch,
        threads: options.threads,
        flash_attn: options.flash_attn.to_string(),
        type_k: options.type_k.to_string(),
        type_v: options.type_v.to_string(),
    }
}

/// Warns where this run differs from the one that wrote the reference in what moves results.
pub fn warn_of_differences(here: &BackendIdentity, there: &BackendIdentity) {
    let number = |n: u32| n.to_string();
    for (what, here, there, flag) in [
        (
            "llama.cpp",
            here.llama_cpp.clone(),
            there.llama_cpp.clone(),
            None,
        ),
        (
            "the set of devices",
            here.devices.join(", "),
            there.devices.join(", "),
            None,
        ),
        (
            "the number of offloaded layers",
            number(here.n_gpu_layers),
            number(there.n_gpu_layers),
            Some("-ngl"),
        ),
        (
            "the batch",
            number(here.n_batch),
            number(there.n_batch),
            Some("--n-batch"),
        ),
        (
            "the physical batch",
            number(here.n_ubatch),
            number(there.n_ubatch),
            Some("--n-ubatch"),
        ),
        (
            "the number of threads",
            number(here.threads),
            number(there.threads),
            Some("--threads"),
        ),
        (
            "flash attention",
            here.flash_attn.clone(),
            there.flash_attn.clone(),
            Some("--flash-attn"),
        ),
        (
            "the type of cached keys",
            here.type_k.clone(),
            there.type_k.clone(),
            Some("--cache-type-k"),
        ),
        (
            "the type of cached values",
            here.type_v.clone(),
            there.type_v.clone(),
            Some("--cache-type-v"),
        ),
    ] {
        if here != there {
            let advice = flag
                .map(|flag| format!(" (pass {flag} {there} to match)"))
                .unwrap_or_default();
            warn(&Warning::SetUpDiffers {
                what,
                here,
                there,
                advice,
            });
        }
    }
}

/// This program, as files name it.
pub fn writer() -> String {
    format!("kl {}", env!("CARGO_PKG_VERSION"))
}
