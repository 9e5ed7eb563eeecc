//! Loads a model, with its weights where its options place them, and what the loaded model gives.
//!
//! llama-cpp-2 cannot place weights, so models are loaded with llama-cpp-sys-2.

use std::collections::HashSet;
use std::io::{Cursor, Read};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use kl_formats::{Calls, Float, HeadCheck, HeadTensor, ModelIdentity, States, WindowSpec};
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use llama_cpp_sys_2 as sys;

use super::backends::TURN;
#[cfg(unix)]
use super::bus_error::Mapped;
use super::context::{Context, Contexts};
use super::context_sizes::context_sizes;
use super::decoder::LlamaCppDecoder;
use super::dequantize;
use super::device::{GgmlDevice, names};
use super::exchange::Weight;
use super::guard::{calls, guarded};
use super::handle::as_ptr;
use super::head::HeadProduct;
use super::hidden_states::{Probe, Tap};
use super::load_errors;
use super::log::{last_log_errors, while_loading};
use super::params::ModelParams;
use super::tokenizer::{tokenize, tokenize_start};
use super::trace::Tracer;
use super::vocab::Vocab;
use super::{LlamaCpp, inspect, layers};
use crate::dequantized_copy::TemporaryCopy;
use crate::gguf::{Gguf, sha256_of};
use crate::model_files::IN_USE;
use crate::{
    ContextOptions, ContextSizes, Decoder, DeviceKind, EngineError, FileChange, GpuLayers, Head,
    Layers, Model, ModelFacts, ModelFiles, ModelOptions, Nodes, SplitMode, TensorOverride,
    TracedNode, Weights, memory,
};

/// A model that llama.cpp has loaded.
pub(super) struct LlamaCppModel<'b> {
    /// The backends, which outlive the model.
    pub(super) _engine: &'b LlamaCpp,
    pub(super) inner: LlamaModel,
    pub(super) facts: ModelFacts,
    pub(super) header: Arc<Gguf>,
    /// The devices that may compute parts of it.
    pub(super) gpus: Vec<GgmlDevice>,
    /// Locked while one of the contexts decodes.
    turn: Mutex<()>,
    pub(super) contexts: Mutex<Contexts>,
    /// The facts that a graph shows, once one was computed.
    pub(super) probe: OnceLock<Probe>,
    /// SHA-256 of the head's matrix, once it was needed.
    head_sha256: OnceLock<String>,
    /// The weights that can be exchanged, once they were looked for.
    pub(super) exchangeable: OnceLock<Vec<Weight>>,
    /// Its files as they were when it was loaded.
    pub(super) files: ModelFiles,
    #[cfg(unix)]
    _mapped: Option<Mapped>,
    /// The copy with dequantized weights that was loaded in place of its file.
    copy: Option<TemporaryCopy>,
}

impl LlamaCppModel<'_> {
    /// The error for this model.
    pub(super) fn fault(&self, what: impl Into<String>) -> EngineError {
        EngineError::model(&self.facts.path, what)
    }

    /// Returns the lock that is held while one of the contexts decodes; devices of servers are
    /// shared by all models.
    pub(super) fn turn(&self) -> &Mutex<()> {
        let is_remote = |gpu: &GgmlDevice| gpu.kind() == DeviceKind::Remote;
        if self.gpus.iter().any(is_remote) {
            &TURN
        } else {
            &self.turn
        }
    }
}

impl Model for LlamaCppModel<'_> {
    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn token_bytes(&self, token: u32) -> Option<Vec<u8>> {
        (token < self.facts.n_vocab).then(|| Vocab::new(&self.inner).piece(token as i32))?
    }

    fn is_special(&self, token: u32) -> bool {
        let special = LlamaTokenAttr::Control | LlamaTokenAttr::UserDefined;
        let attributes = || self.inner.vocab().attr(LlamaToken(token as i32));
        token < self.facts.n_vocab && attributes().intersects(special)
    }

    fn is_end_of_generation(&self, token: u32) -> bool {
        token < self.facts.n_vocab && self.inner.vocab().is_eog(LlamaToken(token as i32))
    }

    fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, EngineError> {
        tokenize(&self.inner, &self.header, text, parse_special)
    }

    fn tokenize_start(
        &self,
        text: &str,
        parse_special: bool,
        n_tokens: usize,
    ) -> Result<(Vec<u32>, bool), EngineError> {
        tokenize_start(&self.inner, &self.header, text, parse_special, n_tokens)
    }

    fn decoder(&self, options: &ContextOptions) -> Result<Box<dyn Decoder + '_>, EngineError> {
        let head = options.shows_states.then(|| self.found_head());
        let tap = head
            .transpose()?
            .map(|head| Arc::new(Mutex::new(Tap::new(head.clone()))));
        let tracer = options.is_noisy.then(Tracer::noise);
        let noise = tracer.map(|tracer| Arc::new(Mutex::new(tracer)) as _);
        let watch = tap.clone().map(|tap| tap as _).or(noise);
        Ok(Box::new(LlamaCppDecoder {
            context: Context::new(self, options, watch)?,
            calls: options.calls,
            n_seq: options.n_seq.max(1) as usize,
            has_own_caches: options.has_own_caches,
            is_as_deployed: options.is_as_deployed,
            tap,
            company: None,
        }))
    }

    /// Contexts of a model without weights take no memory, and show how much they would take. It is not kept, as
    /// a large vocabulary takes some.
    fn context_sizes(&self, options: &ContextOptions) -> Result<ContextSizes, EngineError> {
        let path = &self.facts.path;
        let without_weights = ModelOptions {
            is_without_weights: true,
            ..ModelOptions::default()
        };
        let (model, _) = open(
            path,
            &self.header,
            &ModelParams::new(path, &without_weights, &[])?,
        )?;
        self.files.check_same(IN_USE)?;
        let sizes = context_sizes(&model, options);
        sizes.map_err(|why| self.fault(format!("llama.cpp could not size its KV cache: {why}")))
    }

    fn trace(
        &self,
        options: &ContextOptions,
        windows: &[WindowSpec],
        positions: &[usize],
        nodes: Nodes,
    ) -> Result<Vec<TracedNode>, EngineError> {
        self.traced(options, windows, positions, nodes)
    }

    fn describe_states(&self, calls: Calls) -> Result<States, EngineError> {
        let (head, tensor) = self.head_tensor()?;
        Ok(States {
            n_embd: head.n_embd,
            state_type: Float::F32,
            head: HeadTensor {
                name: head.name.clone(),
                type_name: tensor.kind.name.to_owned(),
                type_id: tensor.kind.id,
                bytes: tensor.bytes,
                sha256: String::new(),
            },
            then: head.then.iter().map(|&(step, _)| step).collect(),
            calls,
            check: HeadCheck::default(),
        })
    }

    fn head_sha256(&self) -> Result<String, EngineError> {
        if let Some(sha256) = self.head_sha256.get() {
            return Ok(sha256.clone());
        }
        let (_, tensor) = self.head_tensor()?;
        let sha256 = sha256_of(self.header.open(tensor)?)
            .map_err(|error| self.fault(format!("cannot be read: {error}")))?;
        self.files.check_same(IN_USE)?;
        Ok(self.head_sha256.get_or_init(|| sha256).clone())
    }

    fn read_head(&self) -> Result<Box<dyn Read>, EngineError> {
        self.files.check_same(IN_USE)?;
        let (head, tensor) = self.head_tensor()?;
        let values = head.then.iter().flat_map(|(_, values)| values);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        Ok(Box::new(
            self.header.open(tensor)?.chain(Cursor::new(bytes)),
        ))
    }

    fn load_head(
        &self,
        states: &States,
        section: &mut dyn Read,
        threads: u32,
    ) -> Result<Box<dyn Head + '_>, EngineError> {
        let head = HeadProduct::new(states, section, threads, Some(self))?;
        Ok(Box::new(head))
    }

    fn weights(&self) -> Result<&dyn Weights, EngineError> {
        if !self.facts.options.is_exchangeable {
            return Err(self.fault("was not loaded to exchange its weights"));
        }
        Ok(self)
    }

    fn file_change(&self) -> Option<FileChange> {
        self.files.change()
    }

    /// On the CPU the system reclaims the model's memory: llama.cpp frees a large vocabulary piece
    /// by piece, which takes longer than evaluating several windows. Accelerators want their
    /// buffers back before the process ends.
    fn drop_last(mut self: Box<Self>) {
        drop(self.copy.take());
        if self.gpus.is_empty() {
            std::mem::forget(self);
        }
    }
}

impl<'b> LlamaCppModel<'b> {
    /// Loads a GGUF, after [`inspect`] has refused what llama.cpp would abort on.
    ///
    /// # Errors
    /// Devices or memory that do not exist, proportions for more devices than there are, too little
    /// memory, or why llama.cpp refuses the model.
    pub(super) fn load(
        engine: &'b LlamaCpp,
        path: &Path,
        options: &ModelOptions,
    ) -> Result<Self, EngineError> {
        let started = Instant::now();
        let first_file = ModelFiles::look_at(&[path.to_owned()]);
        let mut header = inspect(path)?;
        let mut files = ModelFiles::look_at(&header.files);
        let mut identity = header.identity();
        identity.size_bytes = Some(header.tensors.iter().map(|tensor| tensor.bytes).sum());
        let mut copy = None;
        if options.is_dequantized {
            copy = dequantize::copy(&header)?;
        }
        let given_path = path;
        let path = copy.as_ref().map_or(given_path, TemporaryCopy::path);
        if copy.is_some() {
            header = inspect(path)?;
            files = ModelFiles::look_at(&header.files);
        }
        let is_mapped = options.use_mmap != Some(false)
            && !options.is_exchangeable
            && !options.is_without_weights;
        if let Some(fault) = header.misaligned().filter(|_| is_mapped) {
            return Err(EngineError::model(path, fault.what));
        }
        // Errors that an earlier model left in the log are not this one's.
        let _ = last_log_errors();
        let mut gpus = devices(options)?;
        let mut params = ModelParams::new(path, options, &gpus)?;
        let memory = memory::limit().or_else(memory::total);
        let is_on_cpu = gpus.is_empty() || options.n_gpu_layers == GpuLayers::Count(0);
        if memory.is_some_and(|memory| is_on_cpu && header.file_bytes > memory) {
            // Weights in another order would be a copy in memory.
            params.raw.use_extra_bufts = false;
            if options.use_mlock || options.use_mmap == Some(false) {
                let what = "is larger than the memory: leave out --mlock and --no-mmap, and its weights are read from the disk while it runs";
                return Err(EngineError::model(path, what));
            }
        }
        #[cfg(unix)]
        let mapped = params.is_mapped().then(|| Mapped::add(&files));
        let (model, n_layers) = open(path, &header, &params)?;
        first_file.check_same("loaded")?;
        files.check_same("loaded")?;
        let is_mapped = params.is_mapped();
        let options = params.resolved(options, n_layers, gpus.len(), header.has_experts());
        if options.split_mode == Some(SplitMode::None) {
            let index = usize::try_from(options.main_gpu.unwrap_or_default());
            let main = index.ok().and_then(|i| gpus.get(i)).copied();
            gpus = main.into_iter().collect();
        }
        Ok(Self {
            _engine: engine,
            facts: ModelFacts {
                load_time: started.elapsed(),
                is_mapped,
                ..facts((given_path, identity), &header, &model, options, n_layers)
            },
            inner: model,
            header,
            gpus,
            turn: Mutex::default(),
            contexts: Mutex::default(),
            probe: OnceLock::new(),
            head_sha256: OnceLock::new(),
            exchangeable: OnceLock::new(),
            files,
            #[cfg(unix)]
            _mapped: mapped,
            copy,
        })
    }
}

/// Loads the weights, and counts the layers that can be offloaded.
fn open(
    path: &Path,
    header: &Gguf,
    params: &ModelParams,
) -> Result<(LlamaModel, u32), EngineError> {
    // SAFETY: the path is valid, and so are all lists that the parameters point to, which end as
    // llama.cpp wants them to. It copies the proportions, and reads no other list later.
    let load = || unsafe { calls::llama_model_load_from_file(params.file.as_ptr(), params.raw) };
    let loaded = while_loading(path, || guarded(load));
    let model = match loaded.map(NonNull::new) {
        Ok(Some(model)) => Ok(model),
        Ok(None) => Err(last_log_errors()),
        Err(exception) => Err(exception),
    };
    let model = model.map_err(|reason| {
        let advice = load_errors::advice(&reason, header);
        let advice = advice.map_or(String::new(), |advice| format!(" ({advice})"));
        EngineError::model(
            path,
            format!("llama.cpp could not load the model: {reason}{advice}"),
        )
    })?;
    // The layers that predict further tokens (MTP) are counted too: llama.cpp offloads them first.
    // SAFETY: the model is valid. `LlamaModel` is a transparent wrapper of this pointer, at the version
    // that Cargo.toml pins, and frees the model when it is dropped.
    unsafe {
        let n_layers = sys::llama_model_n_layer(model.as_ptr())
            + sys::llama_model_n_layer_nextn(model.as_ptr())
            + 1;
        let model = std::mem::transmute::<NonNull<sys::llama_model>, LlamaModel>(model);
        Ok((model, u32::try_from(n_layers).unwrap_or(0)))
    }
}

/// Gathers the facts about a loaded model, which has this path and, but for its parameters, this identity.
fn facts(
    (path, mut identity): (&Path, ModelIdentity),
    header: &Gguf,
    model: &LlamaModel,
    options: ModelOptions,
    n_layers: u32,
) -> ModelFacts {
    let vocab = model.vocab();
    let n_vocab = model.n_vocab().max(0) as u32;
    identity.n_params = Some(model.n_params());
    let text = |token: LlamaToken| {
        if token.0 < 0 {
            return String::new();
        }
        let bytes = Vocab::new(model).piece(token.0).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let on_cpu = |tensors: &TensorOverride| tensors.memory == TensorOverride::CPU;
    let n_ctx_train = header.architecture_number("context_length");
    ModelFacts {
        path: path.to_owned(),
        identity,
        tokenizer: header.tokenizer.clone(),
        lacks_pre_tokenizer: header.lacks_pre_tokenizer(),
        n_vocab,
        n_used_vocab: n_vocab.saturating_sub(header.n_padding),
        n_ctx_train: n_ctx_train
            .and_then(|n| u32::try_from(n).ok())
            .filter(|&n| n > 0),
        n_positions: header.n_positions(),
        layers: match (model.is_recurrent(), model.is_hybrid()) {
            (true, _) => Layers::Recurrent,
            (false, true) => Layers::Hybrid,
            (false, false) => match layers(header) {
                sparse @ Layers::SparseAttention => sparse,
                _ => Layers::Attention,
            },
        },
        long_rope_above: header.long_rope_above(),
        is_quantized: header.tensors.iter().any(|tensor| tensor.kind.block > 1),
        has_experts: header.has_experts(),
        bos_token: u32::try_from(vocab.bos().0).ok(),
        add_bos: vocab.should_add_bos(),
        suppressed_tokens: suppressed_tokens(model),
        sampling: header.sampling(),
        bos_and_eos_text: (text(vocab.bos()), text(vocab.eos())),
        add_eos: vocab.should_add_eos(),
        chat_template: model.meta_val_str("tokenizer.chat_template").ok(),
        tool_use_template: model.meta_val_str("tokenizer.chat_template.tool_use").ok(),
        is_offloaded: options.n_gpu_layers == GpuLayers::Count(n_layers)
            && !options.all_overrides().iter().any(on_cpu)
            && !options.no_kv_offload,
        options,
        n_layers,
        is_mapped: false,
        loaded_bytes: model.size(),
        load_time: Duration::ZERO,
    }
}

/// The tokens that llama.cpp's own sampler never chooses (`common_sampler_init` in its `sampling.cpp`). It
/// has left out those beyond the vocabulary.
fn suppressed_tokens(model: &LlamaModel) -> Vec<u32> {
    let mut n_tokens = 0;
    // SAFETY: the list has `n_tokens` elements, and lives as long as the model.
    let tokens = unsafe {
        let vocab = sys::llama_model_get_vocab(as_ptr(model));
        let tokens = sys::llama_vocab_get_suppress_tokens(vocab, &raw mut n_tokens);
        if tokens.is_null() || n_tokens <= 0 {
            return Vec::new();
        }
        std::slice::from_raw_parts(tokens, n_tokens as usize)
    };
    let ids = tokens.iter().filter_map(|&id| u32::try_from(id).ok());
    ids.collect()
}

/// The devices for a model, which llama.cpp always gets as a list: those that the user names, in that
/// order, or else those that llama.cpp would choose itself (`llama_prepare_model_devices` in its
/// `llama.cpp`). These are RPC servers, then GPUs with memory of their own, each once however many
/// backends have it. Without any such GPU, the integrated GPUs of the first backend that has some follow
/// the servers.
fn devices(options: &ModelOptions) -> Result<Vec<GgmlDevice>, EngineError> {
    if options.is_on_cpu() {
        return Ok(Vec::new());
    }
    if !options.devices.is_empty() {
        let mut all = GgmlDevice::all();
        all.retain(|device| device.kind() != DeviceKind::Cpu);
        let known = names(&all).join(", ");
        let available = if known.is_empty() {
            "only 'none', the CPU alone, is available: this kl was built without an accelerator \
             backend, or finds no device (kl --list-devices shows what it finds)"
        } else {
            &format!(
                "available are {known} and 'none', the CPU alone (kl --list-devices describes them)"
            )
        };
        let named = |name: &String| {
            let found = all.iter().find(|device| device.name() == *name).copied();
            found.ok_or_else(|| EngineError::Setup(format!("no device '{name}': {available}")))
        };
        return options.devices.iter().map(named).collect();
    }
    let mut chosen: Vec<GgmlDevice> = GgmlDevice::of_kind(DeviceKind::Remote).collect();
    let n_servers = chosen.len();
    let mut ids = HashSet::new();
    let gpus = GgmlDevice::of_kind(DeviceKind::Gpu);
    chosen.extend(gpus.filter(|gpu| gpu.hardware_id().is_none_or(|id| ids.insert(id))));
    if chosen.len() == n_servers {
        let mut integrated = GgmlDevice::of_kind(DeviceKind::IntegratedGpu).peekable();
        let first = integrated.peek().map(|gpu| gpu.backend());
        chosen.extend(integrated.filter(|gpu| Some(gpu.backend()) == first));
    }
    Ok(chosen)
}
