//! The model's context: how rows are computed, with the tokens and windows of a decode call; and whether
//! the model can be a quant of the reference's.

mod disk;

use std::cell::LazyCell;
use std::fmt::Display;
use std::path::Path;

use anyhow::{Result, bail};
use kl_engine::{
    ContextOptions, DeviceKind, Engine, EngineError, FileChange, FlashAttention, GpuLayers, Layers,
    Model, default_batch, default_calls, memory,
};
use kl_formats::{BackendIdentity, Calls, ModelIdentity};
use kl_report::Warning;
use kl_report::number::bytes;

use super::observer::{Event, Watch};
use super::settings::RunSettings;
use crate::pipeline::{DeviceClock, Error, Sources};
pub use disk::ReadFromDisk;

/// The set-ups that computed the reference's own rows, and those of a run that is to be resumed. The
/// batches of that one count where the reference records none: what is best depends on the memory that
/// is free, which may have changed since.
pub type Precedents<'p> = [Option<&'p BackendIdentity>; 2];

/// The flash attention that a set-up records.
pub fn flash_attention(backend: Option<&BackendIdentity>) -> Option<FlashAttention> {
    backend?.flash_attn.as_deref()?.parse().ok()
}

/// Chooses a context's options for windows of at most `n_ctx` tokens: what the user set, else what the
/// reference was computed with, else what keeps the output buffer bounded.
pub fn context_options(
    run: &RunSettings,
    n_ctx: u32,
    decoding: Decoding,
    precedents: Precedents<'_>,
) -> ContextOptions {
    let [reference, begun] = precedents;
    let precedent = reference
        .and_then(|set_up| Split::of_reference(set_up, n_ctx))
        .or_else(|| begun.and_then(Split::recorded));
    let Split { calls, n_seq } = Split::choose(run, n_ctx, decoding, precedent);
    let flash_attn = run.flash_attn.or(flash_attention(precedents[0]));
    ContextOptions {
        n_ctx: n_ctx.max(decoding.min_n_ctx),
        calls,
        n_seq,
        // Else each token of a batch would look at those of all its windows.
        has_own_caches: !decoding.is_accelerated
            && n_seq > 1
            && calls.n_ubatch >= n_ctx.saturating_mul(n_seq),
        threads: run.threads,
        flash_attn: flash_attn.unwrap_or_default(),
        type_k: run.type_k,
        type_v: run.type_v,
        shows_states: false,
        is_noisy: false,
        is_as_deployed: false,
    }
}

/// Contexts of a model, which are used in turn.
pub fn context_sources<'m>(
    model: &'m dyn Model,
    options: &'m ContextOptions,
    run: &RunSettings,
) -> Sources<'m> {
    let is_offloaded = model.facts().is_offloaded;
    Sources {
        n: run.n_contexts(is_offloaded) as usize,
        make: Box::new(move || Ok(Box::new(model.decoder(options)?))),
        device: is_offloaded.then(DeviceClock::default),
        n_windows: options.n_seq as usize,
    }
}

/// Checks, before its numbers are kept, that the file of a model is the one that was loaded. Warns of a file
/// that is another one now, but whose bytes were read before that.
///
/// # Errors
/// If it was written to while the weights were read from it.
pub fn check_files(model: &dyn Model, watch: &Watch<'_>) -> Result<(), EngineError> {
    let facts = model.facts();
    let change = match model.file_change() {
        None => return Ok(()),
        Some(change @ (FileChange::Rewritten | FileChange::Shortened)) if facts.is_mapped => {
            return Err(change.error(&facts.path, "read"));
        }
        Some(FileChange::Rewritten | FileChange::Shortened) => "was written to",
        Some(FileChange::Replaced) => "was replaced or removed",
    };
    let message = format!(
        "{}: {change} after it was loaded: the numbers are those of the file that was loaded",
        facts.path.display()
    );
    watch.warn_once(Warning::new("model_replaced", message));
    Ok(())
}

/// True if a run has failed because the file of a model has changed: what it has written may not be continued.
pub fn is_of_changed_model(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<Error>()
        .is_some_and(Error::is_of_changed_model)
        || matches!(error.downcast_ref(), Some(EngineError::Changed(_)))
}

/// Refuses windows that are longer than the positions that the model has learned, and warns if they
/// are longer than the context that it was trained for.
pub fn check_windows(n_ctx: u32, model: &dyn Model, watch: &Watch<'_>) -> Result<()> {
    model.facts().check_window(n_ctx.into())?;
    if let Some(n_ctx_train) = model.facts().n_ctx_train
        && n_ctx > n_ctx_train
    {
        let message = format!(
            "the window of {n_ctx} tokens is longer than the {n_ctx_train} that the model was trained on: expect nonsense past that point; use shorter windows: lower --n-ctx or --generate, or leave out the longest prompts"
        );
        watch.warn(Warning::new("long_window", message));
    }
    Ok(())
}

/// The options of a context before its model is loaded, with the largest batch that they may have, so
/// that what is fitted beside it fits in the end.
pub fn largest_context(
    run: &RunSettings,
    n_ctx: Option<u32>,
    precedents: Precedents<'_>,
) -> ContextOptions {
    /// The window of prompts whose tokens are not counted yet: llama.cpp fits models to as many.
    const PROMPT_N_CTX: u32 = 4096;
    /// The smaller a vocabulary, the larger is the default batch.
    const LARGEST: Decoding = Decoding {
        n_vocab: 1,
        window_rows: u32::MAX,
        is_accelerated: true,
        is_quantized: true,
        is_together: true,
        min_n_ctx: 0,
        max_tokens_together: u32::MAX,
    };
    context_options(run, n_ctx.unwrap_or(PROMPT_N_CTX), LARGEST, precedents)
}

/// Describes how this run computes rows, for a header or to compare with one.
///
/// # Errors
/// If the engine cannot be started.
pub fn backend_identity(
    engine: &dyn Engine,
    model: &dyn Model,
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
    identity.weights = recorded_weights(loaded.is_dequantized);
    identity.placement = Some(loaded.placement()).filter(|flags| !flags.is_empty());
    record_calls(&mut identity, options);
    identity.threads = Some(options.threads);
    Ok(identity)
}

/// The part of a set-up that is settled before a model is loaded: the rest depends on the model and the
/// devices.
pub fn settled_identity(engine: &dyn Engine, options: &ContextOptions) -> BackendIdentity {
    let mut identity = BackendIdentity::default();
    identity.llama_cpp = Some(engine.version());
    identity.flash_attn = Some(options.flash_attn.to_string());
    identity.type_k = Some(options.type_k.to_string());
    identity.type_v = Some(options.type_v.to_string());
    identity
}

/// The weights of a model, as headers record them.
pub fn recorded_weights(is_dequantized: bool) -> Option<String> {
    is_dequantized.then(|| "f16".to_owned())
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

/// llama.cpp's own default batches, which accelerators like.
const ACCELERATOR_N_BATCH: u32 = 2048;
const ACCELERATOR_N_UBATCH: u32 = 512;

/// With an accelerator, rows of logits may fill this share of the host's available memory, which also holds
/// the buffers that read and score them, and ggml's own staging buffers.
const MEMORY_SHARE: u64 = 8;

/// Most windows of a call. llama.cpp holds 256 sequences; more than these make no call faster.
const MAX_N_SEQ: u32 = 64;

/// Tokens in the KV caches of all answers that are generated together, unless one needs more: as many as two
/// contexts of 4096 tokens hold, for which `-ngl auto` leaves room.
const ANSWERS_N_CTX: u32 = 8192;

/// Most answers that the CPU generates together in f32, f16 or bf16, where any number gives the tokens of one
/// at a time. Of a model of 0.5 billion parameters, 512 tokens took 67 s of processor time with 4, 59 s with 8,
/// 66 s with 16.
const CPU_ANSWERS: u32 = 8;

/// The same with quantized weights. A lone token is decoded beside a copy of itself, so two have its kernels.
/// From four on, ggml multiplies weights that it keeps in another order by others.
const CPU_QUANTIZED_ANSWERS: u32 = 2;

/// The model's properties that decide how its windows are decoded.
#[derive(Debug, Clone, Copy)]
pub struct Decoding {
    /// Entries of a row.
    pub n_vocab: u32,
    /// Most rows that are wanted of a window.
    pub window_rows: u32,
    /// True if an accelerator computes some of its layers.
    pub is_accelerated: bool,
    /// True if some of its weights are quantized.
    pub is_quantized: bool,
    /// True if a call may decode several windows.
    pub is_together: bool,
    /// The fewest tokens of a context in which llama.cpp computes as in one of the reference's n_ctx.
    pub min_n_ctx: u32,
    /// The most tokens of all windows that share a cache in which it computes so: by what is allocated to a
    /// sequence, the whole cache, llama.cpp chooses the factors of LongRoPE.
    pub max_tokens_together: u32,
}

impl Decoding {
    /// Reads them from a loaded model. `window_rows` is the most rows that are wanted of a window, and `n_ctx`
    /// the reference's, which its windows may be shorter than.
    pub fn from_model(model: &dyn Model, window_rows: u32, n_ctx: u32) -> Self {
        let facts = model.facts();
        let contexts = facts.contexts_like(n_ctx);
        Self {
            n_vocab: facts.n_vocab,
            window_rows,
            is_accelerated: facts.options.n_gpu_layers != GpuLayers::Count(0),
            is_quantized: facts.is_quantized,
            is_together: facts.layers.can_decode_together(),
            min_n_ctx: *contexts.start(),
            max_tokens_together: *contexts.end(),
        }
    }

    /// One window a call, for those who need to know what was decoded in which.
    pub fn one_by_one(self) -> Self {
        Self {
            is_together: false,
            ..self
        }
    }

    /// The number of answers that grow together, in windows of `n_ctx` tokens: what the user set, else as many
    /// as `ANSWERS_N_CTX` holds; on the CPU no more than give the tokens of one at a time. A model that
    /// decodes its windows one by one answers one by one too.
    pub fn n_answers(self, run: &RunSettings, n_ctx: u32) -> u32 {
        if !self.is_together {
            return 1;
        }
        let max_identical = if self.is_accelerated {
            MAX_N_SEQ
        } else if run.flash_attn == Some(FlashAttention::Off) {
            // Its products have as many columns as a sequence has tokens in the call: a lone one has two.
            1
        } else if self.is_quantized {
            CPU_QUANTIZED_ANSWERS
        } else {
            CPU_ANSWERS
        };
        let max_answers = max_identical.min(ANSWERS_N_CTX / n_ctx.max(1));
        // A call has a token of each answer: where they do not fit into the user's batch, one grows at a time.
        let batch = [run.n_batch, run.n_ubatch].into_iter().flatten().min();
        let fits = batch.is_none_or(|n| n >= max_answers);
        let n_answers = if fits { max_answers } else { 1 };
        run.n_parallel.unwrap_or(n_answers).clamp(1, MAX_N_SEQ)
    }

    /// Most rows of a call of `n_batch` tokens, in windows of `n_ctx`.
    fn call_rows(self, n_batch: u32, n_ctx: u32) -> u32 {
        let mut n_windows = 1;
        if self.is_together {
            n_windows = (n_batch / n_ctx.max(1)).max(1);
        }
        n_batch.min(self.window_rows.saturating_mul(n_windows))
    }
}

/// The sizes of decode calls: where windows are split, and how many a call decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    pub calls: Calls,
    pub n_seq: u32,
}

impl Split {
    fn recorded(backend: &BackendIdentity) -> Option<Self> {
        let (calls, n_seq) = (backend.calls()?, backend.n_seq.unwrap_or(1));
        Some(Self { calls, n_seq })
    }

    /// The sizes that a reference records, for a model that is evaluated against it. Physical batches of
    /// several windows that are larger than any default were chosen because its model is larger than the
    /// memory: others get as many windows as a default batch holds.
    pub fn of_reference(backend: &BackendIdentity, n_ctx: u32) -> Option<Self> {
        let mut split = Self::recorded(backend)?;
        if split.n_seq > 1 && split.calls.n_ubatch > ACCELERATOR_N_BATCH {
            let n_seq = ACCELERATOR_N_BATCH / n_ctx.max(1);
            split.n_seq = n_seq.clamp(1, split.n_seq);
            split.calls.n_batch = split.n_seq * n_ctx;
            split.calls.n_ubatch = split.calls.n_batch;
        }
        Some(split)
    }

    /// Chooses for windows of at most `n_ctx` tokens: what the user set, else what the reference was
    /// computed with, else what is best. A batch that the user sets is llama.cpp's.
    pub fn choose(
        run: &RunSettings,
        n_ctx: u32,
        decoding: Decoding,
        precedent: Option<Split>,
    ) -> Self {
        let n_ctx = n_ctx.max(1);
        let is_set = run.n_batch.is_some() || run.n_ubatch.is_some();
        // Once, as the memory that is free changes.
        let best = LazyCell::new(|| Self::best(n_ctx, decoding, run.n_contexts(true)));
        let default = precedent.unwrap_or_else(|| *best);
        let max_batch = run.n_batch.unwrap_or(match run.n_parallel {
            // As many as fit in what is best.
            Some(_) if decoding.is_accelerated => best.calls.n_batch,
            Some(_) => default_batch(decoding.n_vocab),
            None => default.calls.n_batch,
        });
        let mut n_seq = 1;
        if decoding.is_together {
            n_seq = run.n_parallel.unwrap_or(default.n_seq);
        }
        let max_windows = max_batch.min(decoding.max_tokens_together) / n_ctx;
        n_seq = n_seq.min(max_windows).clamp(1, MAX_N_SEQ);
        let wanted_batch = match (run.n_batch, n_seq) {
            (None, 1) => default.calls.n_batch,
            _ => max_batch,
        };
        // A batch is never larger than its windows. Stated here, so that headers of equal runs are
        // equal.
        let n_batch = wanted_batch.min(n_ctx.saturating_mul(n_seq));
        let n_ubatch = run.n_ubatch.unwrap_or(match default.calls.is_equal {
            true if is_set || n_seq > 1 => n_batch,
            _ => default.calls.n_ubatch,
        });
        Self {
            calls: Calls {
                n_batch,
                n_ubatch: n_ubatch.min(n_batch),
                is_equal: default.calls.is_equal && !is_set && n_seq == 1 && n_batch < n_ctx,
            },
            n_seq,
        }
    }

    /// The best sizes where nothing is set: on the CPU, equal calls of one window; with an
    /// accelerator, llama.cpp's batches, with as many whole windows as they hold.
    fn best(n_ctx: u32, decoding: Decoding, n_contexts: u32) -> Self {
        if !decoding.is_accelerated {
            return Self {
                calls: default_calls(decoding.n_vocab, n_ctx),
                n_seq: 1,
            };
        }
        let max_rows = memory::available().map(|bytes| {
            let row_bytes = 4 * u64::from(decoding.n_vocab.max(1)) * u64::from(n_contexts.max(1));
            bytes / MEMORY_SHARE / row_bytes
        });
        let fits = |n_batch| {
            max_rows
                .is_none_or(|max_rows| u64::from(decoding.call_rows(n_batch, n_ctx)) <= max_rows)
        };
        Self {
            calls: Calls {
                n_batch: fitting_batch(fits),
                n_ubatch: ACCELERATOR_N_UBATCH,
                is_equal: false,
            },
            n_seq: MAX_N_SEQ,
        }
    }

    /// Tells how a run with an accelerator decodes, which depends on the memory that is free, or
    /// with several windows in a call. `n_windows`: how many there are, if that is known.
    pub fn announce(
        options: &ContextOptions,
        decoding: Decoding,
        n_windows: Option<usize>,
        watch: &Watch<'_>,
    ) {
        if !decoding.is_accelerated && options.n_seq <= 1 {
            return;
        }
        let (n_batch, n_ubatch) = (options.calls.n_batch, options.calls.n_ubatch);
        let n_rows = decoding.call_rows(n_batch, options.n_ctx);
        let logits = bytes(4 * u64::from(n_rows) * u64::from(decoding.n_vocab));
        let n_windows = n_windows.and_then(|n| u32::try_from(n).ok());
        let windows = match options.n_seq.min(n_windows.unwrap_or(u32::MAX)) {
            0 | 1 => String::new(),
            n => format!(", up to {n} windows in a call"),
        };
        let text = format!("{n_batch}, physical {n_ubatch}{windows}; logits of a call: {logits}");
        watch.event(&Event::Plan("batch", &text));
    }
}

/// Refuses several windows in a call where a model cannot decode them, before it is loaded.
///
/// # Errors
/// If `--parallel` asks for it; what is wrong with the model's file.
pub fn check_parallel(run: &RunSettings, engine: &dyn Engine, path: &Path) -> Result<()> {
    match run.n_parallel {
        Some(n @ 2..) => {
            let kind = match engine.inspect(path)?.layers {
                Layers::Attention => return Ok(()),
                Layers::Hybrid | Layers::Recurrent => "recurrent layers",
                Layers::SparseAttention => "sparse attention",
            };
            bail!(
                "{}: -np {n}: a model with {kind} decodes one window at a time: leave out -np",
                path.display()
            )
        }
        _ => Ok(()),
    }
}

/// The batch whose rows fit: llama.cpp's, halved as often as needed, but never less than a physical
/// one.
fn fitting_batch(fits: impl Fn(u32) -> bool) -> u32 {
    let mut n_batch = ACCELERATOR_N_BATCH;
    while n_batch > ACCELERATOR_N_UBATCH && !fits(n_batch) {
        n_batch /= 2;
    }
    n_batch
}

/// By how much the numbers of parameters may differ: some quants leave out the layers that predict
/// further tokens, and a small model's output head, up to 28 % of one of 0.5 billion parameters, may
/// be stored in one file and be the embeddings in the other.
const PARAMETERS_TOLERANCE: f64 = 0.3;

/// The fewest bits per weight with which a reference is an original.
const ORIGINAL_BITS: f64 = 15.5;

/// The most bits per weight that a quant may have, as a multiple of the reference's. Two
/// conversions of one model differ by little: some keep a few tensors in another type.
const BITS_TOLERANCE: f64 = 1.1;

/// Warns if the evaluated model is another one than the reference's, or the larger one of the two.
pub fn check_models(reference: Option<&ModelIdentity>, model: &ModelIdentity, watch: &Watch<'_>) {
    let Some(reference) = reference else { return };
    if let Some(warning) = other_model(reference, model) {
        watch.warn(warning);
    } else if let (Some(bits), Some(reference_bits)) =
        (model.bits_per_weight(), reference.bits_per_weight())
        && reference_bits < ORIGINAL_BITS
        && bits > BITS_TOLERANCE * reference_bits
    {
        let message = format!(
            "the reference's model has {reference_bits:.2} bits per weight, the evaluated one {bits:.2}: the reference should be the original's; were the two swapped?"
        );
        watch.warn(Warning::new("smaller_reference", message));
    }
}

/// The warning that the evaluated model cannot be a quant of the reference's, if headers show it.
pub fn other_model(reference: &ModelIdentity, model: &ModelIdentity) -> Option<Warning> {
    let warning = |property, value: &dyn Display, reference_value: &dyn Display| {
        let message = format!(
            "the model's {property} is {value}, and {reference_value} for the reference's: they are different models, and the KLD does not measure a quantization"
        );
        Some(Warning::new("other_model", message))
    };
    if let (Some(own), Some(original)) = (&model.architecture, &reference.architecture)
        && own != original
    {
        return warning("architecture", own, original);
    }
    let (own, original) = (model.n_params?, reference.n_params?);
    if (own as f64 - original as f64).abs() > PARAMETERS_TOLERANCE * original as f64 {
        return warning("number of parameters", &own, &original);
    }
    None
}

#[cfg(test)]
mod tests;
