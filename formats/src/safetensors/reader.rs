//! The reading side: any rows of any window, from any thread.

use std::path::{Path, PathBuf};

use super::{folder, header};
use crate::error::{Named, Result};
use crate::row::{Encoding, Layout, Shape};
use crate::source::Source;
use crate::tensors::{Float, Matrix, head, id_fault, is_normalised};
use crate::{RowBlock, WindowHead, rows_per_piece};

/// A folder of windows. Reading takes `&self`, so threads may share one.
#[derive(Debug)]
pub struct SafetensorsReader {
    folder: Named,
    windows: Vec<Window>,
    log_probabilities: bool,
}

/// One file. It is opened for each block: thousands of windows would be too many open files.
#[derive(Debug)]
struct Window {
    path: PathBuf,
    file_bytes: u64,
    matrix: Matrix,
    rows_start: u64,
    /// Empty where the file holds none.
    tokens: Vec<u32>,
}

impl SafetensorsReader {
    /// Opens the folder: reads the header and the token ids of each file, and rows until one is
    /// finite, which tells log-probabilities from logits.
    ///
    /// # Errors
    /// Those of the folder and of each file's header; [`crate::Error::Unsupported`] for windows
    /// that do not belong together.
    pub fn open(path: &Path) -> Result<Self> {
        let folder = Named::new(path);
        let files = folder::windows(&folder)?;
        let windows: Vec<Window> = files.into_iter().map(Window::open).collect::<Result<_>>()?;
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

    /// The `i`-th window; its tokens are empty where the files hold none.
    ///
    /// # Panics
    /// If `i` is not below [`SafetensorsReader::n_windows`].
    pub fn head(&self, i: usize) -> WindowHead {
        let window = self.window(i);
        head(i, &window.tokens, window.matrix.n_rows)
    }

    /// Rows in each block but a window's last.
    pub fn rows_per_block(&self) -> u32 {
        rows_per_piece(Encoding::F32, self.n_vocab())
    }

    /// Blocks of the `i`-th window.
    ///
    /// # Panics
    /// If `i` is not below [`SafetensorsReader::n_windows`].
    pub fn n_blocks(&self, i: usize) -> u32 {
        self.window(i).matrix.n_rows.div_ceil(self.rows_per_block())
    }

    /// The `block`-th rows of the `i`-th window, as f32, in the memory of `reuse` if given.
    ///
    /// # Errors
    /// [`crate::Error::TooLarge`] past all memory, [`crate::Error::Truncated`] or
    /// [`crate::Error::Unsupported`] if the file has changed, [`crate::Error::Io`].
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, i: usize, block: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        assert!(block < self.n_blocks(i), "block {block} of window {i}");
        let first_row = block * self.rows_per_block();
        self.window(i)
            .rows(i as u32, first_row, self.rows_per_block(), reuse)
            .map_err(|error| error.in_window(i as u32))
    }

    #[expect(clippy::indexing_slicing, reason = "the caller's place, as documented")]
    fn window(&self, i: usize) -> &Window {
        &self.windows[i]
    }

    fn looks_normalised(&self) -> Result<bool> {
        let mut block = None;
        for i in 0..self.n_windows() {
            for number in 0..self.n_blocks(i) {
                let rows = self.block(i, number, block)?;
                if let Some(normalised) = is_normalised(&rows, self.window(i).matrix.float) {
                    return Ok(normalised);
                }
                block = Some(rows);
            }
        }
        Ok(false)
    }
}

impl Window {
    fn open(path: PathBuf) -> Result<Self> {
        let source = Source::open(&path)?;
        let layout = header::read(&source)?;
        let mut tokens = Vec::new();
        if let Some(ids) = layout.ids {
            // The header's offsets are within the file.
            let mut bytes = vec![0; ids.n * ids.integer.bytes()];
            source.read_exact_at(&mut bytes, ids.start)?;
            tokens = ids.integer.decode(&bytes);
            if let Some(fault) = id_fault(&tokens, layout.matrix.n_vocab) {
                return Err(source.name.corrupt(None, ids.start, fault));
            }
        }
        Ok(Self {
            file_bytes: source.len,
            matrix: layout.matrix,
            rows_start: layout.rows_start,
            tokens,
            path,
        })
    }

    /// Refuses what does not belong to one reference with `first`.
    fn check_against(&self, first: &Window) -> Result<()> {
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
            layout: Layout::Own(Encoding::F32),
        };
        let too_large = || source.name.too_large("a block of rows past all memory");
        let mut block = RowBlock::prepare(reuse, shape, 0).ok_or_else(too_large)?;
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
