//! A model that llama.cpp has loaded.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use kl_formats::{ModelIdentity, States, TokenizerIdentity};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;

use super::context::Contexts;
use super::device::Device;
use super::load::{Loaded, load};
use super::probe::Found;
use super::rpc;
use super::tap::Tap;
use super::{LlamaCppDecoder, LlamaCppHead, check_positions, inspect};
use crate::engine::gguf::{GgufSummary, TensorPlace};
use crate::engine::{
    ContextOptions, EngineError, GpuLayers, Model, ModelOptions, OutputHead, TensorOverride,
    Tokens, last_log_errors,
};

/// A model that llama.cpp has loaded.
pub struct LlamaCppModel<'b> {
    _backend: &'b LlamaBackend,
    pub(super) inner: LlamaModel,
    pub(super) path: PathBuf,
    pub(super) header: GgufSummary,
    /// How it was loaded.
    pub(super) options: ModelOptions,
    n_layers: u32,
    /// The devices that may compute parts of it.
    pub(super) gpus: Vec<Device>,
    /// Locked while one of the contexts decodes.
    turn: Mutex<()>,
    pub(super) contexts: Contexts,
    /// Its output head, once it was looked for.
    pub(super) found: OnceLock<Found>,
    /// Where the head's matrix lies in its file, and its SHA-256, once they were needed.
    pub(super) head_place: OnceLock<TensorPlace>,
    pub(super) head_sha256: OnceLock<String>,
}

impl<'b> LlamaCppModel<'b> {
    /// Loads a GGUF, after [`inspect`] has refused what llama.cpp would abort on.
    pub(super) fn load(
        backend: &'b LlamaBackend,
        path: &Path,
        options: &ModelOptions,
    ) -> Result<Self, EngineError> {
        let before = fs::metadata(path).ok();
        let header = inspect(path)?;
        // Errors that an earlier model left in the log are not this one's.
        let _ = last_log_errors();

        let Loaded {
            model: inner,
            options,
            gpus,
            n_layers,
        } = load(path, options)?;
        let stamp = |metadata: Option<fs::Metadata>| {
            metadata.map(|metadata| (metadata.len(), metadata.modified().ok()))
        };
        if stamp(fs::metadata(path).ok()) != stamp(before) {
            return Err(EngineError::Changed {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            _backend: backend,
            inner,
            path: path.to_owned(),
            header,
            options,
            n_layers,
            gpus,
            turn: Mutex::new(()),
            contexts: Contexts::default(),
            found: OnceLock::new(),
            head_place: OnceLock::new(),
            head_sha256: OnceLock::new(),
        })
    }
}

impl LlamaCppModel<'_> {
    /// What is locked while one of the contexts decodes; devices of servers are shared by all models.
    pub(super) fn turn(&self) -> &Mutex<()> {
        match self.gpus.iter().any(|device| device.is_remote()) {
            true => &rpc::TURN,
            false => &self.turn,
        }
    }
}

impl Tokens for LlamaCppModel<'_> {
    fn token_bytes(&self, token: u32) -> Option<Vec<u8>> {
        let vocab = self.inner.vocab();
        let piece = || vocab.token_to_piece(LlamaToken(token as i32), true, None);
        (token < self.n_vocab()).then(piece)
    }

    fn is_special(&self, token: u32) -> bool {
        let special = LlamaTokenAttr::Control | LlamaTokenAttr::UserDefined;
        let attributes = || self.inner.vocab().attr(LlamaToken(token as i32));
        token < self.n_vocab() && attributes().intersects(special)
    }
}

impl Model for LlamaCppModel<'_> {
    type Decoder<'m>
        = LlamaCppDecoder<'m>
    where
        Self: 'm;
    type Head<'m>
        = LlamaCppHead<'m>
    where
        Self: 'm;

    fn path(&self) -> &Path {
        &self.path
    }

    /// Sizes are llama.cpp's: bytes and parameters of the tensors, from which it computes its BPW.
    fn identity(&self) -> ModelIdentity {
        let mut identity = self.header.identity(&self.path);
        identity.size_bytes = Some(self.inner.size());
        identity.n_params = Some(self.inner.n_params());
        identity
    }

    fn tokenizer(&self) -> Option<&TokenizerIdentity> {
        self.header.tokenizer.as_ref()
    }

    fn n_vocab(&self) -> u32 {
        self.inner.n_vocab().max(0) as u32
    }

    fn n_used_vocab(&self) -> u32 {
        self.n_vocab().saturating_sub(self.header.n_padding)
    }

    fn n_ctx_train(&self) -> Option<u32> {
        Some(self.inner.n_ctx_train()).filter(|&n| n > 0)
    }

    fn has_attention(&self) -> bool {
        !self.inner.is_recurrent()
    }

    fn lacks_pre_tokenizer(&self) -> bool {
        self.header.lacks_pre_tokenizer
    }

    fn check_window(&self, n_tokens: u32) -> Result<(), EngineError> {
        check_positions(self.header.n_positions, n_tokens.into(), &self.path)
    }

    fn bos(&self) -> Option<u32> {
        let wants_bos = self.inner.vocab().should_add_bos();
        self.bos_token().filter(|_| wants_bos)
    }

    fn bos_token(&self) -> Option<u32> {
        let LlamaToken(bos) = self.inner.vocab().bos();
        u32::try_from(bos).ok()
    }

    fn bos_and_eos_text(&self) -> (String, String) {
        let vocab = self.inner.vocab();
        let text = |LlamaToken(id)| u32::try_from(id).map_or(String::new(), |id| self.text(&[id]));
        (text(vocab.bos()), text(vocab.eos()))
    }

    fn chat_template(&self) -> Option<String> {
        self.inner.meta_val_str("tokenizer.chat_template").ok()
    }

    fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, EngineError> {
        // llama.cpp counts the bytes of a text in 31 bits.
        if i32::try_from(text.len()).is_err() {
            return Err(EngineError::TextTooLong { bytes: text.len() });
        }
        let vocab = self.inner.vocab();
        let tokens = vocab.tokenize(text.as_bytes(), false, parse_special);
        Ok(tokens.into_iter().map(|LlamaToken(id)| id as u32).collect())
    }

    fn options(&self) -> &ModelOptions {
        &self.options
    }

    fn n_layers(&self) -> u32 {
        self.n_layers
    }

    fn can_decode_together(&self) -> bool {
        !self.inner.is_recurrent() && !self.inner.is_hybrid()
    }

    fn is_offloaded(&self) -> bool {
        let options = &self.options;
        let on_cpu = |tensors: &TensorOverride| tensors.is_on_cpu();
        options.n_gpu_layers == GpuLayers::Count(self.n_layers)
            && !options.all_overrides().iter().any(on_cpu)
            && !options.no_kv_offload
    }

    fn decoder(&self, options: &ContextOptions) -> Result<LlamaCppDecoder<'_>, EngineError> {
        let tap = match options.states {
            true => Some(Tap::new(self.found()?, self.n_vocab() as usize)),
            false => None,
        };
        let tap = tap.map(|tap| Arc::new(Mutex::new(tap)));
        Ok(LlamaCppDecoder::new(
            self.context(options, tap.clone())?,
            options,
            self.n_vocab() as usize,
            tap,
            self.header.n_positions,
            &self.path,
            self.turn(),
        ))
    }

    fn output_head(&self) -> Result<OutputHead, EngineError> {
        self.describe_head()
    }

    fn hashed_head(&self) -> Result<OutputHead, EngineError> {
        let mut head = self.describe_head()?;
        let sha256 = self.head_sha256(self.head_place()?)?;
        head.tensor.sha256 = sha256.to_owned();
        Ok(head)
    }

    fn read_head_tensor(&self, _head: &OutputHead) -> Result<Box<dyn Read>, EngineError> {
        Ok(Box::new(self.head_place()?.open()?))
    }

    fn head(
        &self,
        states: &States,
        section: &mut dyn Read,
        threads: u32,
    ) -> Result<LlamaCppHead<'_>, EngineError> {
        let shared = self.shared_head(states);
        LlamaCppHead::new(states, section, threads, &self.head_placement(), shared)
    }

    /// On the CPU the system reclaims the model's memory: llama.cpp frees a large vocabulary piece
    /// by piece, which takes longer than evaluating several windows. Accelerators want their
    /// buffers back before the process ends.
    fn drop_last(self) {
        if self.gpus.is_empty() {
            std::mem::forget(self);
        }
    }
}
