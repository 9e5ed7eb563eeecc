//! The crate's only error type. Each message is one line: where, what went wrong, what to do.
//! Advice about a program's flags is left to the program.

use std::io;
use std::path::{Path, PathBuf};

use crate::Found;

/// The faults of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{}: cannot {what}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action, as a verb phrase.
        what: &'static str,
        /// The system's own words. They are part of the message and not its `source()`, so that a
        /// printed chain of causes does not repeat them.
        cause: io::Error,
    },
    /// The file is not a reference.
    #[error(
        "{}: not a reference: {found}; give a file written by kl, kl.py or llama-perplexity",
        path.display()
    )]
    NotAReference {
        /// The file.
        path: PathBuf,
        /// The kind that it seems to be.
        found: Found,
    },
    /// The file is not a sidecar.
    #[error("{}: not a sidecar: {found}; give a .kls file, which an evaluation writes", path.display())]
    NotASidecar {
        /// The file.
        path: PathBuf,
        /// The kind that it seems to be.
        found: Found,
    },
    /// The file is recognised, but this version cannot read it.
    #[error("{}: {what}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The unsupported property, and the remedy.
        what: String,
    },
    /// The file's header line cannot be used.
    #[error("{}: unusable header: {what}; write the file again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The field, and its fault.
        what: String,
    },
    /// The file ends too early.
    #[error(
        "{}: incomplete: {what}, at {}; copy or write it again",
        path.display(), Position { window: *window, offset: *offset }
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The window concerned, as numbered in the text.
        window: Option<u32>,
        /// Where the missing bytes should begin, in bytes of the file; for kl.py's file, in bytes
        /// of the plain stream.
        offset: u64,
        /// The missing item.
        what: String,
    },
    /// The file's bytes contradict themselves.
    #[error(
        "{}: corrupt: {what}, at {}; copy or write it again",
        path.display(), Position { window: *window, offset: *offset }
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The window concerned, as numbered in the text.
        window: Option<u32>,
        /// Where the fault is, in bytes of the file; for kl.py's file, in bytes of the plain
        /// stream.
        offset: u64,
        /// The fault.
        what: String,
    },
    /// A size past the limit that this crate allocates memory for.
    #[error("{}: too large: {what}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size, and its limit.
        what: String,
    },
    /// A writer was given something that its file cannot hold, or that contradicts its header.
    #[error("{}: cannot be written: {what}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

impl Error {
    /// Names the window in an error that has a position.
    pub(crate) fn in_window(mut self, number: u32) -> Self {
        if let Error::Corrupt { window, .. } | Error::Truncated { window, .. } = &mut self {
            *window = Some(number);
        }
        self
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// "window 3, byte 4711", or "byte 4711".
struct Position {
    window: Option<u32>,
    offset: u64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(window) = self.window {
            write!(f, "window {window}, ")?;
        }
        write!(f, "byte {}", self.offset)
    }
}

/// A file's path, and the errors that name it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named(PathBuf);

impl Named {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn io(&self, what: &'static str, cause: io::Error) -> Error {
        Error::Io {
            path: self.0.clone(),
            what,
            cause,
        }
    }

    pub(crate) fn not_a_reference(&self, found: impl Into<Found>) -> Error {
        Error::NotAReference {
            path: self.0.clone(),
            found: found.into(),
        }
    }

    pub(crate) fn not_a_sidecar(&self, found: Found) -> Error {
        Error::NotASidecar {
            path: self.0.clone(),
            found,
        }
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> Error {
        Error::Unsupported {
            path: self.0.clone(),
            what: what.into(),
        }
    }

    pub(crate) fn header(&self, what: impl Into<String>) -> Error {
        Error::Header {
            path: self.0.clone(),
            what: what.into(),
        }
    }

    pub(crate) fn too_large(&self, what: impl Into<String>) -> Error {
        Error::TooLarge {
            path: self.0.clone(),
            what: what.into(),
        }
    }

    pub(crate) fn unwritable(&self, what: impl Into<String>) -> Error {
        Error::Unwritable {
            path: self.0.clone(),
            what: what.into(),
        }
    }

    pub(crate) fn truncated(
        &self,
        window: Option<u32>,
        offset: u64,
        what: impl Into<String>,
    ) -> Error {
        Error::Truncated {
            path: self.0.clone(),
            window,
            offset,
            what: what.into(),
        }
    }

    pub(crate) fn corrupt(
        &self,
        window: Option<u32>,
        offset: u64,
        what: impl Into<String>,
    ) -> Error {
        Error::Corrupt {
            path: self.0.clone(),
            window,
            offset,
            what: what.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_with_position_and_advice() {
        let file = Named::new(Path::new("ref.gz"));
        assert_eq!(
            file.corrupt(Some(3), 4711, "a checksum does not match")
                .to_string(),
            "ref.gz: corrupt: a checksum does not match, at window 3, byte 4711; \
             copy or write it again"
        );
        assert_eq!(
            file.truncated(None, 12, "the index is missing").to_string(),
            "ref.gz: incomplete: the index is missing, at byte 12; copy or write it again"
        );
    }

    #[test]
    fn the_cause_is_stated_once() {
        let cause = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let error = Named::new(Path::new("ref.gz")).io("open", cause);
        assert_eq!(error.to_string(), "ref.gz: cannot open: no such file");
        assert!(std::error::Error::source(&error).is_none());
    }
}
