//! The crate's only error type. Each message is one line: where, what went wrong, what to do.
//! Advice about a program's flags is left to the program.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::kinds::Found;

/// A file, and its fault.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// The fault.
    pub fault: Fault,
}

/// The faults of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The operating system refused.
    #[error("cannot {what}: {cause}")]
    Io {
        /// The attempted action, as a verb phrase.
        what: &'static str,
        /// The system's own words. They are part of the message and not its `source()`, so that a
        /// printed chain of causes does not repeat them.
        cause: io::Error,
    },
    /// The file is not a reference; it seems to be of the kind stated.
    #[error("not a reference: {0}; give a file written by kl, kl.py or llama-perplexity")]
    NotAReference(Found),
    /// The file is not a sidecar; it seems to be of the kind stated.
    #[error("not a sidecar: {0}; give a .kls file, which an evaluation writes")]
    NotASidecar(Found),
    /// The file is not a map; it seems to be of the kind stated.
    #[error("not a map of sensitivity: {0}; give a file written by kl sensitivity")]
    NotAMap(Found),
    /// The file is recognised, but this version cannot read it: the unsupported property, and the
    /// remedy.
    #[error("{0}")]
    Unsupported(String),
    /// The file's header cannot be used: the field, and its fault.
    #[error("unusable header: {0}; write the file again")]
    Header(String),
    /// The file ends too early: where the missing bytes should begin, and the missing item.
    #[error("incomplete: {1}, at {0}; copy or write it again")]
    Truncated(Position, String),
    /// A pipe ends before the file that its writer began: where, and the missing item.
    #[error("its writer ended too early: {1}, at {0}; find out why it ended, and start both again")]
    WriterEnded(Position, String),
    /// The file's bytes contradict themselves: where, and the fault.
    #[error("corrupt: {1}, at {0}; copy or write it again")]
    Corrupt(Position, String),
    /// A size past the limit that this crate allocates memory for: the size, and its limit.
    #[error("too large: {0}")]
    TooLarge(String),
    /// A writer was given something that its file cannot hold, or that contradicts its header.
    #[error("cannot be written: {0}")]
    Unwritable(String),
}

/// A position in a file. Shown as "window 3, byte 4711", or "byte 4711".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The window concerned, as numbered in the text.
    pub window: Option<u32>,
    /// Bytes of the file before it; for kl.py's file, bytes of the plain stream.
    pub offset: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(window) = self.window {
            write!(f, "window {window}, ")?;
        }
        write!(f, "byte {}", self.offset)
    }
}

impl Error {
    /// Names the window in an error that has a position.
    pub(crate) fn in_window(mut self, number: u32) -> Self {
        if let Fault::Corrupt(at, _) | Fault::Truncated(at, _) = &mut self.fault {
            at.window = Some(number);
        }
        self
    }

    /// True if bytes of the file are missing or contradict themselves.
    pub fn is_damage(&self) -> bool {
        matches!(self.fault, Fault::Corrupt { .. } | Fault::Truncated { .. })
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A file's path, which makes the errors that name it. Readers and writers keep one as `name`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named(PathBuf);

impl Named {
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn error(&self, fault: Fault) -> Error {
        let path = self.0.clone();
        Error { path, fault }
    }

    pub fn io(&self, what: &'static str, cause: io::Error) -> Error {
        self.error(Fault::Io { what, cause })
    }

    pub fn not_a_reference(&self, what: &'static str) -> Error {
        self.error(Fault::NotAReference(Found::Other(what)))
    }

    pub fn unsupported(&self, what: impl Into<String>) -> Error {
        self.error(Fault::Unsupported(what.into()))
    }

    pub fn header(&self, what: impl Into<String>) -> Error {
        self.error(Fault::Header(what.into()))
    }

    pub fn too_large(&self, what: impl Into<String>) -> Error {
        self.error(Fault::TooLarge(what.into()))
    }

    pub fn unwritable(&self, what: impl Into<String>) -> Error {
        self.error(Fault::Unwritable(what.into()))
    }

    pub fn truncated(&self, window: Option<u32>, offset: u64, what: impl Into<String>) -> Error {
        self.error(Fault::Truncated(Position { window, offset }, what.into()))
    }

    pub fn writer_ended(&self, window: Option<u32>, offset: u64, what: impl Into<String>) -> Error {
        self.error(Fault::WriterEnded(Position { window, offset }, what.into()))
    }

    pub fn corrupt(&self, window: Option<u32>, offset: u64, what: impl Into<String>) -> Error {
        self.error(Fault::Corrupt(Position { window, offset }, what.into()))
    }

    /// The error for a stream that cannot be read further than `offset`.
    pub fn of_stream(&self, window: Option<u32>, offset: u64, cause: io::Error) -> Error {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof, Unsupported};
        match cause.kind() {
            UnexpectedEof => self.truncated(window, offset, cause.to_string()),
            InvalidInput | InvalidData => self.corrupt(window, offset, cause.to_string()),
            Unsupported => self.unsupported(cause.to_string()),
            _ => self.io("read", cause),
        }
    }
}
