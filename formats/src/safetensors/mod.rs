//! A folder of `0.safetensors`, `1.safetensors`, ...: one file for each window, as SGLang's patch
//! writes them. What is accepted is specified in `TENSORS.md`, beside this crate's manifest.
//!
//! Every offset in a file follows from its header, so its reader reads any rows of any
//! window, from any threads. The format itself: <https://github.com/huggingface/safetensors>. A file
//! begins with a u64 length, then JSON that names each tensor, its type, its shape and where its
//! bytes are after the header.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{Named, Result};
use crate::kinds::Kind;
use crate::numbers::{Float, Number};
use crate::reference::{Reference, Rows};
use crate::row::{ReadBlocks, RowBlock, RowLayout};
use crate::source::OpenFile;
use crate::tensors::{Matrix, TensorWindow, bytes_of_ids, describe, first_fault, values_of};
use crate::window::WindowSpec;
use crate::writing::rows_per_piece;

/// Most bytes of a file's header: the format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Names of the tensor that holds the rows.
const ROWS: [&str; 3] = ["log_probs", "logprobs", "logits"];

/// Names of the tensor that holds the token ids.
const IDS: [&str; 3] = ["input_ids", "token_ids", "tokens"];

/// True if a file of a folder is a window's, by its name.
pub fn is_window(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "safetensors")
}

/// A folder of windows. It reads any block of rows of any window, from any thread: see
/// [`ReadBlocks`].
#[derive(Debug)]
pub(crate) struct SafetensorsReader(Vec<TensorWindow<RowsInFile>>);

/// Where a window's rows are. The file is opened for each block: thousands of windows would be too many
/// open files.
#[derive(Debug)]
struct RowsInFile {
    path: PathBuf,
    file_bytes: u64,
    start: u64,
}

impl SafetensorsReader {
    /// Opens the folder: reads the header and the token ids of each file.
    ///
    /// # Errors
    /// Those of the folder and of each file's header; [`crate::Fault::Unsupported`] for windows
    /// that do not belong together.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let files = window_files(&Named::new(path))?.into_iter();
        let windows: Vec<_> = files.map(open_window).collect::<Result<_>>()?;
        let name = |rows: &RowsInFile| {
            let name = rows.path.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        match first_fault(&windows, name) {
            Some((rows, fault)) => Err(Named::new(&rows.path).unsupported(fault)),
            None => Ok(Self(windows)),
        }
    }

    /// The open folder as a reference. Reads rows until one is finite, which shows whether they are
    /// log-probabilities.
    ///
    /// # Errors
    /// Those of reading rows.
    pub(crate) fn into_reference(self, path: &Path) -> Result<Reference> {
        let reader = &self;
        let values = values_of((0..self.0.len()).flat_map(|i| {
            let float = reader.at(i).matrix.float;
            let blocks = 0..reader.n_blocks(i);
            blocks.map(move |b| Ok((reader.block(i, b, None)?, float)))
        }))?;
        let file_bytes = self.0.iter().map(|window| window.rows.file_bytes).sum();
        let (about, windows) = describe(Kind::Safetensors, path, file_bytes, &self.0, values);
        let rows = Rows::Blocks(Box::new(self));
        Ok(Reference::new(about, Some(windows), rows))
    }

    #[expect(clippy::indexing_slicing, reason = "the caller's index, as documented")]
    fn at(&self, i: usize) -> &TensorWindow<RowsInFile> {
        &self.0[i]
    }
}

/// Rows are f32. A file is opened for each block, so there is none to fetch ahead from.
impl ReadBlocks for SafetensorsReader {
    fn rows_per_block(&self) -> u32 {
        let n_vocab = self.0.first().map_or(0, |first| first.matrix.n_vocab);
        rows_per_piece(RowLayout::F32, n_vocab)
    }

    fn n_rows(&self, i: usize) -> u32 {
        self.at(i).matrix.n_rows
    }

    fn window(&self, i: usize) -> Result<WindowSpec> {
        Ok(self.at(i).spec(i))
    }

    fn block(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock> {
        let TensorWindow { rows, matrix, .. } = self.at(i);
        let of_block = self.rows_of_block(i, b);
        let source = OpenFile::open(&rows.path, "a reference")?;
        if source.len != rows.file_bytes {
            let what = "has changed while it was read: start again";
            return Err(source.name.unsupported(what));
        }
        let start = rows.start + u64::from(of_block.start) * matrix.row_bytes() as u64;
        let n_bytes = of_block.len() * matrix.row_bytes();
        let mut block = matrix.block(reuse, i, of_block);
        let (packed, plain) = block.buffers(block.usual_bytes());
        let read = if matrix.float == Float::F32 {
            source.read_exact_at(plain, start)
        } else {
            packed.resize(n_bytes, 0);
            source.read_exact_at(packed, start)
        };
        read.map_err(|error| error.in_window(i as u32))?;
        if matrix.float != Float::F32 {
            matrix.float.decode(packed, bytemuck::cast_slice_mut(plain));
        }
        Ok(block)
    }
}

/// Reads the header of a file and its token ids.
///
/// # Errors
/// [`crate::Fault::Truncated`] for a file that is shorter than its header states,
/// [`crate::Fault::Header`], [`crate::Fault::Unsupported`] for tensors that are not what is looked
/// for, [`crate::Fault::TooLarge`], [`crate::Fault::Io`].
fn open_window(path: PathBuf) -> Result<TensorWindow<RowsInFile>> {
    let source = OpenFile::open(&path, "a reference")?;
    let (data_start, tensors) = read_header(&source)?;
    let unsupported = |what: String| source.name.unsupported(what);
    let (tensor, matrix) = rows(&tensors).map_err(unsupported)?;
    let mut tokens = Vec::new();
    if let Some((key, ids)) = one_of(&tensors, &IDS).map_err(unsupported)? {
        let n_bytes = bytes_of_ids(ids.number(), &ids.shape, matrix.n_rows)
            .map_err(|what| unsupported(format!("tensor {key:?} of type {}: {what}", ids.dtype)))?;
        // Those bytes are in the file, and not more than its rows have.
        let mut bytes = vec![0; n_bytes as usize];
        source.read_exact_at(&mut bytes, data_start + ids.data_offsets[0])?;
        tokens = ids.number().decode_ids(&bytes);
    }
    let rows = RowsInFile {
        file_bytes: source.len,
        start: data_start + tensor.data_offsets[0],
        path,
    };
    Ok(TensorWindow {
        rows,
        matrix,
        tokens,
    })
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
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let digits = stem.filter(|stem| stem.bytes().all(|byte| byte.is_ascii_digit()));
            let parsed = digits.and_then(|digits| digits.parse::<u32>().ok());
            let number = parsed.ok_or_else(|| {
                Named::new(&path).unsupported(
                    "its name is not a number: a folder of logits holds 0.safetensors, \
                     1.safetensors and so on, a file a window",
                )
            })?;
            files.push((number, path));
        }
    }
    files.sort_unstable();
    let Some(&(first, _)) = files.first() else {
        return Err(folder.unsupported(
            "is a folder without safetensors files: give one with 0.safetensors, 1.safetensors \
             and so on, one file for each window",
        ));
    };
    let mut numbers = files.iter().zip(first..);
    if let Some(((number, path), expected)) = numbers.find(|((number, _), n)| number != n) {
        return Err(Named::new(path).unsupported(format!(
            "the file of window {expected} should come here, not {number}: none has that number, \
             or two have the one before; copy the folder again or renumber its files"
        )));
    }
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Bytes of the length that a file begins with.
const LENGTH_BYTES: u64 = 8;

/// A tensor as the JSON has it.
#[derive(Deserialize)]
struct TensorHeader {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl TensorHeader {
    fn number(&self) -> Number {
        Number::named(&self.dtype)
    }
}

/// The tensors by their names.
type Tensors = BTreeMap<String, TensorHeader>;

/// Where a file's data starts, and the tensors that it holds, each of as many bytes as its type and
/// shape have.
fn read_header(source: &OpenFile) -> Result<(u64, Tensors)> {
    let name = &source.name;
    let cut = |what: &str| name.truncated(None, source.len, what);
    let stored = source.array_at(0)?.map(u64::from_le_bytes);
    let length = stored.ok_or_else(|| cut("the file ends within the length of its header"))?;
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
    let not_json = |e: serde_json::Error| name.header(format!("it is not safetensors JSON: {e}"));
    let values: BTreeMap<String, &RawValue> = serde_json::from_slice(&json).map_err(not_json)?;
    let mut tensors = Tensors::new();
    for (key, value) in values {
        if key == "__metadata__" {
            continue;
        }
        let tensor: TensorHeader = serde_json::from_str(value.get()).map_err(not_json)?;
        let TensorHeader {
            dtype,
            shape,
            data_offsets: [start, end],
        } = &tensor;
        if *end > data_bytes {
            return Err(cut(&format!(
                "tensor {key:?} is at {start} to {end} of {data_bytes}"
            )));
        }
        let is_read = tensor.number() != Number::Other;
        let needed = tensor.number().bytes_of(shape);
        if is_read && needed.and_then(|bytes| start.checked_add(bytes)) != Some(*end) {
            return Err(name.header(format!(
                "tensor {key:?} of type {dtype} and shape {shape:?} is at {start} to {end}"
            )));
        }
        tensors.insert(key, tensor);
    }
    Ok((data_start, tensors))
}

/// The tensor of rows: the one of a known name, or the only one that can be.
fn rows(tensors: &Tensors) -> Result<(&TensorHeader, Matrix), String> {
    let matrix = |tensor: &TensorHeader| Matrix::new(tensor.number(), &tensor.shape);
    if let Some((key, tensor)) = one_of(tensors, &ROWS)? {
        let fault = |what| format!("tensor {key:?} of type {}: {what}", tensor.dtype);
        let matrix = matrix(tensor).map_err(fault)?;
        return Ok((tensor, matrix));
    }
    let fitting: Vec<_> = tensors
        .values()
        .filter_map(|tensor| Some((tensor, matrix(tensor).ok()?)))
        .collect();
    match fitting[..] {
        [only] => Ok(only),
        _ => Err(format!(
            "none of its tensors is named {}, and {} could be the rows, floats of shape [tokens, \
             vocabulary]: give one such a name",
            ROWS.join(", "),
            fitting.len()
        )),
    }
}

/// The tensor that has one of these names.
fn one_of<'t>(
    tensors: &'t Tensors,
    names: &[&str],
) -> Result<Option<(&'t str, &'t TensorHeader)>, String> {
    let mut found = names.iter().filter_map(|&name| tensors.get_key_value(name));
    match (found.next(), found.next()) {
        (Some((one, _)), Some((other, _))) => Err(format!(
            "holds a tensor {one:?} and one {other:?}: leave one of them out"
        )),
        (found, _) => Ok(found.map(|(key, tensor)| (key.as_str(), tensor))),
    }
}
