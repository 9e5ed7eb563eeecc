//! An engine without llama.cpp, for tests: rows that depend on nothing but the tokens before them.

mod decoder;
mod head;
mod row;
#[cfg(test)]
mod tests;

pub use decoder::{Fake, FakeDecoder};
pub use head::{FakeHead, FakeStates};

use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use kl_formats::{ModelIdentity, States, TokenizerIdentity, hex};
use sha2::{Digest, Sha256};

use super::{
    ContextOptions, Device, DeviceKind, Engine, EngineError, GpuLayers, Model, ModelOptions,
    OutputHead, Tokens,
};

/// An engine for which any file is a model: two files of the same bytes are the same model.
///
/// A token is a byte of the text, and token 0 the BOS.
#[derive(Debug, Clone)]
pub struct FakeEngine {
    /// Entries in a row.
    pub n_vocab: u32,
    /// Whether its models want a BOS.
    pub add_bos: bool,
    /// Whether its models have attention.
    pub has_attention: bool,
    /// Positions that its models have learned a vector for, if they have.
    pub n_positions: Option<u32>,
    /// The window at which its models fail, so that tests can see how a run ends.
    pub fails_at: Option<u32>,
    /// Whether an accelerator computes all layers of its models.
    pub offloads: bool,
    /// How well rows can be computed from its models' hidden states.
    pub states: FakeStates,
}

impl Default for FakeEngine {
    fn default() -> Self {
        Self {
            n_vocab: 128,
            add_bos: true,
            has_attention: true,
            n_positions: None,
            fails_at: None,
            offloads: false,
            states: FakeStates::default(),
        }
    }
}

impl Engine for FakeEngine {
    type Model<'e> = FakeModel;
    type Head<'e> = FakeHead;

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
        Ok(vec![Device {
            name: "FAKE".to_owned(),
            description: "no device".to_owned(),
            kind: DeviceKind::Cpu,
            memory_free: 3 << 30,
            memory_total: 4 << 30,
            features: vec!["AVX2".to_owned(), "FMA".to_owned()],
        }])
    }

    fn can_offload(&self) -> Result<bool, EngineError> {
        Ok(false)
    }

    fn inspect(&self, path: &Path) -> Result<ModelIdentity, EngineError> {
        let model = self.load(path, &ModelOptions::default())?;
        Ok(model.identity())
    }

    fn load(&self, path: &Path, options: &ModelOptions) -> Result<FakeModel, EngineError> {
        let bytes = fs::read(path).map_err(|error| refused(path, &error))?;
        let hash = Sha256::digest(&bytes);
        let seed = hash.iter().take(8).fold(0, |n, &b| n << 8 | u64::from(b));
        Ok(FakeModel {
            engine: self.clone(),
            path: path.to_owned(),
            n_bytes: bytes.len() as u64,
            sha256: hex(&hash),
            seed,
            options: ModelOptions {
                n_gpu_layers: GpuLayers::default(),
                ..options.clone()
            },
            tokenizer: TokenizerIdentity {
                model: "bytes".to_owned(),
                n_tokens: self.n_vocab,
                sha256: hex(&Sha256::digest(b"bytes")),
            },
        })
    }

    fn head(
        &self,
        states: &States,
        section: &mut dyn Read,
        _threads: u32,
    ) -> Result<FakeHead, EngineError> {
        FakeHead::new(self, states, section, None)
    }
}

fn refused(path: &Path, error: &std::io::Error) -> EngineError {
    EngineError::Load {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

/// A file that stands for a model.
#[derive(Debug)]
pub struct FakeModel {
    engine: FakeEngine,
    path: PathBuf,
    n_bytes: u64,
    sha256: String,
    seed: u64,
    options: ModelOptions,
    tokenizer: TokenizerIdentity,
}

impl FakeModel {
    /// The head's matrix, which tells models apart and computes nothing.
    fn head_bytes(&self) -> Vec<u8> {
        head::bytes(self.seed, self.engine.n_vocab)
    }
}

impl Tokens for FakeModel {
    fn token_bytes(&self, token: u32) -> Option<Vec<u8>> {
        let text = char::from_u32(token).filter(|_| token < self.engine.n_vocab)?;
        Some(text.to_string().into_bytes())
    }

    /// The BOS, and the line feed, so that texts hold special tokens too.
    fn is_special(&self, token: u32) -> bool {
        token == 0 || token == u32::from(b'\n')
    }
}

impl Model for FakeModel {
    type Decoder<'m> = FakeDecoder;
    type Head<'m> = FakeHead;

    fn path(&self) -> &Path {
        &self.path
    }

    fn identity(&self) -> ModelIdentity {
        let name = self.path.file_name().unwrap_or_default();
        let mut identity = ModelIdentity::named(name.to_string_lossy());
        identity.architecture = Some("fake".to_owned());
        identity.size_bytes = Some(self.n_bytes);
        identity.n_params = Some(self.n_bytes);
        identity.file_bytes = Some(self.n_bytes);
        identity.metadata_sha256 = Some(self.sha256.clone());
        identity
    }

    fn tokenizer(&self) -> Option<&TokenizerIdentity> {
        Some(&self.tokenizer)
    }

    fn n_vocab(&self) -> u32 {
        self.engine.n_vocab
    }

    fn n_used_vocab(&self) -> u32 {
        self.engine.n_vocab
    }

    fn n_ctx_train(&self) -> Option<u32> {
        None
    }

    fn has_attention(&self) -> bool {
        self.engine.has_attention
    }

    fn lacks_pre_tokenizer(&self) -> bool {
        false
    }

    fn check_window(&self, n_tokens: u32) -> Result<(), EngineError> {
        match self.engine.n_positions {
            Some(n_positions) if n_positions < n_tokens => Err(EngineError::TooFewPositions {
                path: self.path.clone(),
                n_positions: n_positions.into(),
                n_tokens: n_tokens.into(),
            }),
            _ => Ok(()),
        }
    }

    fn bos(&self) -> Option<u32> {
        self.engine.add_bos.then_some(0)
    }

    fn bos_token(&self) -> Option<u32> {
        Some(0)
    }

    fn bos_and_eos_text(&self) -> (String, String) {
        (String::new(), String::new())
    }

    fn chat_template(&self) -> Option<String> {
        None
    }

    fn tokenize(&self, text: &str, _parse_special: bool) -> Result<Vec<u32>, EngineError> {
        let token = |byte: u8| u32::from(byte) % self.engine.n_vocab;
        Ok(text.bytes().map(token).collect())
    }

    fn options(&self) -> &ModelOptions {
        &self.options
    }

    fn n_layers(&self) -> u32 {
        1
    }

    fn can_decode_together(&self) -> bool {
        self.engine.has_attention
    }

    fn is_offloaded(&self) -> bool {
        self.engine.offloads
    }

    fn decoder(&self, options: &ContextOptions) -> Result<FakeDecoder, EngineError> {
        let rows = Fake {
            n_vocab: self.engine.n_vocab as usize,
            n_batch: options.n_batch as usize,
            seed: self.seed,
        };
        Ok(FakeDecoder::new(rows, options, &self.engine, &self.path))
    }

    fn output_head(&self) -> Result<OutputHead, EngineError> {
        self.engine
            .states
            .output_head(&self.path, &self.head_bytes())
    }

    fn hashed_head(&self) -> Result<OutputHead, EngineError> {
        let mut head = self.output_head()?;
        head.tensor.sha256 = hex(&Sha256::digest(self.head_bytes()));
        Ok(head)
    }

    fn read_head_tensor(&self, _head: &OutputHead) -> Result<Box<dyn Read>, EngineError> {
        Ok(Box::new(Cursor::new(self.head_bytes())))
    }

    fn head(
        &self,
        states: &States,
        section: &mut dyn Read,
        _threads: u32,
    ) -> Result<FakeHead, EngineError> {
        FakeHead::new(&self.engine, states, section, Some(&self.head_bytes()))
    }
}
