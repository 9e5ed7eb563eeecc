//! The writing side: header, index and end, and windows as members.

use std::io::Write;
use std::path::Path;

use super::member::{self, Tag};
use super::{Header, KIND, NativeReader, index};
use crate::Encoding;
use crate::error::{Named, Result};
use crate::reference::format::WriteFormat;
use crate::writing::{Part, Start, WindowFormat, Writer, of_members};

pub(super) const FORMAT: WriteFormat = WriteFormat {
    encodings: &[
        Encoding::U16,
        Encoding::F32,
        Encoding::Hidden,
        Encoding::Hidden16,
    ],
    start: |name, encoding, about, windows| start(name, &Header::new(about, encoding, windows)),
    projected_bytes: of_members,
    window_fault: |window, n_ctx| {
        (window.tokens.len() > n_ctx as usize).then_some("more tokens than n_ctx")
    },
    window_head: |window, n_vocab| {
        let entry = window.entry();
        let counts = [
            entry.window,
            entry.n_tokens,
            entry.n_rows,
            n_vocab,
            entry.first_scored,
        ];
        let mut plain: Vec<u8> = bytemuck::cast_slice(&counts).to_vec();
        plain.extend_from_slice(bytemuck::cast_slice(&window.tokens));
        plain
    },
    has_checksum: true,
    pack: Some(|bytes, part, plain| {
        let tag = match part {
            Part::Head(window) => Tag::head(window.window),
            Part::Rows { window, piece } => Tag::rows(window, piece),
        };
        member::build_in(bytes, tag, plain);
    }),
    end: |windows, offset| {
        let plain = index::encode(windows);
        if u32::try_from(plain.len()).is_err() {
            return Err("an index of more than 4 GiB");
        }
        let mut bytes = member::build(Tag::INDEX, &plain);
        let file_bytes = offset + (bytes.len() + member::END_BYTES) as u64;
        bytes.extend(member::build_end(member::End {
            index_offset: offset,
            file_bytes,
        }));
        Ok(bytes)
    },
};

impl<W: Write> Writer<W> {
    /// Writes the start of a native file with this header. `path` is only
    /// used in messages.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the header contradicts itself, [`crate::Error::Io`].
    pub fn native(out: W, path: &Path, header: &Header) -> Result<Self> {
        Self::begin(out, start(&Named::new(path), header)?)
    }

    /// Resumes a native file whose writer was cut off, as [`NativeReader::open_cut_off`] reads it.
    /// `out` receives the bytes from [`NativeReader::windows_end`] on. The finished file is byte
    /// for byte what the first writer would have made.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the header contradicts itself.
    pub fn resume(out: W, path: &Path, cut_off: &NativeReader) -> Result<Self> {
        let start = start(&Named::new(path), cut_off.header())?;
        let windows = cut_off.entries().to_vec();
        Ok(Self::at(out, start, cut_off.windows_end(), windows))
    }
}

/// The start of a file with this header.
fn start(name: &Named, header: &Header) -> Result<Start> {
    Ok(Start {
        bytes: member::build(Tag::HEADER, &header.to_lines(name)?),
        format: WindowFormat {
            name: name.clone(),
            kind: KIND,
            format: &FORMAT,
            layout: header.layout(),
            n_ctx: header.n_ctx,
            n_vocab: header.n_vocab,
            row_len: header.row_len(),
            rows_per_piece: header.rows_per_piece,
        },
        n_windows: Some(header.n_windows),
        n_rows: Some(header.n_rows),
        states: header.states.clone(),
    })
}
