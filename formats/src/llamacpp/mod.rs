//! llama.cpp's base file, which `llama-perplexity --save-all-logits` writes and its
//! `--kl-divergence` reads: log-probabilities in 16 bits, without compression or checksums. The
//! layout is specified in `LLAMACPP.md`, beside this crate's manifest. beellama.cpp's `_logits2`
//! files, whose rows have no floor, are read too.
//!
//! A window here is what llama-perplexity calls a chunk. Every offset in the file follows from its
//! header, so its reader reads any rows of any window, from any threads. Through a pipe, the file is
//! read once, from its start to its end.

mod stream;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::about::{About, Values};
use crate::error::{Named, Result};
use crate::kinds::Kind;
pub use crate::kinds::{LLAMA_CPP as MAGIC, LOGITS2 as LOGITS2_MAGIC};
use crate::reference::{Reference, Rows};
pub use crate::row::llama_cpp::{FLOOR, encode_row, row_bytes};
use crate::row::{ReadBlocks, Row, RowBlock, RowLayout};
use crate::source::OpenFile;
use crate::window::{WindowEntry, WindowSpec, longest_window, size_fault};
use crate::writing::{FileFormat, Start, WindowFormat, rows_per_piece};
pub(crate) use stream::LlamaCppStream;

/// Bytes of the header: the magic, u32 n_ctx, i32 n_vocab, i32 n_chunk.
const HEADER_BYTES: u64 = 20;

/// The three counts that follow a base file's magic, and the kind of rows that the magic stands for.
/// Sizes and offsets are those of counts without a fault: only the whole file can overflow a u64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LlamaCppHeader {
    /// Tokens in each window.
    n_ctx: u32,
    /// Entries of a row.
    n_vocab: u32,
    /// Windows in the file.
    n_windows: u32,
    /// Set if rows are floored, as llama.cpp's are; those of a `_logits2` file are not.
    is_floored: bool,
}

impl LlamaCppHeader {
    /// The header of a file of these windows.
    fn of_windows(about: &About, windows: &[WindowSpec]) -> Self {
        Self {
            n_ctx: match longest_window(windows) {
                0 => about.n_ctx,
                longest => longest,
            },
            n_vocab: about.n_vocab,
            n_windows: u32::try_from(windows.len()).unwrap_or(u32::MAX),
            is_floored: true,
        }
    }

    /// The header of a file that starts with these bytes, [`HEADER_BYTES`] or all that it has.
    fn parse(name: &Named, start: &[u8]) -> Result<Self> {
        let (is_floored, counts) = if let Some(counts) = start.strip_prefix(&MAGIC) {
            (true, counts)
        } else if let Some(counts) = start.strip_prefix(&LOGITS2_MAGIC) {
            (false, counts)
        } else {
            return Err(name.not_a_reference("it does not start like llama.cpp's base file"));
        };
        let Some(&counts) = counts.first_chunk::<12>() else {
            let at = start.len() as u64;
            return Err(name.truncated(None, at, "the file ends within its header"));
        };
        let [n_ctx, n_vocab, n_windows] = bytemuck::cast(counts);
        let header = Self {
            n_ctx,
            n_vocab,
            n_windows,
            is_floored,
        };
        match header.fault() {
            Some(fault) => Err(name.header(fault)),
            None => Ok(header),
        }
    }

    fn layout(&self) -> RowLayout {
        RowLayout::LlamaCpp {
            is_floored: self.is_floored,
        }
    }

    /// The position of a window's first row.
    fn first_scored(&self) -> u32 {
        self.n_ctx / 2
    }

    /// Rows of each window: those of the positions from [`LlamaCppHeader::first_scored`] to the
    /// last that has a next token.
    fn rows_per_window(&self) -> u32 {
        self.n_ctx.saturating_sub(1 + self.first_scored())
    }

    /// Rows in the file.
    fn n_rows(&self) -> u64 {
        u64::from(self.n_windows) * u64::from(self.rows_per_window())
    }

    /// Bytes of the whole file; `u64::MAX` where that overflows.
    fn file_bytes(&self) -> u64 {
        self.row_offset(self.n_windows, 0)
    }

    /// Finds a fault in the counts. The file's own types are signed, but for n_ctx.
    fn fault(&self) -> Option<String> {
        let n_chunk = self.n_windows.cast_signed();
        size_fault(self.n_ctx, self.n_vocab)
            .or_else(|| (n_chunk < 0).then(|| format!("n_chunk {n_chunk}, less than 0")))
    }

    /// Bytes of a row.
    fn row_bytes(&self) -> u64 {
        row_bytes(self.n_vocab as usize) as u64
    }

    /// Where the tokens of a window start.
    fn tokens_offset(&self, window: u32) -> u64 {
        HEADER_BYTES + 4 * u64::from(self.n_ctx) * u64::from(window)
    }

    /// Where a row of a window starts: after all tokens and the rows before it.
    fn row_offset(&self, window: u32, row: u32) -> u64 {
        let before = u64::from(window) * u64::from(self.rows_per_window()) + u64::from(row);
        let rows = before.saturating_mul(self.row_bytes());
        rows.saturating_add(self.tokens_offset(self.n_windows))
    }

    /// Checks the tokens of a window, as the file has them.
    fn check_tokens(&self, name: &Named, window: u32, tokens: &[u32]) -> Result<()> {
        let n_vocab = self.n_vocab;
        let mut positions = tokens.iter().zip(0u64..);
        let Some((token, position)) = positions.find(|&(&token, _)| token >= n_vocab) else {
            return Ok(());
        };
        let what = format!(
            "token {} at position {position} is outside the vocabulary of {n_vocab}",
            token.cast_signed()
        );
        let at = self.tokens_offset(window) + 4 * position;
        Err(name.corrupt(Some(window), at, what))
    }

    /// A window of these tokens, the first of which `bos` replaces.
    fn window(
        &self,
        name: &Named,
        window: u32,
        mut tokens: Vec<u32>,
        bos: Option<u32>,
    ) -> Result<WindowSpec> {
        if let (Some(bos), Some(first)) = (bos, tokens.first_mut()) {
            let n_vocab = self.n_vocab;
            if bos >= n_vocab {
                return Err(name.unsupported(format!(
                    "its vocabulary of {n_vocab} has no BOS {bos}: it belongs to another model"
                )));
            }
            *first = bos;
        }
        Ok(WindowSpec {
            window,
            tokens,
            first_scored: self.first_scored(),
            n_rows: self.rows_per_window(),
        })
    }

    /// The reference that the file is.
    fn into_reference(self, name: &Named, rows: Rows) -> Reference {
        let mut about = About {
            file_bytes: self.file_bytes(),
            encoding: "u16",
            values: if self.is_floored {
                Values::FlooredLogProbabilities
            } else {
                Values::LogProbabilities
            },
            ..About::new(Kind::LlamaCpp, name.path(), self.n_ctx, self.n_vocab)
        };
        about.first_scored = Some(self.first_scored());
        let windows = (0..self.n_windows).map(|window| WindowEntry {
            window,
            n_tokens: self.n_ctx,
            n_rows: self.rows_per_window(),
            first_scored: self.first_scored(),
        });
        Reference::new(about, Some(windows.collect()), rows)
    }
}

/// Rows as they are: all tokens are at the file's start.
const FORMAT: FileFormat = FileFormat {
    window_fault: |window, n_ctx| {
        let header = LlamaCppHeader {
            n_ctx,
            ..LlamaCppHeader::default()
        };
        let fits = window.tokens.len() == n_ctx as usize
            && window.first_scored == header.first_scored()
            && window.n_rows == header.rows_per_window();
        (!fits).then_some(
            "llama.cpp's base file has the rows n_ctx/2 to n_ctx-2 of windows of n_ctx tokens",
        )
    },
    before_rows: |_window, _n_vocab| Vec::new(),
    has_checksum: false,
    pack: |bytes, _part, plain| bytes.extend_from_slice(plain),
    end: |_windows, _offset| Ok(Vec::new()),
};

/// Bytes of a file of these windows.
pub(crate) fn file_bytes(about: &About, windows: &[WindowSpec]) -> u64 {
    LlamaCppHeader::of_windows(about, windows).file_bytes()
}

/// The start of a file of these windows.
pub(crate) fn start(name: &Named, about: &About, windows: &[WindowSpec]) -> Result<Start> {
    let header = LlamaCppHeader::of_windows(about, windows);
    let (n_ctx, n_vocab) = (header.n_ctx, header.n_vocab);
    let of_each = |window| FORMAT.fault(window, n_ctx, n_vocab);
    let fault = header.fault().or_else(|| windows.iter().find_map(of_each));
    if let Some(fault) = fault {
        return Err(name.unwritable(fault));
    }
    let counts = [n_ctx, n_vocab, header.n_windows];
    let mut bytes = [&MAGIC[..], bytemuck::cast_slice(&counts)].concat();
    for window in windows {
        bytes.extend_from_slice(bytemuck::cast_slice(&window.tokens));
    }
    Ok(Start {
        bytes,
        format: WindowFormat::of_logits(name, &FORMAT, header.layout(), n_ctx, n_vocab),
        n_windows: header.n_windows,
        n_rows: Some(header.n_rows()),
        states: None,
    })
}

/// A base file of llama.cpp. Reading takes `&self`, so threads may share one.
#[derive(Debug)]
pub(crate) struct LlamaCppReader {
    source: OpenFile,
    header: LlamaCppHeader,
    bos: Option<u32>,
}

impl LlamaCppReader {
    /// Opens the file, reads its header and checks the file's length against it; no window is
    /// read yet.
    ///
    /// # Errors
    /// [`crate::Fault::Truncated`] for a file that is too short, with the first window that is not
    /// whole and the byte where the rest should begin; [`crate::Fault::Corrupt`] for one that is too
    /// long; [`crate::Fault::NotAReference`], [`crate::Fault::Unsupported`] for what is not a regular
    /// file, [`crate::Fault::Header`], [`crate::Fault::Io`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let source = OpenFile::open(path, "a reference")?;
        let (name, len) = (&source.name, source.len);
        let mut start = vec![0; len.min(HEADER_BYTES) as usize];
        source.read_exact_at(&mut start, 0)?;
        let header = LlamaCppHeader::parse(name, &start)?;
        let end = header.file_bytes();
        if end < len {
            let what = format!("{} bytes after the last row", len - end);
            return Err(name.corrupt(None, end, what));
        }
        if end > len {
            let rows = len.checked_sub(header.row_offset(0, 0));
            let window_bytes = u64::from(header.rows_per_window()) * header.row_bytes();
            // Windows without rows cannot be what is missing.
            let n_whole = rows.and_then(|bytes| bytes.checked_div(window_bytes));
            let ends = match n_whole {
                Some(n) => format!("ends with {n} of {} windows whole", header.n_windows),
                None => "ends within its tokens".to_owned(),
            };
            let what = format!("the file {ends}, {} bytes are missing", end - len);
            let window = n_whole.map(|n| n as u32); // fewer than n_windows
            return Err(name.truncated(window, len, what));
        }
        Ok(Self {
            source,
            header,
            bos: None,
        })
    }

    /// The open file as a reference.
    pub(crate) fn into_reference(self) -> Reference {
        let (header, name) = (self.header, self.source.name.clone());
        header.into_reference(&name, Rows::Blocks(Box::new(self)))
    }

    /// A window's tokens, as the file has them.
    fn tokens(&self, window: u32) -> Result<Vec<u32>> {
        let offset = self.header.tokens_offset(window);
        // The file was long enough for them.
        let mut tokens = vec![0u32; self.header.n_ctx as usize];
        self.source
            .read_exact_at(bytemuck::cast_slice_mut(&mut tokens), offset)
            .map_err(|error| error.in_window(window))?;
        let name = &self.source.name;
        self.header.check_tokens(name, window, &tokens)?;
        Ok(tokens)
    }

    fn number(&self, i: usize) -> u32 {
        let n_windows = self.header.n_windows;
        assert!(i < n_windows as usize, "window {i} of {n_windows}");
        i as u32
    }
}

/// Adds up the probabilities of a row, unless the sum is near 1. Its floor, 16 below the largest, moves
/// the sum by 3 % at most with 262,144 entries; without a floor, half a step of a wide range moves it. A
/// lost row (a page of zeros, say) moves it much further. A row that was not finite sums to NaN, or has
/// the minimum of one without a finite entry, and passes: an evaluation leaves it out.
fn wrong_sum(row: Row<'_>) -> Option<f64> {
    const TOLERANCE: f64 = 0.1;
    let step = match row {
        Row::U16 {
            masked: Some(_),
            min,
            ..
        } if min == f32::NEG_INFINITY => return None,
        Row::U16 {
            masked: Some(_),
            step,
            ..
        } => f64::from(step),
        _ => 0.0,
    };
    let sum: f64 = (0..row.len()).map(|i| f64::from(row.get(i)).exp()).sum();
    ((sum - 1.0).abs() > TOLERANCE + (step / 2.0).exp_m1()).then_some(sum)
}

/// The tokens are those that the model decodes: with its BOS in place of the first one, where
/// [`ReadBlocks::set_bos`] has set one. The file has the text's own token there. Rows are
/// log-probabilities, not logits, and not quite normalised: see [`encode_row`].
impl ReadBlocks for LlamaCppReader {
    fn rows_per_block(&self) -> u32 {
        rows_per_piece(self.header.layout(), self.header.n_vocab)
    }

    fn n_rows(&self, _i: usize) -> u32 {
        self.header.rows_per_window()
    }

    /// Also fails with [`crate::Fault::Unsupported`] for a BOS outside the file's vocabulary.
    fn window(&self, i: usize) -> Result<WindowSpec> {
        let window = self.number(i);
        let (name, tokens) = (&self.source.name, self.tokens(window)?);
        self.header.window(name, window, tokens, self.bos)
    }

    fn block(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        let (window, rows) = (self.number(i), self.rows_of_block(i, b));
        let layout = self.header.layout();
        let offset = self.header.row_offset(window, rows.start);
        let n_vocab = self.header.n_vocab as usize;
        let mut block = RowBlock::prepare(reuse, window, rows, n_vocab, layout);
        let plain = block.buffers(block.usual_bytes()).1;
        let read = self.source.read_exact_at(plain, offset);
        read.map_err(|error| error.in_window(window))?;
        Ok(block)
    }

    fn prefetch(&self, i: usize, b: u32) {
        let (window, rows) = (self.number(i), self.rows_of_block(i, b));
        let bytes = rows.len() as u64 * self.header.row_bytes();
        let offset = self.header.row_offset(window, rows.start);
        self.source.prefetch(offset, bytes);
    }

    fn set_bos(&mut self, bos: Option<u32>) {
        self.bos = bos;
    }

    fn verify_window(&self, i: usize) -> Result<()> {
        let window = self.number(i);
        self.tokens(window)?;
        let mut reuse = None;
        for b in 0..self.n_blocks(i) {
            let block = self.block(i, b, reuse)?;
            for (row, number) in block.rows().zip(block.first_row..) {
                if let Some(sum) = wrong_sum(row) {
                    let what =
                        format!("the probabilities of row {number} add up to {sum:.3}, not to 1");
                    let at = self.header.row_offset(window, number);
                    return Err(self.source.name.corrupt(Some(window), at, what));
                }
            }
            reuse = Some(block);
        }
        Ok(())
    }
}
