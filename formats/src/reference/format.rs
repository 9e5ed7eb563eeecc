//! The facts and functions that a kind of file must provide to be read and written like any other.

use std::path::Path;

use super::{About, Kind, Reference};
use crate::error::{Named, Result};
use crate::window::PlacedWindow;
use crate::writing::{Part, Start};
use crate::{Encoding, WindowSpec};

/// A kind of file. The module of each kind has a static `FORMAT`; `formats.rs` lists them.
pub(crate) struct Format {
    pub(crate) kind: Kind,
    /// Tells whether a file with these first bytes is of this kind.
    pub(crate) recognise: fn(&FirstBytes) -> bool,
    /// Opens a file of this kind.
    pub(crate) open: fn(&Path) -> Result<Reference>,
    /// Its writing side; `None` for a kind that is only read.
    pub(crate) write: Option<WriteFormat>,
}

/// A kind of file as it is written: a start, windows of a head and of pieces of rows, an end.
#[derive(Debug)]
pub(crate) struct WriteFormat {
    /// The encodings it can have; the first is the default.
    pub(crate) encodings: &'static [Encoding],
    /// The start of such a file: its first bytes, and what a writer must know.
    pub(crate) start: fn(&Named, Encoding, &About, &[WindowSpec]) -> Result<Start>,
    /// Most bytes that a file of these windows can have.
    pub(crate) projected_bytes: fn(Encoding, &About, &[WindowSpec]) -> u64,
    /// The reason why the file cannot hold a window, if it cannot; the second argument is `n_ctx`.
    pub(crate) window_fault: fn(&WindowSpec, u32) -> Option<&'static str>,
    /// Plain bytes before a window's rows; the second argument is `n_vocab`.
    pub(crate) window_head: fn(&WindowSpec, u32) -> Vec<u8>,
    /// Set if a CRC-32 of a window's plain bytes follows them.
    pub(crate) has_checksum: bool,
    /// Turns a piece's plain bytes into bytes of the file; `None` where they are the same.
    pub(crate) pack: Option<Pack>,
    /// The bytes after the windows of a file, which end at an offset, or a phrase that states what
    /// cannot be written.
    pub(crate) end: fn(&[PlacedWindow], u64) -> std::result::Result<Vec<u8>, &'static str>,
}

/// Appends plain bytes, its last argument, to bytes of a file.
pub(crate) type Pack = fn(&mut Vec<u8>, Part, &[u8]);

/// The start of a file, by which its kind is recognised.
#[derive(Debug, Default)]
pub(crate) struct FirstBytes {
    /// The first bytes.
    pub(crate) raw: Vec<u8>,
    /// The first inflated bytes, if the file is gzip.
    pub(crate) plain: Vec<u8>,
    /// Set for a folder, which has no bytes.
    pub(crate) is_folder: bool,
}
