//! A model that llama.cpp has loaded.

use std::io::{Cursor, Read};
use std::sync::{Arc, Mutex, OnceLock};

use kl_formats::{Calls, Float, GgmlType, HeadCheck, HeadTensor, States};
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;

use super::backends::TURN;
use super::context::{Context, Contexts, Watch};
use super::device::GgmlDevice;
use super::exchange::{Exchanged, Weight};
use super::head::HeadProduct;
use super::hidden_states::{FoundHead, Tap};
use super::log::last_log_errors;
use super::{LlamaCpp, LlamaCppDecoder};
use crate::engine::gguf::{Gguf, sha256_of};
use crate::engine::{ContextOptions, DeviceKind, EngineError, Head, Model, ModelFacts, Tokens};

/// A model that llama.cpp has loaded.
pub struct LlamaCppModel<'b> {
    /// The backends, which outlive the model.
    pub(super) _engine: &'b LlamaCpp,
    pub(super) inner: LlamaModel,
    pub(super) facts: ModelFacts,
    pub(super) header: Gguf,
    /// The devices that may compute parts of it.
    pub(super) gpus: Vec<GgmlDevice>,
    /// Locked while one of the contexts decodes.
    pub(super) turn: Mutex<()>,
    pub(super) contexts: Mutex<Contexts>,
    /// The model's output head, once it was looked for.
    pub(super) found_head: OnceLock<Arc<FoundHead>>,
    /// SHA-256 of the head's matrix, once it was needed.
    pub(super) head_sha256: OnceLock<String>,
    /// The weights that can be exchanged, once they were looked for.
    pub(super) weights: OnceLock<Vec<Weight>>,
    pub(super) exchanged: Mutex<Exchanged>,
}

impl LlamaCppModel<'_> {
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

    pub(super) fn context<W: Watch>(
        &self,
        options: &ContextOptions,
        watch: Option<Arc<Mutex<W>>>,
    ) -> Result<Context<'_>, EngineError> {
        Context::new(self, options, watch).ok_or_else(|| {
            let (n_ctx, reason) = (options.n_ctx, last_log_errors());
            let advice = context_advice(&reason);
            let what = format!(
                "llama.cpp could not create a context of {n_ctx} tokens: {reason} ({advice})"
            );
            EngineError::model(&self.facts.path, what)
        })
    }
}

/// The advice to give if a context cannot be created: types of the KV cache that llama.cpp refuses, or
/// else too little memory.
fn context_advice(reason: &str) -> &'static str {
    let mentions = |word: &str| reason.contains(word);
    if mentions("V cache") && (mentions("flash_attn") || mentions("Flash Attention")) {
        "llama.cpp quantizes cached values with flash attention only: use --flash-attn on or auto, or \
         --cache-type-v f16"
    } else if mentions("different K") {
        "give --cache-type-k and --cache-type-v one type"
    } else if mentions("block size") {
        "use another --cache-type-k or --cache-type-v: f16 always works"
    } else {
        "out of memory? lower --n-ctx, --parallel, --n-batch, --n-ubatch or --n-gpu-layers"
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

    fn is_end_of_generation(&self, token: u32) -> bool {
        token < self.facts.n_vocab && self.inner.vocab().is_eog(LlamaToken(token as i32))
    }
}

impl Model for LlamaCppModel<'_> {
    type Decoder<'m>
        = LlamaCppDecoder<'m>
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
        let tap = if options.shows_states {
            let tap = Tap::new(self.found_head()?.clone());
            Some(Arc::new(Mutex::new(tap)))
        } else {
            None
        };
        Ok(LlamaCppDecoder {
            context: self.context(options, tap.clone())?,
            calls: options.calls,
            n_seq: options.n_seq.max(1) as usize,
            model: self,
            tap,
            company: None,
        })
    }

    fn describe_states(&self, calls: Calls) -> Result<States, EngineError> {
        let (head, tensor) = (self.found_head()?, self.head_tensor()?);
        let Some(kind) = GgmlType::of(head.type_id).filter(|kind| kind.is_for_weights) else {
            let id = head.type_id;
            let what = format!("its head has ggml's type {id}, which kl does not know");
            return Err(self.no_states(&what));
        };
        Ok(States {
            n_embd: head.n_embd,
            state_type: Float::F32,
            head: HeadTensor {
                name: head.name.clone(),
                type_name: kind.name.to_owned(),
                type_id: head.type_id,
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
        let sha256 = sha256_of(self.header.open(self.head_tensor()?)?).map_err(|error| {
            EngineError::model(&self.facts.path, format!("cannot be read: {error}"))
        })?;
        Ok(self.head_sha256.get_or_init(|| sha256).clone())
    }

    fn read_head(&self) -> Result<Box<dyn Read>, EngineError> {
        let tensor = self.header.open(self.head_tensor()?)?;
        let steps = self.found_head()?.then.iter();
        let values = steps.flat_map(|(_, values)| values);
        let values: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        Ok(Box::new(tensor.chain(Cursor::new(values))))
    }

    fn load_head(
        &self,
        states: &States,
        section: &mut dyn Read,
        threads: u32,
    ) -> Result<Box<dyn Head + '_>, EngineError> {
        let (placement, shared) = (self.head_placement(), self.shared_head(states));
        let head = HeadProduct::new(states, section, threads, &placement, shared)?;
        Ok(Box::new(head))
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
