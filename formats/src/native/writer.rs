//! The writing side: header, index and end, windows as members, and windows that are copied from
//! another file as they are.

use std::io::Write;
use std::path::Path;

use super::member::{self, HEAD_BYTES, MemberHead, Tag, WRONG_CHECKSUM, member_at};
use super::{Header, NativeReader, index};
use crate::error::{Named, Result};
use crate::reference::Kind;
use crate::writing::{Part, Piece, Start, WindowFormat, WriteFormat, Writer};
use crate::{HeadCheck, ReadBlocks as _, States};

const FORMAT: WriteFormat = WriteFormat {
    kind: Kind::Kl,
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
        bytemuck::cast_slice(&[&counts, &window.tokens[..]].concat()).to_vec()
    },
    has_checksum: true,
    pack: Some(|bytes, part, plain| {
        let tag = match part {
            Part::Head(window) => Tag::window(window.window),
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
        let start = start(&Named::new(path), cut_off.header())?;
        let windows = cut_off.entries().to_vec();
        Ok(Self::at(out, start, cut_off.windows_end(), windows))
    }
}

/// The start of a file with this header.
pub(crate) fn start(name: &Named, header: &Header) -> Result<Start> {
    Ok(Start {
        bytes: member::build(Tag::HEADER, &header.to_lines(name)?),
        format: WindowFormat {
            name: name.clone(),
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

impl<W: Write> Writer<W> {
    /// Writes the `i`-th window of `from` as the next one: its members' bytes, unchanged. Both files
    /// must have rows of the same length, encoding and number in a piece. Those of hidden states must
    /// have the same head too, which the first window brings along.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] if a member's bytes do not match its checksum,
    /// [`crate::Fault::Unwritable`] if the window is not the next one or belongs to a file of another
    /// kind of rows, [`crate::Fault::Io`].
    pub fn copy_window(&mut self, from: &NativeReader, i: usize) -> Result<()> {
        let entry = from.entry(i);
        let window = entry.window;
        let n_pieces = entry.n_pieces();
        self.check_fits(from)?;
        if self.is_head_due {
            self.copy_head(from)?;
        }
        // Reads the window's head, which must agree with the index.
        from.window(i)?;
        for m in 0..=n_pieces {
            let (tag, part) = match m.checked_sub(1) {
                None => (Tag::window(window.window), Part::Head(window)),
                Some(piece) => {
                    let window = window.window;
                    (Tag::rows(window, piece), Part::Rows { window, piece })
                }
            };
            let (offset, head) = from.member(i, m as usize, tag, 0..=u32::MAX.into())?;
            let bytes = from.whole_member(offset, &head);
            let bytes = bytes.map_err(|e| from.in_window(i, e))?;
            self.append(Piece::copied(bytes, part, self.format()))?;
        }
        Ok(())
    }

    /// Writes the head of `from` as it is: its members' bytes, unchanged.
    fn copy_head(&mut self, from: &NativeReader) -> Result<()> {
        if from.header().states != self.start.states {
            return Err(from
                .name()
                .unwritable("another head than the header states"));
        }
        for &(offset, tag) in &from.head {
            let head = member_at(&from.source, offset, tag)?;
            let bytes = from.whole_member(offset, &head)?;
            self.put(&bytes)?;
        }
        self.is_head_due = false;
        Ok(())
    }

    fn check_fits(&self, from: &NativeReader) -> Result<()> {
        let (header, format) = (from.header(), self.format());
        let is_alike = header.layout() == format.layout
            && header.n_vocab == format.n_vocab
            && header.rows_per_piece == format.rows_per_piece
            && are_alike(header.states.as_ref(), self.start.states.as_ref());
        match is_alike {
            true => Ok(()),
            false => Err(from.name().unwritable("windows of another layout")),
        }
    }
}

/// Returns true if rows are made of both alike. Their checks may differ: each is of its own
/// machine.
fn are_alike(one: Option<&States>, other: Option<&States>) -> bool {
    let but_check = |states: &States| States {
        check: HeadCheck::default(),
        ..states.clone()
    };
    one.map(but_check) == other.map(but_check)
}

impl NativeReader {
    /// All bytes of a member, whose checksum has been checked.
    fn whole_member(&self, offset: u64, head: &MemberHead) -> Result<Vec<u8>> {
        // No more than the file has: `member_at` has checked it.
        let mut bytes = vec![0; head.member_bytes as usize];
        self.source.read_exact_at(&mut bytes, offset)?;
        match head.matches(bytes.get(HEAD_BYTES..).unwrap_or_default()) {
            true => Ok(bytes),
            false => Err(self.name().corrupt(None, offset, WRONG_CHECKSUM)),
        }
    }
}
