//! The model's context: how rows are computed.

use anyhow::Result;
use clap::ValueEnum as _;
use kl_formats::{About, BackendIdentity};

use super::calls::{Decoding, Split};
use super::observer::Watch;
use super::settings::RunSettings;
use crate::engine::{ContextOptions, DeviceKind, Engine, FlashAttention, GpuLayers, Model};
use crate::pipeline::{Error, Sources};
use crate::report::Warning;

/// The set-up that computed the reference's own rows, as far as it is recorded and affects results.
#[derive(Debug, Clone, Copy, Default)]
pub struct Precedent {
    pub split: Option<Split>,
    pub flash_attn: Option<FlashAttention>,
}

impl Precedent {
    /// Adds the batches of a run that is to be resumed, where the reference records none: what is
    /// best depends on the memory that is free, which may have changed since.
    pub fn or_begun(self, begun: Option<&BackendIdentity>) -> Self {
        Self {
            split: self.split.or(Self::of(begun).split),
            ..self
        }
    }

    /// Reads the settings from what a reference records; those it does not record are `None`.
    pub fn of(backend: Option<&BackendIdentity>) -> Self {
        let Some(backend) = backend else {
            return Self::default();
        };
        let flash_attn = backend.flash_attn.as_ref();
        Self {
            split: backend.calls().map(|calls| Split {
                calls,
                n_seq: backend.n_seq.unwrap_or(1),
            }),
            flash_attn: flash_attn.and_then(|name| FlashAttention::from_str(name, false).ok()),
        }
    }
}

/// Chooses a context's options: what the user set, else what the reference was computed with, else
/// what keeps the output buffer bounded.
pub fn context_options(
    run: &RunSettings,
    n_ctx: u32,
    decoding: Decoding,
    precedent: Precedent,
) -> ContextOptions {
    let Split { calls, n_seq } = Split::choose(run, n_ctx, decoding, precedent.split);
    ContextOptions {
        n_ctx,
        calls,
        n_seq,
        has_own_caches: false,
        threads: run.threads,
        flash_attn: run.flash_attn.or(precedent.flash_attn).unwrap_or_default(),
        type_k: run.type_k,
        type_v: run.type_v,
        shows_states: false,
    }
}

/// Contexts of a model, which are used in turn.
pub fn context_sources<'m, M: Model + Sync>(
    model: &'m M,
    options: &'m ContextOptions,
    run: &RunSettings,
) -> Sources<impl Fn() -> Result<M::Decoder<'m>, Error> + Sync + use<'m, M>> {
    Sources {
        n: run.n_contexts(model.facts().is_offloaded) as usize,
        make: move || Ok(model.decoder(options)?),
        device: None,
        n_windows: options.n_seq as usize,
    }
}

/// The advice where the windows are those of a reference.
pub fn shorter_reference(about: &About) -> &'static str {
    match about.prompts.as_ref().map(|prompts| prompts.generated) {
        None => "write the reference with shorter windows (--n-ctx)",
        Some(None) => "write the reference without the longest prompts",
        Some(Some(_)) => {
            "write the reference with a lower --generate, or without the longest prompts"
        }
    }
}

/// Refuses windows that are longer than the positions that the model has learned, and warns if they
/// are longer than the context that it was trained for; `advice` states how to make them shorter.
pub fn check_windows(
    n_ctx: u32,
    model: &impl Model,
    advice: &'static str,
    watch: &Watch<'_>,
) -> Result<()> {
    model.facts().check_window(n_ctx.into())?;
    if let Some(n_ctx_train) = model.facts().n_ctx_train
        && n_ctx > n_ctx_train
    {
        watch.warn(Warning::LongWindow {
            n_ctx,
            n_ctx_train,
            advice,
        });
    }
    Ok(())
}

/// A context's options as far as they are known before the model is loaded: the largest batch that
/// they may have, so that what is fitted beside it fits in the end.
pub fn largest_context(
    run: &RunSettings,
    n_ctx: Option<u32>,
    precedent: Precedent,
) -> ContextOptions {
    /// The window of prompts whose tokens are not counted yet: llama.cpp fits models to as many.
    const PROMPT_N_CTX: u32 = 4096;
    /// The smaller a vocabulary, the larger is the default batch.
    const LARGEST: Decoding = Decoding {
        n_vocab: 1,
        window_rows: u32::MAX,
        is_accelerated: true,
        is_together: true,
    };
    context_options(run, n_ctx.unwrap_or(PROMPT_N_CTX), LARGEST, precedent)
}

/// Describes how this run computes rows, for a header or to compare with one.
///
/// # Errors
/// If the engine cannot be started.
pub fn backend_identity(
    engine: &impl Engine,
    model: &impl Model,
    options: &ContextOptions,
) -> Result<BackendIdentity> {
    let loaded = &model.facts().options;
    let mut identity = settled_identity(engine, options);
    let mut devices = engine.devices()?;
    if !loaded.devices.is_empty() {
        devices.retain(|device| match device.kind {
            DeviceKind::Cpu | DeviceKind::Accelerator => true,
            _ => loaded.devices.contains(&device.name),
        });
    }
    identity.devices = Some(devices.iter().map(ToString::to_string).collect());
    identity.n_gpu_layers = match loaded.n_gpu_layers {
        GpuLayers::Count(n) => Some(n),
        GpuLayers::All | GpuLayers::Auto => None,
    };
    identity.placement = Some(loaded.placement()).filter(|flags| !flags.is_empty());
    record_calls(&mut identity, options);
    identity.threads = Some(options.threads);
    Ok(identity)
}

/// What is settled of a set-up before a model is loaded: the rest depends on the model and the devices.
pub fn settled_identity(engine: &impl Engine, options: &ContextOptions) -> BackendIdentity {
    let mut identity = BackendIdentity::default();
    identity.llama_cpp = Some(engine.version());
    identity.flash_attn = Some(options.flash_attn.to_string());
    identity.type_k = Some(options.type_k.to_string());
    identity.type_v = Some(options.type_v.to_string());
    identity
}

/// Records how windows are split into calls, and how many a call decodes.
pub fn record_calls(identity: &mut BackendIdentity, options: &ContextOptions) {
    identity.n_batch = Some(options.calls.n_batch);
    identity.n_ubatch = Some(options.calls.n_ubatch);
    identity.n_seq = Some(options.n_seq).filter(|&n| n > 1);
    identity.equal_calls = options.calls.is_equal.then_some(true);
}

/// This program's name and version, as files record them.
pub fn writer() -> String {
    format!("kl {}", env!("CARGO_PKG_VERSION"))
}
