//! The reading side: any window, any piece, from any thread.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::Path;

use super::member::{self, END_BYTES, MemberHead, Tag, member_at, open_header, unpack_at};
use super::{Header, index};
use crate::WindowEntry;
use crate::error::{Named, Result};
use crate::reference::{About, Checks, Kind, Prompts, ReadBlocks, Reference, Rows};
use crate::source::Source;
use crate::window::PlacedWindow;

/// A native file. Reading takes `&self`, so threads may share one.
#[derive(Debug)]
pub struct NativeReader {
    pub(super) source: Source,
    pub(super) header: Header,
    /// The members of the head of hidden states: where each starts, and what it holds.
    pub(super) head: Vec<(u64, Tag)>,
    entries: Vec<PlacedWindow>,
    /// Where the windows' members end.
    pub(super) index_offset: u64,
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
        let (source, start) = (&reader.source, reader.index_offset);
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
        let index = member_at(source, index_offset, Tag::INDEX)?;
        if index_offset + u64::from(index.member_bytes) != end_offset {
            let what = "the index does not reach to the end member";
            return Err(corrupt(index_offset, what));
        }
        if u64::from(index.plain_bytes) > index::max_plain_bytes(source.len) {
            let what = "the index is longer than the file has members";
            return Err(corrupt(index_offset, what));
        }
        let plain = unpack_at(source, index_offset, &index)?;
        reader.entries = index::decode(&plain, &reader.header, start, index_offset)
            .map_err(|what| corrupt(index_offset, &what))?;
        reader.index_offset = index_offset;
        Ok(reader)
    }

    /// Opens the file and reads its header, and finds the head of its hidden states. It has no
    /// windows yet; they start where it says that they end.
    pub(super) fn begin(path: &Path) -> Result<Self> {
        let source = Source::open(path, "a reference")?;
        let (header, index_offset) = open_header(&source)?;
        let mut reader = Self {
            source,
            header,
            head: Vec::new(),
            entries: Vec::new(),
            index_offset,
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
        (reader.entries, reader.index_offset) = (walked.whole, walked.whole_until);
        reader.verify_head()?;
        let n_whole = reader.count_whole_windows()?;
        reader.keep_first(n_whole);
        Ok(reader)
    }

    /// Forgets all windows of a file that was cut off but the first `n`, so that the others are
    /// written again.
    pub fn keep_first(&mut self, n: usize) {
        if let Some(dropped) = self.entries.get(n) {
            self.index_offset = dropped.offset();
            self.entries.truncate(n);
        }
    }

    /// Counts the windows before the first that is damaged, or that contradicts the header.
    fn count_whole_windows(&self) -> Result<usize> {
        let (mut seen, mut n_rows) = (HashSet::new(), 0u64);
        for (i, entry) in self.entries.iter().enumerate() {
            n_rows += u64::from(entry.window.n_rows);
            let fits = seen.insert(entry.window.window)
                && i < self.header.n_windows as usize
                && n_rows <= self.header.n_rows
                && index::fits(&entry.window, &self.header);
            if !fits {
                return Ok(i);
            }
            match self.verify_window(i) {
                Ok(_) => {}
                Err(error) if error.is_damage() => return Ok(i),
                Err(error) => return Err(error),
            }
        }
        Ok(self.entries.len())
    }

    /// Where the windows end, in bytes of the file: the index follows, or what is still to be
    /// written.
    pub fn windows_end(&self) -> u64 {
        self.index_offset
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
        self.entries.iter().map(|entry| &entry.window)
    }

    /// The index.
    pub(super) fn entries(&self) -> &[PlacedWindow] {
        &self.entries
    }

    /// Member `m` of the `i`-th window: its offset and its header, which must state `tag` and one of
    /// `plain_bytes`, and be as long as the index states.
    pub(super) fn member(
        &self,
        i: usize,
        m: usize,
        tag: Tag,
        plain_bytes: RangeInclusive<u64>,
    ) -> Result<(u64, MemberHead)> {
        let (offset, end) = self.extent(i, m);
        let head = member_at(&self.source, offset, tag).map_err(|e| self.in_window(i, e))?;
        if offset.checked_add(head.member_bytes.into()) != Some(end)
            || !plain_bytes.contains(&head.plain_bytes.into())
        {
            return Err(self.source.name.corrupt(
                Some(self.number(i)),
                offset,
                "a member is not as long as the index and the header state",
            ));
        }
        Ok((offset, head))
    }

    /// Where member `m` of the `i`-th window starts and ends. The index has been checked: they are
    /// in order.
    #[expect(
        clippy::indexing_slicing,
        reason = "the caller's index: the file's has an offset for each piece"
    )]
    pub(super) fn extent(&self, i: usize, m: usize) -> (u64, u64) {
        let offsets = &self.entry(i).offsets;
        let next = offsets.get(m + 1).copied();
        (offsets[m], next.unwrap_or_else(|| self.window_end(i)))
    }

    /// The `i`-th window of the file, which must be there.
    #[expect(clippy::indexing_slicing, reason = "the caller's index, as documented")]
    pub(super) fn entry(&self, i: usize) -> &PlacedWindow {
        &self.entries[i]
    }

    /// Where the `i`-th window of the file ends.
    pub(super) fn window_end(&self, i: usize) -> u64 {
        let next = self.entries.get(i + 1);
        next.map_or(self.index_offset, PlacedWindow::offset)
    }

    /// The number of the `i`-th window of the file.
    pub(super) fn number(&self, i: usize) -> u32 {
        self.entry(i).window.window
    }

    pub(super) fn name(&self) -> &Named {
        &self.source.name
    }

    /// Names the window in an error that does not.
    pub(super) fn in_window(&self, i: usize, error: crate::Error) -> crate::Error {
        error.in_window(self.number(i))
    }

    /// The open file as a reference, of rows or of hidden states.
    pub fn into_reference(self) -> Reference {
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
            }),
            checks: Checks::Checksums,
            ..About::new(Kind::Kl, self.path(), header.n_ctx, header.n_vocab)
        };
        let rows = match header.states.clone() {
            None => Rows::Blocks(Box::new(self)),
            Some(states) => Rows::States(Box::new(self), states),
        };
        Reference::new(about, Some(windows), rows)
    }
}
