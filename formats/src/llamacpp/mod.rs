//! llama.cpp's base file, which `llama-perplexity --save-all-logits` writes and its
//! `--kl-divergence` reads: log-probabilities in 16 bits, without compression or checksums. The
//! layout is specified in `LLAMACPP.md`, beside this crate's manifest. beellama.cpp's `_logits2`
//! files, whose rows have no floor, are read too.
//!
//! A window here is what llama-perplexity calls a chunk. Every offset in the file follows from its
//! header, so a [`LlamaCppReader`] reads any rows of any window, from any threads.

mod header;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use crate::row::llama_cpp::{FLOOR, encode_row, row_bytes};
pub(crate) use header::LlamaCppHeader;
pub(crate) use reader::LlamaCppReader;

use crate::reference::Kind;
use crate::reference::format::Format;

/// llama.cpp's base file.
pub const KIND: Kind = Kind::new("llama.cpp");

/// The file's first bytes.
pub const MAGIC: [u8; 8] = *b"_logits_";

/// The first bytes of beellama.cpp's file.
pub const LOGITS2_MAGIC: [u8; 8] = *b"_logits2";

pub(crate) static FORMAT: Format = Format {
    kind: KIND,
    recognise: |start| {
        let magics = [MAGIC, LOGITS2_MAGIC];
        magics.iter().any(|magic| start.raw.starts_with(magic))
    },
    open: |path| LlamaCppReader::open(path).map(LlamaCppReader::into_reference),
    write: Some(writer::FORMAT),
};
