//! The writing side: header, index and end, and how windows become members.

use std::io::Write;
use std::path::Path;

use super::index::{self, IndexEntry};
use super::member::{self, Tag};
use super::{Header, KIND, NativeReader};
use crate::error::{Named, Result};
use crate::reference::About;
use crate::writing::{self, Framing, Part, Start, WindowFormat, Writer};
use crate::{Encoding, WindowSpec};

/// How a window becomes members.
const FRAMING: Framing = Framing {
    fault: |window, n_ctx| {
        (window.tokens.len() > n_ctx as usize).then_some("more tokens than n_ctx")
    },
    head: |window, n_vocab| {
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
    pack: Some(pack),
};

impl<W: Write> Writer<W> {
    /// Writes the start of a native file with this header. `path` is only
    /// used in messages.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the header contradicts itself, [`crate::Error::Io`].
    pub fn native(out: W, path: &Path, header: &Header) -> Result<Self> {
        let name = Named::new(path);
        let start = with_header(&name, header)?;
        Self::begin(out, name, start)
    }

    /// Resumes a native file whose writer was cut off, as [`NativeReader::open_cut_off`] reads it.
    /// `out` receives the bytes from [`NativeReader::windows_end`] on. The finished file is byte
    /// for byte what the first writer would have made.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the header contradicts itself.
    pub fn resume(out: W, path: &Path, cut_off: &NativeReader) -> Result<Self> {
        let name = Named::new(path);
        let start = Start {
            end: Box::new(End(cut_off.entries().to_vec())),
            ..with_header(&name, cut_off.header())?
        };
        let offset = cut_off.windows_end();
        Ok(Self::at(out, name, start, offset, cut_off.windows()))
    }
}

/// The start of a file of these windows.
pub(super) fn start(
    name: &Named,
    encoding: Encoding,
    about: &About,
    windows: &[WindowSpec],
) -> Result<Start> {
    with_header(name, &Header::new(about, encoding, windows))
}

fn with_header(name: &Named, header: &Header) -> Result<Start> {
    let lines = header.to_lines(name)?;
    Ok(Start {
        bytes: member::build(Tag::HEADER, &lines),
        format: WindowFormat {
            name: Named::default(),
            kind: KIND,
            layout: header.layout(),
            n_ctx: header.n_ctx,
            n_vocab: header.n_vocab,
            row_len: header.row_len(),
            rows_per_piece: header.rows_per_piece,
            framing: FRAMING,
        },
        n_windows: Some(header.n_windows),
        n_rows: Some(header.n_rows),
        states: header.states.clone(),
        end: Box::new(End(Vec::new())),
    })
}

fn pack(bytes: &mut Vec<u8>, part: Part, plain: &[u8]) {
    let tag = match part {
        Part::Head { window, .. } => Tag::head(window.window),
        Part::Rows { window, piece } => Tag::rows(window, piece),
    };
    member::build_in(bytes, tag, plain);
}

/// Where each window's members start: the index.
#[derive(Debug)]
struct End(Vec<IndexEntry>);

impl writing::End for End {
    fn note(&mut self, part: Part, offset: u64) {
        match part {
            Part::Head { window, .. } => self.0.push(IndexEntry {
                window,
                offsets: vec![offset],
            }),
            Part::Rows { .. } => {
                if let Some(entry) = self.0.last_mut() {
                    entry.offsets.push(offset);
                }
            }
        }
    }

    fn bytes(&self, offset: u64) -> std::result::Result<Vec<u8>, &'static str> {
        let plain = index::encode(&self.0);
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
    }
}
