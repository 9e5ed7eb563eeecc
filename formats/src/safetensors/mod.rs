//! A folder of `0.safetensors`, `1.safetensors`, ...: one file for each window, as SGLang's patch
//! writes them. What is accepted is specified in `TENSORS.md`, beside this crate's manifest.
//!
//! Every offset in a file follows from its header, so its reader reads any rows of any
//! window, from any threads. The format itself: <https://github.com/huggingface/safetensors>.

mod header;
mod reader;

#[cfg(test)]
pub(crate) mod tests;

use reader::SafetensorsReader;

use std::path::Path;

use crate::error::Result;
use crate::reference::Reference;

/// Most bytes of a file's header: the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Names of the tensor that holds the rows.
const ROWS: [&str; 3] = ["log_probs", "logprobs", "logits"];

/// Names of the tensor that holds the token ids.
const IDS: [&str; 3] = ["input_ids", "token_ids", "tokens"];

/// Opens a reference.
pub(crate) fn open(path: &Path) -> Result<Reference> {
    SafetensorsReader::open(path).map(SafetensorsReader::into_reference)
}

/// Returns true if a file of a folder is a window's, by its name.
pub fn is_window(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "safetensors")
}
