//! An engine without llama.cpp, for tests: rows that depend on nothing but the tokens before them.

mod decoder;
mod exchange;
mod head;
mod quantized_file;
mod row;
mod trace;
mod weights;

pub use decoder::FakeDecoder;
use head::FakeHead;
pub use head::FakeStates;
use quantized_file::QuantizedFile;
pub use trace::{FAKE_DEVICE, FakeFault};
use weights::Perturbation;

use std::fs;
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kl_formats::{Calls, ModelIdentity, States, TokenizerIdentity, WindowSpec, hex};
use sha2::{Digest, Sha256};

use super::{
    Blueprint, ContextOptions, ContextSizes, Decoder, DequantizedCopy, Device, DeviceKind, Engine,
    EngineError, FileChange, GpuLayers, Head, Imatrix, Inspected, Layers, Model, ModelFacts,
    ModelOptions, Nodes, Quantization, TracedNode, Weights,
};

/// An engine for which any file is a model: two files of the same bytes are the same model.
///
/// A token is a byte of the text, and token 0 the BOS.
#[derive(Debug, Clone)]
pub struct FakeEngine {
    /// Entries in a row.
    pub n_vocab: u32,
    /// True if its models want a BOS.
    pub add_bos: bool,
    /// The layers of its models.
    pub layers: Layers,
    /// Positions that its models have learned a vector for, if they have.
    pub n_positions: Option<u32>,
    /// The context above which its models compute otherwise, as with LongRoPE.
    pub long_rope_above: Option<u32>,
    /// The tokens that its models forbid to generate.
    pub suppressed_tokens: Vec<u32>,
    /// The window at which its models fail, so that tests can see how a run ends.
    pub fails_at: Option<u32>,
    /// True if they fail there because their file has changed.
    pub changes: bool,
    /// The token that ends what its models generate, if there is one.
    pub end_of_generation: Option<u32>,
    /// True if an accelerator computes all layers of its models.
    pub offloads: bool,
    /// Bytes of the CPU's memory that are free.
    pub memory_free: u64,
    /// Counts the models that were loaded.
    pub n_loaded: Arc<AtomicUsize>,
    /// The quality of the rows that can be computed from its models' hidden states.
    pub states: FakeStates,
    /// The fault of its only accelerator, if it has one.
    pub fault: Option<FakeFault>,
}

impl Default for FakeEngine {
    fn default() -> Self {
        Self {
            n_vocab: 128,
            add_bos: true,
            layers: Layers::default(),
            n_positions: None,
            long_rope_above: None,
            suppressed_tokens: Vec::new(),
            fails_at: None,
            changes: false,
            end_of_generation: None,
            offloads: false,
            memory_free: 3 << 30,
            n_loaded: Arc::default(),
            states: FakeStates::default(),
            fault: None,
        }
    }
}

impl Engine for FakeEngine {
    fn version(&self) -> String {
        "fake 1".to_owned()
    }

    fn add_servers(&self, _endpoints: &[String]) -> Result<(), EngineError> {
        Ok(())
    }

    fn backends(&self) -> Result<Vec<String>, EngineError> {
        Ok(vec!["FAKE".to_owned()])
    }

    fn devices(&self) -> Result<Vec<Device>, EngineError> {
        let accelerator = self.fault.map(|_| Device {
            name: FAKE_DEVICE.to_owned(),
            description: "no device".to_owned(),
            kind: DeviceKind::Gpu,
            memory_free: 3 << 30,
            memory_total: 4 << 30,
            features: Vec::new(),
        });
        let cpu = Device {
            name: "FAKE".to_owned(),
            description: "no device".to_owned(),
            kind: DeviceKind::Cpu,
            memory_free: self.memory_free,
            memory_total: 4 << 30,
            features: vec!["AVX2".to_owned(), "FMA".to_owned()],
        };
        Ok([cpu].into_iter().chain(accelerator).collect())
    }

    fn inspect(&self, path: &Path) -> Result<Inspected, EngineError> {
        let model = self.model(path, &ModelOptions::default())?;
        let ModelFacts {
            identity,
            tokenizer,
            layers,
            ..
        } = model.facts().clone();
        Ok(Inspected {
            identity,
            tokenizer,
            n_padding: 0,
            layers,
        })
    }

    fn load(
        &self,
        path: &Path,
        options: &ModelOptions,
    ) -> Result<Box<dyn Model + '_>, EngineError> {
        self.n_loaded.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(self.model(path, options)?))
    }

    fn dequantized_copy(&self, path: &Path) -> Result<Option<DequantizedCopy>, EngineError> {
        let model = self.model(path, &ModelOptions::default())?;
        Ok(model.quantized.map(|_| DequantizedCopy {
            bytes: 2 << 20,
            largest_tensor: 1 << 20,
        }))
    }

    fn blueprint(&self, path: &Path, imatrix: Option<&Imatrix>) -> Result<Blueprint, EngineError> {
        let model = self.model(path, &ModelOptions::default())?;
        let mixture = model.quantized.map(|file| file.mixture);
        Ok(weights::blueprint(&mixture.unwrap_or_default(), imatrix))
    }

    fn quantize(&self, quantization: &Quantization<'_>) -> Result<(), EngineError> {
        let original = self.model(quantization.input, &ModelOptions::default())?;
        QuantizedFile::write(original.seed, quantization)
    }

    fn load_head(
        &self,
        states: &States,
        section: &mut dyn Read,
        _threads: u32,
    ) -> Result<Box<dyn Head + '_>, EngineError> {
        FakeHead::load(self, states, section, None)
    }
}

impl FakeEngine {
    /// The model of a file.
    fn model(&self, path: &Path, options: &ModelOptions) -> Result<FakeModel, EngineError> {
        let bytes = fs::read(path).map_err(|error| EngineError::model(path, error.to_string()))?;
        let hash = Sha256::digest(&bytes);
        let n_bytes = Some(bytes.len() as u64);
        let name = path.file_name().unwrap_or_default();
        let mut identity = ModelIdentity::named(name.to_string_lossy());
        identity.architecture = Some("fake".to_owned());
        identity.size_bytes = n_bytes;
        identity.n_params = n_bytes;
        identity.file_bytes = n_bytes;
        identity.metadata_sha256 = Some(hex(&hash));
        let quantized = QuantizedFile::from_bytes(&bytes);
        let own_seed = hash.iter().take(8).fold(0, |n, &b| n << 8 | u64::from(b));
        let (seed, perturbation) = match &quantized {
            Some(file) => (file.seed, file.perturbation.clone()),
            None => (own_seed, Perturbation::default()),
        };
        Ok(FakeModel {
            engine: self.clone(),
            seed,
            perturbation: Arc::new(Mutex::new(perturbation)),
            quantized,
            facts: ModelFacts {
                path: path.to_owned(),
                identity,
                tokenizer: Some(TokenizerIdentity {
                    model: "bytes".to_owned(),
                    n_tokens: self.n_vocab,
                    sha256: hex(&Sha256::digest(b"bytes")),
                }),
                lacks_pre_tokenizer: false,
                n_vocab: self.n_vocab,
                n_used_vocab: self.n_vocab,
                n_ctx_train: None,
                n_positions: self.n_positions.map(u64::from),
                layers: self.layers,
                long_rope_above: self.long_rope_above,
                is_quantized: false,
                has_experts: false,
                bos_token: Some(0),
                add_bos: self.add_bos,
                suppressed_tokens: self.suppressed_tokens.clone(),
                sampling: Default::default(),
                bos_and_eos_text: Default::default(),
                add_eos: false,
                chat_template: None,
                tool_use_template: None,
                options: ModelOptions {
                    n_gpu_layers: GpuLayers::default(),
                    ..options.clone()
                },
                n_layers: 1,
                is_mapped: true,
                is_offloaded: self.offloads,
                loaded_bytes: bytes.len() as u64,
                load_time: Duration::from_secs(1),
            },
        })
    }
}

/// A file that stands for a model.
#[derive(Debug)]
struct FakeModel {
    engine: FakeEngine,
    seed: u64,
    /// The exchanged weights, or those of a quantized file.
    perturbation: Arc<Mutex<Perturbation>>,
    /// The contents of a quantized file.
    quantized: Option<QuantizedFile>,
    facts: ModelFacts,
}

impl FakeModel {
    /// The head's matrix, which tells models apart and computes nothing.
    fn head_bytes(&self) -> Vec<u8> {
        head::bytes(self.seed, self.engine.n_vocab)
    }
}

impl Model for FakeModel {
    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn token_bytes(&self, token: u32) -> Option<Vec<u8>> {
        let text = char::from_u32(token).filter(|_| token < self.engine.n_vocab)?;
        Some(text.to_string().into_bytes())
    }

    /// The BOS, and the line feed, so that texts hold special tokens too.
    fn is_special(&self, token: u32) -> bool {
        token == 0 || token == u32::from(b'\n')
    }

    fn is_end_of_generation(&self, token: u32) -> bool {
        self.engine.end_of_generation == Some(token)
    }

    fn tokenize(&self, text: &str, _parse_special: bool) -> Result<Vec<u32>, EngineError> {
        let token = |byte: u8| u32::from(byte) % self.engine.n_vocab;
        Ok(text.bytes().map(token).collect())
    }

    /// Gives a few tokens more than are wanted.
    fn tokenize_start(
        &self,
        text: &str,
        parse_special: bool,
        n_tokens: usize,
    ) -> Result<(Vec<u32>, bool), EngineError> {
        let mut tokens = self.tokenize(text, parse_special)?;
        let n_all = tokens.len();
        tokens.truncate(n_tokens.saturating_add(3));
        let is_all = tokens.len() == n_all;
        Ok((tokens, is_all))
    }

    fn decoder(&self, options: &ContextOptions) -> Result<Box<dyn Decoder + '_>, EngineError> {
        let path = &self.facts.path;
        let mut decoder = FakeDecoder::new(self.seed, options, &self.engine, path);
        decoder.perturbation = Arc::clone(&self.perturbation);
        decoder.moved = self.engine.moved(&self.facts.options, options);
        Ok(Box::new(decoder))
    }

    /// In proportion to the tokens.
    fn context_sizes(&self, options: &ContextOptions) -> Result<ContextSizes, EngineError> {
        let mut sizes = ContextSizes::default();
        for n_ctx in [256, 512] {
            let options = ContextOptions {
                n_ctx,
                ..options.clone()
            };
            let decoder = self.decoder(&options)?;
            let (cache, all) = (decoder.cache_bytes(), decoder.context_bytes());
            sizes.cache.0.push((n_ctx.into(), cache));
            let compute = all.saturating_sub(cache);
            sizes.compute.0.push((n_ctx.into(), compute));
        }
        Ok(sizes)
    }

    fn trace(
        &self,
        options: &ContextOptions,
        windows: &[WindowSpec],
        positions: &[usize],
        nodes: Nodes,
    ) -> Result<Vec<TracedNode>, EngineError> {
        Ok(self.traced(options, windows, positions, nodes))
    }

    fn describe_states(&self, calls: Calls) -> Result<States, EngineError> {
        let states = self.engine.states;
        states.describe(&self.facts.path, &self.head_bytes(), calls)
    }

    fn head_sha256(&self) -> Result<String, EngineError> {
        Ok(hex(&Sha256::digest(self.head_bytes())))
    }

    fn read_head(&self) -> Result<Box<dyn Read>, EngineError> {
        Ok(Box::new(Cursor::new(self.head_bytes())))
    }

    fn weights(&self) -> Result<&dyn Weights, EngineError> {
        let what = match (&self.quantized, self.facts.options.is_exchangeable) {
            (Some(_), _) => "is quantized already: give the original",
            (None, false) => "was not loaded to exchange its weights",
            (None, true) => return Ok(self),
        };
        Err(EngineError::model(&self.facts.path, what))
    }

    fn file_change(&self) -> Option<FileChange> {
        None
    }

    fn load_head(
        &self,
        states: &States,
        section: &mut dyn Read,
        _threads: u32,
    ) -> Result<Box<dyn Head + '_>, EngineError> {
        FakeHead::load(&self.engine, states, section, Some(&self.head_bytes()))
    }
}
