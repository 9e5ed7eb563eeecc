//! The kinds of file that can be written.

use std::fmt;
use std::io::Write;
use std::path::Path;

use super::rows_per_piece;
use super::writer::Writer;
use crate::error::{Named, Result};
use crate::reference::format::WriteFormat;
use crate::reference::formats::write_format_of;
use crate::reference::{About, Kind};
use crate::row::RowLayout;
use crate::window::n_rows;
use crate::{BackendIdentity, Encoding, States, WindowSpec, klpy, llamacpp, native};

/// A kind of file, and how it stores a row.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    kind: Kind,
    encoding: Encoding,
    format: &'static WriteFormat,
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, self.encoding) == (other.kind, other.encoding)
    }
}

impl Eq for Target {}

/// Why a kind of file cannot be written, or not in the encoding asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// Files of this kind can only be read.
    #[error("files of kind {0} are read, not written")]
    NotWritten(Kind),
    /// The kind has only its own encoding.
    #[error("files of kind {kind} store rows in {own}, not in {encoding}")]
    Encoding {
        /// The kind.
        kind: Kind,
        /// The encoding that was asked for.
        encoding: Encoding,
        /// The encoding that it has.
        own: Encoding,
    },
}

impl Target {
    /// A file of this kind. Without an `encoding` it has the kind's default: `u16` for `kl`'s file,
    /// which can have any, and for llama.cpp's base file, `f32` for kl.py's.
    ///
    /// # Errors
    /// If the kind can only be read, or does not have this encoding.
    pub fn new(kind: Kind, encoding: Option<Encoding>) -> std::result::Result<Self, TargetError> {
        let format = write_format_of(kind).ok_or(TargetError::NotWritten(kind))?;
        let &[own, ..] = format.encodings else {
            return Err(TargetError::NotWritten(kind));
        };
        let encoding = encoding.unwrap_or(own);
        match format.encodings.contains(&encoding) {
            true => Ok(Self {
                kind,
                encoding,
                format,
            }),
            false => Err(TargetError::Encoding {
                kind,
                encoding,
                own,
            }),
        }
    }

    /// The kind of file.
    pub fn kind(self) -> Kind {
        self.kind
    }

    /// Returns the encoding of a row's entry; in llama.cpp's base file as a log-probability.
    pub fn encoding(self) -> Encoding {
        self.encoding
    }

    /// Most bytes that a file of these windows can have: rows as they are stored, without what
    /// deflate saves, and as if codes could hold every u16 row. A header's prompts come on top. Of
    /// hidden states that `about` does not describe: `u64::MAX`.
    pub fn projected_bytes(self, about: &About, windows: &[WindowSpec]) -> u64 {
        (self.format.projected_bytes)(self.encoding, about, windows)
    }

    /// Returns true if checksums show which windows of such a file are whole, so that writing one
    /// can be resumed.
    pub fn can_resume(self) -> bool {
        self.kind == native::KIND
    }

    /// Returns true if each window must have rows from its first token on (kl.py).
    pub fn has_all_rows(self) -> bool {
        self.kind == klpy::KIND
    }

    /// Returns true for llama.cpp's base file: whole windows of a text, scored in their second half,
    /// as log-probabilities.
    pub fn is_base_file(self) -> bool {
        self.kind == llamacpp::KIND
    }

    /// The backend that readers of such a file assume, if they assume any: kl.py leaves flash
    /// attention off, llama-cpp-python's default.
    pub fn assumed_backend(self) -> Option<BackendIdentity> {
        (self.kind == klpy::KIND).then(klpy::backend)
    }
}

/// The kind, and the encoding where the kind has a choice: `kl u16`, `kl.py`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format.encodings.len() > 1 {
            true => write!(f, "{} {}", self.kind, self.encoding),
            false => write!(f, "{}", self.kind),
        }
    }
}

impl<W: Write> Writer<W> {
    /// Writes the start of a file that will hold exactly `windows`, in this order. The header holds
    /// as much of `about` as the kind can record; windows and rows are counted here. `path` is only
    /// used in messages.
    ///
    /// llama.cpp's base file starts with the tokens of all windows. Give those of the text: where
    /// the model adds a BOS, llama-perplexity puts it in place of each window's first token before
    /// it decodes. The windows given to [`Writer::write_window`] may have it there already.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the file cannot hold such windows, [`crate::Error::Io`].
    pub fn create(
        out: W,
        path: &Path,
        target: Target,
        about: &About,
        windows: &[WindowSpec],
    ) -> Result<Self> {
        let name = Named::new(path);
        Self::begin(
            out,
            (target.format.start)(&name, target.encoding, about, windows)?,
        )
    }
}

/// Header, index and end.
const FILE_OVERHEAD: u64 = 64 << 10;

/// A gzip member's header, extra field and trailer, and its entry in the index.
const MEMBER_OVERHEAD: u64 = 128;

/// Most bytes of a file whose windows are gzip members of a head and of pieces of rows, stored, if
/// codes can hold every row.
pub(crate) fn of_members(encoding: Encoding, about: &About, windows: &[WindowSpec]) -> u64 {
    let states = about.states.as_ref().filter(|_| encoding.holds_states());
    let (layout, row_len, head) = match (states, encoding.layout()) {
        (Some(states), _) => (
            RowLayout::State(states.state_type),
            states.n_embd,
            of_head(states, about.n_vocab),
        ),
        (None, Some(layout)) => (layout, about.n_vocab, 0),
        (None, None) => return u64::MAX,
    };
    let n_rows = n_rows(windows);
    let n_tokens: u64 = windows.iter().map(|spec| spec.tokens.len() as u64).sum();
    let row_bytes = layout.row_bytes(row_len as usize).unwrap_or(usize::MAX) as u64;
    let row_data = n_rows.saturating_mul(row_bytes);
    let pieces = n_rows / u64::from(rows_per_piece(layout, row_len));
    let members = pieces + 2 * windows.len() as u64;
    with_blocks(row_data)
        .saturating_add(with_blocks(head))
        .saturating_add(4 * n_tokens)
        .saturating_add(FILE_OVERHEAD + MEMBER_OVERHEAD * members)
}

/// The head's tensor and values, and the check rows.
fn of_head(states: &States, n_vocab: u32) -> u64 {
    let check_rows = states.check.rows.len() as u64 * (4 * u64::from(n_vocab) + MEMBER_OVERHEAD);
    states.head_bytes().saturating_add(check_rows)
}

/// Stored deflate blocks of 64 KiB cost 5 bytes each: less than a thousandth.
fn with_blocks(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 1000)
}
