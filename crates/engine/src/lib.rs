//! The only place that names llama.cpp: load a model, tokenize, decode, hand out rows of logits.
//! It knows nothing of KL.
//!
//! The rest of the program sees objects behind a few traits: an [`Engine`] loads a [`Model`], which states its
//! [`ModelFacts`] and names its tokens, and a [`Decoder`] of that model, a context, gives rows of logits, or the
//! hidden states that they are computed from. A [`Head`] computes rows from hidden states that a reference has
//! stored. A model that was loaded to exchange its [`Weights`] hands them out; no other model has to know how.
//! [`LlamaCpp`] is the real engine; in tests `FakeEngine` needs no model, so that every command runs without one.
//!
//! Each is used as `dyn`, and no type of an engine shows: a decode call takes a thousand times as long as a virtual
//! call, and what is built on these traits is compiled once, for the real engine and for the fake.

mod dequantized_copy;
mod device;
#[cfg(any(test, feature = "testing"))]
mod fake;
pub mod gguf;
mod imatrix;
mod llama_cpp;
mod model_files;
mod model_options;
mod quantizer;

pub use dequantized_copy::copies_folder;
pub use device::{Device, DeviceKind, memory};
#[cfg(any(test, feature = "testing"))]
pub use fake::{FAKE_DEVICE, FakeDecoder, FakeEngine, FakeFault, FakeStates};
pub use imatrix::Imatrix;
pub use llama_cpp::{
    FaultyRow, LlamaCpp, RowDistance, Sampler, StoredRows, follow_log, mlock_has_failed, on_abort,
    servers,
};
pub use model_files::{FileChange, ModelFiles};
pub use model_options::{
    CacheType, ContextOptions, FlashAttention, GpuLayers, ModelOptions, Room, SecondModel,
    SplitMode, TensorOverride, TensorSplit, default_batch, default_calls,
};
pub use quantizer::{Blueprint, file_kind, needs_imatrix};

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gguf::{ModelError, NotAModel};
use kl_formats::{
    CacheSizes, Calls, GgmlType, Mixture, ModelIdentity, States, TokenTexts, TokenizerIdentity,
    Unmeasured, WindowSpec,
};

/// True if backends are libraries beside the program, false if they are compiled in.
pub const LOADS_BACKENDS: bool = cfg!(feature = "dynamic-backends");

/// The llama.cpp that computes, by the version of the crate that carries its source.
pub const LLAMA_CPP_VERSION: &str = "llama-cpp-sys-2 0.1.160";

/// Something that loads model files.
pub trait Engine: Sync {
    /// The engine's name and version, which headers record because results depend on it.
    fn version(&self) -> String;

    /// Connects to servers of ggml's RPC backend, each `HOST:PORT`, and adds their devices, in this
    /// order: `RPC0`, `RPC1`. Call it before the first model is loaded.
    ///
    /// # Errors
    /// An address that is not `HOST:PORT`, or a server that does not answer or is of another version.
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

    /// True if there is a device to offload layers to.
    ///
    /// # Errors
    /// If the engine cannot be started.
    fn can_offload(&self) -> Result<bool, EngineError> {
        Ok(self.devices()?.iter().any(|device| device.kind.is_gpu()))
    }

    /// Checks, without loading it, that a file is a whole causal language model, and identifies it.
    /// A split model is given by its first file; the others are checked too.
    ///
    /// # Errors
    /// What is wrong with the file.
    fn inspect(&self, path: &Path) -> Result<Inspected, EngineError>;

    /// Loads a model.
    ///
    /// # Errors
    /// What [`inspect`](Self::inspect) finds, or why the engine refuses the model.
    fn load(&self, path: &Path, options: &ModelOptions)
    -> Result<Box<dyn Model + '_>, EngineError>;

    /// Describes the copy of a model's file with dequantized weights, which [`load`](Self::load) makes with
    /// [`ModelOptions::is_dequantized`]; `None` if the file has no quantized weights.
    ///
    /// # Errors
    /// Those of [`inspect`](Self::inspect).
    fn dequantized_copy(&self, path: &Path) -> Result<Option<DequantizedCopy>, EngineError>;

    /// Describes a model's file as llama.cpp's quantizer rewrites it, without loading the model. An
    /// importance matrix is named in the metadata of the file that is written.
    ///
    /// # Errors
    /// Those of [`inspect`](Self::inspect).
    fn blueprint(&self, path: &Path, imatrix: Option<&Imatrix>) -> Result<Blueprint, EngineError>;

    /// Writes a quantized file with llama.cpp's quantizer. The output is incomplete until this returns.
    ///
    /// # Errors
    /// Why the quantizer refuses, or a file that cannot be written.
    fn quantize(&self, quantization: &Quantization<'_>) -> Result<(), EngineError>;

    /// Loads the head of stored states to the CPU. `section` gives its matrix, then the values of its
    /// steps.
    ///
    /// # Errors
    /// A section that cannot be read or does not hold what `states` describes, a type that the
    /// engine does not know, or not enough memory.
    fn load_head(
        &self,
        states: &States,
        section: &mut dyn Read,
        threads: u32,
    ) -> Result<Box<dyn Head + '_>, EngineError>;
}

/// The copy of a model's file with dequantized weights, before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DequantizedCopy {
    /// Its bytes, where no tensor needs f32.
    pub bytes: u64,
    /// Bytes of memory that the largest of its tensors takes while it is dequantized.
    pub largest_tensor: u64,
}

/// A quantized file to write.
#[derive(Debug)]
pub struct Quantization<'q> {
    /// The original.
    pub input: &'q Path,
    pub output: &'q Path,
    /// A type for each tensor that the quantizer may change.
    pub mixture: &'q Mixture,
    pub imatrix: Option<&'q Imatrix>,
    pub threads: u32,
}

/// The facts that a model's file shows without being loaded.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// The name, the size of the file and the hashes: tensors and parameters are not counted.
    pub identity: ModelIdentity,
    /// The tokenizer; `None` if the file does not list its tokens.
    pub tokenizer: Option<TokenizerIdentity>,
    /// Entries at the vocabulary's end that are marked unused.
    pub n_padding: u32,
    pub layers: Layers,
}

/// The way in which a model's layers keep the tokens before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layers {
    /// In a KV cache.
    #[default]
    Attention,
    /// In a KV cache that is read in blocks of positions, which several windows cannot share: llama.cpp reads
    /// all of a shared one (`models/minimax-m3.cpp`).
    SparseAttention,
    /// Some in a KV cache, others in a state of fixed size.
    Hybrid,
    /// In a state of fixed size: there is no KV cache.
    Recurrent,
}

impl Layers {
    /// True if a call can decode several windows, each as a sequence of its own.
    pub fn can_decode_together(self) -> bool {
        self == Self::Attention
    }
}

/// The facts about a loaded model, and the way it was loaded.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// The model's file.
    pub path: PathBuf,
    /// The name, sizes and hashes that identify this model in files and reports.
    pub identity: ModelIdentity,
    /// Distinguishes its vocabulary from others of the same size; `None` if unknown.
    pub tokenizer: Option<TokenizerIdentity>,
    /// True if its file leaves open how a text is split before its pieces are merged into tokens.
    pub lacks_pre_tokenizer: bool,
    /// Entries in a row of logits.
    pub n_vocab: u32,
    /// Entries of a row that texts can use; the rest is padding at the end.
    pub n_used_vocab: u32,
    /// The context length that the model was trained on, if its file records it.
    pub n_ctx_train: Option<u32>,
    /// The number of positions that the model has learned a vector for; `None` if it computes them.
    pub n_positions: Option<u64>,
    pub layers: Layers,
    /// The tokens of a sequence's context above which llama.cpp rotates by the long factors of LongRoPE;
    /// `None` for a model without such factors.
    pub long_rope_above: Option<u32>,
    /// True if some of its weights are quantized as they run. ggml may multiply these by other kernels where a
    /// call has four tokens or more.
    pub is_quantized: bool,
    /// True if its layers send each token to a few of many experts.
    pub has_experts: bool,
    /// The vocabulary's BOS, if it has one.
    pub bos_token: Option<u32>,
    /// True if the model wants windows to start with its BOS.
    pub add_bos: bool,
    /// Tokens that the model's file forbids to generate (`tokenizer.ggml.suppress_tokens`).
    pub suppressed_tokens: Vec<u32>,
    /// The sampling that the model's file asks for: what follows `general.sampling.` in the keys, with the
    /// values, sorted.
    pub sampling: BTreeMap<String, String>,
    /// The texts of the BOS and the EOS token; empty without one.
    pub bos_and_eos_text: (String, String),
    /// True if llama.cpp appends the EOS to what it tokenizes; `kl` does not.
    pub add_eos: bool,
    /// The model's own chat template, a Jinja source.
    pub chat_template: Option<String>,
    /// Its chat template named `tool_use`, for conversations with tools.
    pub tool_use_template: Option<String>,
    /// The options with which it was loaded: layers as a number, and all that [`GpuLayers::Auto`]
    /// chose.
    pub options: ModelOptions,
    /// Layers that can be offloaded, the output layer included.
    pub n_layers: u32,
    /// True if its weights are read from its file while it decodes: they are mapped, not loaded.
    pub is_mapped: bool,
    /// True if accelerators compute all layers, so that the CPU is idle while they decode.
    pub is_offloaded: bool,
    /// Bytes of its weights as they were loaded: dequantized ones have more than in their file.
    pub loaded_bytes: u64,
    /// The time that loading it took.
    pub load_time: Duration,
}

/// The template that llama.cpp calls `chatml`.
const CHATML: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

impl ModelFacts {
    /// The token that every window starts with, if the model wants one.
    pub fn bos(&self) -> Option<u32> {
        self.bos_token.filter(|_| self.add_bos)
    }

    /// The chat template for prompts without tools, as llama-server chooses it: a model without any other
    /// has that for tools; and `chatml` is a name. `None` if it has no template at all, where llama-server
    /// uses the word `chatml`.
    pub fn default_template(&self) -> Option<&str> {
        let default = self
            .chat_template
            .as_deref()
            .filter(|text| !text.is_empty());
        let tool_use = self.tool_use_template.as_deref();
        match default {
            None | Some("chatml") => tool_use.or(default.map(|_| CHATML)),
            Some(text) => Some(text),
        }
    }

    /// The sizes of a sequence's context, in tokens, in which llama.cpp computes as in one of `n_ctx`.
    pub fn contexts_like(&self, n_ctx: u32) -> RangeInclusive<u32> {
        const PADDING: u32 = CacheSizes::PADDING;
        match self.long_rope_above {
            None => 0..=u32::MAX,
            Some(above) if n_ctx.div_ceil(PADDING).saturating_mul(PADDING) > above => {
                n_ctx.min(above.saturating_add(1))..=u32::MAX
            }
            Some(above) => 0..=above / PADDING * PADDING,
        }
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

/// A loaded model: facts, a vocabulary, a tokenizer, and decoders that run it.
pub trait Model: Sync {
    /// The facts about the model.
    fn facts(&self) -> &ModelFacts;

    /// The bytes of a token's text, of a special token its name; `None` outside the vocabulary.
    fn token_bytes(&self, token: u32) -> Option<Vec<u8>>;

    /// Checks whether a token is a control or a user-defined one.
    fn is_special(&self, token: u32) -> bool;

    /// Checks whether a token ends what the model generates: EOS, the end of a turn.
    fn is_end_of_generation(&self, token: u32) -> bool;

    /// The text of consecutive tokens, special tokens by name, and those outside the vocabulary by
    /// their ids. Bytes that are not UTF-8 become U+FFFD; a character that spans several tokens
    /// stays whole.
    fn text(&self, tokens: &[u32]) -> String {
        let texts = tokens
            .iter()
            .filter_map(|&token| Some((token, self.token_bytes(token)?)));
        texts.collect::<TokenTexts>().text(tokens)
    }

    /// Tokenizes a text, without adding BOS or EOS. With `parse_special`, special tokens in the
    /// text become those tokens.
    ///
    /// # Errors
    /// A text that is too long to tokenize at once.
    fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, EngineError>;

    /// Tokenizes the start of a text: the first tokens that [`tokenize`](Self::tokenize) gives, at least
    /// `n_tokens` of them where there are as many. Returns also whether these are all.
    ///
    /// # Errors
    /// Those of [`tokenize`](Self::tokenize), about what it tokenizes.
    fn tokenize_start(
        &self,
        text: &str,
        parse_special: bool,
        n_tokens: usize,
    ) -> Result<(Vec<u32>, bool), EngineError>;

    /// Creates an empty context of this model.
    ///
    /// # Errors
    /// Not enough memory, or options that do not go together.
    fn decoder(&self, options: &ContextOptions) -> Result<Box<dyn Decoder + '_>, EngineError>;

    /// Returns the bytes of a context of one sequence, by the number of its tokens, with these types of cache,
    /// as llama.cpp's programs allocate it unless told otherwise: a layer with a sliding window keeps no more
    /// than the window and a physical batch of 512 tokens. No such context is allocated.
    ///
    /// # Errors
    /// A file that cannot be read again, or types that do not go with the model.
    fn context_sizes(&self, options: &ContextOptions) -> Result<ContextSizes, EngineError>;

    /// Decodes windows in a context of its own, in calls of one physical batch, and returns what the nodes
    /// of its graphs hold at these positions of each window, in the order in which they are computed. A
    /// node without a row for each token of a batch is left out.
    ///
    /// # Errors
    /// Why the model cannot decode.
    fn trace(
        &self,
        options: &ContextOptions,
        windows: &[WindowSpec],
        positions: &[usize],
        nodes: Nodes,
    ) -> Result<Vec<TracedNode>, EngineError>;

    /// Describes the hidden states of a context that decodes in `calls`, and the head and the steps
    /// that compute rows from them: the graph of one decoded token shows these. The states are f32, the
    /// check is empty, and so is the head's hash, which [`head_sha256`](Self::head_sha256) computes.
    ///
    /// # Errors
    /// Why the token cannot be decoded, or an operation after the head that `kl` cannot repeat.
    fn describe_states(&self, calls: Calls) -> Result<States, EngineError>;

    /// The SHA-256 (hex) of the head's matrix as it stands in the model's file. The first call reads
    /// all of it.
    ///
    /// # Errors
    /// Those of [`describe_states`](Self::describe_states), or a file that cannot be read.
    fn head_sha256(&self) -> Result<String, EngineError>;

    /// Reads the head as a reference of hidden states stores it: the matrix as it stands in the model's
    /// file, then the values of the steps that follow the product, f32.
    ///
    /// # Errors
    /// Those of [`describe_states`](Self::describe_states), or a file that cannot be opened.
    fn read_head(&self) -> Result<Box<dyn Read>, EngineError>;

    /// Loads the head of stored states to the device that computes this model's own. `section` gives
    /// its matrix, then the values of its steps. If this model has the same matrix, its own is used.
    ///
    /// # Errors
    /// Those of [`Engine::load_head`].
    fn load_head(
        &self,
        states: &States,
        section: &mut dyn Read,
        threads: u32,
    ) -> Result<Box<dyn Head + '_>, EngineError>;

    /// Its weights, to exchange them.
    ///
    /// # Errors
    /// If they cannot be exchanged: the model was loaded without [`ModelOptions::is_exchangeable`].
    fn weights(&self) -> Result<&dyn Weights, EngineError>;

    /// The worst change of the model's files since it was loaded; `None` if they are the same.
    fn file_change(&self) -> Option<FileChange>;

    /// Drops the last model before the process ends. The system may be left to free its memory, which
    /// is faster.
    fn drop_last(self: Box<Self>) {}
}

/// Tells whether work that takes long should stop.
pub type ShouldStop<'s> = &'s (dyn Fn() -> bool + Sync);

/// The weights of a loaded model, which can be exchanged for quantized ones, and back, in their own memory.
pub trait Weights {
    /// Names the weights that decoding uses and the quantizer may change, in the order of the file.
    ///
    /// # Errors
    /// Why the model cannot be decoded, or weights that lie where they cannot be exchanged.
    fn exchangeable(&self) -> Result<Vec<String>, EngineError>;

    /// Names the other weights that the quantizer may change, in the order of the file, each with the reason why
    /// it cannot be exchanged.
    ///
    /// # Errors
    /// As [`exchangeable`](Self::exchangeable).
    fn unmeasured(&self) -> Result<Vec<(String, Unmeasured)>, EngineError>;

    /// Gives each tensor of `mixture` its type, quantized from the original with the importance matrix,
    /// and all others the original's weights. What is there already stays. No decoder of the model may
    /// exist: it may hold graphs with the types that the weights had.
    ///
    /// # Errors
    /// A decoder that has not been dropped, a tensor that cannot be exchanged or has no such type, a type
    /// that needs an importance matrix, or a file that cannot be read any more; [`EngineError::Interrupted`]
    /// if `should_stop`, which is asked all the while. What was exchanged until then stays.
    fn exchange(
        &self,
        mixture: &Mixture,
        imatrix: Option<&Imatrix>,
        should_stop: ShouldStop<'_>,
    ) -> Result<(), EngineError>;

    /// Returns the relative squared errors of a tensor's weights at some types,
    /// `sum((w - q)^2) / sum(w^2)`, each square weighted by the importance of its column if there is an
    /// importance matrix. At most `n_rows` rows are used, evenly spaced.
    ///
    /// # Errors
    /// Those of [`exchange`](Self::exchange).
    fn errors(
        &self,
        tensor: &str,
        kinds: &[GgmlType],
        imatrix: Option<&Imatrix>,
        n_rows: usize,
    ) -> Result<Vec<f64>, EngineError>;
}

/// A context of a model: decodes windows, and can continue texts.
pub trait Decoder: Send {
    /// Entries in a row.
    fn n_vocab(&self) -> usize;

    /// Bytes in which the context keeps the tokens before: those of its KV cache, whose size does not
    /// depend on how many it holds, and of the states of recurrent layers.
    fn cache_bytes(&self) -> u64;

    /// Bytes of the cache, and of the buffers in which a physical batch is computed, on all devices. The
    /// rows of a call are not among them.
    fn context_bytes(&self) -> u64;

    /// Runs the decode call of a window that starts at position `start`: 0, which empties the context
    /// first, or [`Outputs::next`] of the call before. If rows are not wanted, a context that shows
    /// hidden states ([`ContextOptions::shows_states`]) leaves them out, where the model's graph allows
    /// it.
    ///
    /// # Errors
    /// Why the model cannot decode, or its states cannot be shown.
    fn decode_call(
        &mut self,
        window: &WindowSpec,
        start: usize,
        wants_rows: bool,
    ) -> Result<Outputs<'_>, EngineError>;

    /// Returns the number of whole windows, from the first of these on, that one decode call holds.
    fn n_together(&self, windows: &[&WindowSpec]) -> usize;

    /// Runs these windows in one decode call, each as a sequence of its own, and returns the rows of
    /// their scored positions, one window's after the other's. There must not be more windows than
    /// [`n_together`](Self::n_together) returns.
    ///
    /// # Errors
    /// Why the model cannot decode.
    fn decode_together(&mut self, windows: &[&WindowSpec]) -> Result<Vec<&[f32]>, EngineError>;

    /// Appends tokens to sequences in one decode call, which holds no more tokens than a batch, and
    /// returns the row after the last token of each: the row that predicts the next one. A sequence
    /// comes at most once.
    ///
    /// # Errors
    /// Why the model cannot decode.
    fn append(&mut self, appended: &[Appended<'_>]) -> Result<Vec<&[f32]>, EngineError>;

    /// Forgets the tokens of a sequence, so that another text can take its place.
    ///
    /// # Errors
    /// If the engine refuses.
    fn forget(&mut self, sequence: usize) -> Result<(), EngineError>;
}

/// The bytes of a context, by the number of its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContextSizes {
    /// Those of its cache.
    pub cache: CacheSizes,
    /// Those of the buffers in which one device, which has all layers, computes the largest physical batch of
    /// llama.cpp's programs unless told otherwise.
    pub compute: CacheSizes,
}

/// Tokens to append to a sequence of a context.
#[derive(Debug, Clone, Copy)]
pub struct Appended<'t> {
    /// The sequence, below [`ContextOptions::n_seq`].
    pub sequence: usize,
    /// The window that the sequence is to become, for messages.
    pub window: u32,
    /// All tokens of the sequence, those that it has decoded and those to append.
    pub tokens: &'t [u32],
    /// The position of the first token to append.
    pub start: usize,
}

/// The nodes of a graph to trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// The tensors that each layer hands to the next, and at last the logits: the kernels inside a layer
    /// stay as they are.
    LayerOutputs,
    /// All named nodes of one layer; `None`: of what follows the last one.
    OfLayer(Option<u32>),
}

/// The values that a node of a model's graphs held.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedNode {
    /// llama.cpp's name, without the layer.
    pub name: String,
    /// The number of nodes of this name before it in the graph.
    pub occurrence: usize,
    /// `None` after the last layer.
    pub layer: Option<u32>,
    /// The weight that it multiplies.
    pub weight: Option<String>,
    /// Its values by the index of the window and the position; of very long rows some, evenly spaced.
    pub rows: BTreeMap<(usize, usize), Vec<f32>>,
    /// Tokens, those at other positions too, whose values are not all finite.
    pub n_not_finite: usize,
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
    /// The number of scored positions in each physical batch, without batches that hold none. The
    /// model computed the rows of each by one product.
    pub groups: Vec<usize>,
}

/// The output head of a model, ready to compute rows of logits from hidden states: a matrix that they
/// are multiplied with, and the steps that follow in some architectures.
pub trait Head: Send {
    /// Computes the rows of `states`, n x n_embd: n x n_vocab logits, valid until the next call.
    /// Kernels sum in another order for another n, so rows equal the model's to the bit only if n is
    /// the number of scored positions in its own physical batch ([`Outputs::groups`]).
    ///
    /// # Errors
    /// A number of states that is not whole, or why the device cannot compute the rows.
    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError>;

    /// Where the rows are computed: `CPU`, `CUDA0`.
    fn device(&self) -> String;

    /// Checks whether it uses the matrix of a loaded model, and has no copy of its own.
    fn is_shared(&self) -> bool;
}

/// Why a model could not be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model's file cannot be read or is not a whole GGUF, or the model cannot be loaded or decoded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The file is not a causal language model by itself.
    #[error("{}: {found}", path.display())]
    NotAModel {
        /// The file.
        path: PathBuf,
        /// Its contents.
        found: NotAModel,
    },
    /// A model's file has changed since it was loaded, so that what was computed may be of two models.
    #[error(transparent)]
    Changed(ModelError),
    /// The head of stored hidden states cannot be read.
    #[error("the head of its hidden states cannot be read: {0}")]
    ReadHead(io::Error),
    /// A device, a server, a flag, a text or a stored head cannot be used with any model: what is wrong, and
    /// what to do.
    #[error("{0}")]
    Setup(String),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl EngineError {
    /// A model that cannot be used: what is wrong, and what to do.
    fn model(path: &Path, what: impl Into<String>) -> Self {
        Self::Model(ModelError::new(path, what))
    }

    /// A model whose weights cannot be exchanged, because a decoder may hold graphs of the old ones.
    fn has_decoder(path: &Path) -> Self {
        let what =
            "its weights cannot be exchanged while a decoder of it exists: drop its decoders first";
        Self::model(path, what)
    }
}

/// A decode call of a window.
struct Call {
    /// The positions of its tokens.
    positions: Range<usize>,
    /// The first scored position of the window.
    scored_start: usize,
    /// Where the next call starts; `None` after the last scored position: nothing after that can
    /// change a row.
    next: Option<usize>,
}

impl Call {
    /// The call of a window that starts at position `start`.
    fn new(window: &WindowSpec, calls: Calls, start: usize) -> Self {
        let scored_start = window.first_scored as usize;
        let scored_end = scored_start + window.n_rows as usize;
        let end = if start < scored_end {
            calls.call(window.n_decoded(), start as u64).end as usize
        } else {
            start
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
        let batches = calls.batches(start, window.n_decoded());
        let batches_of_call = batches.take_while(|batch| batch.start < end && start < end);
        let n_scored = batches_of_call.map(|batch| batch.end.min(end) - batch.start.max(start));
        n_scored.map(|n| n as usize).collect()
    }
}

/// The entry with the largest logit, the first of equals; `None` where a row holds a NaN or has no
/// finite maximum.
pub fn top_token(row: &[f32]) -> Option<u32> {
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
#[path = "../../../formats/src/testing/sparse.rs"]
mod sparse;

#[cfg(test)]
mod tests {
    use super::top_token;

    #[test]
    fn the_version_is_the_locked_one() {
        let (name, version) = super::LLAMA_CPP_VERSION.split_once(' ').unwrap();
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"");
        assert!(include_str!("../../../Cargo.lock").contains(&entry));
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
