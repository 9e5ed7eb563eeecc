//! The model's context: how rows are computed.

use anyhow::Result;
use kl_formats::BackendIdentity;

use super::observer::Watch;
use super::settings::RunSettings;
use crate::engine::{ContextOptions, Engine, FlashAttention, Model, default_batch};
use crate::report::Warning;

/// Connects to the servers of a run. Warns if layers should be offloaded, as `flag` asks, and there
/// is no device to offload them to.
pub fn connect_devices(
    engine: &impl Engine,
    run: &RunSettings,
    flag: &'static str,
    watch: &Watch<'_>,
) -> Result<()> {
    engine.add_servers(&run.rpc)?;
    let n_gpu_layers = run.model.n_gpu_layers;
    if n_gpu_layers > 0 && !engine.can_offload()? {
        watch.warn(Warning::NoAccelerator { flag, n_gpu_layers });
    }
    Ok(())
}

/// How the reference's own rows were computed, as far as it records that and it affects results.
#[derive(Debug, Clone, Copy, Default)]
pub struct Precedent {
    pub n_batch: Option<u32>,
    pub n_ubatch: Option<u32>,
    pub flash_attn: Option<FlashAttention>,
}

impl Precedent {
    /// Reads the settings from what a reference records; those it does not record are `None`.
    pub fn of(backend: Option<&BackendIdentity>) -> Self {
        let Some(backend) = backend else {
            return Self::default();
        };
        let flash_attn = backend.flash_attn.as_ref();
        Self {
            n_batch: backend.n_batch.filter(|&n| n > 0),
            n_ubatch: backend.n_ubatch.filter(|&n| n > 0),
            flash_attn: flash_attn.and_then(|text| text.parse().ok()),
        }
    }
}

/// Chooses a context's options: what the user set, else what the reference was computed with, else
/// what keeps the output buffer bounded.
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
    // A batch is never larger than a window. Stated here, so that headers of equal runs are equal.
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
        states: false,
    }
}

/// Refuses windows that are longer than the positions that the model has learned, and warns if they
/// are longer than the context that it was trained for.
pub fn check_windows(n_ctx: u32, model: &impl Model, watch: &Watch<'_>) -> Result<()> {
    model.check_window(n_ctx)?;
    if let Some(n_ctx_train) = model.n_ctx_train()
        && n_ctx > n_ctx_train
    {
        watch.warn(Warning::LongWindow { n_ctx, n_ctx_train });
    }
    Ok(())
}

/// Describes how this run computes rows, for a header or to compare with one.
///
/// # Errors
/// If the engine cannot be started.
pub fn backend_identity(
    engine: &impl Engine,
    run: &RunSettings,
    options: &ContextOptions,
) -> Result<BackendIdentity> {
    let offloads = engine.can_offload()? && run.model.devices != ["none"];
    let mut identity = BackendIdentity::default();
    identity.llama_cpp = Some(engine.version());
    identity.devices = Some(engine.devices()?.iter().map(ToString::to_string).collect());
    identity.n_gpu_layers = Some(if offloads { run.model.n_gpu_layers } else { 0 });
    identity.n_batch = Some(options.n_batch);
    identity.n_ubatch = Some(options.n_ubatch);
    identity.threads = Some(options.threads);
    identity.flash_attn = Some(options.flash_attn.to_string());
    identity.type_k = Some(options.type_k.to_string());
    identity.type_v = Some(options.type_v.to_string());
    Ok(identity)
}

/// This program's name and version, as files record them.
pub fn writer() -> String {
    format!("kl {}", env!("CARGO_PKG_VERSION"))
}
