//! Finds how far a file without an intact end is whole.

use std::path::Path;

use super::NativeReader;
use super::member::{self, END_BYTES, HEADER_BYTES, Tag, unpack_at};
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
pub(super) struct Walked {
    /// Whole windows, judging by the lengths of their members.
    pub(super) whole: Vec<PlacedWindow>,
    /// Where the last of those ends: an interrupted write resumes there.
    pub(super) whole_until: u64,
    /// The fault that the walk stopped at.
    pub(super) error: Error,
}

impl NativeReader {
    /// Walks members from the first window on, by the lengths they state, until one is not whole.
    ///
    /// # Errors
    /// [`Fault::Io`].
    pub(super) fn walk(&self) -> crate::Result<Walked> {
        let (source, name) = (&self.source, self.name());
        let mut offset = self.windows_end;
        let (mut whole, mut whole_until) = (Vec::new(), offset);
        let mut within: Option<PlacedWindow> = None;
        let mut has_index = false;
        let error = loop {
            let window = within.as_ref().map(|placed| placed.entry.window);
            let cut = |window, n_whole, whole_until| {
                let what = format!(
                    "the file ends after {} bytes with {n_whole} of {} windows whole (the rest \
                     should begin at byte {whole_until})",
                    source.len, self.header.n_windows,
                );
                name.truncated(window, offset, what)
            };
            let left = source.len.saturating_sub(offset);
            let least = if has_index { END_BYTES } else { HEADER_BYTES };
            if left < least as u64 {
                break cut(window, whole.len(), whole_until);
            }
            let bytes = source.array_at::<HEADER_BYTES>(offset)?;
            let Some(header) = bytes.as_ref().and_then(member::read_header) else {
                let what = match has_index {
                    true => "the end member is damaged, or bytes were appended to it",
                    false => "no gzip member with an intact kl field starts here",
                };
                break name.corrupt(window, offset, what);
            };
            let begun = header.tag.is_window().then_some(header.tag.window);
            if u64::from(header.member_bytes) > left {
                break cut(begun.or(window), whole.len(), whole_until);
            }
            if let Some(window) = begun {
                let plain = match unpack_at(source, offset, &header) {
                    Err(error) if matches!(error.fault, Fault::Corrupt { .. }) => break error,
                    plain => plain?,
                };
                let (numbers, _) = plain.as_chunks::<4>();
                let number = |i| numbers.get(i).map_or(0, |b| u32::from_le_bytes(*b));
                within = Some(PlacedWindow {
                    entry: WindowEntry {
                        window,
                        n_tokens: number(1),
                        n_rows: number(2),
                        first_scored: number(4),
                    },
                    offsets: vec![offset],
                });
            } else if let (true, Some(window)) = (header.tag.is_rows(), &mut within) {
                window.offsets.push(offset);
            }
            has_index |= header.tag == Tag::INDEX;
            offset += u64::from(header.member_bytes);
            let n_pieces = |n_rows: u32| n_rows.div_ceil(self.header.rows_per_piece);
            let is_whole =
                |placed: &mut PlacedWindow| placed.n_pieces() >= n_pieces(placed.entry.n_rows);
            if let Some(window) = within.take_if(is_whole) {
                whole.push(window);
                whole_until = offset;
            }
        };
        Ok(Walked {
            whole,
            whole_until,
            error,
        })
    }
}
