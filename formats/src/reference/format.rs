//! What a kind of file must provide to be read and written like any other.

use std::path::Path;

use super::{About, Kind, Reference};
use crate::error::{Named, Result};
use crate::writing::Start;
use crate::{Encoding, WindowSpec};

/// A kind of file. The module of each kind has a constant `FORMAT`; `formats.rs` lists them.
pub(crate) struct Format {
    pub(crate) kind: Kind,
    /// Whether a file with these first bytes is of this kind.
    pub(crate) recognise: fn(&FirstBytes) -> bool,
    /// Opens a file of this kind.
    pub(crate) open: fn(&Path) -> Result<Reference>,
    /// How it is written, if it is.
    pub(crate) write: Option<WriteFormat>,
}

/// How a kind of file is written.
#[derive(Clone, Copy)]
pub(crate) struct WriteFormat {
    /// How it can store an entry; the first is the default.
    pub(crate) encodings: &'static [Encoding],
    /// The start of such a file: its first bytes, and what a writer must know.
    pub(crate) start: fn(&Named, Encoding, &About, &[WindowSpec]) -> Result<Start>,
    /// Most bytes that a file of these windows can have.
    pub(crate) projected_bytes: fn(Encoding, &About, &[WindowSpec]) -> u64,
    /// What it can hold, and what it implies.
    pub(crate) traits: Traits,
}

/// What a kind of file can hold, and what it implies about its rows.
#[derive(Clone, Copy, Default)]
pub(crate) struct Traits {
    /// Whether checksums show which windows are whole, so that writing can be resumed.
    pub(crate) can_resume: bool,
    /// Whether windows have rows from their first token on.
    pub(crate) has_all_rows: bool,
    /// Whether it holds llama-perplexity's chunks of a text: whole windows, scored in their second
    /// half, as log-probabilities.
    pub(crate) is_base_file: bool,
    /// Whether its rows are computed without flash attention, though the file does not state it.
    pub(crate) is_without_flash_attention: bool,
}

/// The start of a file, by which its kind is recognised.
#[derive(Debug, Default)]
pub(crate) struct FirstBytes {
    /// The first bytes.
    pub(crate) raw: Vec<u8>,
    /// The first inflated bytes, if the file is gzip.
    pub(crate) plain: Vec<u8>,
    /// Whether it is a folder, which has no bytes.
    pub(crate) is_folder: bool,
}
