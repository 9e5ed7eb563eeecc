//! The kind of a file that `kl info` shows.

use kl_formats::Kind;
use serde::{Serialize, Serializer};

/// The kind of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileKind {
    /// A reference, in one of several formats.
    Reference(Kind),
    /// The result of an evaluation.
    Sidecar,
    /// A map of sensitivity.
    Map,
    /// A GGUF.
    #[default]
    Model,
}

impl FileKind {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reference(kind) => kind.name(),
            Self::Sidecar => "sidecar",
            Self::Map => "map",
            Self::Model => "model",
        }
    }

    /// Its name in a text for the user.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Reference(Kind::Kl) => "kl's reference",
            Self::Reference(Kind::KlPy) => "kl.py's reference",
            Self::Reference(Kind::LlamaCpp) => "llama.cpp's base file, of log-probabilities",
            Self::Reference(Kind::Safetensors) => "folder of safetensors files, one per window",
            Self::Reference(Kind::Npz) => "npz: numpy arrays, one per window",
            Self::Sidecar => "sidecar: one record per token",
            Self::Map => "map of sensitivity, which kl recipe reads",
            Self::Reference(Kind::Model) | Self::Model => "model (GGUF)",
        }
    }
}

impl Serialize for FileKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
