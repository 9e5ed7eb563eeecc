//! An `.npz` of numpy: a zip with an array for each window, as mlx-kld keeps its reference. What is
//! accepted is specified in `TENSORS.md`, beside this crate's manifest.
//!
//! Arrays may be deflated, so their rows can only be read from the first on: its reader is a
//! stream of windows. The format of an array:
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

mod arrays;
mod npy;
mod reader;
mod zip;

#[cfg(test)]
pub(crate) mod tests;

use reader::NpzReader;

use std::path::Path;

use crate::error::Result;
use crate::reference::Reference;

/// The file's first bytes: a zip's first member.
pub const MAGIC: [u8; 4] = *b"PK\x03\x04";

/// Opens a reference.
pub(crate) fn open(path: &Path) -> Result<Reference> {
    NpzReader::open(path).map(NpzReader::into_reference)
}
