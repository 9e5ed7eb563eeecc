//! The writing side: the header, and how windows become gzip members.

use super::{KIND, KlPyHeader};
use crate::error::{Named, Result};
use crate::gzip::{gzip, gzip_in};
use crate::reference::About;
use crate::row::RowLayout;
use crate::writing::{Framing, NoEnd, Start, WindowFormat, rows_per_piece};
use crate::{Encoding, WindowSpec};

/// How a window becomes members.
const FRAMING: Framing = Framing {
    fault: |window, n_ctx| {
        if window.first_scored != 0 {
            Some("kl.py's file has rows from a window's first token on")
        } else if window.tokens.len() > n_ctx as usize {
            Some("more tokens than n_ctx")
        } else {
            None
        }
    },
    head: |window, n_vocab| {
        let counts = [window.entry().n_tokens, window.n_rows, n_vocab];
        let mut plain: Vec<u8> = bytemuck::cast_slice(&counts).to_vec();
        plain.extend_from_slice(bytemuck::cast_slice(&window.tokens));
        plain
    },
    has_checksum: false,
    pack: Some(|bytes, _part, plain| gzip_in(bytes, plain)),
};

/// The start of a file of these windows.
pub(super) fn start(
    name: &Named,
    _encoding: Encoding,
    about: &About,
    windows: &[WindowSpec],
) -> Result<Start> {
    with_header(name, &KlPyHeader::new(about, windows))
}

/// The start of a file with this header.
pub(super) fn with_header(name: &Named, header: &KlPyHeader) -> Result<Start> {
    Ok(Start {
        bytes: gzip(&header.to_lines(name)?),
        format: WindowFormat {
            name: Named::default(),
            kind: KIND,
            layout: RowLayout::F32,
            n_ctx: header.n_ctx,
            n_vocab: header.n_vocab,
            row_len: header.n_vocab,
            rows_per_piece: rows_per_piece(RowLayout::F32, header.n_vocab),
            framing: FRAMING,
        },
        n_windows: header.n_windows,
        n_rows: None,
        states: None,
        end: Box::new(NoEnd),
    })
}
