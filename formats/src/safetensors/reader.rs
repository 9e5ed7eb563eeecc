//! Reads any rows of any window, from any thread.

use std::fs;
use std::path::{Path, PathBuf};

use super::header;
use crate::error::{Named, Result};
use crate::reference::{About, Checks, ReadBlocks, Reference, Rows};
use crate::row::{RowLayout, Shape};
use crate::source::Source;
use crate::tensors::{TensorWindow, describe, is_normalised};
use crate::{Float, Kind, RowBlock, WindowSpec, rows_per_piece};

/// A folder of windows. It reads any block of rows of any window, from any thread: see
/// [`ReadBlocks`].
#[derive(Debug)]
pub(crate) struct SafetensorsReader {
    folder: Named,
    windows: Vec<WindowFile>,
    log_probabilities: bool,
}

/// One file. It is opened for each block: thousands of windows would be too many open files.
#[derive(Debug)]
struct WindowFile {
    path: PathBuf,
    file_bytes: u64,
    rows_start: u64,
    window: TensorWindow,
}

impl SafetensorsReader {
    /// Opens the folder: reads the header and the token ids of each file, and rows until one is
    /// finite, which shows whether they are log-probabilities.
    ///
    /// # Errors
    /// Those of the folder and of each file's header; [`crate::Fault::Unsupported`] for windows
    /// that do not belong together.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let folder = Named::new(path);
        let files = window_files(&folder)?;
        let windows: Vec<WindowFile> = files
            .into_iter()
            .map(WindowFile::open)
            .collect::<Result<_>>()?;
        if let Some(first) = windows.first() {
            let first_name = first.path.file_name().unwrap_or_default().to_string_lossy();
            for file in &windows {
                if let Some(fault) = file.window.fault_beside(&first.window, &first_name) {
                    return Err(Named::new(&file.path).unsupported(fault));
                }
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

    /// The open folder as a reference.
    pub(super) fn into_reference(self) -> Reference {
        let windows = self.windows.iter().map(|file| &file.window);
        let path = self.folder.path();
        let (about, windows) = describe(Kind::Safetensors, path, windows, self.log_probabilities);
        let about = About {
            file_bytes: self.windows.iter().map(|file| file.file_bytes).sum(),
            checks: Checks::Lengths,
            ..about
        };
        Reference::new(about, Some(windows), Rows::Blocks(Box::new(self)))
    }

    #[expect(clippy::indexing_slicing, reason = "the caller's index, as documented")]
    fn file(&self, i: usize) -> &WindowFile {
        &self.windows[i]
    }

    fn looks_normalised(&self) -> Result<bool> {
        let mut block = None;
        for (i, file) in self.windows.iter().enumerate() {
            for number in 0..self.n_blocks(i) {
                let rows = self.block(i, number, block)?;
                if let Some(normalised) = is_normalised(&rows, file.window.matrix.float) {
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
        let first = self.windows.first();
        let n_vocab = first.map_or(0, |file| file.window.matrix.n_vocab);
        rows_per_piece(RowLayout::F32, n_vocab)
    }

    fn n_blocks(&self, i: usize) -> u32 {
        let n_rows = self.file(i).window.matrix.n_rows;
        n_rows.div_ceil(self.rows_per_block())
    }

    fn window(&self, i: usize) -> Result<WindowSpec> {
        Ok(self.file(i).window.spec(i))
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
        let source = Source::open(&path, "a reference")?;
        let (window, rows_start) = header::read(&source)?;
        Ok(Self {
            file_bytes: source.len,
            rows_start,
            window,
            path,
        })
    }

    /// `n` rows from `first_row` on, or as many as there are.
    fn rows(
        &self,
        number: u32,
        first_row: u32,
        n: u32,
        reuse: Option<RowBlock>,
    ) -> Result<RowBlock> {
        let source = Source::open(&self.path, "a reference")?;
        if source.len != self.file_bytes {
            let what = "has changed while it was read: start again";
            return Err(source.name.unsupported(what));
        }
        let matrix = self.window.matrix;
        let shape = Shape {
            window: number,
            first_row,
            n_rows: n.min(matrix.n_rows - first_row) as usize,
            row_len: matrix.n_vocab as usize,
            layout: RowLayout::F32,
        };
        let mut block = RowBlock::prepare(reuse, shape, shape.bytes());
        let row_bytes = matrix.row_bytes();
        let start = self.rows_start + u64::from(first_row) * row_bytes as u64;
        let (packed, plain) = block.buffers();
        if matrix.float == Float::F32 {
            source.read_exact_at(plain, start)?;
        } else {
            packed.resize(shape.n_rows * row_bytes, 0);
            source.read_exact_at(packed, start)?;
            matrix.float.decode(packed, bytemuck::cast_slice_mut(plain));
        }
        Ok(block)
    }
}

/// The files of a folder in the order of their numbers, which must not have a gap. Other files,
/// which do not end in `.safetensors`, are ignored.
///
/// # Errors
/// [`crate::Fault::Unsupported`] for a file whose name is not a number, for a number that two files
/// have or none has, and for a folder without any; [`crate::Fault::Io`].
fn window_files(folder: &Named) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let failed = |cause| folder.io("read", cause);
    for entry in fs::read_dir(folder.path()).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if super::is_window(&path) {
            files.push((number(&path)?, path));
        }
    }
    files.sort_unstable();
    let Some(&(first, _)) = files.first() else {
        return Err(folder.unsupported(
            "is a folder without safetensors files: give one with 0.safetensors, 1.safetensors \
             and so on, one file for each window",
        ));
    };
    for ((number, path), expected) in files.iter().zip(first..) {
        if *number < expected {
            return Err(Named::new(path).unsupported(format!(
                "another file in its folder has the number {number} too: remove one of them"
            )));
        }
        if *number > expected {
            return Err(folder.unsupported(format!(
                "lacks {expected}.safetensors, but has {number}.safetensors: copy it again or \
                 renumber its files"
            )));
        }
    }
    if u32::try_from(files.len()).is_err() {
        return Err(folder.too_large("more than 2^32 windows"));
    }
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// The number that a file is named by.
fn number(path: &Path) -> Result<u64> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let digits = stem.filter(|stem| stem.bytes().all(|byte| byte.is_ascii_digit()));
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| {
            Named::new(path).unsupported(
            "its name is not a number: a folder of logits holds 0.safetensors, 1.safetensors and so \
             on, a file a window",
        )
        })
}
