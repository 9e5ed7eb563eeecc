//! The only place that names llama.cpp: load a model, tokenize, decode, hand out rows of logits.
//! It knows nothing of KL.
//!
//! The rest of the program sees three small traits: an [`Engine`] loads a [`Model`], which states
//! its [`ModelFacts`], and a [`Decoder`] of that model gives rows of logits. [`LlamaCpp`] is the real
//! engine; in tests `FakeEngine` needs no model, so that every command runs without one.

mod abort;
mod device;
mod error;
#[cfg(test)]
mod fake;
pub mod gguf;
mod llama_cpp;
mod log;
pub mod memory;
mod model_options;
mod options;

pub use abort::on_abort;
use abort::while_loading;
pub use device::{Device, DeviceKind};
pub use error::EngineError;
#[cfg(test)]
pub use fake::{Fake, FakeDecoder, FakeEngine, FakeModel, FakeStates};
pub use llama_cpp::rpc::{connected as servers, on_wait};
pub use llama_cpp::{LlamaCpp, LlamaCppDecoder, LlamaCppModel};
use log::last_log_errors;
pub use log::{follow_log, lock_has_failed};
pub use model_options::{
    Beside, GpuLayers, ModelOptions, Room, SplitMode, TensorOverride, TensorSplit,
};
pub use options::{CacheType, ContextOptions, FlashAttention, default_batch, default_calls};

use std::cmp::Ordering;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use kl_formats::{Calls, ModelIdentity, States, TokenTexts, TokenizerIdentity, WindowSpec};

/// The llama.cpp that computes, by the version of the crate that carries its source.
pub const LLAMA_CPP_VERSION: &str = "llama-cpp-sys-2 0.1.160";

/// Something that loads model files.
pub trait Engine {
    /// A loaded model.
    type Model<'e>: Model + Sync
    where
        Self: 'e;

    /// The engine's name and version, which headers record because results depend on it.
    fn version(&self) -> String;

    /// Connects to servers of ggml's RPC backend, each `HOST:PORT`, and adds their devices, in this
    /// order: `RPC0`, `RPC1`. To be called before the first model is loaded.
    ///
    /// # Errors
    /// An address that is none, or a server that does not answer or is of another version.
    fn add_servers(&self, endpoints: &[String]) -> Result<(), EngineError>;

    /// The names of the backends that were compiled in or loaded.
    ///
    /// # Errors
    /// If the engine cannot be started.
    fn backends(&self) -> Result<Vec<String>, EngineError>;

    /// The devices of all backends, the CPU too.
    ///
    /// # Errors
    /// If the engine cannot be started.
    fn devices(&self) -> Result<Vec<Device>, EngineError>;

    /// Returns whether there is a device to offload layers to.
    ///
    /// # Errors
    /// If the engine cannot be started.
    fn can_offload(&self) -> Result<bool, EngineError> {
        Ok(self.devices()?.iter().any(|device| device.kind.is_gpu()))
    }

    /// Checks, without loading it, that a file is a whole causal language model, and returns which
    /// one: of a split model, all its files are the model's.
    ///
    /// # Errors
    /// What is wrong with the file.
    fn inspect(&self, path: &Path) -> Result<ModelIdentity, EngineError>;

    /// Loads a model.
    ///
    /// # Errors
    /// What [`inspect`](Self::inspect) finds, or why the engine refuses the model.
    fn load(&self, path: &Path, options: &ModelOptions) -> Result<Self::Model<'_>, EngineError>;

    /// Prepares the head of stored states on the CPU. `section` gives its matrix, then the values of
    /// its steps.
    ///
    /// # Errors
    /// A section that cannot be read or does not hold what `states` describes, a type that the
    /// engine does not know, or not enough memory.
    fn head(
        &self,
        states: &States,
        section: &mut dyn Read,
        threads: u32,
    ) -> Result<Box<dyn Head + '_>, EngineError>;
}

/// The tokens of a vocabulary, one by one.
pub trait Tokens {
    /// The bytes of a token's text, of a special token its name; `None` outside the vocabulary.
    fn token_bytes(&self, token: u32) -> Option<Vec<u8>>;

    /// Returns true if a token is a control or a user-defined one.
    fn is_special(&self, token: u32) -> bool;

    /// The text of consecutive tokens, special tokens by name, and those outside the vocabulary by
    /// their ids. Bytes that are not UTF-8 become U+FFFD; a character that spans several tokens
    /// stays whole.
    fn text(&self, tokens: &[u32]) -> String {
        let texts = tokens
            .iter()
            .filter_map(|&token| Some((token, self.token_bytes(token)?)));
        texts.collect::<TokenTexts>().text(tokens)
    }
}

/// The facts about a loaded model, and the way it was loaded.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// The model's file.
    pub path: PathBuf,
    /// The name, sizes and hashes that identify this model in files and reports.
    pub identity: ModelIdentity,
    /// Tells its vocabulary apart from others of the same size; `None` if unknown.
    pub tokenizer: Option<TokenizerIdentity>,
    /// True if its file leaves open how a text is split before its pieces are merged into tokens.
    pub lacks_pre_tokenizer: bool,
    /// Entries in a row of logits.
    pub n_vocab: u32,
    /// Entries of a row that texts can use; the rest is padding at the end.
    pub n_used_vocab: u32,
    /// The context length that the model was trained on, if its file records it.
    pub n_ctx_train: Option<u32>,
    /// Positions of which the model has learned a vector; `None` if it computes them.
    pub n_positions: Option<u64>,
    /// False for a purely recurrent model, which has no KV cache.
    pub has_attention: bool,
    /// True if a call can decode several windows, each as a sequence of its own: not where a layer
    /// is recurrent.
    pub can_decode_together: bool,
    /// The vocabulary's BOS.
    pub bos_token: Option<u32>,
    /// True if the model wants windows to start with its BOS.
    pub add_bos: bool,
    /// The texts of the BOS and the EOS token; empty without one.
    pub bos_and_eos_text: (String, String),
    /// The model's own chat template, a Jinja source.
    pub chat_template: Option<String>,
    /// The options with which it was loaded: layers as a number, and all that [`GpuLayers::Auto`]
    /// chose.
    pub options: ModelOptions,
    /// Layers that can be offloaded, of which the output layer is one.
    pub n_layers: u32,
    /// True if accelerators compute all layers, so that the CPU is idle while they decode.
    pub is_offloaded: bool,
}

impl ModelFacts {
    /// The token that every window starts with, if the model wants one.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos_token.filter(|_| self.add_bos)
    }

    /// Checks that a window of `n_tokens` tokens can be decoded: llama.cpp aborts beyond the last
    /// learned position.
    ///
    /// # Errors
    /// If the model has learned a vector for each position, and too few of them.
    pub fn check_window(&self, n_tokens: u64) -> Result<(), EngineError> {
        match self.n_positions {
            Some(n) if n < n_tokens => {
                let what = format!(
                    "has {n} learned positions, and so cannot decode a window of {n_tokens} tokens: the reference needs windows of {n} tokens or less (--n-ctx {n})"
                );
                Err(EngineError::model(&self.path, what))
            }
            _ => Ok(()),
        }
    }
}

/// A loaded model: facts, a tokenizer, and decoders that run it.
pub trait Model: Tokens {
    /// A decoder that runs this model: one of its contexts.
    type Decoder<'m>: Decoder + Send
    where
        Self: 'm;

    /// The facts about the model.
    fn facts(&self) -> &ModelFacts;

    /// Tokenizes a text, without adding BOS or EOS. With `parse_special`, special tokens in the
    /// text become those tokens.
    ///
    /// # Errors
    /// A text that is too long to tokenize at once.
    fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, EngineError>;

    /// Creates an empty context of this model.
    ///
    /// # Errors
    /// Not enough memory, or options that do not go together.
    fn decoder(&self, options: &ContextOptions) -> Result<Self::Decoder<'_>, EngineError>;

    /// Describes the hidden states of a context that decodes in `calls`, as f32 numbers and
    /// unchecked, and what makes rows of them, which decoding one token shows. The hash of the head
    /// is [`head_sha256`](Self::head_sha256), and empty here.
    ///
    /// # Errors
    /// Why it cannot be decoded, or what follows the head that `kl` cannot repeat.
    fn states(&self, calls: Calls) -> Result<States, EngineError>;

    /// The SHA-256 (hex) of the head's matrix, all of which is read for it, once.
    ///
    /// # Errors
    /// Those of [`states`](Self::states), or a file that cannot be read.
    fn head_sha256(&self) -> Result<String, EngineError>;

    /// Reads the head's matrix as it stands in the model's file, then the values of the steps that
    /// follow the product, f32.
    ///
    /// # Errors
    /// Those of [`states`](Self::states), or a file that cannot be opened.
    fn read_head(&self) -> Result<Box<dyn Read>, EngineError>;

    /// Prepares the head of stored states on the device that computes this model's own. `section`
    /// gives its matrix, then the values of its steps; where the matrix is this model's own too, the
    /// model's is used.
    ///
    /// # Errors
    /// Those of [`Engine::head`].
    fn head(
        &self,
        states: &States,
        section: &mut dyn Read,
        threads: u32,
    ) -> Result<Box<dyn Head + '_>, EngineError>;

    /// Drops the last model of a program, which may skip work that the system does faster when the
    /// process ends.
    fn drop_last(self)
    where
        Self: Sized,
    {
    }
}

/// A model's context: decodes windows, and can continue a text.
pub trait Decoder {
    /// Entries in a row.
    fn n_vocab(&self) -> usize;

    /// Runs one decode call: the tokens of a window from position `start` on, after those before
    /// it, which have been decoded by the call before; `start` 0 empties the context first. A context
    /// that shows hidden states ([`ContextOptions::states`]) does not compute rows that are not
    /// wanted, where that can be avoided.
    ///
    /// # Errors
    /// Why the model cannot decode, or shows no states.
    fn step(
        &mut self,
        window: &WindowSpec,
        start: usize,
        wants_rows: bool,
    ) -> Result<Outputs<'_>, EngineError>;

    /// Returns the number of these windows, from the first on, that one call decodes: as many whole
    /// ones as it holds.
    fn n_together(&self, windows: &[&WindowSpec]) -> usize;

    /// Runs that many whole windows in one decode call, each as a sequence of its own, and returns the
    /// rows of their scored positions, one window's after the other's.
    ///
    /// # Errors
    /// Why the model cannot decode.
    fn decode_together(&mut self, windows: &[&WindowSpec]) -> Result<Vec<&[f32]>, EngineError>;

    /// Appends `n` tokens to those of `window`, which holds at least one: each is the most probable next
    /// token, the first of equals. EOS ends nothing. `on_token` is called after each token.
    ///
    /// # Errors
    /// Why the model cannot decode, a row without a most probable token, or what `on_token`
    /// returned.
    fn extend<E: From<EngineError>>(
        &mut self,
        window: &mut WindowSpec,
        n: u32,
        on_token: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E>
    where
        Self: Sized;
}

/// The outputs of one decode call, for its scored positions in order.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// Where the window's next call starts; `None` once the last scored position is decoded.
    pub next: Option<usize>,
    /// The rows, n x n_vocab logits; none if they were not wanted.
    pub rows: Vec<&'a [f32]>,
    /// The hidden states, n x n_embd, of a context that shows them.
    pub states: Vec<f32>,
    /// The number of positions in each physical batch, without batches that hold none: the model
    /// computed the rows of each by one product.
    pub groups: Vec<usize>,
}

/// The output head of a model, ready to compute rows of logits from hidden states: one product, then
/// the steps that follow it in some architectures.
pub trait Head: Send {
    /// The rows of `states`, n x n_embd: n x n_vocab logits, valid until the next call. Kernels sum
    /// in another order for another n: to the bit, rows are the model's where n is the number of
    /// states that its own physical batch had.
    ///
    /// # Errors
    /// A number of states that is not whole, or why the device cannot compute them.
    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError>;

    /// Where the rows are computed: `CPU`, `CUDA0`.
    fn device(&self) -> String;

    /// Returns true if it uses the matrix of a loaded model, and so has no memory of its own for
    /// one.
    fn is_shared(&self) -> bool;
}

/// A decode call of a window.
struct Call {
    positions: Range<usize>,
    /// The first scored position of the window.
    scored_start: usize,
    /// Where the next call starts; `None` after the last scored position: nothing after that can
    /// change a row.
    next: Option<usize>,
}

impl Call {
    /// The call of a window that starts at `start`.
    fn of(window: &WindowSpec, calls: Calls, start: usize) -> Self {
        let scored_start = window.first_scored as usize;
        let scored_end = scored_start + window.n_rows as usize;
        let end = match start < scored_end {
            true => calls.call(window.n_decoded(), start as u64).end as usize,
            false => start,
        };
        Self {
            positions: start..end,
            scored_start,
            next: (end < scored_end).then_some(end),
        }
    }

    /// Counts the scored positions in each physical batch, without batches that hold none.
    fn groups(&self, window: &WindowSpec, calls: Calls) -> Vec<usize> {
        let start = self.positions.start.max(self.scored_start) as u64;
        let end = self.positions.end as u64;
        let n_scored =
            |batch: Range<u64>| batch.end.min(end).saturating_sub(batch.start.max(start));
        let batches = calls.batches(window.n_decoded()).map(n_scored);
        batches.filter(|&n| n > 0).map(|n| n as usize).collect()
    }
}

/// The entry with the largest logit, the first of equals; `None` where a row holds a NaN or has no
/// finite maximum.
fn top_token(row: &[f32]) -> Option<u32> {
    if row.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    // The last of equals from the end is the first.
    let entries = row.iter().enumerate().rev();
    let (entry, most) =
        entries.max_by(|(_, a), (_, b)| a.partial_cmp(b).unwrap_or(Ordering::Equal))?;
    most.is_finite().then_some(entry as u32)
}

#[cfg(test)]
mod tests {
    use super::top_token;

    #[test]
    fn the_version_is_the_locked_one() {
        let (name, version) = super::LLAMA_CPP_VERSION.split_once(' ').unwrap();
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"");
        assert!(include_str!("../../Cargo.lock").contains(&entry));
    }

    #[test]
    fn the_top_token_is_the_first_of_equals() {
        let infinity = f32::INFINITY;
        for (row, best) in [
            (&[1.0, 3.0, 3.0, 2.0][..], Some(1)),
            (&[-infinity, -5.0], Some(1)),
            (&[-infinity, -infinity], None),
            (&[1.0, infinity], None),
            (&[1.0, f32::NAN], None),
            (&[f32::NAN, 1.0], None),
            (&[], None),
        ] {
            assert_eq!(top_token(row), best, "{row:?}");
        }
    }
}
