//! An open file: its header, its index, and where each member is; and how far a file without an intact
//! end is whole.

use std::ops::Range;
use std::path::Path;

use super::member::{self, END_BYTES, HEADER, INDEX, ROWS, Tag, WINDOW};
use super::{Header, MAGIC_LINE, MAX_HEADER_BYTES_WITH_PROMPTS, index};
use crate::about::{About, Prompts};
use crate::error::{Error, Fault, Named, Result};
use crate::kinds::Kind;
use crate::provenance::OwnHeader as _;
use crate::row::ReadBlocks;
use crate::source::Source;
use crate::window::{PlacedWindow, WindowEntry};

/// A native file. Reading takes `&self`, so threads may share one.
#[derive(Debug)]
pub struct NativeReader {
    pub(super) source: Source,
    /// The header.
    pub header: Header,
    /// The members of the head of hidden states: where each is, and what it holds.
    pub(super) head: Vec<(Range<u64>, Tag)>,
    /// The windows, and where their members start.
    pub(super) placed: Vec<PlacedWindow>,
    /// Where the windows' members end, in bytes of the file: the index follows, or what is still to be
    /// written. While there are none, where the first is to start.
    pub windows_end: u64,
}

impl NativeReader {
    /// Opens the file and reads its header and its index; no window is read yet.
    ///
    /// # Errors
    /// [`crate::Fault::Truncated`] for a file that lacks its end, with the offset where the
    /// rest should begin; else [`crate::Fault::NotAReference`], [`crate::Fault::Header`],
    /// [`crate::Fault::Unsupported`], [`crate::Fault::Corrupt`], [`crate::Fault::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let mut reader = Self::begin(path)?;
        let (source, start) = (&reader.source, reader.windows_end);
        let end_offset = source.len.saturating_sub(END_BYTES as u64);
        let bytes = source.array_at::<END_BYTES>(end_offset.max(start))?;
        let Some(index_offset) = bytes.and_then(|bytes| member::read_end(&bytes, source.len))
        else {
            return Err(reader.walk()?);
        };
        let corrupt = |offset, what: &str| source.name.corrupt(None, offset, what);
        if index_offset < start || index_offset >= end_offset {
            let what = "the end member does not point to an index";
            return Err(corrupt(end_offset, what));
        }
        let most = index::max_plain_bytes(source.len);
        let plain = member::plain_at(source, &(index_offset..end_offset), INDEX, most)?;
        reader.placed = index::decode(&plain, &reader.header, start, index_offset)
            .map_err(|what| corrupt(index_offset, &what))?;
        reader.windows_end = index_offset;
        Ok(reader)
    }

    /// Opens the file, reads its header, and finds the head of its hidden states. No windows are
    /// known yet: `windows_end` is where the first is to start.
    pub(super) fn begin(path: &Path) -> Result<Self> {
        let source = Source::open(path, "a reference")?;
        let (header, windows_end) = open_header(&source)?;
        let mut reader = Self {
            source,
            header,
            head: Vec::new(),
            placed: Vec::new(),
            windows_end,
        };
        reader.find_head()?;
        Ok(reader)
    }

    /// Opens what a writer that was cut off has left, as if the file ended after its last whole
    /// window: whatever comes after the first byte that is missing or damaged is not there. Every
    /// byte of what is there is read and checked, as [`ReadBlocks::verify_window`] does.
    ///
    /// # Errors
    /// A file without a whole header, or without the whole head of its hidden states:
    /// [`crate::Fault::Truncated`], and the other errors of [`NativeReader::open`] about either;
    /// [`crate::Fault::Io`].
    pub fn open_cut_off(path: &Path) -> Result<Self> {
        let mut reader = Self::begin(path)?;
        reader.walk()?;
        reader.verify_head()?;
        let n_whole = reader.count_whole_windows()?;
        reader.keep_first(n_whole);
        Ok(reader)
    }

    /// Forgets all windows of a file that was cut off but the first `n`, so that the others are
    /// written again.
    pub fn keep_first(&mut self, n: usize) {
        if let Some(dropped) = self.placed.get(n) {
            self.windows_end = dropped.offset();
            self.placed.truncate(n);
        }
    }

    /// Counts the windows before the first that is damaged, or that contradicts the header.
    fn count_whole_windows(&self) -> Result<usize> {
        let mut tally = index::Tally::default();
        for (i, placed) in self.placed.iter().enumerate() {
            if !tally.add(&placed.entry, &self.header) {
                return Ok(i);
            }
            match self.verify_window(i) {
                Err(error) if error.is_damage() => return Ok(i),
                verified => verified?,
            }
        }
        Ok(self.placed.len())
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.source.name.path()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.source.len
    }

    /// The windows, in the order of the file.
    pub fn windows(&self) -> impl ExactSizeIterator<Item = &WindowEntry> {
        self.placed.iter().map(|placed| &placed.entry)
    }

    /// Where member `m` of the `i`-th window starts and ends: in order, as the index was checked.
    #[expect(
        clippy::indexing_slicing,
        reason = "the caller's index: the file's has an offset for each piece"
    )]
    pub(super) fn place(&self, i: usize, m: usize) -> Range<u64> {
        let offsets = &self.placed_at(i).offsets;
        let next_window = || self.placed.get(i + 1).map(PlacedWindow::offset);
        let end = offsets.get(m + 1).copied().or_else(next_window);
        offsets[m]..end.unwrap_or(self.windows_end)
    }

    /// The `i`-th window of the file, which must be there.
    #[expect(clippy::indexing_slicing, reason = "the caller's index, as documented")]
    pub(super) fn placed_at(&self, i: usize) -> &PlacedWindow {
        &self.placed[i]
    }

    /// The `i`-th window's index in the order of the text.
    pub(super) fn number(&self, i: usize) -> u32 {
        self.placed_at(i).entry.window
    }

    pub(super) fn name(&self) -> &Named {
        &self.source.name
    }

    /// Describes the open file, and lists its windows.
    pub(crate) fn describe(&self) -> (About, Option<Vec<WindowEntry>>) {
        let windows = self.windows().copied().collect();
        let header = &self.header;
        let about = About {
            provenance: header.provenance.clone(),
            file_bytes: self.file_bytes(),
            n_windows: Some(header.n_windows),
            n_rows: Some(header.n_rows),
            encoding: header.encoding.name(),
            states: header.states.clone(),
            values: header.values(),
            groups: header.groups().ok().flatten(), // without a fault: see `Header::fault`
            prompts: header.prompts.clone().map(|list| Prompts {
                list,
                chat_template: header.chat_template.clone(),
                generated: header.generated,
                sampling: header.sampling,
                spans: header.spans.clone(),
            }),
            ..About::new(Kind::Kl, self.path(), header.n_ctx, header.n_vocab)
        };
        (about, Some(windows))
    }
}

/// Reads the header. Returns it, and where its member ends.
fn open_header(source: &Source) -> Result<(Header, u64)> {
    let name = &source.name;
    if source.array_at::<3>(0)? != Some([0x1f, 0x8b, 0x08]) {
        return Err(name.not_a_reference("it is not gzip"));
    }
    let (first, place) = member::member_at(source, 0)?;
    if first.plain_bytes as usize > MAX_HEADER_BYTES_WITH_PROMPTS {
        return Err(name.too_large("a header of more than 64 MiB"));
    }
    let lines = member::plain_at(source, &place, HEADER, first.plain_bytes.into())?;
    let json = lines
        .strip_prefix(MAGIC_LINE.as_bytes())
        .and_then(|json| json.strip_suffix(b"\n"))
        .ok_or_else(|| name.not_a_reference("its first line is not that of kl's file"))?;
    Ok((Header::from_json(json, name)?, place.end))
}

/// Counts the whole windows of a file that is being written, or was cut off. Fast: it reads little
/// more than the lengths that members state.
///
/// # Errors
/// Those of [`NativeReader::open_cut_off`].
pub fn count_windows(path: &Path) -> Result<usize> {
    let mut reader = NativeReader::begin(path)?;
    reader.walk()?;
    Ok(reader.placed.len())
}

impl NativeReader {
    /// Finds the windows that are whole, by the lengths that members state, up to the first that is not,
    /// and returns its fault.
    ///
    /// # Errors
    /// [`crate::Fault::Io`].
    fn walk(&mut self) -> Result<Error> {
        loop {
            match self.window_at(self.windows_end) {
                Ok((placed, end)) => {
                    self.placed.push(placed);
                    self.windows_end = end;
                }
                Err(mut error) if error.is_damage() => {
                    if let Fault::Truncated(_, what) = &mut error.fault {
                        let (len, n, rest) = (self.source.len, self.placed.len(), self.windows_end);
                        *what = format!(
                            "the file ends after {len} bytes with {n} of {} windows whole (the rest \
                             should begin at byte {rest})",
                            self.header.n_windows
                        );
                    }
                    return Ok(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The window whose members start at `offset`, and where they end.
    fn window_at(&self, offset: u64) -> Result<(PlacedWindow, u64)> {
        let (source, name) = (&self.source, self.name());
        let (header, place) = member::member_at(source, offset)?;
        let [WINDOW, window, _] = header.tag else {
            // It is the index, which the end follows.
            let is_cut = place.end.saturating_add(END_BYTES as u64) > source.len;
            return Err(if is_cut {
                name.truncated(None, place.end, "the file lacks its end")
            } else {
                name.corrupt(None, place.end, "the end is damaged")
            });
        };
        let plain = member::plain_at(source, &place, header.tag, header.plain_bytes.into())?;
        let (numbers, _) = plain.as_chunks();
        let count = |i| numbers.get(i).map_or(0, |n| u32::from_le_bytes(*n));
        let entry = WindowEntry {
            window,
            n_tokens: count(1),
            n_rows: count(2),
            first_scored: count(4),
        };
        let (mut offsets, mut end) = (vec![offset], place.end);
        for piece in 0..entry.n_rows.div_ceil(self.header.rows_per_piece) {
            let rows = member::member_at(source, end).map_err(|e| e.in_window(window))?;
            if rows.0.tag != [ROWS, window, piece] {
                let what = "a member does not hold the next rows of its window";
                return Err(name.corrupt(Some(window), end, what));
            }
            offsets.push(end);
            end = rows.1.end;
        }
        Ok((PlacedWindow { entry, offsets }, end))
    }
}
