//! Quantized files of fake models. They have the size that the blueprint states, and the rows of the
//! original with the same weights exchanged.

use std::fs;

use kl_formats::Mixture;
use serde::{Deserialize, Serialize};

use super::weights::{FakeWeight, Perturbation, blueprint};
use crate::{Blueprint, EngineError, Quantization};

/// The first bytes of a quantized file. JSON and a line feed follow, then zeros.
const MAGIC: &[u8] = b"fake quantized model\n";

/// The contents of a quantized file.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct QuantizedFile {
    /// The original's seed.
    pub(super) seed: u64,
    pub(super) mixture: Mixture,
    pub(super) perturbation: Perturbation,
}

impl QuantizedFile {
    /// Reads a file's bytes; `None` for an original.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let json = bytes.strip_prefix(MAGIC)?;
        let end = json.iter().position(|&byte| byte == b'\n')?;
        serde_json::from_slice(&json[..end]).ok()
    }

    /// Writes the file of an original with this seed.
    ///
    /// # Errors
    /// A mixture that leaves out a weight or gives it a type that it cannot have, or a file that cannot
    /// be written.
    pub(super) fn write(seed: u64, to: &Quantization<'_>) -> Result<(), EngineError> {
        if let Some(left_out) = FakeWeight::all().find(|it| !to.mixture.contains_key(it.name)) {
            let message = format!("{} has no type in the mixture", left_out.name);
            return Err(EngineError::Setup(message));
        }
        let file = Self {
            seed,
            mixture: to.mixture.clone(),
            perturbation: Perturbation::of_mixture(to.mixture, to.imatrix)?,
        };
        let json = serde_json::to_vec(&file).expect("it has names and numbers only");
        let mut bytes = [MAGIC, &json, b"\n"].concat();
        bytes.resize(size_bytes(&blueprint(to.mixture, to.imatrix)), 0);
        fs::write(to.output, bytes)
            .map_err(|error| EngineError::model(to.output, error.to_string()))
    }
}

/// Bytes of a file: its metadata, and its tensors with the padding after each.
fn size_bytes(blueprint: &Blueprint) -> usize {
    let tensors = blueprint.tensors.iter().map(|tensor| {
        let bytes = tensor.kind.bytes(tensor.shape.iter().product());
        let bytes = bytes.expect("rows are whole blocks");
        bytes.next_multiple_of(blueprint.alignment)
    });
    (blueprint.metadata_bytes + tensors.sum::<u64>()) as usize
}
