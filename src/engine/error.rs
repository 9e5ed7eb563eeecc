//! Why a model could not be used: each message is one line that states what, where and what to do.

use std::io;
use std::path::{Path, PathBuf};

use super::gguf::ModelError;

/// Why a model could not be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model's file cannot be read or is not a whole GGUF, or the model cannot be loaded or decoded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Rows of the model cannot be computed from its hidden states.
    #[error("{path}: hidden states cannot stand for its logits: {what}: use --encoding u16", path = .path.display())]
    NoStates {
        /// The model's file.
        path: PathBuf,
        /// The operation that `kl` cannot repeat, and the architecture that has it.
        what: String,
    },
    /// The head of stored hidden states cannot be used.
    #[error("the output head cannot be used: {0}")]
    StoredHead(String),
    /// The head of stored hidden states cannot be read.
    #[error("the head of its hidden states cannot be read: {0}")]
    ReadHead(io::Error),
    /// A device, a server, a flag or a text cannot be used with any model: what is wrong, and what to
    /// do.
    #[error("{0}")]
    Setup(String),
}

impl EngineError {
    /// A model that cannot be used: what is wrong, and what to do.
    pub(super) fn model(path: &Path, what: impl Into<String>) -> Self {
        Self::Model(ModelError::new(path, what))
    }
}
