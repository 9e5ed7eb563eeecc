//! An `.npz` of numpy: a zip with an array for each window, as mlx-kld keeps its reference. What is
//! accepted is specified in `TENSORS.md`, beside this crate's manifest.
//!
//! Arrays may be deflated, so their rows can only be read from the first on: its reader is a
//! stream of windows. The format of an array:
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

mod zip;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::iter::repeat_with;
use std::path::Path;
use std::sync::Arc;

use rawzip::FileReader;
use serde::Deserialize;

use crate::error::{Named, Result};
use crate::kinds::Kind;
use crate::numbers::{Float, Number};
use crate::reference::{Reference, Rows};
use crate::row::{ReadStream, RowBlock};
use crate::source::OpenFile;
use crate::tensors::{Matrix, TensorWindow, bytes_of_ids, describe, first_fault, values_of};
use crate::window::WindowSpec;
use zip::{Array, Member};

/// Names of arrays of rows, before the window's number.
const ROWS: [&str; 4] = ["logprobs", "log_probs", "logits", "arr"];

/// Names of arrays of token ids.
const IDS: [&str; 3] = ["token_ids", "input_ids", "tokens"];

/// Names of mlx-kld's sparse kind, which holds only the most probable entries.
const SPARSE: [&str; 3] = ["lp", "idx", "tail"];

/// The name of mlx-kld's array about its prompts.
const META: &str = "meta_json";

/// The reason why the sparse kind is refused.
const SPARSE_KIND: &str = "is of mlx-kld's sparse kind, which holds the most probable \
    entries of each row alone: it gives no KL divergence over the whole vocabulary; save \
    the dense kind";

/// The arrays of interest.
struct Arrays {
    /// Each window's rows and token ids, in the order of their numbers, which have no gap.
    windows: Vec<(Member, Option<Member>)>,
    meta: Option<Member>,
}

impl Arrays {
    /// Finds the arrays of interest among all members.
    ///
    /// # Errors
    /// A phrase that names the arrays that do not go together, or are missing.
    fn of(members: Vec<Member>) -> Result<Self, String> {
        let (mut rows, mut ids, mut meta) = (BTreeMap::new(), BTreeMap::new(), None);
        let mut is_sparse = false;
        for member in members {
            let array = member.name.strip_suffix(".npy").unwrap_or(&member.name);
            let earlier = match numbered(array) {
                _ if array == META => meta.replace(member),
                Some((name, number)) if ROWS.contains(&name) => rows.insert(number, member),
                Some((name, number)) if IDS.contains(&name) => ids.insert(number, member),
                other => {
                    is_sparse |= other.is_some_and(|(name, _)| SPARSE.contains(&name));
                    None
                }
            };
            if let Some(Member { name, .. }) = earlier {
                return Err(format!(
                    "holds {name} and another array of its kind and number: leave one of them out"
                ));
            }
        }
        let Some((&first, _)) = rows.first_key_value() else {
            return Err(if is_sparse {
                SPARSE_KIND
            } else {
                "holds no rows: arrays must be named logprobs_0, log_probs_0, logits_0 or arr_0 \
                 and on, one a window"
            }
            .to_owned());
        };
        if let Some((missing, _)) = (first..).zip(rows.keys()).find(|(n, key)| n != *key) {
            return Err(format!(
                "has rows of windows after {missing}, and none of window {missing}: save it again"
            ));
        }
        if !ids.is_empty() && !ids.keys().eq(rows.keys()) {
            return Err(
                "has token ids of other windows than rows: add them or leave all out".to_owned(),
            );
        }
        let ids_or_none = ids.into_values().map(Some).chain(repeat_with(|| None));
        let windows = rows.into_values().zip(ids_or_none).collect();
        Ok(Self { windows, meta })
    }
}

/// Splits a name such as `logits_12` at its number.
fn numbered(array: &str) -> Option<(&str, u64)> {
    let (name, digits) = array.rsplit_once('_')?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((name, digits.parse().ok().filter(|_| is_number)?))
}

/// Most bytes of `meta_json`: enough for the ids of millions of tokens and their texts.
const MAX_META_BYTES: u64 = 256 << 20;

/// The parts of mlx-kld's `meta_json` that are used.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    reference_model: Option<String>,
    format: Option<String>,
    prompts: Vec<NpzPrompt>,
}

/// A prompt, which uses 8 bytes without token ids: deflate makes millions of those out of nothing.
#[derive(Deserialize)]
struct NpzPrompt {
    #[expect(clippy::box_collection, reason = "a Vec uses 24 bytes")]
    token_ids: Option<Box<Vec<u32>>>,
}

impl Meta {
    /// Parses `meta_json`.
    ///
    /// # Errors
    /// A phrase that states what is wrong with it, or that this kind does not hold whole rows.
    fn parse(json: &[u8]) -> Result<Self, String> {
        let mut meta: Self =
            serde_json::from_slice(json).map_err(|e| format!("{e}: save it again"))?;
        // Ids of none of the prompts are as good as no prompts.
        if meta.prompts.iter().all(|prompt| prompt.token_ids.is_none()) {
            meta.prompts.clear();
        }
        match meta.format.as_deref() {
            None | Some("dense") => Ok(meta),
            Some(format) if format.contains("sparse") => Err(SPARSE_KIND.to_owned()),
            Some(format) => Err(format!(
                "its format is {format:?}: save the format \"dense\""
            )),
        }
    }
}

/// Reads an npz from its first window to its last: a [`ReadStream`].
#[derive(Debug)]
pub(crate) struct NpzReader {
    name: Named,
    file: Arc<FileReader>,
    file_bytes: u64,
    windows: Vec<TensorWindow<Member>>,
    model: Option<String>,
    /// The index of the next window.
    next: usize,
    /// The array of the window before it, and the number of its rows that were read.
    open: Option<(Array, u32)>,
}

impl NpzReader {
    /// Opens the file: reads the zip's directory, the header of each array, and all token ids.
    ///
    /// # Errors
    /// [`crate::Fault::Unsupported`] for arrays that are not rows of one model and their token ids, and
    /// for mlx-kld's sparse kind; [`crate::Fault::Truncated`], [`crate::Fault::Corrupt`],
    /// [`crate::Fault::Io`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let OpenFile { file, name, len } = OpenFile::open(path, "a reference")?;
        let (file, members) = zip::directory(file).map_err(|e| name.of_stream(None, len, e))?;
        let arrays = Arrays::of(members).map_err(|what| name.unsupported(what))?;
        let mut reader = Self {
            name,
            file,
            file_bytes: len,
            windows: Vec::new(),
            model: None,
            next: 0,
            open: None,
        };
        reader.add_windows(arrays)?;
        let found = first_fault(&reader.windows, |rows| rows.name.clone());
        let fault = found.map(|(rows, fault)| format!("{}: {fault}", rows.name));
        fault.map_or(Ok(()), |fault| Err(reader.name.unsupported(fault)))?;
        Ok(reader)
    }

    /// The open file as a reference. Reads rows until one is finite, which shows whether they are
    /// log-probabilities, and starts over.
    ///
    /// # Errors
    /// Those of reading rows.
    pub(crate) fn into_reference(mut self) -> Result<Reference> {
        let values = values_of(std::iter::from_fn(|| self.next_block().transpose()))?;
        (self.next, self.open) = (0, None);
        let path = self.name.path();
        let (mut about, windows) =
            describe(Kind::Npz, path, self.file_bytes, &self.windows, values);
        about.model_path = self.model.take();
        let rows = Rows::Stream(Box::new(self));
        Ok(Reference::new(about, Some(windows), rows))
    }

    fn add_windows(&mut self, arrays: Arrays) -> Result<()> {
        let read = arrays.meta.as_ref().map(|meta| self.meta(meta));
        let meta = read.transpose()?.unwrap_or_default();
        let (n_windows, n_prompts) = (arrays.windows.len(), meta.prompts.len());
        if n_prompts != 0 && n_prompts != n_windows {
            return Err(self.name.unsupported(format!(
                "meta_json has {n_prompts} prompts, but there are rows of {n_windows}: save it again"
            )));
        }
        self.model = meta.reference_model;
        let mut of_prompts = meta.prompts.into_iter().map(|prompt| prompt.token_ids);
        for (rows, ids) in arrays.windows {
            let matrix = self.matrix(&rows)?;
            let of_prompt = of_prompts.next().flatten();
            let tokens = match ids {
                Some(ids) => self.token_ids(&ids, matrix.n_rows)?,
                None => of_prompt.map_or_else(Vec::new, |ids| *ids),
            };
            self.windows.push(TensorWindow {
                rows,
                matrix,
                tokens,
            });
        }
        Ok(())
    }

    fn array(&self, member: &Member) -> Result<Array> {
        Array::open(&self.name, &self.file, member)
    }

    fn meta(&self, member: &Member) -> Result<Meta> {
        let array = self.array(member)?;
        match (array.number, &array.shape[..]) {
            (Number::Byte, &[n]) if n <= MAX_META_BYTES => {
                let unsupported = |what| self.name.unsupported(format!("meta_json: {what}"));
                Meta::parse(&array.whole(n)?).map_err(unsupported)
            }
            _ => Err(array.unsupported("is not JSON as mlx-kld stores it, in bytes")),
        }
    }

    /// The type and the shape of an array of rows, whose length must match them.
    fn matrix(&self, member: &Member) -> Result<Matrix> {
        let array = self.array(member)?;
        let matrix =
            Matrix::new(array.number, &array.shape).map_err(|what| array.unsupported(what))?;
        let data = array.number.bytes_of(&array.shape).unwrap_or_default(); // sizes are bounded
        let (needed, there) = (array.n_bytes + data, member.plain_bytes);
        if needed == there {
            Ok(matrix)
        } else {
            let what = format!("{needed} bytes for its shape, the zip states {there}");
            Err(array.corrupt(what))
        }
    }

    fn token_ids(&self, member: &Member, n_rows: u32) -> Result<Vec<u32>> {
        let array = self.array(member)?;
        let number = array.number;
        let n_bytes =
            bytes_of_ids(number, &array.shape, n_rows).map_err(|what| array.unsupported(what))?;
        Ok(number.decode_ids(&array.whole(n_bytes)?))
    }

    /// The next row of all windows, and the type it is stored in.
    fn next_block(&mut self) -> Result<Option<(RowBlock, Float)>> {
        loop {
            let block = self.next_rows(1)?;
            let last = self.windows.get(self.next.saturating_sub(1));
            if let Some((block, window)) = block.zip(last) {
                return Ok(Some((block, window.matrix.float)));
            }
            if self.next_window()?.is_none() {
                return Ok(None);
            }
        }
    }
}

/// Windows are numbered in the order of the file; rows are f32. A checksum that does not match
/// comes with a window's last rows.
impl ReadStream for NpzReader {
    fn next_window(&mut self) -> Result<Option<WindowSpec>> {
        let index = self.next;
        self.open = None;
        let Some(window) = self.windows.get(index) else {
            return Ok(None);
        };
        let opened = self.array(&window.rows);
        let array = opened.map_err(|error| error.in_window(index as u32))?;
        self.open = Some((array, 0));
        self.next += 1;
        Ok(Some(window.spec(index)))
    }

    fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>> {
        let index = self.next.saturating_sub(1);
        let (Some((array, n_read)), Some(window)) = (&mut self.open, self.windows.get(index))
        else {
            return Ok(None);
        };
        let matrix = window.matrix;
        let n_rows = max_rows.min((matrix.n_rows - *n_read) as usize);
        if n_rows == 0 {
            return Ok(None);
        }
        let first_row = *n_read;
        *n_read += n_rows as u32; // at most as many as there are
        let mut block = matrix.block(None, index, first_row..*n_read);
        let mut read = array.read(n_rows as u64 * matrix.row_bytes() as u64);
        if read.is_ok() && *n_read == matrix.n_rows {
            read = array.finish().and(read);
        }
        let packed = read.map_err(|error| error.in_window(block.window))?;
        let logits = bytemuck::cast_slice_mut(block.buffers(block.usual_bytes()).1);
        matrix.float.decode(&packed, logits);
        Ok(Some(block))
    }
}
