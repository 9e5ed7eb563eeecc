//! The faults of a model's file: each message is one line that states what, where and what to do.

use std::io;
use std::path::{Path, PathBuf};

use kl_formats::{Found, npz};

/// Why a model's header cannot be read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The operating system refused.
    #[error("{}: cannot {what}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action, as a verb.
        what: &'static str,
        /// The system's own words. They are part of the message and so not the `source()`: whoever
        /// prints the chain of causes would print them twice.
        cause: io::Error,
    },
    /// The file is not a GGUF.
    #[error("{}: not a GGUF model: {found}", path.display())]
    NotGguf {
        /// The file.
        path: PathBuf,
        /// The unexpected content, and the remedy.
        found: String,
    },
    /// The file is a kind of GGUF, or of file, that cannot be used.
    #[error("{}: {what}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The unsupported property, and the remedy.
        what: String,
    },
    /// The file is a later part of a split model.
    #[error("{}: part {part} of {parts} of a split model: give the first part; llama.cpp finds the others beside it", path.display())]
    NotFirstPart {
        /// The file.
        path: PathBuf,
        /// The part's number, from 1.
        part: u16,
        /// Number of parts.
        parts: u16,
    },
    /// The file ends before its header or its tensors do.
    #[error("{}: incomplete at byte {offset}: {what}; download or convert it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the missing bytes should begin.
        offset: u64,
        /// The missing item.
        what: String,
    },
    /// The header contradicts itself, or states what no model can have.
    #[error("{}: corrupt at byte {offset}: {what}; download or convert it again", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The offset up to which the header was read.
        offset: u64,
        /// The fault.
        what: String,
    },
}

impl GgufError {
    pub(super) fn io(path: &Path, what: &'static str, cause: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            what,
            cause,
        }
    }

    pub(super) fn unsupported(path: &Path, what: impl Into<String>) -> Self {
        Self::Unsupported {
            path: path.to_owned(),
            what: what.into(),
        }
    }
}

/// A result of reading a model's header.
pub(super) type Result<T> = std::result::Result<T, GgufError>;

/// Names what a file holds, and says what to do. The file's first bytes are not those of a GGUF.
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
        Found::Reference(kind) if kind == npz::KIND => "kl compare compares it with another",
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
    format!("{what}; {advice}")
}
