//! A file without a good end: how far it is whole.

use super::Header;
use super::member::{self, END_BYTES, HEAD_BYTES, MemberHead, Tag};
use super::reader::unpack_at;
use crate::Error;
use crate::source::Source;

/// What is wrong with a file whose last bytes are not its end: walks its members from `start`,
/// where the header ends, by the lengths they state.
pub(super) fn diagnose(source: &Source, header: &Header, start: u64) -> Error {
    match walk(source, header, start) {
        Ok(walked) => walked.explain(source, header),
        Err(error) => error,
    }
}

/// What was seen before the first member that is not whole.
#[derive(Default)]
struct Walked {
    /// Where the walk stopped.
    offset: u64,
    /// Windows seen whole.
    whole: u32,
    /// Where the last of those ends: there an interrupted write may go on.
    whole_until: u64,
    /// The window that the walk stopped in.
    within: Option<Window>,
    /// Whether the index was seen.
    index: bool,
    /// Whether the walk stopped because bytes were missing.
    cut: bool,
}

struct Window {
    number: u32,
    pieces: u32,
    pieces_seen: u32,
}

fn walk(source: &Source, header: &Header, start: u64) -> crate::Result<Walked> {
    let mut walked = Walked {
        offset: start,
        whole_until: start,
        ..Walked::default()
    };
    loop {
        let left = source.len.saturating_sub(walked.offset);
        if left < HEAD_BYTES as u64 || (walked.index && left < END_BYTES as u64) {
            walked.cut = true;
            return Ok(walked);
        }
        let Some(head) = source
            .array_at::<HEAD_BYTES>(walked.offset)?
            .as_ref()
            .and_then(member::read_head)
        else {
            return Ok(walked);
        };
        if u64::from(head.member_bytes) > left {
            if head.tag.is_head() {
                walked.within = Some(Window {
                    number: head.tag.window,
                    pieces: u32::MAX,
                    pieces_seen: 0,
                });
            }
            walked.cut = true;
            return Ok(walked);
        }
        walked.take(source, header, head)?;
    }
}

impl Walked {
    /// Counts a whole member.
    fn take(&mut self, source: &Source, header: &Header, head: MemberHead) -> crate::Result<()> {
        if head.tag.is_head() {
            // Its counts say how many pieces follow.
            let plain = unpack_at(source, self.offset, &head)?;
            let n_rows = plain.get(8..12).and_then(|b| b.first_chunk()).copied();
            let pieces = n_rows
                .map_or(0, u32::from_le_bytes)
                .div_ceil(header.rows_per_piece);
            self.within = Some(Window {
                number: head.tag.window,
                pieces,
                pieces_seen: 0,
            });
        } else if let (true, Some(window)) = (head.tag.is_rows(), &mut self.within) {
            window.pieces_seen = window.pieces_seen.saturating_add(1);
        }
        self.index |= head.tag == Tag::INDEX;
        // Not past the file's end: the caller has looked.
        self.offset += u64::from(head.member_bytes);
        if self
            .within
            .as_ref()
            .is_some_and(|window| window.pieces_seen >= window.pieces)
        {
            self.within = None;
            self.whole = self.whole.saturating_add(1);
            self.whole_until = self.offset;
        }
        Ok(())
    }

    fn explain(self, source: &Source, header: &Header) -> Error {
        let name = &source.name;
        let window = self.within.map(|window| window.number);
        if !self.cut {
            let what = match self.index {
                true => "the end member is damaged, or bytes were put behind it",
                false => "no gzip member with an intact kl field starts here",
            };
            return name.corrupt(window, self.offset, what);
        }
        let what = format!(
            "the file ends after {} bytes with {} of {} windows whole (the rest should begin at \
             byte {})",
            source.len, self.whole, header.n_windows, self.whole_until
        );
        name.truncated(window, self.offset, what)
    }
}
