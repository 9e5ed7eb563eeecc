//! A file without a good end: how far it is whole.

use std::path::Path;

use super::NativeReader;
use super::member::{self, END_BYTES, HEAD_BYTES, MemberHead, Tag, unpack_at};
use crate::window::PlacedWindow;
use crate::{Error, Fault, WindowEntry};

/// Counts the whole windows of a file that is being written, or was cut off. Fast: it reads little
/// more than the lengths that members state.
///
/// # Errors
/// Those of [`super::NativeReader::open_cut_off`].
pub fn count_windows(path: &Path) -> crate::Result<usize> {
    Ok(NativeReader::begin(path)?.walk()?.whole.len())
}

/// The members that were seen before the first that is not whole.
#[derive(Default)]
pub(super) struct Walked {
    /// Whole windows, judging by the lengths of their members.
    pub(super) whole: Vec<PlacedWindow>,
    /// Where the last of those ends: an interrupted write resumes there.
    pub(super) whole_until: u64,
    /// Where the walk stopped.
    offset: u64,
    /// The window that the walk stopped in.
    within: Option<PlacedWindow>,
    /// True if the index was seen.
    index: bool,
    /// True if the walk stopped because bytes were missing.
    cut: bool,
    /// The fault of the window's head that the walk stopped at.
    damage: Option<Error>,
}

impl NativeReader {
    /// Walks members from the first window on, by the lengths they state, until one is not whole.
    ///
    /// # Errors
    /// [`crate::Fault::Io`].
    pub(super) fn walk(&self) -> crate::Result<Walked> {
        let source = &self.source;
        let mut walked = Walked {
            offset: self.index_offset,
            whole_until: self.index_offset,
            ..Walked::default()
        };
        loop {
            let left = source.len.saturating_sub(walked.offset);
            if left < HEAD_BYTES as u64 || (walked.index && left < END_BYTES as u64) {
                walked.cut = true;
                return Ok(walked);
            }
            let bytes = source.array_at::<HEAD_BYTES>(walked.offset)?;
            let Some(head) = bytes.as_ref().and_then(member::read_head) else {
                return Ok(walked);
            };
            if u64::from(head.member_bytes) > left {
                if head.tag.is_window() {
                    walked.enter(&head, [0; 3]);
                }
                walked.cut = true;
                return Ok(walked);
            }
            match walked.count(self, head) {
                Err(damage) if matches!(damage.fault, Fault::Corrupt { .. }) => {
                    walked.damage = Some(damage);
                    return Ok(walked);
                }
                counted => counted?,
            }
        }
    }

    /// The error for a file whose last bytes are not its end.
    pub(super) fn diagnose(&self) -> Error {
        self.walk()
            .map_or_else(|error| error, |walked| walked.explain(self))
    }
}

impl Walked {
    /// Counts a whole member.
    fn count(&mut self, reader: &NativeReader, head: MemberHead) -> crate::Result<()> {
        if head.tag.is_window() {
            // Its counts state how many pieces follow.
            let plain = unpack_at(&reader.source, self.offset, &head)?;
            let (numbers, _) = plain.as_chunks::<4>();
            let number = |i| numbers.get(i).map_or(0, |b| u32::from_le_bytes(*b));
            self.enter(&head, [number(1), number(2), number(4)]);
        } else if let (true, Some(window)) = (head.tag.is_rows(), &mut self.within) {
            window.offsets.push(self.offset);
        }
        self.index |= head.tag == Tag::INDEX;
        // Not past the file's end: the caller has looked.
        self.offset += u64::from(head.member_bytes);
        let n_pieces = |n_rows: u32| n_rows.div_ceil(reader.header.rows_per_piece);
        let is_whole =
            |placed: &mut PlacedWindow| placed.n_pieces() >= n_pieces(placed.window.n_rows);
        if let Some(window) = self.within.take_if(is_whole) {
            self.whole.push(window);
            self.whole_until = self.offset;
        }
        Ok(())
    }

    /// A window begins, with these counts: tokens, rows, first scored position.
    fn enter(&mut self, head: &MemberHead, [n_tokens, n_rows, first_scored]: [u32; 3]) {
        self.within = Some(PlacedWindow {
            window: WindowEntry {
                window: head.tag.window,
                n_tokens,
                n_rows,
                first_scored,
            },
            offsets: vec![self.offset],
        });
    }

    fn explain(self, reader: &NativeReader) -> Error {
        if let Some(damage) = self.damage {
            return damage;
        }
        let name = reader.name();
        let window = self.within.map(|placed| placed.window.window);
        if !self.cut {
            let what = match self.index {
                true => "the end member is damaged, or bytes were appended to it",
                false => "no gzip member with an intact kl field starts here",
            };
            return name.corrupt(window, self.offset, what);
        }
        let what = format!(
            "the file ends after {} bytes with {} of {} windows whole (the rest should begin at \
             byte {})",
            reader.source.len,
            self.whole.len(),
            reader.header.n_windows,
            self.whole_until
        );
        name.truncated(window, self.offset, what)
    }
}
