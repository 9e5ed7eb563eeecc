//! llama.cpp's base file, which `llama-perplexity --save-all-logits` writes and its
//! `--kl-divergence` reads: log-probabilities in 16 bits, without compression or checksums. The
//! layout is specified in `LLAMACPP.md`, beside this crate's manifest. beellama.cpp's `_logits2`
//! files, whose rows have no floor, are read too.
//!
//! A window here is what llama-perplexity calls a chunk. Every offset in the file follows from its
//! header, so its reader reads any rows of any window, from any threads.

mod header;
mod reader;

#[cfg(test)]
mod tests;

pub use crate::row::llama_cpp::{FLOOR, encode_row, row_bytes};
pub(crate) use header::LlamaCppHeader;
use reader::LlamaCppReader;

use std::path::Path;

use crate::WindowSpec;
use crate::error::{Named, Result};
use crate::reference::{About, Reference};
use crate::row::RowLayout;
use crate::window::longest_window;
use crate::writing::{FileFormat, Start, WindowFormat, rows_per_piece};

/// The file's first bytes.
pub const MAGIC: [u8; 8] = *b"_logits_";

/// The first bytes of beellama.cpp's file.
pub const LOGITS2_MAGIC: [u8; 8] = *b"_logits2";

/// Opens a reference.
pub(crate) fn open(path: &Path) -> Result<Reference> {
    LlamaCppReader::open(path).map(LlamaCppReader::into_reference)
}

/// Rows as they are: all tokens are at the file's start.
const FORMAT: FileFormat = FileFormat {
    window_fault: |window, n_ctx| {
        let header = LlamaCppHeader {
            n_ctx,
            ..LlamaCppHeader::default()
        };
        let fits = window.tokens.len() == n_ctx as usize
            && window.first_scored == header.first_scored()
            && window.n_rows == header.rows_per_window();
        (!fits).then_some(
            "llama.cpp's base file has the rows n_ctx/2 to n_ctx-2 of windows of n_ctx tokens",
        )
    },
    before_rows: |_window, _n_vocab| Vec::new(),
    has_checksum: false,
    pack: None,
    end: |_windows, _offset| Ok(Vec::new()),
};

/// The header of a file of these windows.
fn header_of(about: &About, windows: &[WindowSpec]) -> LlamaCppHeader {
    LlamaCppHeader {
        n_ctx: match longest_window(windows) {
            0 => about.n_ctx,
            longest => longest,
        },
        n_vocab: about.n_vocab,
        n_windows: u32::try_from(windows.len()).unwrap_or(u32::MAX),
        is_floored: true,
    }
}

/// Bytes of a file of these windows.
pub(crate) fn file_bytes(about: &About, windows: &[WindowSpec]) -> u64 {
    let bytes = header_of(about, windows).file_bytes();
    bytes.unwrap_or(u64::MAX)
}

/// The start of a file of these windows.
pub(crate) fn start(name: &Named, about: &About, windows: &[WindowSpec]) -> Result<Start> {
    let header = header_of(about, windows);
    let LlamaCppHeader { n_ctx, n_vocab, .. } = header;
    let mut bytes = header.to_bytes().to_vec();
    let mut fault = header.fault();
    for window in windows {
        let tokens = &window.tokens;
        if tokens.len() != n_ctx as usize {
            fault = Some(format!(
                "{} tokens are not a window of {n_ctx}",
                tokens.len()
            ));
        } else if let Some(token) = tokens.iter().find(|&&token| token >= n_vocab) {
            fault = Some(format!(
                "token {token} is outside the vocabulary of {n_vocab}"
            ));
        }
        bytes.extend_from_slice(bytemuck::cast_slice(tokens));
    }
    if header.file_bytes().is_none() {
        fault = fault.or(Some("a file of more than 2^64 bytes".to_owned()));
    }
    if let Some(fault) = fault {
        return Err(name.unwritable(fault));
    }
    Ok(Start {
        bytes,
        format: WindowFormat {
            name: name.clone(),
            file_format: &FORMAT,
            layout: RowLayout::LlamaCpp,
            n_ctx,
            n_vocab,
            row_len: n_vocab,
            rows_per_piece: rows_per_piece(RowLayout::LlamaCpp, n_vocab),
        },
        n_windows: header.n_windows,
        n_rows: Some(header.n_rows()),
        states: None,
    })
}
