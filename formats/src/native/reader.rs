//! An open file: its header, its index, and where each member is; and how far a file without an intact
//! end is whole.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::Path;

use super::member::{
    self, END_BYTES, HEADER, HEADER_BYTES, INDEX, MemberHeader, ROWS, Tag, WINDOW, member_at,
    unpack_at,
};
use super::{Header, MAGIC_LINE, MAX_HEADER_BYTES_WITH_PROMPTS, index};
use crate::about::{About, Checks, Prompts};
use crate::error::{Error, Named, Result};
use crate::kinds::Kind;
use crate::provenance::OwnHeader as _;
use crate::row::ReadBlocks;
use crate::source::Source;
use crate::window::{PlacedWindow, WindowEntry};

/// A native file. Reading takes `&self`, so threads may share one.
#[derive(Debug)]
pub struct NativeReader {
    pub(super) source: Source,
    pub(super) header: Header,
    /// The members of the head of hidden states: where each starts, and what it holds.
    pub(super) head: Vec<(u64, Tag)>,
    /// The windows, and where their members start.
    pub(super) placed: Vec<PlacedWindow>,
    /// Where the windows' members end; while there are none, where the first is to start.
    pub(super) windows_end: u64,
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
        let index_offset = bytes.and_then(|bytes| member::read_end(&bytes, source.len));
        let Some(index_offset) = index_offset else {
            return Err(reader.walk()?.error);
        };
        let corrupt = |offset, what: &str| source.name.corrupt(None, offset, what);
        if index_offset < start || index_offset >= end_offset {
            let what = "the end member does not point to an index";
            return Err(corrupt(end_offset, what));
        }
        let index = member_at(source, index_offset, INDEX)?;
        if index_offset + u64::from(index.member_bytes) != end_offset
            || u64::from(index.plain_bytes) > index::max_plain_bytes(source.len)
        {
            let what = "the index is not as long as the members and the end state";
            return Err(corrupt(index_offset, what));
        }
        let plain = unpack_at(source, index_offset, &index)?;
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
        let walked = reader.walk()?;
        (reader.placed, reader.windows_end) = (walked.whole, walked.whole_until);
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
        let (mut seen, mut n_rows) = (HashSet::new(), 0u64);
        for (i, PlacedWindow { entry, .. }) in self.placed.iter().enumerate() {
            n_rows += u64::from(entry.n_rows);
            let fits = seen.insert(entry.window)
                && i < self.header.n_windows as usize
                && n_rows <= self.header.n_rows
                && index::fits(entry, &self.header);
            if !fits {
                return Ok(i);
            }
            match self.verify_window(i) {
                Ok(_) => {}
                Err(error) if error.is_damage() => return Ok(i),
                Err(error) => return Err(error),
            }
        }
        Ok(self.placed.len())
    }

    /// Where the windows end, in bytes of the file: the index follows, or what is still to be
    /// written.
    pub fn windows_end(&self) -> u64 {
        self.windows_end
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.source.name.path()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.source.len
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The windows, in the order of the file.
    pub fn windows(&self) -> impl ExactSizeIterator<Item = &WindowEntry> {
        self.placed.iter().map(|placed| &placed.entry)
    }

    /// Member `m` of the `i`-th window: its offset and its header, which must state `tag` and one of
    /// `plain_bytes`, and be as long as the index states.
    pub(super) fn member(
        &self,
        i: usize,
        m: usize,
        tag: Tag,
        plain_bytes: RangeInclusive<u64>,
    ) -> Result<(u64, MemberHeader)> {
        let (offset, end) = self.extent(i, m);
        let header =
            member_at(&self.source, offset, tag).map_err(|e| e.in_window(self.number(i)))?;
        if offset.checked_add(header.member_bytes.into()) != Some(end)
            || !plain_bytes.contains(&header.plain_bytes.into())
        {
            return Err(self.source.name.corrupt(
                Some(self.number(i)),
                offset,
                "a member is not as long as the index and the header state",
            ));
        }
        Ok((offset, header))
    }

    /// Where member `m` of the `i`-th window starts and ends: in order, as the index was checked.
    #[expect(
        clippy::indexing_slicing,
        reason = "the caller's index: the file's has an offset for each piece"
    )]
    pub(super) fn extent(&self, i: usize, m: usize) -> (u64, u64) {
        let offsets = &self.placed_at(i).offsets;
        let next = offsets.get(m + 1).copied();
        (offsets[m], next.unwrap_or_else(|| self.window_end(i)))
    }

    /// The `i`-th window of the file, which must be there.
    #[expect(clippy::indexing_slicing, reason = "the caller's index, as documented")]
    pub(super) fn placed_at(&self, i: usize) -> &PlacedWindow {
        &self.placed[i]
    }

    /// Where the `i`-th window of the file ends.
    pub(super) fn window_end(&self, i: usize) -> u64 {
        let next = self.placed.get(i + 1);
        next.map_or(self.windows_end, PlacedWindow::offset)
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
            checks: Checks::Checksums,
            ..About::new(Kind::Kl, self.path(), header.n_ctx, header.n_vocab)
        };
        (about, Some(windows))
    }
}

/// Reads the header. Returns it, and where its member ends.
fn open_header(source: &Source) -> Result<(Header, u64)> {
    let name = &source.name;
    let cut = || name.truncated(None, source.len, "the file ends within its header");
    if source.array_at::<3>(0)? != Some([0x1f, 0x8b, 0x08]) {
        return Err(name.not_a_reference("it is not gzip"));
    }
    let bytes = source.array_at::<HEADER_BYTES>(0)?.ok_or_else(cut)?;
    let Some(first) = member::read_header(&bytes).filter(|first| first.tag == HEADER) else {
        return Err(name.corrupt(
            None,
            0,
            "the first gzip member carries no intact kl field (kl's file, compressed again by \
             another program, would look so)",
        ));
    };
    if u64::from(first.member_bytes) > source.len {
        return Err(cut());
    }
    if first.plain_bytes as usize > MAX_HEADER_BYTES_WITH_PROMPTS {
        return Err(name.too_large("a header of more than 64 MiB"));
    }
    let lines = unpack_at(source, 0, &first)?;
    let json = lines.strip_prefix(MAGIC_LINE.as_bytes());
    let json = json.and_then(|json| json.strip_suffix(b"\n"));
    let json =
        json.ok_or_else(|| name.not_a_reference("its first line is not that of kl's file"))?;
    Ok((Header::from_json(json, name)?, first.member_bytes.into()))
}

/// Counts the whole windows of a file that is being written, or was cut off. Fast: it reads little
/// more than the lengths that members state.
///
/// # Errors
/// Those of [`NativeReader::open_cut_off`].
pub fn count_windows(path: &Path) -> Result<usize> {
    Ok(NativeReader::begin(path)?.walk()?.whole.len())
}

/// The members that were seen before the first that is not whole.
struct Walked {
    /// Whole windows, judging by the lengths of their members.
    whole: Vec<PlacedWindow>,
    /// Where the last of those ends: an interrupted write resumes there.
    whole_until: u64,
    /// The fault that the walk stopped at.
    error: Error,
}

impl NativeReader {
    /// Walks members from the first window on, by the lengths they state, until one is not whole.
    ///
    /// # Errors
    /// [`crate::Fault::Io`].
    fn walk(&self) -> Result<Walked> {
        let (source, name) = (&self.source, self.name());
        let mut offset = self.windows_end;
        let (mut whole, mut whole_until) = (Vec::new(), offset);
        let mut within: Option<PlacedWindow> = None;
        let mut has_index = false;
        let error = loop {
            let window = within.as_ref().map(|placed| placed.entry.window);
            let cut = |window| {
                let what = format!(
                    "the file ends after {} bytes with {} of {} windows whole (the rest should \
                     begin at byte {whole_until})",
                    source.len,
                    whole.len(),
                    self.header.n_windows,
                );
                name.truncated(window, offset, what)
            };
            let left = source.len.saturating_sub(offset);
            let least = if has_index { END_BYTES } else { HEADER_BYTES };
            if left < least as u64 {
                break cut(window);
            }
            let bytes = source.array_at::<HEADER_BYTES>(offset)?;
            let Some(header) = bytes.as_ref().and_then(member::read_header) else {
                let what = "no gzip member with an intact kl field starts here, or the end is \
                            damaged";
                break name.corrupt(window, offset, what);
            };
            let begun = (header.tag[0] == WINDOW).then_some(header.tag[1]);
            if u64::from(header.member_bytes) > left {
                break cut(begun.or(window));
            }
            if begun.is_some() {
                match self.begun_window(offset, &header) {
                    Ok(placed) => within = Some(placed),
                    Err(error) if error.is_damage() => break error,
                    Err(error) => return Err(error),
                }
            } else if let (ROWS, Some(window)) = (header.tag[0], &mut within) {
                window.offsets.push(offset);
            }
            has_index |= header.tag == INDEX;
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

    /// The window whose counts are in the member at `offset`.
    fn begun_window(&self, offset: u64, header: &MemberHeader) -> Result<PlacedWindow> {
        let plain = unpack_at(&self.source, offset, header)?;
        let (numbers, _) = plain.as_chunks::<4>();
        let number = |i| numbers.get(i).map_or(0, |b| u32::from_le_bytes(*b));
        Ok(PlacedWindow {
            entry: WindowEntry {
                window: header.tag[1],
                n_tokens: number(1),
                n_rows: number(2),
                first_scored: number(4),
            },
            offsets: vec![offset],
        })
    }
}
