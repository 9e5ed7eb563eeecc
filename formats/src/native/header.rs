//! The header: what the file holds, and what it was made of.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{MAGIC_LINE, MAX_HEADER_BYTES, MAX_HEADER_BYTES_WITH_PROMPTS};
use crate::error::{Named, Result};
use crate::header_lines::to_lines;
use crate::{
    BackendIdentity, Encoding, MAX_N_CTX, MAX_N_VOCAB, ModelIdentity, Prompt, TextIdentity,
    TokenizerIdentity,
};

/// The version of the native file that this crate writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 2;

/// Plain bytes that a piece of rows aims at.
const PIECE_BYTES: usize = 1 << 20;

/// Plain bytes that a piece may take, one wide row always being allowed.
const MAX_PIECE_BYTES: u64 = 64 << 20;

/// The JSON line of a native file. Fields that are not known are ignored when read.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// The program that wrote the file, with its version.
    pub writer: String,
    /// The model whose logits these are.
    pub model: ModelIdentity,
    /// Its tokenizer, where known.
    pub tokenizer: Option<TokenizerIdentity>,
    /// Most tokens in a window.
    pub n_ctx: u32,
    /// Entries of a row.
    pub n_vocab: u32,
    /// Whether each window starts with an inserted BOS.
    pub add_bos: bool,
    /// First scored position of a full window.
    pub first_scored: u32,
    /// Windows in the file.
    pub n_windows: u32,
    /// Rows in the file: scored positions.
    pub n_rows: u64,
    /// How rows are kept.
    pub encoding: Encoding,
    /// Rows in each piece but a window's last: see [`rows_per_piece`].
    pub rows_per_piece: u32,
    /// The text.
    pub text: TextIdentity,
    /// How the rows were computed.
    pub backend: BackendIdentity,
    /// Seed of the windows' order; `None` where they are in the order of the text.
    pub seed: Option<u64>,
    /// Tokens of text from the start of a window to that of the next; `None` where windows do not
    /// overlap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<u32>,
    /// Whether the rows are log-probabilities of llama.cpp's base file, floored and not normalised,
    /// from which logits cannot be had.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log_probabilities: bool,
    /// The prompts, where the windows are such and not parts of a text: window `i` is that of the
    /// `i`-th. There may be more of them than windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<Prompt>>,
    /// SHA-256 (hex) of the chat template that was applied to the prompts; `None`: none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// Tokens at each window's end that the model itself put behind its prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<u32>,
}

/// Rows in a piece: about 1 MiB before compression, and at least one.
pub fn rows_per_piece(encoding: Encoding, n_vocab: u32) -> u32 {
    let row_bytes = encoding
        .row_bytes(n_vocab as usize)
        .unwrap_or(usize::MAX)
        .max(1);
    u32::try_from(PIECE_BYTES / row_bytes)
        .unwrap_or(u32::MAX)
        .max(1)
}

impl Header {
    /// Bytes of an encoded row. The header has been checked.
    pub(crate) fn row_bytes(&self) -> usize {
        self.encoding
            .row_bytes(self.n_vocab as usize)
            .unwrap_or(usize::MAX)
    }

    /// Both lines.
    pub(crate) fn to_lines(&self, name: &Named) -> Result<Vec<u8>> {
        if let Some(fault) = self.fault() {
            return Err(name.unwritable(fault));
        }
        let lines = to_lines(MAGIC_LINE, self, name)?;
        let json = lines.get(MAGIC_LINE.len()..).unwrap_or_default();
        match Preview::of(json, name)?.too_large(lines.len()) {
            Some(fault) => Err(name.unwritable(fault)),
            None => Ok(lines),
        }
    }

    /// From both lines.
    pub(crate) fn from_lines(lines: &[u8], name: &Named) -> Result<Self> {
        let json = lines
            .strip_prefix(MAGIC_LINE.as_bytes())
            .ok_or_else(|| name.not_a_reference("its first line is another file's"))?
            .strip_suffix(b"\n")
            .ok_or_else(|| name.header("the JSON line does not end"))?;
        let preview = Preview::of(json, name)?;
        let format_version = preview.format_version;
        if format_version != FORMAT_VERSION {
            return Err(name.unsupported(format!(
                "format version {format_version}, this kl reads {FORMAT_VERSION}: \
                 use the kl that wrote it, or write it anew"
            )));
        }
        if let Some(fault) = preview.too_large(lines.len()) {
            return Err(name.too_large(fault));
        }
        let header: Self = serde_json::from_slice(json).map_err(|e| name.header(format!("{e}")))?;
        match header.fault() {
            Some(fault) => Err(name.header(fault)),
            None => Ok(header),
        }
    }

    /// What is wrong with the sizes, if anything.
    pub(crate) fn fault(&self) -> Option<String> {
        let piece_bytes = self
            .encoding
            .row_bytes(self.n_vocab as usize)
            .and_then(|bytes| (bytes as u64).checked_mul(u64::from(self.rows_per_piece)));
        if self.format_version != FORMAT_VERSION {
            Some(format!(
                "format_version {}, not {FORMAT_VERSION}",
                self.format_version
            ))
        } else if !(1..=MAX_N_VOCAB).contains(&self.n_vocab) {
            Some(format!("n_vocab {}, not 1 to {MAX_N_VOCAB}", self.n_vocab))
        } else if !(1..=MAX_N_CTX).contains(&self.n_ctx) {
            Some(format!("n_ctx {}, not 1 to {MAX_N_CTX}", self.n_ctx))
        } else if self.rows_per_piece == 0 {
            Some("rows_per_piece 0".into())
        } else if self.rows_per_piece > 1 && piece_bytes.is_none_or(|n| n > MAX_PIECE_BYTES) {
            Some(format!(
                "rows_per_piece {}, past 64 MiB a piece",
                self.rows_per_piece
            ))
        } else if self.n_rows > u64::from(self.n_windows).saturating_mul(u64::from(self.n_ctx)) {
            Some(format!(
                "n_rows {}, more than the windows have positions",
                self.n_rows
            ))
        } else if let Some(prompts) = &self.prompts
            && prompts.len() < self.n_windows as usize
        {
            Some(format!(
                "n_windows {}, more than the {} prompts",
                self.n_windows,
                prompts.len()
            ))
        } else {
            None
        }
    }
}

/// What is looked at first, in place: another version may have other fields, and only prompts may
/// make a header long.
#[derive(Deserialize)]
struct Preview<'a> {
    format_version: u32,
    #[serde(borrow, default)]
    prompts: Option<&'a RawValue>,
}

impl<'a> Preview<'a> {
    fn of(json: &'a [u8], name: &Named) -> Result<Self> {
        serde_json::from_slice(json).map_err(|e| name.header(format!("{e}")))
    }

    /// What is too large about a header whose lines have `bytes`.
    fn too_large(&self, bytes: usize) -> Option<&'static str> {
        let prompts = self.prompts.map_or(0, |prompts| prompts.get().len());
        if bytes > MAX_HEADER_BYTES_WITH_PROMPTS {
            Some("a header of more than 64 MiB: give fewer prompts")
        } else if bytes.saturating_sub(prompts) > MAX_HEADER_BYTES {
            Some("a header of more than 1 MiB")
        } else {
            None
        }
    }
}
