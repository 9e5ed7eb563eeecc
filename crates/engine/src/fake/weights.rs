//! The made-up weights of fake models: their shapes, the errors of their types, and what these do to
//! rows.

use std::collections::BTreeMap;

use kl_formats::{GgmlType, MapTensor, Mixture};
use serde::{Deserialize, Serialize};

use super::row::{mix, row};
use crate::{Blueprint, EngineError, Imatrix, needs_imatrix};

/// Bytes of a quantized file before its tensors, without and with an importance matrix.
const METADATA_BYTES: [u64; 2] = [2048, 2208];

/// Bytes that the start of each tensor is a multiple of.
const ALIGNMENT: u64 = 32;

/// ggml's numbers of f32 and f16.
const F32: u32 = 0;
const F16: u32 = 1;

/// The share of a type's error that an importance matrix leaves.
const LEFT_BY_IMATRIX: f64 = 0.6;

/// Name, shape, and how much an error of the weights moves the logits; 0: a tensor that no quantizer
/// changes.
const TENSORS: [(&str, &[u64], f64); 9] = [
    ("token_embd.weight", &[256, 128], 0.5),
    ("blk.0.attn_q.weight", &[256, 256], 0.2),
    ("blk.0.attn_v.weight", &[256, 64], 4.0),
    ("blk.0.ffn_down.weight", &[256, 256], 2.0),
    ("blk.1.attn_q.weight", &[256, 256], 0.1),
    ("blk.1.attn_v.weight", &[256, 64], 2.0),
    ("blk.1.ffn_down.weight", &[96, 256], 1.0),
    ("output_norm.weight", &[256], 0.0),
    ("output.weight", &[256, 128], 3.0),
];

/// A weight that can be quantized.
#[derive(Clone, Copy, Debug)]
pub(super) struct FakeWeight {
    pub(super) name: &'static str,
    n_columns: u64,
    sensitivity: f64,
}

impl FakeWeight {
    /// All weights that can be quantized.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let all = TENSORS.into_iter().filter(|row| row.2 > 0.0);
        all.map(|(name, shape, sensitivity)| Self {
            name,
            n_columns: shape[0],
            sensitivity,
        })
    }

    pub(super) fn named(name: &str) -> Result<Self, EngineError> {
        let found = Self::all().find(|weight| weight.name == name);
        found.ok_or_else(|| EngineError::Setup(format!("{name} cannot be exchanged")))
    }

    /// The relative squared error at a type: a quarter for each bit, and a little of its own for each
    /// type and each weight.
    pub(super) fn error(self, kind: GgmlType, imatrix: Option<&Imatrix>) -> f64 {
        if kind.id == F16 {
            return 0.0;
        }
        let own = |text: &str, most: f64| 1.0 + most * (hash(text) as f64 / u64::MAX as f64 - 0.5);
        let left = match imatrix.and_then(|imatrix| imatrix.values(self.name)) {
            Some(_) => LEFT_BY_IMATRIX,
            None => 1.0,
        };
        0.25f64.powf(kind.bits()) * own(kind.name, 0.5) * own(self.name, 0.2) * left
    }

    /// Refuses a type that it cannot have.
    pub(super) fn check(
        self,
        kind: GgmlType,
        imatrix: Option<&Imatrix>,
    ) -> Result<(), EngineError> {
        let what = if kind.bytes(self.n_columns).is_none() || !kind.is_for_weights {
            "its rows are not whole blocks of that type"
        } else if kind.bits() > f64::from(u16::BITS) {
            "the original is smaller"
        } else if needs_imatrix(self.name, kind) && imatrix.is_none() {
            "that needs an importance matrix: give one with --imatrix"
        } else {
            return Ok(());
        };
        let name = self.name;
        let message = format!("{name} cannot be exchanged for {kind}: {what}");
        Err(EngineError::Setup(message))
    }
}

fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0, |hash, byte| mix(hash ^ u64::from(byte)))
}

/// Describes the file of a model whose weights have these types, f16 where none is given.
pub(super) fn blueprint(mixture: &Mixture, imatrix: Option<&Imatrix>) -> Blueprint {
    let tensors = TENSORS.into_iter().map(|(name, shape, sensitivity)| {
        let is_quantizable = sensitivity > 0.0;
        let own = GgmlType::of(if is_quantizable { F16 } else { F32 });
        MapTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            kind: mixture.get(name).copied().or(own).expect("ggml has both"),
            is_quantizable,
            unmeasured: None,
        }
    });
    Blueprint {
        tensors: tensors.collect(),
        metadata_bytes: METADATA_BYTES[usize::from(imatrix.is_some())],
        alignment: ALIGNMENT,
        made_with: None,
    }
}

/// The noise that exchanged weights add to rows.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub(super) struct Perturbation {
    /// For each exchanged weight, a number for it and its type, and the most that a logit moves.
    of_weights: BTreeMap<String, (u64, f32)>,
}

impl Perturbation {
    /// The perturbation by a mixture.
    ///
    /// # Errors
    /// A weight that there is not, or a type that it cannot have.
    pub(super) fn of_mixture(
        mixture: &Mixture,
        imatrix: Option<&Imatrix>,
    ) -> Result<Self, EngineError> {
        let mut of_weights = BTreeMap::new();
        for (name, &kind) in mixture {
            let weight = FakeWeight::named(name)?;
            weight.check(kind, imatrix)?;
            let most = (weight.error(kind, imatrix) * weight.sensitivity).sqrt();
            if most > 0.0 {
                let direction = hash(name) ^ hash(kind.name);
                of_weights.insert(name.clone(), (direction, most as f32));
            }
        }
        Ok(Self { of_weights })
    }

    /// The row that stands for a hash of tokens, moved.
    pub(super) fn moved_row(&self, n_vocab: usize, hash: u64) -> Vec<f32> {
        let mut logits = row(n_vocab, hash);
        for &(direction, most) in self.of_weights.values() {
            // Another row's logits, between -8 and 8, are as good as random.
            let noise = row(n_vocab, mix(hash ^ direction));
            for (logit, noise) in logits.iter_mut().zip(noise) {
                *logit += most * noise / 8.0;
            }
        }
        logits
    }
}
