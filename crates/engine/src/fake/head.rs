//! Computes rows from hidden states that are only the hash of all tokens.

use std::io::Read;
use std::path::Path;

use kl_formats::{Calls, Float, HeadCheck, HeadTensor, States};

use super::FakeEngine;
use super::row::{mix, row};
use crate::{EngineError, Head};

/// Numbers of a state: the bytes of a hash.
pub(super) const N_EMBD: usize = 8;

/// The fraction that [`FakeStates::Single`] adds to each number: half precision loses it in numbers
/// above 2.
const FRACTION: f32 = 1.0 / 1024.0;

/// The exactness of the rows that can be computed from the hidden states of a fake model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum FakeStates {
    /// The model's own to the bit, from states in half precision too.
    #[default]
    Half,
    /// The model's own to the bit, from states in f32 only.
    Single {
        /// The most that a logit moves if its state was rounded.
        error: f32,
    },
    /// Never the model's own to the bit.
    Never {
        /// The most that a logit moves.
        error: f32,
    },
    /// The model's own to the bit, but for one state in 256.
    Rarely {
        /// The most that a logit of such a state moves.
        error: f32,
    },
    /// None: an unknown operation follows the head.
    Unknown,
}

impl FakeStates {
    pub(super) fn describe(
        self,
        path: &Path,
        head: &[u8],
        calls: Calls,
    ) -> Result<States, EngineError> {
        if self == Self::Unknown {
            let what = "hidden states cannot stand for its logits: the operation FAKE follows the output head of fake models: use --encoding u16";
            return Err(EngineError::model(path, what));
        }
        Ok(States {
            n_embd: N_EMBD as u32,
            state_type: Float::F32,
            head: HeadTensor {
                name: "output.weight".to_owned(),
                type_name: "f32".to_owned(),
                type_id: 0,
                bytes: head.len() as u64,
                sha256: String::new(),
            },
            then: Vec::new(),
            calls,
            check: HeadCheck::default(),
        })
    }
}

/// The matrix of the model with this seed.
pub(super) fn bytes(seed: u64, n_vocab: u32) -> Vec<u8> {
    let weight = |i: u64| (mix(seed ^ i) >> 40) as f32;
    let n = u64::from(n_vocab) * N_EMBD as u64;
    (0..n).flat_map(|i| weight(i).to_le_bytes()).collect()
}

/// The state that stands for a hash: its bytes, as numbers from 0 to 255.
pub(super) fn state_numbers(hash: u64, states: FakeStates) -> [f32; N_EMBD] {
    let fraction = match states {
        FakeStates::Single { .. } => FRACTION,
        _ => 0.0,
    };
    hash.to_le_bytes().map(|byte| f32::from(byte) + fraction)
}

/// Computes rows of a [`super::FakeModel`] from its states.
#[derive(Debug)]
pub(super) struct FakeHead {
    n_vocab: usize,
    states: FakeStates,
    is_shared: bool,
    rows: Vec<f32>,
}

impl FakeHead {
    /// Loads the head of stored states; `own` is the matrix of the loaded model, if there is one.
    pub(super) fn load(
        engine: &FakeEngine,
        states: &States,
        section: &mut dyn Read,
        own: Option<&[u8]>,
    ) -> Result<Box<dyn Head>, EngineError> {
        let fault =
            |what: &str| EngineError::Setup(format!("the output head cannot be used: {what}"));
        if states.n_embd as usize != N_EMBD || states.head.type_id != 0 {
            return Err(fault("it is not a fake one"));
        }
        let mut head = Vec::new();
        let read = section.take(states.head.bytes).read_to_end(&mut head);
        read.map_err(EngineError::ReadHead)?;
        let row_bytes = size_of::<f32>() * N_EMBD;
        if head.len() as u64 != states.head.bytes || head.len() % row_bytes != 0 {
            return Err(fault("it is cut off"));
        }
        Ok(Box::new(Self {
            n_vocab: head.len() / row_bytes,
            states: engine.states,
            is_shared: own == Some(&head[..]),
            rows: Vec::new(),
        }))
    }

    fn row(&self, state: &[f32]) -> Vec<f32> {
        let mut bytes = [0; N_EMBD];
        let mut is_rounded = false;
        for (byte, &number) in bytes.iter_mut().zip(state) {
            *byte = number as u8;
            is_rounded |= number.fract() != FRACTION;
        }
        let hash = u64::from_le_bytes(bytes);
        let mut logits = row(self.n_vocab, hash);
        let error = match self.states {
            FakeStates::Single { error } if is_rounded => error,
            FakeStates::Rarely { error } if bytes[0] == 0 => error,
            FakeStates::Never { error } => error,
            _ => return logits,
        };
        // Another row's logits, between -8 and 8, are as good as random.
        let noise = row(self.n_vocab, !hash);
        for (logit, noise) in logits.iter_mut().zip(noise) {
            *logit += error * noise / 8.0;
        }
        logits
    }
}

impl Head for FakeHead {
    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError> {
        let states = states.chunks_exact(N_EMBD);
        self.rows = states.flat_map(|state| self.row(state)).collect();
        Ok(&self.rows)
    }

    fn device(&self) -> String {
        "FAKE".to_owned()
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }
}
