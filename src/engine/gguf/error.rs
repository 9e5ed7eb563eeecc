//! The error for a model's file, and for files that are not models.

use std::io;
use std::path::{Path, PathBuf};

use kl_formats::{Found, Kind};

/// Why a model, or its file, cannot be used: one line that states what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct ModelError {
    /// The model's file.
    pub path: PathBuf,
    /// The fault, and the remedy.
    pub what: String,
}

impl ModelError {
    /// The error for the model in this file.
    pub fn new(path: &Path, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            what: what.into(),
        }
    }

    /// The error for a file that the system refuses to open or read, with the system's own words.
    pub(super) fn io(path: &Path, verb: &str, cause: &io::Error) -> Self {
        Self::new(path, format!("cannot {verb}: {cause}"))
    }
}

/// A result of reading a model's header.
pub(super) type Result<T> = std::result::Result<T, ModelError>;

/// Names what a file holds whose first bytes are not those of a GGUF, and what to do.
pub(super) fn instead_of_gguf(path: &Path) -> String {
    let found = Found::look(path);
    let what = match found {
        Found::Gzip => "it is gzip".to_owned(),
        Found::Zip => "it is a zip file, as PyTorch's models are".to_owned(),
        Found::SafetensorsFile => "it is a safetensors file".to_owned(),
        Found::Json => "it is JSON, perhaps an error message saved by a download".to_owned(),
        Found::Unpacked => "it is a reference that was unpacked".to_owned(),
        Found::Unknown => "its first bytes are not GGUF".to_owned(),
        _ => found.to_string(),
    };
    let path = path.display();
    let advice = match found {
        Found::Sidecar => &format!("kl report {path} shows it"),
        Found::Reference(Kind::Npz) => "kl compare compares it with another",
        Found::Reference(_) | Found::Unpacked => "give it to -r, and a model to -m",
        Found::Gzip => "unpack it with gunzip",
        Found::Packed(_) => "unpack it",
        Found::Zip | Found::SafetensorsFile => "make a GGUF with llama.cpp's convert_hf_to_gguf.py",
        Found::OldModel => "convert the original model again, or download it as GGUF",
        Found::LfsPointer => "run 'git lfs pull' there",
        Found::WebPage => "download the model again",
        Found::Imatrix => "give the model that it was computed with",
        Found::Text => "give a model in GGUF format (a text goes to -t)",
        _ => "give a model in GGUF format",
    };
    format!("not a GGUF model: {what}; {advice}")
}
