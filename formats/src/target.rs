//! The kinds of file that can be written, how large a file becomes, and its start.

use std::fmt;
use std::io::Write;
use std::path::Path;

use crate::about::About;
use crate::error::{Named, Result};
use crate::kinds::Kind;
use crate::native::{self, Header};
use crate::provenance::BackendIdentity;
use crate::row::Encoding;
use crate::window::{WindowSpec, n_rows};
use crate::writing::{Writer, rows_per_piece};
use crate::{klpy, llamacpp};

/// A kind of file that can be written, and how it stores a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `kl`'s own file, which can have any encoding.
    Kl(Encoding),
    /// kl.py's file. Each window must have rows from its first token on.
    KlPy,
    /// llama.cpp's base file: whole windows of a text, scored in their second half, as
    /// log-probabilities.
    LlamaCpp,
}

impl Target {
    /// A file of this kind. Without an `encoding` it has the kind's default: `u16` for `kl`'s file,
    /// which can have any, and for llama.cpp's base file, `f32` for kl.py's.
    ///
    /// # Errors
    /// A phrase, if the kind can only be read, or does not have this encoding.
    pub fn new(kind: Kind, encoding: Option<Encoding>) -> Result<Self, String> {
        let target = match kind {
            Kind::Kl => Self::Kl(encoding.unwrap_or(Encoding::U16)),
            Kind::KlPy => Self::KlPy,
            Kind::LlamaCpp => Self::LlamaCpp,
            _ => return Err(format!("files of kind {kind} are read, not written")),
        };
        let own = target.encoding();
        match encoding {
            Some(asked) if asked != own => Err(format!(
                "files of kind {kind} store rows in {own}, not in {asked}"
            )),
            _ => Ok(target),
        }
    }

    /// The kind of file.
    pub fn kind(self) -> Kind {
        match self {
            Self::Kl(_) => Kind::Kl,
            Self::KlPy => Kind::KlPy,
            Self::LlamaCpp => Kind::LlamaCpp,
        }
    }

    /// Returns the encoding of a row's entry; in llama.cpp's base file as a log-probability.
    pub fn encoding(self) -> Encoding {
        match self {
            Self::Kl(encoding) => encoding,
            Self::KlPy => Encoding::F32,
            Self::LlamaCpp => Encoding::U16,
        }
    }

    /// Most bytes that a file of these windows can have, if codes can hold every u16 row: deflate may
    /// make it smaller, and a header's prompts come on top. `u64::MAX` for hidden states that `about`
    /// does not describe.
    pub fn projected_bytes(self, about: &About, windows: &[WindowSpec]) -> u64 {
        match self {
            Self::Kl(_) | Self::KlPy => member_file_bytes(self.encoding(), about, windows),
            Self::LlamaCpp => llamacpp::file_bytes(about, windows),
        }
    }

    /// The backend that readers of such a file assume, if they assume one: kl.py leaves flash
    /// attention off, llama-cpp-python's default.
    pub fn assumed_backend(self) -> Option<BackendIdentity> {
        (self == Self::KlPy).then(klpy::backend)
    }
}

/// The kind, and the encoding where the kind has a choice: `kl u16`, `kl.py`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kl(encoding) => write!(f, "{} {encoding}", self.kind()),
            _ => write!(f, "{}", self.kind()),
        }
    }
}

/// Header, index and end.
const FILE_OVERHEAD: u64 = 64 << 10;

/// A gzip member's header, extra field and trailer, and its entry in the index.
const MEMBER_OVERHEAD: u64 = 128;

/// Most bytes of a file of gzip members, if codes can hold every row: a window is one member of
/// counts and tokens, and one for each piece of rows, all stored; and the head and the check rows of
/// hidden states.
fn member_file_bytes(encoding: Encoding, about: &About, windows: &[WindowSpec]) -> u64 {
    let states = about.states.as_ref().filter(|_| encoding.holds_states());
    if encoding.holds_states() && states.is_none() {
        return u64::MAX;
    }
    let (layout, row_len) = native::row_layout(encoding, states, about.n_vocab);
    let head = states.map_or(0, |states| states.head_bytes());
    let n_check_rows = states.map_or(0, |states| states.check.rows.len() as u64);
    let n_rows = n_rows(windows);
    let n_tokens: u64 = windows.iter().map(|spec| spec.tokens.len() as u64).sum();
    let rows = n_rows.saturating_mul(layout.row_bytes(row_len as usize) as u64);
    let check_rows = n_check_rows * 4 * u64::from(about.n_vocab);
    let plain = rows.saturating_add(head).saturating_add(check_rows);
    let pieces = n_rows / u64::from(rows_per_piece(layout, row_len));
    let members = pieces + 2 * windows.len() as u64 + n_check_rows;
    // Stored deflate blocks of 64 KiB cost 5 bytes each: less than a thousandth.
    plain
        .saturating_add(plain / 1000)
        .saturating_add(4 * n_tokens)
        .saturating_add(FILE_OVERHEAD + MEMBER_OVERHEAD * members)
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
    /// [`crate::Fault::Unwritable`] if the file cannot hold such windows, [`crate::Fault::Io`].
    pub fn create(
        out: W,
        path: &Path,
        target: Target,
        about: &About,
        windows: &[WindowSpec],
    ) -> Result<Self> {
        let name = &Named::new(path);
        let start = match target {
            Target::Kl(encoding) => native::start(name, &Header::new(about, encoding, windows)),
            Target::KlPy => klpy::start(name, about, windows),
            Target::LlamaCpp => llamacpp::start(name, about, windows),
        };
        Self::begin(out, start?)
    }
}
