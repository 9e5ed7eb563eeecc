//! The writing side: the header, and windows as gzip members.

use super::{KIND, KlPyHeader};
use crate::Encoding;
use crate::error::{Named, Result};
use crate::gzip::{gzip, gzip_in};
use crate::reference::format::WriteFormat;
use crate::row::RowLayout;
use crate::writing::{Start, WindowFormat, of_members, rows_per_piece};

pub(super) const FORMAT: WriteFormat = WriteFormat {
    encodings: &[Encoding::F32],
    start: |name, _, about, windows| start(name, &KlPyHeader::new(about, windows)),
    projected_bytes: of_members,
    window_fault: |window, n_ctx| {
        if window.first_scored != 0 {
            Some("kl.py's file has rows from a window's first token on")
        } else if window.tokens.len() > n_ctx as usize {
            Some("more tokens than n_ctx")
        } else {
            None
        }
    },
    window_head: |window, n_vocab| {
        let counts = [window.entry().n_tokens, window.n_rows, n_vocab];
        let mut plain: Vec<u8> = bytemuck::cast_slice(&counts).to_vec();
        plain.extend_from_slice(bytemuck::cast_slice(&window.tokens));
        plain
    },
    has_checksum: false,
    pack: Some(|bytes, _part, plain| gzip_in(bytes, plain)),
    end: |_windows, _offset| Ok(Vec::new()),
};

/// The start of a file with this header.
pub(super) fn start(name: &Named, header: &KlPyHeader) -> Result<Start> {
    Ok(Start {
        bytes: gzip(&header.to_lines(name)?),
        format: WindowFormat {
            name: name.clone(),
            kind: KIND,
            format: &FORMAT,
            layout: RowLayout::F32,
            n_ctx: header.n_ctx,
            n_vocab: header.n_vocab,
            row_len: header.n_vocab,
            rows_per_piece: rows_per_piece(RowLayout::F32, header.n_vocab),
        },
        n_windows: header.n_windows,
        n_rows: None,
        states: None,
    })
}
