//! kl.py's file: gzip around a plain stream without an index or checksums of its own.
//!
//! The plain stream, all numbers little-endian:
//!
//! | part | bytes |
//! |---|---|
//! | the line `llama_kl_divergence_v1` | 23 |
//! | one line, a Python dict literal: `n_ctx`, `n_vocab`, `model`, `text_path` and others | |
//! | then for each window until the stream ends: u32 n_tokens, u32 n_logits, u32 n_vocab | 12 |
//! | the tokens, u32 | 4 n_tokens |
//! | the rows of the window's first n_logits positions, raw logits, f32 | 4 n_logits n_vocab |
//!
//! kl.py writes a row for every position. Where there are fewer, it compares row `i` with its own
//! row of position `i`: the rows that lack are those of the last positions. Its `n_ctx` is the one
//! that llama.cpp allocated, padded to a multiple of 256, so windows may be shorter, never longer.
//!
//! A written header also says `n_windows`: a stream of several gzip members that was cut between
//! two of them would otherwise look whole. kl.py ignores the entry, and its own files lack it.

mod header;
mod members;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use header::KlPyHeader;
pub(crate) use header::is_shallow;
pub use reader::KlPyReader;
pub use writer::KlPyWriter;

/// The plain stream's first line.
pub const MAGIC_LINE: &str = "llama_kl_divergence_v1\n";

/// Most bytes of the header line.
pub const MAX_HEADER_BYTES: usize = 64 << 10;
