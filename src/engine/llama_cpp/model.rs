//! A model that llama.cpp has loaded.

use std::fs;
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use kl_formats::{GgmlType, HeadTensor, States};
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;

use super::context::{Batch, Contexts};
use super::device::Device;
use super::load::{Loaded, load};
use super::probe::Found;
use super::rpc;
use super::tap::Tap;
use super::{LlamaCpp, LlamaCppDecoder, LlamaCppHead, inspect};
use crate::engine::gguf::Gguf;
use crate::engine::{
    ContextOptions, EngineError, GpuLayers, Model, ModelFacts, ModelOptions, OutputHead,
    TensorOverride, Tokens, last_log_errors,
};

/// A model that llama.cpp has loaded.
pub struct LlamaCppModel<'b> {
    engine: &'b LlamaCpp,
    pub(super) inner: LlamaModel,
    pub(super) facts: ModelFacts,
    pub(super) header: Gguf,
    /// The devices that may compute parts of it.
    pub(super) gpus: Vec<Device>,
    /// Locked while one of the contexts decodes.
    turn: Mutex<()>,
    pub(super) contexts: Contexts,
    /// Its output head, once it was looked for.
    pub(super) found: OnceLock<Found>,
    /// SHA-256 of the head's matrix, once it was needed.
    pub(super) head_sha256: OnceLock<String>,
}

impl<'b> LlamaCppModel<'b> {
    /// Loads a GGUF, after [`inspect`] has refused what llama.cpp would abort on.
    pub(super) fn load(
        engine: &'b LlamaCpp,
        path: &Path,
        options: &ModelOptions,
    ) -> Result<Self, EngineError> {
        let before = fs::metadata(path).ok();
        let header = inspect(path)?;
        // Errors that an earlier model left in the log are not this one's.
        let _ = last_log_errors();

        let loaded = load(path, options)?;
        let stamp = |metadata: Option<fs::Metadata>| {
            metadata.map(|metadata| (metadata.len(), metadata.modified().ok()))
        };
        if stamp(fs::metadata(path).ok()) != stamp(before) {
            let what = "changed while it was loaded: wait until it is complete, and try again";
            return Err(EngineError::model(path, what));
        }
        Ok(Self {
            engine,
            facts: facts(path, &header, &loaded),
            header,
            inner: loaded.model,
            gpus: loaded.gpus,
            turn: Mutex::new(()),
            contexts: Contexts::default(),
            found: OnceLock::new(),
            head_sha256: OnceLock::new(),
        })
    }
}

/// States what a model is. Its sizes are llama.cpp's: bytes and parameters of the tensors, from which
/// it computes its BPW.
fn facts(path: &Path, header: &Gguf, loaded: &Loaded) -> ModelFacts {
    let (model, options, n_layers) = (&loaded.model, &loaded.options, loaded.n_layers);
    let vocab = model.vocab();
    let n_vocab = model.n_vocab().max(0) as u32;
    let mut identity = header.identity();
    identity.size_bytes = Some(model.size());
    identity.n_params = Some(model.n_params());
    let text = |token: LlamaToken| match token.0 < 0 {
        true => String::new(),
        false => String::from_utf8_lossy(&vocab.token_to_piece(token, true, None)).into_owned(),
    };
    let on_cpu = |tensors: &TensorOverride| tensors.memory == TensorOverride::CPU;
    ModelFacts {
        path: path.to_owned(),
        identity,
        tokenizer: header.tokenizer.clone(),
        lacks_pre_tokenizer: header.lacks_pre_tokenizer(),
        n_vocab,
        n_used_vocab: n_vocab.saturating_sub(header.n_padding),
        n_ctx_train: u32::try_from(loaded.n_ctx_train).ok().filter(|&n| n > 0),
        n_positions: header.n_positions(),
        has_attention: !model.is_recurrent(),
        can_decode_together: !model.is_recurrent() && !model.is_hybrid(),
        bos_token: u32::try_from(vocab.bos().0).ok(),
        add_bos: vocab.should_add_bos(),
        bos_and_eos_text: (text(vocab.bos()), text(vocab.eos())),
        chat_template: model.meta_val_str("tokenizer.chat_template").ok(),
        is_offloaded: options.n_gpu_layers == GpuLayers::Count(n_layers)
            && !options.all_overrides().iter().any(on_cpu)
            && !options.no_kv_offload,
        options: options.clone(),
        n_layers,
    }
}

impl LlamaCppModel<'_> {
    /// Returns the lock that is held while one of the contexts decodes; devices of servers are
    /// shared by all models.
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
        (token < self.facts.n_vocab).then(piece)
    }

    fn is_special(&self, token: u32) -> bool {
        let special = LlamaTokenAttr::Control | LlamaTokenAttr::UserDefined;
        let attributes = || self.inner.vocab().attr(LlamaToken(token as i32));
        token < self.facts.n_vocab && attributes().intersects(special)
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

    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, EngineError> {
        // llama.cpp counts the bytes of a text in 31 bits.
        if i32::try_from(text.len()).is_err() {
            return Err(EngineError::Setup(format!(
                "the text has {} bytes, but llama.cpp tokenizes at most {} at once: split the file",
                text.len(),
                i32::MAX
            )));
        }
        let vocab = self.inner.vocab();
        let tokens = vocab.tokenize(text.as_bytes(), false, parse_special);
        Ok(tokens.into_iter().map(|LlamaToken(id)| id as u32).collect())
    }

    fn decoder(&self, options: &ContextOptions) -> Result<LlamaCppDecoder<'_>, EngineError> {
        let tap = match options.states {
            true => Some(Tap::new(self.found()?, self.facts.n_vocab as usize)),
            false => None,
        };
        let tap = tap.map(|tap| Arc::new(Mutex::new(tap)));
        Ok(LlamaCppDecoder {
            context: self.context(options, tap.clone())?,
            batch: Batch::default(),
            calls: options.calls,
            n_seq: options.n_seq.max(1) as usize,
            facts: &self.facts,
            tap,
            turn: self.turn(),
        })
    }

    fn output_head(&self) -> Result<OutputHead, EngineError> {
        let found = self.found()?;
        let place = self.head_place()?;
        let kind = GgmlType::of(found.type_id).filter(|kind| kind.is_for_weights);
        let kind = kind.ok_or_else(|| {
            let id = found.type_id;
            self.no_states(&format!(
                "its head has ggml's type {id}, which kl does not know"
            ))
        })?;
        Ok(OutputHead {
            n_embd: found.n_embd,
            tensor: HeadTensor {
                name: found.name.clone(),
                type_name: kind.name.to_owned(),
                type_id: found.type_id,
                bytes: place.bytes,
                sha256: String::new(),
            },
            then: found.then.clone(),
        })
    }

    fn hashed_head(&self) -> Result<OutputHead, EngineError> {
        let mut head = self.output_head()?;
        let sha256 = self.head_sha256(self.head_place()?)?;
        head.tensor.sha256 = sha256.to_owned();
        Ok(head)
    }

    fn read_head(&self) -> Result<Box<dyn Read>, EngineError> {
        let tensor = self.header.open(self.head_place()?)?;
        let values = self.found()?.values.iter().flatten();
        let values: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        Ok(Box::new(tensor.chain(Cursor::new(values))))
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
        if self.engine.ends_process && self.gpus.is_empty() {
            std::mem::forget(self);
        }
    }
}
