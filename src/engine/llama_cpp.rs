//! The engine's traits, implemented with llama.cpp.

use std::fs;
use std::io::Read;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use kl_formats::{ModelIdentity, States, TokenizerIdentity};
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use llama_cpp_2::{LlamaBackendDeviceType, list_llama_ggml_backend_devices};

use super::gguf::{self, GgufSummary};
use super::{
    ContextOptions, Engine, EngineError, LLAMA_CPP_VERSION, LlamaCppDecoder, LlamaCppHead, Model,
    ModelOptions, OutputHead, Tokens, last_log_errors,
};

/// llama.cpp as an [`Engine`]. Its backends start when they are first needed.
#[derive(Default)]
pub struct LlamaCpp {
    started: OnceLock<Result<LlamaBackend, String>>,
}

impl LlamaCpp {
    fn backend(&self) -> Result<&LlamaBackend, EngineError> {
        self.started
            .get_or_init(|| LlamaBackend::init().map_err(|error| error.to_string()))
            .as_ref()
            .map_err(|error| EngineError::Backend(error.clone()))
    }
}

impl Engine for LlamaCpp {
    type Model<'e> = LlamaCppModel<'e>;
    type Head<'e> = LlamaCppHead<'e>;

    fn version(&self) -> String {
        LLAMA_CPP_VERSION.to_owned()
    }

    fn devices(&self) -> Vec<String> {
        list_llama_ggml_backend_devices()
            .into_iter()
            .map(|device| format!("{} ({})", device.name, device.description.trim()))
            .collect()
    }

    fn can_offload(&self) -> Result<bool, EngineError> {
        Ok(self.backend()?.supports_gpu_offload())
    }

    fn inspect(&self, path: &Path) -> Result<u64, EngineError> {
        inspect(path).map(|header| header.file_bytes)
    }

    fn load(&self, path: &Path, options: &ModelOptions) -> Result<LlamaCppModel<'_>, EngineError> {
        LlamaCppModel::load(self.backend()?, path, options)
    }

    fn head(
        &self,
        _states: &States,
        _section: &mut dyn Read,
        _threads: u32,
    ) -> Result<LlamaCppHead<'_>, EngineError> {
        todo!()
    }
}

/// Reads the header of a GGUF, and checks that the file is whole and holds a causal language model.
///
/// # Errors
/// A file that is not a whole GGUF, a later part of a split one, or a model that predicts no next
/// token.
fn inspect(path: &Path) -> Result<GgufSummary, EngineError> {
    let header = gguf::read_whole(path)?;
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

/// A model that llama.cpp has loaded.
pub struct LlamaCppModel<'b> {
    backend: &'b LlamaBackend,
    inner: LlamaModel,
    path: PathBuf,
    header: GgufSummary,
    is_offloaded: bool,
    /// Locked while one of the contexts decodes.
    turn: Mutex<()>,
}

impl<'b> LlamaCppModel<'b> {
    /// Loads a GGUF, after [`inspect`] has refused what llama.cpp would abort on.
    fn load(
        backend: &'b LlamaBackend,
        path: &Path,
        options: &ModelOptions,
    ) -> Result<Self, EngineError> {
        let before = fs::metadata(path).ok();
        let header = inspect(path)?;
        // Errors that an earlier model left in the log are not this one's.
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
            let indices = device_indices(&options.devices)?;
            params = params
                .with_devices(&indices)
                .map_err(|error| EngineError::Backend(error.to_string()))?;
        }

        if path.to_str().is_none_or(|text| text.contains('\0')) {
            return Err(EngineError::Path {
                path: path.to_owned(),
            });
        }
        let inner =
            LlamaModel::load_from_file(backend, path, &params).map_err(|_| EngineError::Load {
                path: path.to_owned(),
                reason: last_log_errors(),
            })?;
        let stamp = |metadata: Option<fs::Metadata>| {
            metadata.map(|metadata| (metadata.len(), metadata.modified().ok()))
        };
        if stamp(fs::metadata(path).ok()) != stamp(before) {
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
            is_offloaded: n_gpu_layers > n_layer && backend.supports_gpu_offload(),
            turn: Mutex::new(()),
        })
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
        let mut identity = ModelIdentity::named(file_name(&self.path));
        identity.name.clone_from(&self.header.name);
        identity.architecture.clone_from(&self.header.architecture);
        identity.size_bytes = Some(self.inner.size());
        identity.n_params = Some(self.inner.n_params());
        identity.file_bytes = Some(self.header.file_bytes);
        identity.metadata_sha256 = Some(self.header.metadata_sha256.clone());
        identity.sample_sha256 = Some(self.header.sample_sha256.clone());
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

    fn is_offloaded(&self) -> bool {
        self.is_offloaded
    }

    fn decoder(&self, options: &ContextOptions) -> Result<LlamaCppDecoder<'_>, EngineError> {
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
        let context =
            self.inner
                .new_context(self.backend, params)
                .map_err(|_| EngineError::Context {
                    path: self.path.clone(),
                    n_ctx: options.n_ctx,
                    reason: last_log_errors(),
                })?;
        Ok(LlamaCppDecoder::new(
            context,
            options.n_batch,
            self.n_vocab() as usize,
            self.header.n_positions,
            &self.path,
            &self.turn,
        ))
    }

    fn output_head(&self) -> Result<OutputHead, EngineError> {
        todo!()
    }

    fn read_head_tensor(&self, _head: &OutputHead) -> Result<Box<dyn Read>, EngineError> {
        todo!()
    }

    fn head(
        &self,
        _states: &States,
        _section: &mut dyn Read,
        _threads: u32,
    ) -> Result<LlamaCppHead<'_>, EngineError> {
        todo!()
    }

    /// On the CPU the system reclaims the model's memory: llama.cpp frees a large vocabulary piece
    /// by piece, which takes longer than evaluating several windows. Accelerators want their
    /// buffers back before the process ends.
    fn drop_last(self) {
        if !self.backend.supports_gpu_offload() {
            std::mem::forget(self);
        }
    }
}

/// Refuses a window of `n_tokens` tokens if a model has learned fewer positions, on which llama.cpp
/// would abort.
pub(super) fn check_positions(
    n_positions: Option<u64>,
    n_tokens: u64,
    path: &Path,
) -> Result<(), EngineError> {
    match n_positions {
        Some(n_positions) if n_positions < n_tokens => Err(EngineError::TooFewPositions {
            path: path.to_owned(),
            n_positions,
            n_tokens,
        }),
        _ => Ok(()),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// Architectures that see later tokens, or have no head, without a key in the file that says so: text
/// diffusion and embedding models of llama.cpp's `src/models`.
const NOT_CAUSAL: [&str; 6] = [
    "dream",
    "llada",
    "llada-moe",
    "rnd1",
    "gemma-embedding",
    "llama-embed",
];

fn refuse_not_causal(path: &Path, header: &GgufSummary) -> Result<(), EngineError> {
    let architecture = header.architecture.as_deref().unwrap_or_default();
    let what = if matches!(architecture, "t5" | "t5encoder") {
        format!("an encoder-decoder or encoder-only model ({architecture})")
    } else if header.causal_attention == Some(false)
        || architecture.contains("bert")
        || NOT_CAUSAL.contains(&architecture)
    {
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

fn device_indices(names: &[String]) -> Result<Vec<usize>, EngineError> {
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
