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

#[cfg(test)]
mod tests;

use reader::KlPyReader;

use std::path::Path;

use crate::error::{Named, Result};
use crate::gzip::gzip;
use crate::reference::{About, Reference};
use crate::row::RowLayout;
use crate::writing::{FileFormat, Start, WindowFormat, rows_per_piece};
use crate::{BackendIdentity, WindowSpec};

/// The plain stream's first line.
pub const MAGIC_LINE: &str = "llama_kl_divergence_v1\n";

/// Most bytes of the header line.
pub const MAX_HEADER_BYTES: usize = 64 << 10;

/// Opens a reference.
pub(crate) fn open(path: &Path) -> Result<Reference> {
    KlPyReader::open(path).map(KlPyReader::into_reference)
}

/// The backend of kl.py, which leaves flash attention off, llama-cpp-python's default.
pub(crate) fn backend() -> BackendIdentity {
    BackendIdentity {
        flash_attn: Some("off".to_owned()),
        ..BackendIdentity::default()
    }
}

/// Windows as gzip members.
const FORMAT: FileFormat = FileFormat {
    window_fault: |window, n_ctx| {
        if window.first_scored != 0 {
            Some("kl.py's file has rows from a window's first token on")
        } else if window.tokens.len() > n_ctx as usize {
            Some("more tokens than n_ctx")
        } else {
            None
        }
    },
    before_rows: |window, n_vocab| {
        let counts = [window.entry().n_tokens, window.n_rows, n_vocab];
        bytemuck::cast_slice(&[&counts, &window.tokens[..]].concat()).to_vec()
    },
    has_checksum: false,
    pack: Some(|bytes, _part, plain| gzip(bytes, plain)),
    end: |_windows, _offset| Ok(Vec::new()),
};

/// The start of a file of these windows.
pub(crate) fn start(name: &Named, about: &About, windows: &[WindowSpec]) -> Result<Start> {
    let mut bytes = Vec::new();
    gzip(&mut bytes, &header::to_lines(about, windows, name)?);
    Ok(Start {
        bytes,
        format: WindowFormat {
            name: name.clone(),
            file_format: &FORMAT,
            layout: RowLayout::F32,
            n_ctx: header::n_ctx(about, windows),
            n_vocab: about.n_vocab,
            row_len: about.n_vocab,
            rows_per_piece: rows_per_piece(RowLayout::F32, about.n_vocab),
        },
        n_windows: u32::try_from(windows.len()).unwrap_or(u32::MAX),
        n_rows: None,
        states: None,
    })
}
