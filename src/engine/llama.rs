use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kl_formats::gguf::{self, GgufSummary};
use kl_formats::{ModelIdentity, TokenizerIdentity};
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::{LlamaBackendDeviceType, list_llama_ggml_backend_devices};

use super::{ContextOptions, Decoder, EngineError, ModelOptions, last_log_errors};

/// llama.cpp, started. There is one in a process.
pub struct Backend(LlamaBackend);

impl Backend {
    /// Starts llama.cpp's backends.
    ///
    /// # Errors
    /// If they are started already.
    pub fn start() -> Result<Self, EngineError> {
        LlamaBackend::init()
            .map(Self)
            .map_err(|error| EngineError::Backend(error.to_string()))
    }

    /// Whether a backend that can take layers is compiled in and finds a device.
    #[must_use]
    pub fn can_offload(&self) -> bool {
        self.0.supports_gpu_offload()
    }

    /// The names of the devices, and what they are: `CUDA0 (NVIDIA H200)`.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        list_llama_ggml_backend_devices()
            .into_iter()
            .map(|device| format!("{} ({})", device.name, device.description.trim()))
            .collect()
    }
}

/// What a GGUF says of itself, if it is a whole one of a causal language model.
///
/// # Errors
/// A file that is no whole GGUF, a part of one, or a model that predicts no next token.
pub fn inspect(path: &Path) -> Result<GgufSummary, EngineError> {
    let header = gguf::read(path)?;
    if let Some((part, parts)) = header.split.filter(|&(part, _)| part > 0) {
        return Err(EngineError::NotFirstPart {
            path: path.to_owned(),
            part: part + 1,
            parts,
        });
    }
    refuse_not_causal(path, &header)?;
    Ok(header)
}

/// A loaded model.
pub struct Model<'b> {
    backend: &'b Backend,
    inner: LlamaModel,
    path: PathBuf,
    header: GgufSummary,
    is_offloaded: bool,
    /// Held by the context that decodes.
    turn: Mutex<()>,
}

impl<'b> Model<'b> {
    /// Loads a GGUF. It is [inspected](inspect) first, so that what is no causal language model is
    /// refused before llama.cpp sees it.
    ///
    /// # Errors
    /// Those of [`inspect`], or llama.cpp's refusal.
    pub fn load(
        backend: &'b Backend,
        path: &Path,
        options: &ModelOptions,
    ) -> Result<Self, EngineError> {
        let before = fs::metadata(path).ok();
        let header = inspect(path)?;
        // What an earlier model left there is not this one's fault.
        let _ = last_log_errors();

        let cpu_only = options.devices == ["none"];
        let n_gpu_layers = if cpu_only { 0 } else { options.n_gpu_layers };
        let mut params = LlamaModelParams::default().with_n_gpu_layers(n_gpu_layers);
        if let Some(split_mode) = options.split_mode {
            params = params.with_split_mode(split_mode.0);
        }
        if let Some(main_gpu) = options.main_gpu {
            params = params.with_main_gpu(main_gpu);
        }
        if !options.devices.is_empty() && !cpu_only {
            let places = device_places(&options.devices)?;
            params = params
                .with_devices(&places)
                .map_err(|error| EngineError::Backend(error.to_string()))?;
        }

        if path.to_str().is_none_or(|text| text.contains('\0')) {
            return Err(EngineError::Path {
                path: path.to_owned(),
            });
        }
        let inner = LlamaModel::load_from_file(&backend.0, path, &params).map_err(|_| {
            EngineError::Load {
                path: path.to_owned(),
                reason: last_log_errors(),
            }
        })?;
        let when = |metadata: Option<fs::Metadata>| {
            metadata.map(|metadata| (metadata.len(), metadata.modified().ok()))
        };
        if when(fs::metadata(path).ok()) != when(before) {
            return Err(EngineError::Changed {
                path: path.to_owned(),
            });
        }
        let n_layer = inner.n_layer();
        Ok(Self {
            backend,
            inner,
            path: path.to_owned(),
            header,
            is_offloaded: n_gpu_layers > n_layer && backend.can_offload(),
            turn: Mutex::new(()),
        })
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether an accelerator computes all layers, so that the CPU is idle meanwhile.
    #[must_use]
    pub fn is_offloaded(&self) -> bool {
        self.is_offloaded
    }

    /// Drops a model after which the process ends. On the CPU that is left to the system: llama.cpp
    /// frees a large vocabulary piece by piece, which takes longer than evaluating some windows.
    /// Accelerators want their buffers back before the process ends.
    pub fn drop_last(self) {
        if !self.backend.can_offload() {
            std::mem::forget(self);
        }
    }

    /// Entries in a row of logits.
    #[must_use]
    pub fn n_vocab(&self) -> u32 {
        self.inner.n_vocab().max(0) as u32
    }

    /// Entries of a row that stand for tokens which texts can have; the rest fill it up.
    #[must_use]
    pub fn n_used_vocab(&self) -> u32 {
        self.n_vocab().saturating_sub(self.header.n_padding)
    }

    /// Tokens that the model was trained to see at once; 0 if it does not say.
    #[must_use]
    pub fn n_ctx_train(&self) -> u32 {
        self.inner.n_ctx_train()
    }

    /// The token that every window starts with, where the model wants one.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        let vocab = self.inner.vocab();
        let LlamaToken(bos) = vocab.bos();
        if vocab.should_add_bos() {
            u32::try_from(bos).ok()
        } else {
            None
        }
    }

    /// The texts of the tokens that begin and end a text, special as they are; empty without one.
    #[must_use]
    pub fn bos_and_eos_text(&self) -> (String, String) {
        let vocab = self.inner.vocab();
        let text = |LlamaToken(id)| u32::try_from(id).map_or(String::new(), |id| self.piece(id));
        (text(vocab.bos()), text(vocab.eos()))
    }

    /// The model's own chat template, `tokenizer.chat_template`.
    #[must_use]
    pub fn chat_template(&self) -> Option<String> {
        self.inner.meta_val_str("tokenizer.chat_template").ok()
    }

    /// Tokens of a text, without BOS or EOS.
    ///
    /// # Errors
    /// A text of 2 GiB or more.
    pub fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, EngineError> {
        if i32::try_from(text.len()).is_err() {
            return Err(EngineError::TextTooLong { bytes: text.len() });
        }
        let tokens = self
            .inner
            .vocab()
            .tokenize(text.as_bytes(), false, parse_special);
        Ok(tokens.into_iter().map(|LlamaToken(id)| id as u32).collect())
    }

    /// The text of a token, special tokens by their names; bytes that are no UTF-8 as U+FFFD.
    #[must_use]
    pub fn piece(&self, token: u32) -> String {
        self.text(&[token])
    }

    /// The text of tokens one after the other, as [`piece`](Self::piece) gives it; a character that
    /// is spread over several is whole.
    #[must_use]
    pub fn text(&self, tokens: &[u32]) -> String {
        let vocab = self.inner.vocab();
        let mut bytes = Vec::new();
        for &token in tokens {
            if token < self.n_vocab() {
                bytes.extend(vocab.token_to_piece(LlamaToken(token as i32), true, None));
            } else {
                bytes.extend(format!("<{token}>").into_bytes());
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What names this model in files and reports. Sizes are llama.cpp's: bytes and parameters of
    /// the tensors, which is also what its BPW is computed from.
    #[must_use]
    pub fn identity(&self) -> ModelIdentity {
        ModelIdentity {
            file_name: file_name(&self.path),
            name: self.header.name.clone(),
            architecture: self.header.architecture.clone(),
            size_bytes: self.inner.size(),
            n_params: self.inner.n_params(),
            file_bytes: self.header.file_bytes,
            metadata_sha256: self.header.metadata_sha256.clone(),
            sample_sha256: Some(self.header.sample_sha256.clone()),
        }
    }

    /// What tells one vocabulary from another of the same size.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&TokenizerIdentity> {
        self.header.tokenizer.as_ref()
    }

    /// A context of this model, empty.
    ///
    /// # Errors
    /// llama.cpp's refusal: memory, or options that do not go together.
    pub fn decoder(&self, options: &ContextOptions) -> Result<Decoder<'_>, EngineError> {
        let threads = options.threads as i32;
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(options.n_ctx))
            .with_n_batch(options.n_batch)
            .with_n_ubatch(options.n_ubatch)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_flash_attention_policy(options.flash_attn.policy())
            .with_type_k(options.type_k.ggml)
            .with_type_v(options.type_v.ggml)
            .with_no_perf(true);
        let context = self
            .inner
            .new_context(&self.backend.0, params)
            .map_err(|_| EngineError::Context {
                path: self.path.clone(),
                n_ctx: options.n_ctx,
                reason: last_log_errors(),
            })?;
        Ok(Decoder::new(
            context,
            options.n_batch,
            self.n_vocab() as usize,
            &self.path,
            &self.turn,
        ))
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

fn refuse_not_causal(path: &Path, header: &GgufSummary) -> Result<(), EngineError> {
    let architecture = header.architecture.as_deref().unwrap_or_default();
    let what = if matches!(architecture, "t5" | "t5encoder") {
        format!("an encoder-decoder or encoder-only model ({architecture})")
    } else if header.causal_attention == Some(false) || architecture.contains("bert") {
        format!("a model without causal attention ({architecture})")
    } else if header.pooling_type.is_some_and(|pooling| pooling != 0) {
        format!("an embedding model ({architecture} with pooling)")
    } else if header.tokenizer.is_none() {
        format!("a GGUF without a vocabulary ({architecture})")
    } else {
        return Ok(());
    };
    Err(EngineError::NotCausal {
        path: path.to_owned(),
        what,
    })
}

fn device_places(names: &[String]) -> Result<Vec<usize>, EngineError> {
    let devices = list_llama_ggml_backend_devices();
    names
        .iter()
        .map(|name| {
            devices
                .iter()
                .find(|device| device.name == *name)
                .map(|device| device.index)
                .ok_or_else(|| EngineError::NoSuchDevice {
                    name: name.clone(),
                    known: devices
                        .iter()
                        .filter(|device| device.device_type != LlamaBackendDeviceType::Cpu)
                        .map(|device| device.name.clone())
                        .collect(),
                })
        })
        .collect()
}
