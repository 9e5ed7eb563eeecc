//! Reads any rows of any window, from any thread.

use std::path::Path;

use super::{LOGITS2_MAGIC, LlamaCppHeader, MAGIC};
use crate::error::{Error, Result};
use crate::reference::{About, Checks, ReadBlocks, Reference, Rows, Values};
use crate::row::{Row, RowLayout, Shape};
use crate::source::Source;
use crate::{Kind, RowBlock, WindowEntry, WindowSpec, rows_per_piece};

/// A base file of llama.cpp. Reading takes `&self`, so threads may share one.
#[derive(Debug)]
pub(crate) struct LlamaCppReader {
    source: Source,
    pub(super) header: LlamaCppHeader,
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
        let source = Source::open(path, "a reference")?;
        let name = &source.name;
        let is_floored = match source.array_at(0)? {
            Some(MAGIC) => true,
            Some(LOGITS2_MAGIC) => false,
            _ => return Err(name.not_a_reference("it does not start like llama.cpp's base file")),
        };
        let Some(counts) = source.array_at(MAGIC.len() as u64)? else {
            return Err(name.truncated(None, source.len, "the file ends within its header"));
        };
        let header =
            LlamaCppHeader::from_bytes(counts, is_floored).map_err(|fault| name.header(fault))?;
        match header.file_bytes() {
            Some(end) if end == source.len => Ok(Self {
                source,
                header,
                bos: None,
            }),
            Some(end) if end < source.len => {
                let what = format!("{} bytes after the last row", source.len - end);
                Err(name.corrupt(None, end, what))
            }
            end => Err(cut(&source, &header, end)),
        }
    }

    /// The open file as a reference.
    pub(super) fn into_reference(self) -> Reference {
        let header = self.header;
        let mut about = About {
            file_bytes: self.source.len,
            encoding: "u16",
            values: match header.is_floored {
                true => Values::FlooredLogProbabilities,
                false => Values::LogProbabilities,
            },
            hides_bos: true,
            checks: Checks::LengthAndTokens,
            ..About::new(
                Kind::LlamaCpp,
                self.source.name.path(),
                header.n_ctx,
                header.n_vocab,
            )
        };
        about.first_scored = Some(header.first_scored());
        let windows = (0..header.n_windows).map(|window| WindowEntry {
            window,
            n_tokens: header.n_ctx,
            n_rows: header.rows_per_window(),
            first_scored: header.first_scored(),
        });
        Reference::new(about, Some(windows.collect()), Rows::Blocks(Box::new(self)))
    }

    /// `n_rows` rows of the `i`-th window from its stored row `first_row` on, in the memory of
    /// `reuse` if given. The rows are log-probabilities, not logits, and not quite normalised: see
    /// [`super::encode_row`].
    ///
    /// # Errors
    /// [`crate::Fault::Truncated`] if the file has shrunk, [`crate::Fault::Io`].
    ///
    /// # Panics
    /// If there is no such window, or it does not have these rows.
    pub(super) fn rows(
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
            row_len: self.header.n_vocab as usize,
            layout: match self.header.is_floored {
                true => RowLayout::LlamaCpp,
                false => RowLayout::Logits2,
            },
        };
        let mut block = RowBlock::prepare(reuse, shape, shape.bytes());
        let offset = self.row_start(window, first_row);
        let (_, bytes) = block.buffers();
        self.source
            .read_exact_at(bytes, offset)
            .map_err(|error| error.in_window(window))?;
        Ok(block)
    }

    /// A window's tokens, as the file has them.
    fn tokens(&self, window: u32) -> Result<Vec<u32>> {
        let offset = self.header.tokens_offset(window);
        // The file was long enough for them.
        let mut tokens = vec![0u32; self.header.n_ctx as usize];
        self.source
            .read_exact_at(bytemuck::cast_slice_mut(&mut tokens), offset)
            .map_err(|error| error.in_window(window))?;
        let n_vocab = self.header.n_vocab;
        let mut positions = tokens.iter().zip(0u64..);
        if let Some((token, position)) = positions.find(|&(&token, _)| token >= n_vocab) {
            let what = format!(
                "token {} at position {position} is outside the vocabulary of {n_vocab}",
                token.cast_signed()
            );
            let at = offset + 4 * position;
            return Err(self.source.name.corrupt(Some(window), at, what));
        }
        Ok(tokens)
    }

    /// Checks that the probabilities of a row sum to 1. Its floor, 16 below the largest, moves the
    /// sum by 3 % at most with 262,144 entries; without a floor, half a step of a wide range moves
    /// it. A lost row (a page of zeros, say) moves it much further. A row that was not finite sums
    /// to NaN, or has the minimum of one without a finite entry, and passes: an evaluation leaves it
    /// out.
    fn check_probabilities(&self, window: u32, number: u32, row: Row<'_>) -> Result<()> {
        const TOLERANCE: f64 = 0.1;
        let step = match row {
            Row::U16Masked { min, .. } if min == f32::NEG_INFINITY => return Ok(()),
            Row::U16Masked { step, .. } => f64::from(step),
            _ => 0.0,
        };
        let sum: f64 = (0..row.len()).map(|i| f64::from(row.get(i)).exp()).sum();
        if (sum - 1.0).abs() > TOLERANCE + (step / 2.0).exp_m1() {
            let what = format!("the probabilities of row {number} add up to {sum:.3}, not to 1");
            let at = self.row_start(window, number);
            return Err(self.source.name.corrupt(Some(window), at, what));
        }
        Ok(())
    }

    /// The first row of a block, and how many it has.
    fn rows_of(&self, b: u32) -> (u32, u32) {
        let first = b * self.rows_per_block();
        let rest = self.header.rows_per_window().saturating_sub(first);
        (first, rest.min(self.rows_per_block()))
    }

    /// Where a row starts. No overflow: the file is at least that long.
    fn row_start(&self, window: u32, row: u32) -> u64 {
        self.header.rows_start()
            + u64::from(window) * self.header.window_bytes()
            + u64::from(row) * self.header.row_bytes()
    }

    fn number(&self, i: usize) -> u32 {
        let n_windows = self.header.n_windows;
        assert!(i < n_windows as usize, "window {i} of {n_windows}");
        i as u32
    }
}

/// The tokens are those that the model decodes: with its BOS in place of the first one, where
/// [`ReadBlocks::set_bos`] has set one. The file has the text's own token there.
impl ReadBlocks for LlamaCppReader {
    fn rows_per_block(&self) -> u32 {
        rows_per_piece(RowLayout::LlamaCpp, self.header.n_vocab)
    }

    fn n_blocks(&self, i: usize) -> u32 {
        self.number(i);
        let n_rows = self.header.rows_per_window();
        n_rows.div_ceil(self.rows_per_block())
    }

    /// Also fails with [`crate::Fault::Unsupported`] for a BOS outside the file's vocabulary.
    fn window(&self, i: usize) -> Result<WindowSpec> {
        let window = self.number(i);
        let mut tokens = self.tokens(window)?;
        if let (Some(bos), Some(first)) = (self.bos, tokens.first_mut()) {
            let n_vocab = self.header.n_vocab;
            if bos >= n_vocab {
                return Err(self.source.name.unsupported(format!(
                    "its vocabulary of {n_vocab} has no BOS {bos}: it belongs to another model"
                )));
            }
            *first = bos;
        }
        Ok(WindowSpec {
            window,
            tokens,
            first_scored: self.header.first_scored(),
            n_rows: self.header.rows_per_window(),
        })
    }

    fn block(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        let (first, n_rows) = self.rows_of(b);
        self.rows(i, first, n_rows, reuse)
    }

    fn prefetch(&self, i: usize, b: u32) {
        let (first, n_rows) = self.rows_of(b);
        let offset = self.row_start(self.number(i), first);
        let bytes = u64::from(n_rows) * self.header.row_bytes();
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
                self.check_probabilities(window, number, row)?;
            }
            reuse = Some(block);
        }
        Ok(())
    }
}

/// The error for a file that is too short: how many windows are whole. `end` is where it should
/// end, if that does not overflow.
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
