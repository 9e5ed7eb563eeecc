//! A folder of `0.safetensors`, `1.safetensors`, ...: one file for each window, as SGLang's patch
//! writes them. What is accepted is specified in `TENSORS.md`, beside this crate's manifest.
//!
//! Every offset in a file follows from its header, so its reader reads any rows of any
//! window, from any threads. The format itself: <https://github.com/huggingface/safetensors>. A file
//! begins with a u64 length, then JSON that names each tensor, its type, its shape and where its
//! bytes are after the header.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};

use crate::about::{About, Checks};
use crate::error::{Named, Result};
use crate::kinds::Kind;
use crate::numbers::{Float, Integer};
use crate::row::{ReadBlocks, RowBlock, RowLayout, Shape};
use crate::source::Source;
use crate::tensors::{Matrix, TensorWindow, describe, is_normalised, n_ids, n_ids_fault};
use crate::window::{WindowEntry, WindowSpec};
use crate::writing::rows_per_piece;

/// Most bytes of a file's header: the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Names of the tensor that holds the rows.
const ROWS: [&str; 3] = ["log_probs", "logprobs", "logits"];

/// Names of the tensor that holds the token ids.
const IDS: [&str; 3] = ["input_ids", "token_ids", "tokens"];

/// Whether a file of a folder is a window's, by its name.
pub fn is_window(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "safetensors")
}

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

    /// Describes the open folder, and lists its windows.
    pub(crate) fn describe(&self) -> (About, Option<Vec<WindowEntry>>) {
        let windows = self.windows.iter().map(|file| &file.window);
        let path = self.folder.path();
        let (mut about, windows) =
            describe(Kind::Safetensors, path, windows, self.log_probabilities);
        about.file_bytes = self.windows.iter().map(|file| file.file_bytes).sum();
        about.checks = Checks::Lengths;
        (about, Some(windows))
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
        let (window, rows_start) = read_header(&source)?;
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
        if is_window(&path) {
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

/// Bytes of the length that a file begins with.
const LENGTH_BYTES: u64 = 8;

/// A tensor as the JSON has it.
#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The JSON's entries in its order, each name once.
struct Tensors(Vec<(String, Tensor)>);

/// Reads the header of a file and its token ids. Returns the window, and where its rows start.
///
/// # Errors
/// [`crate::Fault::Truncated`] for a file that is shorter than its header states,
/// [`crate::Fault::Header`], [`crate::Fault::Unsupported`] for tensors that are not what is looked
/// for, [`crate::Fault::TooLarge`], [`crate::Fault::Io`].
fn read_header(source: &Source) -> Result<(TensorWindow, u64)> {
    let name = &source.name;
    let cut = |what: &str| name.truncated(None, source.len, what);
    let Some(length) = source.array_at(0)? else {
        return Err(cut("the file ends within the length of its header"));
    };
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(name.too_large(format!(
            "a header of {length} bytes, a safetensors file has {MAX_HEADER_BYTES} at most"
        )));
    }
    let data_start = LENGTH_BYTES + length;
    let Some(data_bytes) = source.len.checked_sub(data_start) else {
        return Err(cut("the file ends within its header"));
    };
    // The file is long enough.
    let mut json = vec![0; length as usize];
    source.read_exact_at(&mut json, LENGTH_BYTES)?;
    let Tensors(tensors) = serde_json::from_slice(&json)
        .map_err(|e| name.header(format!("it is not safetensors JSON: {e}")))?;
    for (key, tensor) in &tensors {
        if let Some(fault) = tensor.fault() {
            return Err(name.header(format!("tensor {key:?} {fault}")));
        }
        let [_, end] = tensor.data_offsets;
        if end > data_bytes {
            let missing = end - data_bytes;
            return Err(cut(&format!("tensor {key:?} lacks {missing} bytes")));
        }
    }
    let (tensor, matrix) = rows(&tensors).map_err(|what| name.unsupported(what))?;
    let ids = ids(&tensors, matrix.n_rows).map_err(|what| name.unsupported(what))?;
    let tokens = Vec::new();
    let mut window = TensorWindow { matrix, tokens };
    if let Some((integer, [start, end])) = ids {
        // The offsets are within the file, and those of as many ids as there are rows.
        let mut bytes = vec![0; (end - start) as usize];
        source.read_exact_at(&mut bytes, data_start + start)?;
        window.tokens = integer.decode(&bytes);
        if let Some(fault) = window.token_fault() {
            return Err(name.corrupt(None, data_start + start, fault));
        }
    }
    let [start, _] = tensor.data_offsets;
    Ok((window, data_start + start))
}

impl Tensor {
    /// Finds a fault in its offsets.
    fn fault(&self) -> Option<String> {
        let [start, end] = self.data_offsets;
        let Some(there) = end.checked_sub(start) else {
            return Some("ends before it starts".to_owned());
        };
        // Of the types that are read here.
        let entry = float(&self.dtype)
            .map(Float::bytes)
            .or(integer(&self.dtype).map(Integer::bytes))? as u64;
        let needed = self.shape.iter().try_fold(entry, |n, &d| n.checked_mul(d));
        (needed != Some(there)).then(|| {
            let Self { dtype, shape, .. } = self;
            format!("of type {dtype} and shape {shape:?} has {there} bytes")
        })
    }
}

/// The tensor of rows: the one of a known name, or the only one that can be.
fn rows(tensors: &[(String, Tensor)]) -> Result<(&Tensor, Matrix), String> {
    let matrix = |key: &str, tensor: &Tensor| {
        let float = float(&tensor.dtype).ok_or_else(|| {
            let dtype = &tensor.dtype;
            format!("tensor {key:?} is of type {dtype}: rows must be F32, F16, BF16 or F64")
        })?;
        Matrix::new(float, &tensor.shape).map_err(|what| format!("tensor {key:?}: {what}"))
    };
    if let Some((key, tensor)) = one_of(tensors, &ROWS)? {
        return Ok((tensor, matrix(key, tensor)?));
    }
    let mut fitting = tensors
        .iter()
        .filter_map(|(key, tensor)| Some((tensor, matrix(key, tensor).ok()?)));
    match (fitting.next(), fitting.count()) {
        (Some(only), 0) => Ok(only),
        (None, _) => Err(format!(
            "holds no tensor of rows: none is named {}, and none holds floats of shape \
             [tokens, vocabulary]",
            ROWS.join(", ")
        )),
        (Some(_), more) => Err(format!(
            "none of its tensors is named {}, and {} could be the rows: give one such a name",
            ROWS.join(", "),
            more + 1
        )),
    }
}

/// The type of the token ids and their offsets from the end of the header, if there are any.
fn ids(tensors: &[(String, Tensor)], n_rows: u32) -> Result<Option<(Integer, [u64; 2])>, String> {
    let Some((key, tensor)) = one_of(tensors, &IDS)? else {
        return Ok(None);
    };
    let (Some(integer), Some(n)) = (integer(&tensor.dtype), n_ids(&tensor.shape)) else {
        return Err(format!(
            "tensor {key:?} is of type {} and shape {:?}: token ids must be I32, I64, U32 or U64, of \
             shape [tokens]",
            tensor.dtype, tensor.shape
        ));
    };
    match n_ids_fault(n, n_rows) {
        Some(fault) => Err(format!("tensor {key:?}: {fault}")),
        None => Ok(Some((integer, tensor.data_offsets))),
    }
}

/// The tensor that has one of these names.
fn one_of<'t>(
    tensors: &'t [(String, Tensor)],
    names: &[&str],
) -> Result<Option<(&'t str, &'t Tensor)>, String> {
    let mut found = tensors
        .iter()
        .filter(|(key, _)| names.contains(&key.as_str()));
    match (found.next(), found.next()) {
        (Some((one, _)), Some((other, _))) => Err(format!(
            "holds a tensor {one:?} and one {other:?}: leave one of them out"
        )),
        (found, _) => Ok(found.map(|(key, tensor)| (key.as_str(), tensor))),
    }
}

fn float(dtype: &str) -> Option<Float> {
    match dtype {
        "F16" => Some(Float::F16),
        "BF16" => Some(Float::Bf16),
        "F32" => Some(Float::F32),
        "F64" => Some(Float::F64),
        _ => None,
    }
}

fn integer(dtype: &str) -> Option<Integer> {
    match dtype {
        "I32" => Some(Integer::I32),
        "I64" => Some(Integer::I64),
        "U32" => Some(Integer::U32),
        "U64" => Some(Integer::U64),
        _ => None,
    }
}

impl<'de> Deserialize<'de> for Tensors {
    fn deserialize<D: serde::Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Tensors;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tensors, A::Error> {
                let (mut tensors, mut names) = (Vec::new(), HashSet::new());
                while let Some(key) = map.next_key::<String>()? {
                    if !names.insert(key.clone()) {
                        return Err(A::Error::custom(format!("two entries are named {key:?}")));
                    }
                    if key == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        tensors.push((key, map.next_value()?));
                    }
                }
                Ok(Tensors(tensors))
            }
        }

        json.deserialize_map(Entries)
    }
}
