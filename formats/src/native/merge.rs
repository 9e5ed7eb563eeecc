//! Copies windows, and the head of hidden states, from one native file to another, as they are.

use std::io::Write;

use super::NativeReader;
use super::member::{HEAD_BYTES, MemberHead, Tag, WRONG_CHECKSUM};
use super::members::member_at;
use crate::ReadBlocks as _;
use crate::error::Result;
use crate::writing::{Part, Piece, Writer};
use crate::{HeadCheck, States};

impl<W: Write> Writer<W> {
    /// Writes the `i`-th window of `from` as the next one: its members' bytes, unchanged. Both files
    /// must have rows of the same length, encoding and number in a piece. Those of hidden states must
    /// have the same head too, which the first window brings along.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if a member's bytes do not match its checksum,
    /// [`crate::Error::Unwritable`] if the window is not the next one or belongs to a file of another
    /// kind of rows, [`crate::Error::Io`].
    pub fn copy_window(&mut self, from: &NativeReader, i: usize) -> Result<()> {
        let entry = from.entry(i);
        let window = entry.window;
        let n_pieces = entry.n_pieces();
        self.check_fits(from)?;
        if let Some((_, true)) = self.states() {
            self.copy_head(from)?;
        }
        // Reads the window's head, which must agree with the index.
        from.window(i)?;
        for m in 0..=n_pieces {
            let (tag, part) = match m.checked_sub(1) {
                None => (Tag::head(window.window), Part::Head(window)),
                Some(piece) => {
                    let window = window.window;
                    (Tag::rows(window, piece), Part::Rows { window, piece })
                }
            };
            let bytes = from.member_bytes(i, m as usize, tag)?;
            self.append(Piece::copied(bytes, part, self.format()))?;
        }
        Ok(())
    }

    /// Writes the head of `from` as it is: its members' bytes, unchanged.
    fn copy_head(&mut self, from: &NativeReader) -> Result<()> {
        if from.header().states.as_ref() != self.states().map(|(states, _)| states) {
            return Err(from
                .name()
                .unwritable("another head than the header states"));
        }
        for (offset, tag) in from.head_members() {
            let head = member_at(&from.source, offset, tag)?;
            let bytes = from.whole_member(offset, &head)?;
            self.put(&bytes)?;
        }
        self.end_head();
        Ok(())
    }

    fn check_fits(&self, from: &NativeReader) -> Result<()> {
        let (header, format) = (from.header(), self.format());
        let is_alike = header.layout() == format.layout
            && header.n_vocab == format.n_vocab
            && header.rows_per_piece == format.rows_per_piece
            && are_alike(
                header.states.as_ref(),
                self.states().map(|(states, _)| states),
            );
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
    /// All bytes of member `m` of the `i`-th window, whose checksum has been checked.
    fn member_bytes(&self, i: usize, m: usize, tag: Tag) -> Result<Vec<u8>> {
        let (offset, end) = self.extent(i, m);
        let head = member_at(&self.source, offset, tag).map_err(|e| self.in_window(i, e))?;
        let corrupt = |what| self.name().corrupt(Some(self.number(i)), offset, what);
        if offset.checked_add(head.member_bytes.into()) != Some(end) {
            return Err(corrupt("a member is not as long as the index states"));
        }
        self.whole_member(offset, &head)
            .map_err(|e| self.in_window(i, e))
    }

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
