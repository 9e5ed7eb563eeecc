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
//! row of position `i`: the missing rows are those of the last positions. Its `n_ctx` is the one
//! that llama.cpp allocated, padded to a multiple of 256, so windows may be shorter, never longer.
//!
//! `kl` also writes `n_windows` into the header: without it, a stream of several gzip members that
//! was cut between two of them would look whole. Where the rows are not logits, it writes
//! `kl_values`: `log_probabilities`, or `floored_log_probabilities` as llama.cpp's base file has
//! them. kl.py ignores both entries, and its own files lack them.

mod header;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use header::KlPyHeader;
pub(crate) use reader::KlPyReader;

use crate::BackendIdentity;
use crate::reference::Kind;
use crate::reference::format::Format;

/// kl.py's file.
pub const KIND: Kind = Kind::new("kl.py");

/// The plain stream's first line.
pub const MAGIC_LINE: &str = "llama_kl_divergence_v1\n";

/// Most bytes of the header line.
pub const MAX_HEADER_BYTES: usize = 64 << 10;

pub(crate) static FORMAT: Format = Format {
    kind: KIND,
    recognise: |start| start.plain.starts_with(MAGIC_LINE.as_bytes()),
    open: |path| KlPyReader::open(path).map(KlPyReader::into_reference),
    write: Some(writer::FORMAT),
};

/// The backend of kl.py, which leaves flash attention off, llama-cpp-python's default.
pub(crate) fn backend() -> BackendIdentity {
    BackendIdentity {
        flash_attn: Some("off".to_owned()),
        ..BackendIdentity::default()
    }
}
