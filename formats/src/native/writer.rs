//! Writes header, index and end, windows as members, and windows that are copied from another file
//! as they are.

use std::io::Write;
use std::path::Path;

use super::member::{self, HEADER, INDEX, ROWS, Tag, WINDOW};
use super::reader::counts;
use super::{Header, NativeReader, index};
use crate::error::{Named, Result};
use crate::provenance::OwnHeader as _;
use crate::row::ReadBlocks as _;
use crate::writing::{FileFormat, Piece, Start, WindowFormat, WindowPart, Writer};

const FORMAT: FileFormat = FileFormat {
    window_fault: |_window, _n_ctx| None,
    before_rows: |window, n_vocab| {
        let counts = counts(&window.entry(), n_vocab);
        bytemuck::cast_slice(&[&counts, &window.tokens[..]].concat()).to_vec()
    },
    has_checksum: true,
    pack: |bytes, part, plain| member::build_in(bytes, tag_of(part), plain),
    end: |windows, offset| {
        let plain = index::encode(windows);
        if u32::try_from(plain.len()).is_err() {
            return Err("an index of more than 4 GiB");
        }
        let mut bytes = member::build(INDEX, &plain);
        let file_bytes = offset + (bytes.len() + member::END_BYTES) as u64;
        bytes.extend(member::build_end(offset, file_bytes));
        Ok(bytes)
    },
};

impl<W: Write> Writer<W> {
    /// Writes the start of a native file with this header. `path` is only used in messages.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if the header contradicts itself, [`crate::Fault::Io`].
    pub fn native(out: W, path: &Path, header: &Header) -> Result<Self> {
        Self::begin(out, start(&Named::new(path), header)?)
    }

    /// Resumes a native file whose writer was cut off, as [`NativeReader::open_cut_off`] reads it.
    /// `out` receives the bytes from [`NativeReader::windows_end`] on. The finished file is byte
    /// for byte what the first writer would have made.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if the header contradicts itself.
    pub fn resume(out: W, path: &Path, cut_off: &NativeReader) -> Result<Self> {
        let mut start = start(&Named::new(path), &cut_off.header)?;
        // `cut_off` has both whole.
        (start.states, start.bytes) = (None, Vec::new());
        let windows = cut_off.placed.clone();
        Ok(Self::at(out, start, cut_off.windows_end, windows))
    }
}

/// The start of a file with this header.
pub(crate) fn start(name: &Named, header: &Header) -> Result<Start> {
    let (layout, row_len) = header.row_layout();
    Ok(Start {
        bytes: member::build(HEADER, &header.to_lines(name)?),
        format: WindowFormat {
            name: name.clone(),
            file_format: &FORMAT,
            layout,
            n_ctx: header.n_ctx,
            n_vocab: header.n_vocab,
            row_len,
            rows_per_piece: header.rows_per_piece,
        },
        n_windows: header.n_windows,
        n_rows: Some(header.n_rows),
        states: header.states.clone(),
    })
}

/// The contents of the member that a part becomes.
fn tag_of(part: WindowPart) -> Tag {
    match part {
        WindowPart::Start(entry) => [WINDOW, entry.window, 0],
        WindowPart::Rows { window, piece } => [ROWS, window, piece],
    }
}

impl<W: Write> Writer<W> {
    /// Writes the `i`-th window of `from` as the next one: its members' bytes, unchanged. The headers
    /// of both files must agree in how rows are stored, which the caller checks. Those of hidden states
    /// must have the same head too, which the first window brings along.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] if a member's bytes do not match its checksum,
    /// [`crate::Fault::Unwritable`] if the window is not the next one or has another head,
    /// [`crate::Fault::Io`].
    pub fn copy_window(&mut self, from: &NativeReader, i: usize) -> Result<()> {
        if self.start.states.is_some() {
            self.copy_head(from)?;
        }
        // Reads the window's counts, which must agree with the index.
        from.window(i)?;
        let (entry, window) = (from.placed_at(i).entry, from.number(i));
        let pieces = (0..from.n_blocks(i)).map(|piece| WindowPart::Rows { window, piece });
        for (m, part) in std::iter::once(WindowPart::Start(entry))
            .chain(pieces)
            .enumerate()
        {
            let mut packed = Vec::new();
            member::read_at(&from.source, &from.place(i, m), tag_of(part), &mut packed)
                .map_err(|e| e.in_window(window))?;
            let (plain, pack) = (Vec::new(), FORMAT.pack);
            self.append(Piece {
                plain,
                packed,
                part,
                pack,
            })?;
        }
        Ok(())
    }

    /// Writes the head of `from` as it is: its members' bytes, unchanged.
    fn copy_head(&mut self, from: &NativeReader) -> Result<()> {
        if from.header.states != self.start.states {
            let what = "another head than the header states";
            return Err(from.name().unwritable(what));
        }
        let mut bytes = Vec::new();
        for (place, tag) in &from.head {
            member::read_at(&from.source, place, *tag, &mut bytes)?;
            self.put(&bytes)?;
        }
        self.start.states = None;
        Ok(())
    }
}
