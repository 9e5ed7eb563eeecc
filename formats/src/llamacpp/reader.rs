//! The reading side: any rows of any window, from any thread.

use std::path::Path;

use super::{LlamaCppHeader, MAGIC};
use crate::error::{Error, Result};
use crate::row::{Layout, Shape};
use crate::source::Source;
use crate::{RowBlock, WindowHead};

/// A base file of llama.cpp. Reading takes `&self`, so threads may share one.
#[derive(Debug)]
pub struct LlamaCppReader {
    source: Source,
    header: LlamaCppHeader,
}

impl LlamaCppReader {
    /// Opens the file, reads its header and checks the file's length against it; no window is
    /// read yet.
    ///
    /// # Errors
    /// [`Error::Truncated`] for a file that is too short, with the first window that is not whole
    /// and the byte where the rest should begin; [`Error::Corrupt`] for one that is too long;
    /// [`Error::NotAReference`], [`Error::Unsupported`] for what is no regular file,
    /// [`Error::Header`], [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        let name = &source.name;
        if source.array_at(0)? != Some(MAGIC) {
            return Err(name.not_a_reference("it does not start as llama.cpp's base file does"));
        }
        let Some(counts) = source.array_at(MAGIC.len() as u64)? else {
            return Err(name.truncated(None, source.len, "the file ends within its header"));
        };
        let header = LlamaCppHeader::from_bytes(counts).map_err(|fault| name.header(fault))?;
        match header.file_bytes() {
            Some(end) if end == source.len => Ok(Self { source, header }),
            Some(end) if end < source.len => {
                let what = format!("{} bytes behind the last row", source.len - end);
                Err(name.corrupt(None, end, what))
            }
            end => Err(cut(&source, &header, end)),
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.source.name.path()
    }

    /// The header.
    pub fn header(&self) -> &LlamaCppHeader {
        &self.header
    }

    /// Windows in the file.
    pub fn n_windows(&self) -> usize {
        self.header.n_windows as usize
    }

    /// The tokens of the `i`-th window, as the model is to decode them: with the model's `bos` in
    /// the first one's place, where it adds one. The file has the text's own token there.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the window and the byte, [`Error::Unsupported`] for a `bos` outside
    /// the file's vocabulary, [`Error::Truncated`] if the file has shrunk, [`Error::Io`].
    ///
    /// # Panics
    /// If `i` is not below [`LlamaCppReader::n_windows`].
    pub fn head(&self, i: usize, bos: Option<u32>) -> Result<WindowHead> {
        let window = self.number(i);
        let offset = self.header.tokens_offset(window);
        // The file was long enough for as many.
        let mut tokens = vec![0u32; self.header.n_ctx as usize];
        self.source
            .read_exact_at(bytemuck::cast_slice_mut(&mut tokens), offset)
            .map_err(|error| error.in_window(window))?;
        let n_vocab = self.header.n_vocab;
        let mut places = tokens.iter().zip(0u64..);
        if let Some((token, place)) = places.find(|&(&token, _)| token >= n_vocab) {
            let what = format!(
                "token {} at position {place} is outside the vocabulary of {n_vocab}",
                token.cast_signed()
            );
            let at = offset + 4 * place;
            return Err(self.source.name.corrupt(Some(window), at, what));
        }
        if let (Some(bos), Some(first)) = (bos, tokens.first_mut()) {
            if bos >= n_vocab {
                return Err(self.source.name.unsupported(format!(
                    "its vocabulary of {n_vocab} has no BOS {bos}: it belongs to another model"
                )));
            }
            *first = bos;
        }
        Ok(WindowHead {
            window,
            tokens,
            first_scored: self.header.first_scored(),
            n_rows: self.header.rows_per_window(),
        })
    }

    /// `n_rows` rows of the `i`-th window from its stored row `first_row` on, in the memory of
    /// `reuse` if given. [`crate::rows_per_piece`] of u16 says how many are a good size. The rows
    /// are log-probabilities, not logits, and not normalised: see [`super::encode_row`].
    ///
    /// # Errors
    /// [`Error::TooLarge`] past all memory, [`Error::Truncated`] if the file has shrunk,
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If there is no such window, or it has no such rows.
    pub fn block(
        &self,
        i: usize,
        first_row: u32,
        n_rows: u32,
        reuse: Option<RowBlock>,
    ) -> Result<RowBlock> {
        let window = self.number(i);
        let in_window = self.header.rows_per_window();
        assert!(
            first_row
                .checked_add(n_rows)
                .is_some_and(|end| end <= in_window),
            "{n_rows} rows from row {first_row} on, of {in_window}"
        );
        let shape = Shape {
            window,
            first_row,
            n_rows: n_rows as usize,
            n_vocab: self.header.n_vocab as usize,
            layout: Layout::LlamaCpp,
        };
        let too_large = || {
            self.source
                .name
                .too_large("a block of rows past all memory")
        };
        let mut block = RowBlock::prepare(reuse, shape, 0).ok_or_else(too_large)?;
        let offset = self.row_start(window, first_row);
        let (_, bytes) = block.buffers();
        self.source
            .read_exact_at(bytes, offset)
            .map_err(|error| error.in_window(window))?;
        Ok(block)
    }

    /// Tells the system that [`LlamaCppReader::block`] will soon be asked for rows, so that the disk
    /// can work meanwhile. Returns at once.
    ///
    /// # Panics
    /// If there is no such window.
    pub fn prefetch(&self, i: usize, first_row: u32, n_rows: u32) {
        let offset = self.row_start(self.number(i), first_row);
        let bytes = u64::from(n_rows) * self.header.row_bytes();
        self.source.prefetch(offset, bytes);
    }

    /// Where a row starts. No overflow: the file is at least so long.
    fn row_start(&self, window: u32, row: u32) -> u64 {
        self.header.rows_start()
            + u64::from(window) * self.header.window_bytes()
            + u64::from(row) * self.header.row_bytes()
    }

    #[expect(clippy::panic, reason = "the caller's index, as documented")]
    fn number(&self, i: usize) -> u32 {
        let n_windows = self.header.n_windows;
        u32::try_from(i)
            .ok()
            .filter(|&window| window < n_windows)
            .unwrap_or_else(|| panic!("window {i} of {n_windows}"))
    }
}

/// How far a file that is too short is whole. `end` is where it should end, if that is a size.
fn cut(source: &Source, header: &LlamaCppHeader, end: Option<u64>) -> Error {
    let n_windows = header.n_windows;
    let missing = end.map_or("too many".into(), |end| (end - source.len).to_string());
    let rows = source.len.checked_sub(header.rows_start());
    // Windows without rows cannot be what is missing.
    let whole = rows.and_then(|bytes| bytes.checked_div(header.window_bytes()));
    let what = match whole {
        Some(whole) => format!(
            "the file ends with {whole} of {n_windows} windows whole, {missing} bytes are missing"
        ),
        None => format!("the file ends within its tokens, {missing} bytes are missing"),
    };
    let window = whole.and_then(|whole| u32::try_from(whole).ok());
    source.name.truncated(window, source.len, what)
}
