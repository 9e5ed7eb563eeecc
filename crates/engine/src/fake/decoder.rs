//! Rows and hidden states that depend on nothing but the tokens before them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kl_formats::WindowSpec;

use super::FakeEngine;
use super::head::state_numbers;
use super::row::mix;
use super::trace::Moved;
use super::weights::Perturbation;
use crate::gguf::ModelError;
use crate::{Appended, CacheType, Call, ContextOptions, Decoder, EngineError, Outputs};
use kl_system::locked;

fn slices(rows: &[Vec<f32>]) -> Vec<&[f32]> {
    rows.iter().map(Vec::as_slice).collect()
}

/// The hash of all tokens, after one more.
fn after(state: u64, token: u32) -> u64 {
    mix(state ^ u64::from(token))
}

/// A context of a [`super::FakeModel`]. Its rows depend only on the model's seed, its exchanged weights
/// and the tokens up to them, as a causal model's rows depend on its weights and those tokens.
#[derive(Debug, Clone)]
pub struct FakeDecoder {
    engine: FakeEngine,
    /// Stands for the weights: contexts with the same seed are of the same model.
    seed: u64,
    options: ContextOptions,
    path: PathBuf,
    /// The exchanged weights of the model.
    pub(super) perturbation: Arc<Mutex<Perturbation>>,
    /// The way in which its device moves its results.
    pub(super) moved: Moved,
    /// The rows of the last call.
    rows: Vec<Vec<f32>>,
}

impl FakeDecoder {
    /// A context of the model with this seed, which `engine` loaded from `path`.
    pub fn new(seed: u64, options: &ContextOptions, engine: &FakeEngine, path: &Path) -> Self {
        // What llama.cpp allocates to a sequence: of a cache that all share, all of it.
        let n_sharing = if options.has_own_caches {
            1
        } else {
            options.n_seq.max(1)
        };
        let n_ctx_seq = (options.n_ctx * n_sharing).next_multiple_of(256);
        let is_long = engine.long_rope_above.is_some_and(|n| n_ctx_seq > n);
        Self {
            engine: engine.clone(),
            seed: seed ^ u64::from(is_long),
            options: options.clone(),
            path: path.to_owned(),
            perturbation: Arc::default(),
            moved: Moved::default(),
            rows: Vec::new(),
        }
    }

    fn row(&self, hash: u64) -> Vec<f32> {
        let mut row = locked(&self.perturbation).moved_row(self.n_vocab(), hash);
        self.moved.move_row(&mut row, hash, None);
        row
    }

    /// The hash of all tokens up to each scored position of a call.
    fn hashes(&self, window: &WindowSpec, call: &Call) -> Vec<u64> {
        let mut state = self.seed;
        let mut hashes = Vec::new();
        for (position, &token) in window.tokens.iter().enumerate().take(call.positions.end) {
            state = after(state, token);
            if position >= call.positions.start.max(call.scored_start) {
                hashes.push(state);
            }
        }
        hashes
    }

    fn failed(&self, window: u32, position: usize, reason: &str) -> EngineError {
        let what = format!("llama.cpp failed at window {window}, position {position}: {reason}");
        let error = ModelError::new(&self.path, what);
        if self.engine.changes {
            EngineError::Changed(error)
        } else {
            EngineError::Model(error)
        }
    }

    fn call(&self, window: &WindowSpec, start: usize) -> Result<Call, EngineError> {
        if self.engine.fails_at == Some(window.window) {
            return Err(self.failed(window.window, start, "a fake failure"));
        }
        Ok(Call::new(window, self.options.calls, start))
    }
}

impl Decoder for FakeDecoder {
    fn n_vocab(&self) -> usize {
        self.engine.n_vocab as usize
    }

    /// Two bytes for each token of K and of V as f16, and one as any other type.
    fn cache_bytes(&self) -> u64 {
        let of = |kind| if kind == CacheType::F16 { 2 } else { 1 };
        let options = &self.options;
        u64::from(options.n_ctx) * (of(options.type_k) + of(options.type_v))
    }

    fn context_bytes(&self) -> u64 {
        self.cache_bytes() * u64::from(self.options.n_seq.max(1))
    }

    fn n_together(&self, windows: &[&WindowSpec]) -> usize {
        windows.len().min(self.options.n_seq.max(1) as usize)
    }

    fn decode_together(&mut self, windows: &[&WindowSpec]) -> Result<Vec<&[f32]>, EngineError> {
        let mut rows = Vec::new();
        for window in windows {
            let mut start = Some(0);
            while let Some(at) = start {
                start = self.decode_call(window, at, true)?.next;
                rows.append(&mut self.rows);
            }
        }
        self.rows = rows;
        Ok(slices(&self.rows))
    }

    fn decode_call(
        &mut self,
        window: &WindowSpec,
        start: usize,
        wants_rows: bool,
    ) -> Result<Outputs<'_>, EngineError> {
        let call = self.call(window, start)?;
        let hashes = self.hashes(window, &call);
        let wanted = hashes.iter().filter(|_| wants_rows);
        self.rows = wanted.map(|&hash| self.row(hash)).collect();
        let shown = hashes.iter().filter(|_| self.options.shows_states);
        Ok(Outputs {
            next: call.next,
            rows: slices(&self.rows),
            states: shown
                .flat_map(|&hash| state_numbers(hash, self.engine.states))
                .collect(),
            groups: call.groups(window, self.options.calls),
        })
    }

    fn append(&mut self, appended: &[Appended<'_>]) -> Result<Vec<&[f32]>, EngineError> {
        self.rows.clear();
        for of in appended {
            if self.engine.fails_at == Some(of.window) {
                return Err(self.failed(of.window, of.start, "a fake failure"));
            }
            let hash = of
                .tokens
                .iter()
                .fold(self.seed, |state, &t| after(state, t));
            self.rows.push(self.row(hash));
        }
        Ok(slices(&self.rows))
    }

    fn forget(&mut self, _sequence: usize) -> Result<(), EngineError> {
        Ok(())
    }
}
