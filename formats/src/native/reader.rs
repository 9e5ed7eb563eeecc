//! The reading side: any window, any piece, from any thread.

use std::collections::HashSet;
use std::path::Path;

use super::member::{self, END_BYTES, HEAD_BYTES, MIN_BYTES, MemberHead, Tag};
use super::{Header, MAX_HEADER_BYTES_WITH_PROMPTS, WindowEntry, index, walk};
use crate::error::{Error, Named, Result};
use crate::row::{Layout, Shape};
use crate::source::Source;
use crate::{RowBlock, WindowHead};

/// Bytes of a head's counts.
const COUNTS_BYTES: u64 = 20;

/// Bytes of the checksum behind a block.
pub(super) const CRC_BYTES: u64 = 4;

/// A native file. Reading takes `&self`, so threads may share one.
#[derive(Debug)]
pub struct NativeReader {
    source: Source,
    header: Header,
    windows: Vec<WindowEntry>,
    /// Where the windows' members end.
    index_offset: u64,
}

impl NativeReader {
    /// Opens the file and reads its header and its index; no window is read yet.
    ///
    /// # Errors
    /// [`crate::Error::Truncated`] for a file that lacks its end, with the place where the rest
    /// should begin; else [`crate::Error::NotAReference`], [`crate::Error::Header`],
    /// [`crate::Error::Unsupported`], [`crate::Error::Corrupt`], [`crate::Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        let (header, start) = open_header(&source)?;
        let Some(end_offset) = source
            .len
            .checked_sub(END_BYTES as u64)
            .filter(|&offset| offset >= start)
        else {
            return Err(walk::diagnose(&source, &header, start));
        };
        let end = source
            .array_at::<END_BYTES>(end_offset)?
            .as_ref()
            .and_then(member::read_end);
        let Some(end) = end.filter(|end| end.file_bytes == source.len) else {
            return Err(walk::diagnose(&source, &header, start));
        };
        let corrupt = |offset, what: &str| source.name.corrupt(None, offset, what);
        if end.index_offset < start || end.index_offset >= end_offset {
            return Err(corrupt(end_offset, "the end points at no index"));
        }
        let head = member_at(&source, end.index_offset, Tag::INDEX)?;
        if end.index_offset + u64::from(head.member_bytes) != end_offset {
            return Err(corrupt(
                end.index_offset,
                "the index does not reach to the end",
            ));
        }
        if u64::from(head.plain_bytes) > index::max_plain_bytes(source.len) {
            return Err(corrupt(
                end.index_offset,
                "the index is longer than the file has members",
            ));
        }
        let plain = unpack_at(&source, end.index_offset, &head)?;
        let windows = index::decode(&plain, &header, start, end.index_offset)
            .map_err(|what| source.name.corrupt(None, end.index_offset, what))?;
        Ok(Self {
            source,
            header,
            windows,
            index_offset: end.index_offset,
        })
    }

    /// Opens what a writer that was cut off has left, as if the file ended behind its last whole
    /// window: whatever comes after the first byte that is missing or damaged is not there. Every
    /// byte of what is there is read and checked, as [`NativeReader::verify_window`] does.
    ///
    /// # Errors
    /// A file without a whole header: [`crate::Error::Truncated`], and the other errors of
    /// [`NativeReader::open`] about a header; [`crate::Error::Io`].
    pub fn open_cut_off(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        let (header, start) = open_header(&source)?;
        let walked = walk::walk(&source, &header, start)?;
        let mut reader = Self {
            source,
            header,
            windows: walked.whole,
            index_offset: walked.whole_until,
        };
        let n_whole = reader.count_whole_windows()?;
        if let Some(damaged) = reader.windows.get(n_whole) {
            reader.index_offset = damaged.offset();
            reader.windows.truncate(n_whole);
        }
        Ok(reader)
    }

    /// Windows before the first that is damaged, or that no writer of this header writes.
    fn count_whole_windows(&self) -> Result<usize> {
        let (mut seen, mut n_rows) = (HashSet::new(), 0u64);
        for (i, entry) in self.windows.iter().enumerate() {
            n_rows += u64::from(entry.n_rows);
            let fits = seen.insert(entry.window)
                && i < self.header.n_windows as usize
                && n_rows <= self.header.n_rows
                && entry.fits(&self.header);
            if !fits {
                return Ok(i);
            }
            match self.verify_window(i) {
                Ok(_) => {}
                Err(Error::Corrupt { .. } | Error::Truncated { .. }) => return Ok(i),
                Err(error) => return Err(error),
            }
        }
        Ok(self.windows.len())
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
    pub fn windows(&self) -> &[WindowEntry] {
        &self.windows
    }

    /// The tokens of the `i`-th window of the file.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] with the window and its place, [`crate::Error::Io`].
    ///
    /// # Panics
    /// If `i` is not below the length of [`NativeReader::windows`].
    pub fn head(&self, i: usize) -> Result<WindowHead> {
        self.head_and_bytes(i).map(|(head, _)| head)
    }

    /// [`NativeReader::head`], and the bytes it was read from.
    pub(super) fn head_and_bytes(&self, i: usize) -> Result<(WindowHead, Vec<u8>)> {
        let entry = self.entry(i);
        let crc_bytes = if entry.n_rows == 0 { CRC_BYTES } else { 0 };
        let expected = COUNTS_BYTES + 4 * u64::from(entry.n_tokens) + crc_bytes;
        let (offset, head) = self.member(i, 0, Tag::head(entry.window), expected)?;
        let plain = unpack_at(&self.source, offset, &head).map_err(|e| self.in_window(i, e))?;
        let numbers: Vec<u32> = plain
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b))
            .collect();
        let corrupt = |what: String| self.source.name.corrupt(Some(entry.window), offset, what);
        let Some((counts, rest)) = numbers.split_first_chunk::<5>() else {
            return Err(corrupt("a window without counts".into()));
        };
        let WindowEntry {
            window,
            n_tokens,
            n_rows,
            first_scored,
            ..
        } = *entry;
        if *counts != [window, n_tokens, n_rows, self.header.n_vocab, first_scored] {
            return Err(corrupt(
                "the window's counts are not those of index and header".into(),
            ));
        }
        let tokens = rest.iter().copied().take(n_tokens as usize).collect();
        let head = WindowHead {
            window,
            tokens,
            first_scored,
            n_rows,
        };
        match head.fault(self.header.n_vocab) {
            Some(fault) => Err(corrupt(fault)),
            None => Ok((head, plain)),
        }
    }

    /// How many pieces the rows of the `i`-th window of the file are in.
    ///
    /// # Panics
    /// If `i` is not below the length of [`NativeReader::windows`].
    pub fn n_pieces(&self, i: usize) -> u32 {
        self.entry(i).n_pieces()
    }

    /// Piece `p` of the rows of the `i`-th window of the file, in the memory of `reuse` if given.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] with the window and its place, [`crate::Error::Io`].
    ///
    /// # Panics
    /// If there is no such window or piece.
    #[expect(clippy::panic, reason = "the caller's index, as documented")]
    pub fn piece(&self, i: usize, p: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        let entry = self.entry(i);
        let rows_per_piece = self.header.rows_per_piece;
        let first_row = p
            .checked_mul(rows_per_piece)
            .filter(|&row| row < entry.n_rows)
            .unwrap_or_else(|| panic!("piece {p} of {}", entry.n_pieces()));
        let n_rows = rows_per_piece.min(entry.n_rows - first_row);
        let is_last = first_row + n_rows == entry.n_rows;
        let crc_bytes = if is_last { CRC_BYTES } else { 0 };
        let plain_bytes = u64::from(n_rows) * self.header.row_bytes() as u64 + crc_bytes;
        let tag = Tag::rows(entry.window, p);
        let shape = Shape {
            window: entry.window,
            first_row,
            n_rows: n_rows as usize,
            n_vocab: self.header.n_vocab as usize,
            layout: Layout::Own(self.header.encoding),
        };
        let (offset, end) = self.extent(i, p as usize + 1);
        let corrupt = |what| self.source.name.corrupt(Some(entry.window), offset, what);
        let prepare = |reuse, bytes_behind| {
            RowBlock::prepare(reuse, shape, bytes_behind)
                .ok_or_else(|| corrupt("a piece past all memory"))
        };
        let mut reuse = reuse;
        if end - offset == member::stored_bytes(plain_bytes) {
            let bytes = (end - offset) as usize; // as many as rows in memory, and some
            let rows = n_rows as usize * self.header.row_bytes();
            let mut block = prepare(reuse.take(), bytes - rows)?;
            let member = block.buffers().1.get_mut(..bytes).unwrap_or_default();
            self.source
                .read_exact_at(member, offset)
                .map_err(|e| self.in_window(i, e))?;
            if MemberHead::unpack_stored(member, tag, plain_bytes) {
                return Ok(block);
            }
            // Compressed to just that length, or damaged: what follows tells.
            reuse = Some(block);
        }
        let (offset, head) = self.member(i, p as usize + 1, tag, plain_bytes)?;
        let mut block = prepare(reuse, crc_bytes as usize)?;
        let (packed, plain) = block.buffers();
        packed.resize(head.member_bytes as usize - HEAD_BYTES, 0);
        self.source
            .read_exact_at(packed, offset + HEAD_BYTES as u64)
            .map_err(|e| self.in_window(i, e))?;
        let plain = plain.get_mut(..plain_bytes as usize).unwrap_or_default();
        head.unpack(packed, plain).map_err(corrupt)?;
        Ok(block)
    }

    /// Tells the system that [`NativeReader::piece`] will soon be asked for a piece, so that the
    /// disk can work meanwhile. Returns at once.
    ///
    /// # Panics
    /// If there is no such window or piece.
    pub fn prefetch_piece(&self, i: usize, p: u32) {
        let (offset, end) = self.extent(i, p as usize + 1);
        self.source.prefetch(offset, end - offset);
    }

    /// Member `m` of the `i`-th window: its place and its header, which must say `tag` and
    /// `plain_bytes`, and be as long as the index says.
    fn member(&self, i: usize, m: usize, tag: Tag, plain_bytes: u64) -> Result<(u64, MemberHead)> {
        let (offset, end) = self.extent(i, m);
        let head = member_at(&self.source, offset, tag).map_err(|e| self.in_window(i, e))?;
        if offset.checked_add(head.member_bytes.into()) != Some(end)
            || u64::from(head.plain_bytes) != plain_bytes
        {
            return Err(self.source.name.corrupt(
                Some(self.entry(i).window),
                offset,
                "a member is not as long as the index and the header say",
            ));
        }
        Ok((offset, head))
    }

    /// Where member `m` of the `i`-th window starts and ends. The index has been checked: they are
    /// in order.
    #[expect(
        clippy::indexing_slicing,
        reason = "the caller's index: the index has a place for each piece"
    )]
    fn extent(&self, i: usize, m: usize) -> (u64, u64) {
        let offsets = &self.entry(i).offsets;
        let next = offsets.get(m + 1).copied();
        (offsets[m], next.unwrap_or_else(|| self.window_end(i)))
    }

    /// The `i`-th window of the file, which must be there.
    #[expect(clippy::indexing_slicing, reason = "the caller's index, as documented")]
    pub(super) fn entry(&self, i: usize) -> &WindowEntry {
        &self.windows[i]
    }

    /// Where the `i`-th window of the file ends.
    pub(super) fn window_end(&self, i: usize) -> u64 {
        let next = self.windows.get(i + 1);
        next.map_or(self.index_offset, WindowEntry::offset)
    }

    pub(super) fn name(&self) -> &Named {
        &self.source.name
    }

    /// Names the window in an error that does not.
    fn in_window(&self, i: usize, error: crate::Error) -> crate::Error {
        error.in_window(self.entry(i).window)
    }
}

/// The header, and where it ends.
pub(super) fn open_header(source: &Source) -> Result<(Header, u64)> {
    let name = &source.name;
    match source.array_at::<3>(0)? {
        None => return Err(name.not_a_reference(format!("it has {} bytes", source.len))),
        Some([0x1f, 0x8b, 0x08]) => {}
        Some(_) => return Err(name.not_a_reference("it is not gzip")),
    }
    let Some(bytes) = source.array_at::<HEAD_BYTES>(0)? else {
        return Err(name.truncated(None, source.len, "the file ends within its header"));
    };
    let Some(head) = member::read_head(&bytes).filter(|head| head.tag == Tag::HEADER) else {
        return Err(name.corrupt(
            None,
            0,
            "the first gzip member carries no intact kl field (kl's file, compressed again by \
             another program, would look so)",
        ));
    };
    if u64::from(head.member_bytes) > source.len {
        return Err(name.truncated(None, source.len, "the file ends within its header"));
    }
    if head.plain_bytes as usize > MAX_HEADER_BYTES_WITH_PROMPTS {
        return Err(name.too_large("a header of more than 64 MiB"));
    }
    let lines = unpack_at(source, 0, &head)?;
    Ok((Header::from_lines(&lines, name)?, head.member_bytes.into()))
}

/// The header of the member at `offset`, which must be whole and say `tag`.
fn member_at(source: &Source, offset: u64, tag: Tag) -> Result<MemberHead> {
    let corrupt = |what| source.name.corrupt(None, offset, what);
    let bytes = source
        .array_at(offset)?
        .ok_or_else(|| corrupt("no member fits here"))?;
    let head = member::read_head(&bytes)
        .ok_or_else(|| corrupt("no gzip member with an intact kl field starts here"))?;
    if head.tag != tag {
        return Err(corrupt("a member holds something else than the index says"));
    }
    if offset
        .checked_add(head.member_bytes.into())
        .is_none_or(|end| end > source.len)
    {
        return Err(corrupt("a member reaches past the file's end"));
    }
    if !head.is_plausible() {
        return Err(corrupt("a member states more than its bytes can hold"));
    }
    Ok(head)
}

/// The plain bytes of the member at `offset`, whose header has been read.
pub(super) fn unpack_at(source: &Source, offset: u64, head: &MemberHead) -> Result<Vec<u8>> {
    let corrupt = |what| source.name.corrupt(None, offset, what);
    if u64::from(head.member_bytes) < MIN_BYTES || !head.is_plausible() {
        return Err(corrupt("a member states more than its bytes can hold"));
    }
    let mut packed = vec![0; head.member_bytes as usize - HEAD_BYTES];
    source.read_exact_at(&mut packed, offset + HEAD_BYTES as u64)?;
    let mut plain = vec![0; head.plain_bytes as usize];
    head.unpack(&packed, &mut plain).map_err(corrupt)?;
    Ok(plain)
}
