//! The reading side: any rows of any window, from any thread.

use std::path::{Path, PathBuf};

use super::{folder, header};
use crate::error::{Named, Result};
use crate::reference::ReadBlocks;
use crate::row::{RowLayout, Shape};
use crate::source::Source;
use crate::tensors::{Float, Matrix, id_fault, is_normalised, window};
use crate::{RowBlock, WindowEntry, WindowSpec, rows_per_piece};

/// A folder of windows. It reads any block of rows of any window, from any thread: see
/// [`ReadBlocks`].
#[derive(Debug)]
pub struct SafetensorsReader {
    folder: Named,
    windows: Vec<WindowFile>,
    log_probabilities: bool,
}

/// One file. It is opened for each block: thousands of windows would be too many open files.
#[derive(Debug)]
struct WindowFile {
    path: PathBuf,
    file_bytes: u64,
    matrix: Matrix,
    rows_start: u64,
    /// Empty where the file holds none.
    tokens: Vec<u32>,
}

impl SafetensorsReader {
    /// Opens the folder: reads the header and the token ids of each file, and rows until one is
    /// finite, which shows whether they are log-probabilities.
    ///
    /// # Errors
    /// Those of the folder and of each file's header; [`crate::Error::Unsupported`] for windows
    /// that do not belong together.
    pub fn open(path: &Path) -> Result<Self> {
        let folder = Named::new(path);
        let files = folder::windows(&folder)?;
        let windows: Vec<WindowFile> = files
            .into_iter()
            .map(WindowFile::open)
            .collect::<Result<_>>()?;
        if let Some(first) = windows.first() {
            for window in &windows {
                window.check_against(first)?;
            }
        }
        let mut reader = Self {
            folder,
            windows,
            log_probabilities: false,
        };
        reader.log_probabilities = reader.looks_normalised()?;
        Ok(reader)
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Windows in the folder; at least 1.
    pub fn n_windows(&self) -> usize {
        self.windows.len()
    }

    /// Rows of each window.
    pub fn rows_per_window(&self) -> impl Iterator<Item = u32> {
        self.windows.iter().map(|window| window.matrix.n_rows)
    }

    /// The windows, in their order.
    pub(super) fn entries(&self) -> impl Iterator<Item = WindowEntry> {
        (0..).zip(&self.windows).map(|(number, file)| WindowEntry {
            window: number,
            n_tokens: file.tokens.len() as u32, // at most one more than rows
            n_rows: file.matrix.n_rows,
            first_scored: 0,
        })
    }

    /// Entries of a row.
    pub fn n_vocab(&self) -> u32 {
        self.windows
            .first()
            .map_or(0, |window| window.matrix.n_vocab)
    }

    /// How the first window stores an entry.
    pub fn float(&self) -> Float {
        let first = self.windows.first();
        first.map_or(Float::F32, |window| window.matrix.float)
    }

    /// Whether the files hold token ids: all do, or none.
    pub fn holds_tokens(&self) -> bool {
        self.windows
            .first()
            .is_some_and(|window| !window.tokens.is_empty())
    }

    /// Whether the rows are log-probabilities: whether the first that is finite sums to 1.
    pub fn log_probabilities(&self) -> bool {
        self.log_probabilities
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.windows.iter().map(|window| window.file_bytes).sum()
    }

    #[expect(clippy::indexing_slicing, reason = "the caller's index, as documented")]
    fn file(&self, i: usize) -> &WindowFile {
        &self.windows[i]
    }

    fn looks_normalised(&self) -> Result<bool> {
        let mut block = None;
        for i in 0..self.n_windows() {
            for number in 0..self.n_blocks(i) {
                let rows = self.block(i, number, block)?;
                if let Some(normalised) = is_normalised(&rows, self.file(i).matrix.float) {
                    return Ok(normalised);
                }
                block = Some(rows);
            }
        }
        Ok(false)
    }
}

/// Rows are f32. A file is opened for each block, so there is none to fetch ahead from.
impl ReadBlocks for SafetensorsReader {
    fn rows_per_block(&self) -> u32 {
        rows_per_piece(RowLayout::F32, self.n_vocab())
    }

    fn n_blocks(&self, i: usize) -> u32 {
        self.file(i).matrix.n_rows.div_ceil(self.rows_per_block())
    }

    fn window(&self, i: usize) -> Result<WindowSpec> {
        let file = self.file(i);
        Ok(window(i, &file.tokens, file.matrix.n_rows))
    }

    fn block(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        assert!(b < self.n_blocks(i), "block {b} of window {i}");
        let first_row = b * self.rows_per_block();
        self.file(i)
            .rows(i as u32, first_row, self.rows_per_block(), reuse)
            .map_err(|error| error.in_window(i as u32))
    }
}

impl WindowFile {
    fn open(path: PathBuf) -> Result<Self> {
        let source = Source::open(&path)?;
        let contents = header::read(&source)?;
        let mut tokens = Vec::new();
        if let Some(ids) = contents.ids {
            // The header's offsets are within the file.
            let mut bytes = vec![0; ids.n * ids.integer.bytes()];
            source.read_exact_at(&mut bytes, ids.start)?;
            tokens = ids.integer.decode(&bytes);
            if let Some(fault) = id_fault(&tokens, contents.matrix.n_vocab) {
                return Err(source.name.corrupt(None, ids.start, fault));
            }
        }
        Ok(Self {
            file_bytes: source.len,
            matrix: contents.matrix,
            rows_start: contents.rows_start,
            tokens,
            path,
        })
    }

    /// Checks that it belongs to the same reference as `first`.
    fn check_against(&self, first: &WindowFile) -> Result<()> {
        let other = |what: String| {
            let folder = "a folder holds windows of one model";
            Err(Named::new(&self.path).unsupported(format!("{what}: {folder}")))
        };
        let first_name = first.path.file_name().unwrap_or_default().to_string_lossy();
        let (here, there) = (self.matrix.n_vocab, first.matrix.n_vocab);
        if here != there {
            return other(format!("has rows of {here}, and {first_name} of {there}"));
        }
        match (self.tokens.is_empty(), first.tokens.is_empty()) {
            (true, false) => other(format!("holds no token ids, and {first_name} does")),
            (false, true) => other(format!("holds token ids, and {first_name} does not")),
            _ => Ok(()),
        }
    }

    /// `n` rows from `first_row` on, or as many as there are.
    fn rows(
        &self,
        number: u32,
        first_row: u32,
        n: u32,
        reuse: Option<RowBlock>,
    ) -> Result<RowBlock> {
        let source = Source::open(&self.path)?;
        if source.len != self.file_bytes {
            let what = "has changed while it was read: start again";
            return Err(source.name.unsupported(what));
        }
        let shape = Shape {
            window: number,
            first_row,
            n_rows: n.min(self.matrix.n_rows - first_row) as usize,
            n_vocab: self.matrix.n_vocab as usize,
            layout: RowLayout::F32,
        };
        let too_large = || source.name.too_large("a block of rows larger than memory");
        let bytes = shape.bytes().ok_or_else(too_large)?;
        let mut block = RowBlock::prepare(reuse, shape, bytes);
        let row_bytes = self.matrix.row_bytes();
        let start = self.rows_start + u64::from(first_row) * row_bytes as u64;
        let (packed, plain) = block.buffers();
        if self.matrix.float == Float::F32 {
            source.read_exact_at(plain, start)?;
        } else {
            packed.resize(shape.n_rows * row_bytes, 0);
            source.read_exact_at(packed, start)?;
            self.matrix
                .float
                .decode(packed, bytemuck::cast_slice_mut(plain));
        }
        Ok(block)
    }
}
