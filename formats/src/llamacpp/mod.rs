//! llama.cpp's base file, which `llama-perplexity --save-all-logits` writes and its
//! `--kl-divergence` reads: log-probabilities in 16 bits, without compression or checksums. The
//! layout is specified in `LLAMACPP.md`, beside this crate's manifest.
//!
//! A window here is what llama-perplexity calls a chunk. Every place in the file follows from its
//! header, so a [`LlamaCppReader`] reads any rows of any window, from any threads; a
//! [`LlamaCppWriter`] takes rows that [`encode_row`] made on any threads, in order.

mod header;
mod reader;
mod row;
mod writer;

#[cfg(test)]
mod tests;

pub use header::LlamaCppHeader;
pub use reader::LlamaCppReader;
pub(crate) use row::view;
pub use row::{encode_row, row_bytes};
pub use writer::LlamaCppWriter;

/// The file's first bytes.
pub const MAGIC: [u8; 8] = *b"_logits_";

/// How far below a row's largest logit llama-perplexity lets a logit go: what is less is raised
/// to this, in logits.
pub const FLOOR: f32 = 16.0;
