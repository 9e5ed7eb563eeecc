//! An engine without llama.cpp, for tests: rows that depend on nothing but the tokens before them.

use std::fs;
use std::path::{Path, PathBuf};

use kl_formats::{ModelIdentity, TokenizerIdentity, WindowSpec, hex};
use sha2::{Digest, Sha256};

use super::{
    ContextOptions, Decoder, Engine, EngineError, LogitSource, Model, ModelOptions, Tokens,
    top_token,
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
}

impl Default for FakeEngine {
    fn default() -> Self {
        Self {
            n_vocab: 128,
            add_bos: true,
            has_attention: true,
            n_positions: None,
            fails_at: None,
        }
    }
}

impl Engine for FakeEngine {
    type Model<'e> = FakeModel;

    fn version(&self) -> String {
        "fake 1".to_owned()
    }

    fn devices(&self) -> Vec<String> {
        vec!["FAKE (no device)".to_owned()]
    }

    fn can_offload(&self) -> Result<bool, EngineError> {
        Ok(false)
    }

    fn inspect(&self, path: &Path) -> Result<(), EngineError> {
        fs::metadata(path)
            .map(drop)
            .map_err(|error| refused(path, &error))
    }

    fn load(&self, path: &Path, _options: &ModelOptions) -> Result<FakeModel, EngineError> {
        let bytes = fs::read(path).map_err(|error| refused(path, &error))?;
        let hash = Sha256::digest(&bytes);
        let seed = hash.iter().take(8).fold(0, |n, &b| n << 8 | u64::from(b));
        Ok(FakeModel {
            engine: self.clone(),
            path: path.to_owned(),
            n_bytes: bytes.len() as u64,
            sha256: hex(&hash),
            seed,
            tokenizer: TokenizerIdentity {
                model: "bytes".to_owned(),
                n_tokens: self.n_vocab,
                sha256: hex(&Sha256::digest(b"bytes")),
            },
        })
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
    tokenizer: TokenizerIdentity,
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

    fn is_offloaded(&self) -> bool {
        false
    }

    fn decoder(&self, options: &ContextOptions) -> Result<FakeDecoder, EngineError> {
        Ok(FakeDecoder {
            rows: Fake {
                n_vocab: self.engine.n_vocab as usize,
                n_batch: options.n_batch as usize,
                seed: self.seed,
            },
            path: self.path.clone(),
            fails_at: self.engine.fails_at,
        })
    }
}

/// A source whose rows depend only on its seed and the tokens up to them, as a causal model's rows
/// depend on its weights and those tokens.
#[derive(Debug, Clone)]
pub struct Fake {
    /// Entries in a row.
    pub n_vocab: usize,
    /// Rows in a decode call.
    pub n_batch: usize,
    /// Stands for the weights: sources with the same seed are the same model.
    pub seed: u64,
}

impl Fake {
    /// The row at a position, from the hash of all tokens up to it.
    fn row(&self, state: u64) -> Vec<f32> {
        let entry = |entry: usize| logit(mix(state ^ entry as u64));
        (0..self.n_vocab).map(entry).collect()
    }

    /// The hash of all tokens, after one more.
    fn after(state: u64, token: u32) -> u64 {
        mix(state ^ u64::from(token))
    }
}

impl LogitSource for Fake {
    type Error = EngineError;

    fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    fn decode<E: From<EngineError>>(
        &mut self,
        window: &WindowSpec,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        let scored = window.first_scored as usize..(window.first_scored + window.n_rows) as usize;
        let mut state = self.seed;
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for (position, &token) in window.tokens.iter().enumerate() {
            state = Self::after(state, token);
            if scored.contains(&position) {
                rows.push(self.row(state));
            }
        }
        for rows in rows.chunks(self.n_batch) {
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            sink(&rows)?;
        }
        Ok(())
    }
}

/// A context of a [`FakeModel`].
#[derive(Debug)]
pub struct FakeDecoder {
    rows: Fake,
    path: PathBuf,
    fails_at: Option<u32>,
}

impl LogitSource for FakeDecoder {
    type Error = EngineError;

    fn n_vocab(&self) -> usize {
        self.rows.n_vocab
    }

    fn decode<E: From<EngineError>>(
        &mut self,
        window: &WindowSpec,
        sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.fails_at == Some(window.window) {
            return Err(E::from(EngineError::Decode {
                path: self.path.clone(),
                window: window.window,
                position: 0,
                reason: "a fake failure".to_owned(),
            }));
        }
        self.rows.decode(window, sink)
    }
}

impl Decoder for FakeDecoder {
    fn extend<E: From<EngineError>>(
        &mut self,
        _window: u32,
        tokens: &mut Vec<u32>,
        n: u32,
        mut on_token: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = tokens
            .iter()
            .fold(self.rows.seed, |state, &token| Fake::after(state, token));
        for _ in 0..n {
            let next = top_token(&self.rows.row(state)).unwrap_or_default();
            tokens.push(next);
            state = Fake::after(state, next);
            on_token()?;
        }
        Ok(())
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^ (value >> 29)
}

/// A number between -8 and 8.
fn logit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u64 << 24) as f32 * 16.0 - 8.0
}
