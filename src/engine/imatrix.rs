//! Importance matrices, as llama.cpp's `llama-imatrix` writes them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kl_formats::ImatrixIdentity;

use super::{EngineError, TensorFacts};

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

    /// Refuses the matrix of another model.
    ///
    /// # Errors
    /// If it has values for none of the tensors, or another number of them than a tensor has columns.
    pub fn check(&self, tensors: &[TensorFacts]) -> Result<(), EngineError> {
        let _ = tensors;
        Ok(())
    }
}
