//! An open file: its header, its index, and where each member is; how far a file without an intact end
//! is whole; and the contents of windows, from any thread: tokens, and rows or hidden states in blocks.

use std::ops::Range;
use std::path::Path;

use super::member::{self, END_BYTES, HEADER, INDEX, ROWS, Tag, WINDOW};
use super::{Header, MAGIC_LINE, MAX_HEADER_BYTES_WITH_PROMPTS, index};
use crate::error::{Error, Fault, Named, Result};
use crate::gzip::checksum_matches;
use crate::provenance::OwnHeader as _;
use crate::row::{ReadBlocks, RowBlock};
use crate::source::OpenFile;
use crate::window::{PlacedWindow, WindowEntry, WindowSpec};

/// A native file. Reading takes `&self`, so threads may share one.
#[derive(Debug)]
pub struct NativeReader {
    pub(super) source: OpenFile,
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
        let source = OpenFile::open(path, "a reference")?;
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
}

/// Reads the header. Returns it, and where its member ends.
fn open_header(source: &OpenFile) -> Result<(Header, u64)> {
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

/// Numbers before a window's tokens: its counts.
const N_COUNTS: usize = 5;

/// Bytes of the checksum after a window's rows.
const CRC_BYTES: u64 = 4;

/// CRC-32 of any bytes followed by their own CRC-32, little-endian.
const CRC_OF_WHOLE: u32 = 0x2144_df1c;

/// A window's counts, as they stand before its tokens.
pub(super) fn counts(of: &WindowEntry, n_vocab: u32) -> [u32; N_COUNTS] {
    [of.window, of.n_tokens, of.n_rows, n_vocab, of.first_scored]
}

impl NativeReader {
    /// A window, and the bytes it was read from.
    fn window_and_bytes(&self, i: usize) -> Result<(WindowSpec, Vec<u8>)> {
        let (entry, n_vocab) = (self.placed_at(i).entry, self.header.n_vocab);
        let crc_bytes = if entry.n_rows == 0 { CRC_BYTES } else { 0 };
        let n_bytes = 4 * (N_COUNTS as u64 + u64::from(entry.n_tokens)) + crc_bytes;
        let place = self.place(i, 0);
        let corrupt = |what: String| self.name().corrupt(Some(entry.window), place.start, what);
        let plain = member::plain_at(&self.source, &place, [WINDOW, entry.window, 0], n_bytes)
            .map_err(|e| e.in_window(entry.window))?;
        let numbers: Vec<u32> = bytemuck::pod_collect_to_vec(&plain);
        let tokens = numbers
            .strip_prefix(&counts(&entry, n_vocab))
            .filter(|_| plain.len() as u64 == n_bytes)
            .and_then(|rest| rest.get(..entry.n_tokens as usize))
            .ok_or_else(|| {
                corrupt("the window's counts are not those of the index and the header".into())
            })?;
        let spec = WindowSpec {
            window: entry.window,
            tokens: tokens.to_vec(),
            first_scored: entry.first_scored,
            n_rows: entry.n_rows,
        };
        match spec.fault(n_vocab) {
            Some(fault) => Err(corrupt(fault)),
            None => Ok((spec, plain)),
        }
    }

    /// Piece `b` of a window's rows, or of its hidden states.
    pub(super) fn piece(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        let WindowEntry { window, n_rows, .. } = self.placed_at(i).entry;
        let rows = self.rows_of_block(i, b);
        let is_last = rows.end == n_rows;
        let crc_bytes = if is_last { CRC_BYTES as usize } else { 0 };
        let (layout, row_len) = self.header.row_layout();
        let place = self.place(i, b as usize + 1);
        let corrupt = |what| self.name().corrupt(Some(window), place.start, what);
        let mut block = RowBlock::prepare(reuse, window, rows, row_len as usize, layout);
        let n = member::read_at(&self.source, &place, [ROWS, window, b], &mut block.packed)
            .map_err(|e| e.in_window(window))?;
        let is_possible = (crc_bytes..=block.most_bytes() + crc_bytes).contains(&n);
        if is_possible {
            let (member, plain) = block.buffers(n);
            member::inflate(member, plain).map_err(corrupt)?;
        }
        if is_possible && block.find_rows(n - crc_bytes) {
            Ok(block)
        } else {
            Err(corrupt("a member does not hold the rows that it should"))
        }
    }

    /// The hidden states of `rows`, `n_embd` numbers each: indices among the stored rows of the `i`-th
    /// window. `last` keeps the piece that was read last, for the next rows of the same window.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] with the window and its position, [`crate::Fault::Io`];
    /// [`crate::Fault::Unsupported`] for a file of rows.
    ///
    /// # Panics
    /// A window or a row that the file does not have.
    pub fn read_states(
        &self,
        i: usize,
        rows: Range<u32>,
        last: &mut Option<RowBlock>,
    ) -> Result<Vec<f32>> {
        let unsupported = || self.name().unsupported("holds rows, not hidden states");
        let states = self.header.states.as_ref().ok_or_else(unsupported)?;
        let n_rows = self.placed_at(i).entry.n_rows;
        assert!(rows.end <= n_rows, "rows {rows:?} of {n_rows}");
        let row_bytes = states.n_embd as usize * states.state_type.bytes();
        let mut bytes = Vec::new();
        let mut next = rows.start;
        while next < rows.end {
            let b = next / self.header.rows_per_piece;
            let first = b * self.header.rows_per_piece;
            let piece = match last.take() {
                Some(piece) if (piece.window, piece.first_row) == (self.number(i), first) => piece,
                other => self.piece(i, b, other)?,
            };
            let end = rows.end.min(first + piece.n_rows() as u32); // rows are counted in a u32
            let [from, to] = [next, end].map(|row| (row - first) as usize * row_bytes);
            bytes.extend_from_slice(piece.bytes().get(from..to).unwrap_or_default());
            *last = Some(piece);
            next = end;
        }
        let mut numbers = vec![0.0; bytes.len() / states.state_type.bytes()];
        states.state_type.decode(&bytes, &mut numbers);
        Ok(numbers)
    }
}

/// Blocks are the pieces of the format.
impl ReadBlocks for NativeReader {
    fn rows_per_block(&self) -> u32 {
        self.header.rows_per_piece
    }

    fn n_rows(&self, i: usize) -> u32 {
        self.placed_at(i).entry.n_rows
    }

    fn window(&self, i: usize) -> Result<WindowSpec> {
        self.window_and_bytes(i).map(|(window, _)| window)
    }

    fn block(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        if self.header.states.is_some() {
            let what = "holds hidden states, not rows of logits";
            return Err(self.name().unsupported(what));
        }
        self.piece(i, b, reuse)
    }

    fn prefetch(&self, i: usize, b: u32) {
        let place = self.place(i, b as usize + 1);
        self.source.prefetch(place.start, place.end - place.start);
    }

    /// Checks each of the window's bytes: counts and tokens, every member's checksums, and the one
    /// after its rows, which is for readers of the plain stream. Bytes outside all windows were
    /// checked when the file was opened.
    fn verify_window(&self, i: usize) -> Result<()> {
        let (window, plain) = self.window_and_bytes(i)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&plain);
        let n_blocks = self.n_blocks(i);
        let mut reuse: Option<RowBlock> = None;
        for b in 0..n_blocks {
            let block = self.piece(i, b, reuse.take())?;
            let after = if b + 1 == n_blocks { CRC_BYTES } else { 0 };
            let bytes = block.rows_bytes() + after as usize;
            crc.update(block.bytes().get(..bytes).unwrap_or_default());
            reuse = Some(block);
        }
        if checksum_matches(crc.finalize(), CRC_OF_WHOLE) {
            Ok(())
        } else {
            let what = "the checksum after the window's rows does not match";
            let start = self.placed_at(i).offset();
            Err(self.name().corrupt(Some(window.window), start, what))
        }
    }
}
