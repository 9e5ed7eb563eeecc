//! The writing side: header and tokens of all windows, then rows in order.

use super::{KIND, LlamaCppHeader};
use crate::error::{Named, Result};
use crate::reference::About;
use crate::row::RowLayout;
use crate::window::longest;
use crate::writing::{Framing, NoEnd, Start, WindowFormat, rows_per_piece};
use crate::{Encoding, WindowSpec};

/// Rows as they are; a window's tokens are at the file's start.
const FRAMING: Framing = Framing {
    fault: |window, n_ctx| {
        let header = LlamaCppHeader {
            n_ctx,
            n_vocab: 1,
            n_windows: 1,
            is_floored: true,
        };
        let fits = window.tokens.len() == n_ctx as usize
            && window.first_scored == header.first_scored()
            && window.n_rows == header.rows_per_window();
        (!fits).then_some(
            "llama.cpp's base file has the rows n_ctx/2 to n_ctx-2 of windows of n_ctx tokens",
        )
    },
    head: |_window, _n_vocab| Vec::new(),
    has_checksum: false,
    pack: None,
};

/// The start of a file of these windows.
pub(super) fn start(
    name: &Named,
    _encoding: Encoding,
    about: &About,
    windows: &[WindowSpec],
) -> Result<Start> {
    let n_ctx = match longest(windows) {
        0 => about.n_ctx,
        longest => longest,
    };
    let tokens: Vec<u32> = windows
        .iter()
        .flat_map(|window| window.tokens.iter().copied())
        .collect();
    with_tokens(name, n_ctx, about.n_vocab, &tokens)
}

/// The start of a file with the tokens of whole windows of `n_ctx`, one after another.
pub(super) fn with_tokens(name: &Named, n_ctx: u32, n_vocab: u32, tokens: &[u32]) -> Result<Start> {
    let n_windows = tokens.len().checked_div(n_ctx as usize).unwrap_or(0);
    let header = LlamaCppHeader {
        n_ctx,
        n_vocab,
        n_windows: u32::try_from(n_windows).unwrap_or(u32::MAX),
        is_floored: true,
    };
    if let Some(fault) = header.fault() {
        return Err(name.unwritable(fault));
    }
    if n_windows * n_ctx as usize != tokens.len() {
        let what = format!("{} tokens are not whole windows of {n_ctx}", tokens.len());
        return Err(name.unwritable(what));
    }
    if let Some(token) = tokens.iter().find(|&&token| token >= n_vocab) {
        let what = format!("token {token} is outside the vocabulary of {n_vocab}");
        return Err(name.unwritable(what));
    }
    if header.file_bytes().is_none() {
        return Err(name.unwritable("a file of more than 2^64 bytes"));
    }
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(bytemuck::cast_slice(tokens));
    Ok(Start {
        bytes,
        format: WindowFormat {
            name: Named::default(),
            kind: KIND,
            layout: RowLayout::LlamaCpp,
            n_ctx,
            n_vocab,
            row_len: n_vocab,
            rows_per_piece: rows_per_piece(RowLayout::LlamaCpp, n_vocab),
            framing: FRAMING,
        },
        n_windows: Some(header.n_windows),
        n_rows: Some(header.n_rows()),
        states: None,
        end: Box::new(NoEnd),
    })
}

/// Bytes of a file of these windows.
pub(super) fn projected_bytes(_encoding: Encoding, about: &About, windows: &[WindowSpec]) -> u64 {
    let header = LlamaCppHeader {
        n_ctx: longest(windows),
        n_vocab: about.n_vocab,
        n_windows: u32::try_from(windows.len()).unwrap_or(u32::MAX),
        is_floored: true,
    };
    header.file_bytes().unwrap_or(u64::MAX)
}
