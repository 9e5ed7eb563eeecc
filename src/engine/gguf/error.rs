//! What can be wrong with a model's file: each message is one line that states what, where and what
//! to do.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model's header cannot be read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The operating system refused.
    #[error("{}: cannot {what}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done, as a verb.
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
        /// What it holds instead, and what to do.
        found: String,
    },
    /// The file is a kind of GGUF, or of file, that cannot be used.
    #[error("{}: {what}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is not supported, and what to do instead.
        what: String,
    },
    /// The file is a later part of a split model.
    #[error("{}: part {part} of {parts} of a split model: give the first part; llama.cpp finds the others beside it", path.display())]
    NotFirstPart {
        /// The file.
        path: PathBuf,
        /// Which part, from 1.
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
        /// What is missing.
        what: String,
    },
    /// The header contradicts itself, or states what no model can have.
    #[error("{}: corrupt at byte {offset}: {what}; download or convert it again", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// How far the header was read.
        offset: u64,
        /// What is wrong.
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
