//! An `.npz` of numpy: a zip with an array for each window, as mlx-kld keeps its reference. What is
//! accepted is specified in `TENSORS.md`, beside this crate's manifest.
//!
//! Arrays may be deflated, so their rows can only be read from the first on: its reader is a
//! stream of windows. The format of an array:
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

mod arrays;
mod zip;

#[cfg(test)]
pub(crate) mod tests;

use std::path::Path;
use std::sync::Arc;

use rawzip::FileReader;

use crate::about::{About, Checks, Values};
use crate::error::{Named, Result};
use crate::kinds::Kind;
use crate::numbers::Number;
use crate::row::{ReadStream, RowBlock, Shape};
use crate::source;
use crate::tensors::{Matrix, TensorWindow, describe, n_ids, values_of};
use crate::window::{WindowEntry, WindowSpec};
use arrays::{Arrays, MAX_META_BYTES, Meta};
use zip::{Array, Member};

/// Reads an npz from its first window to its last: a [`ReadStream`].
#[derive(Debug)]
pub(crate) struct NpzReader {
    name: Named,
    file: Arc<FileReader>,
    file_bytes: u64,
    windows: Vec<(Member, TensorWindow)>,
    model: Option<String>,
    values: Values,
    /// The index of the next window.
    next: usize,
    /// The array of the window before it, of whose rows so many were read.
    open: Option<(Array, u32)>,
}

impl NpzReader {
    /// Opens the file: reads the zip's directory, the header of each array, all token ids, and rows
    /// until one is finite, which shows whether they are log-probabilities.
    ///
    /// # Errors
    /// [`crate::Fault::Unsupported`] for arrays that are not rows of one model and their token ids, and
    /// for mlx-kld's sparse kind; [`crate::Fault::Truncated`], [`crate::Fault::Corrupt`],
    /// [`crate::Fault::Io`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = Named::new(path);
        let (file, file_bytes) = source::open(&name, "a reference")?;
        let (file, members) =
            zip::directory(file).map_err(|e| name.of_stream(None, file_bytes, e))?;
        let arrays = Arrays::of(members).map_err(|what| name.unsupported(what))?;
        let mut reader = Self {
            name,
            file,
            file_bytes,
            windows: Vec::new(),
            model: None,
            values: Values::Logits,
            next: 0,
            open: None,
        };
        reader.add_windows(arrays)?;
        reader.values = reader.find_values()?;
        Ok(reader)
    }

    /// Describes the open file, and lists its windows.
    pub(crate) fn describe(&self) -> (About, Option<Vec<WindowEntry>>) {
        let windows = self.windows.iter().map(|(_, window)| window);
        let (mut about, windows) = describe(Kind::Npz, self.name.path(), windows, self.values);
        (about.file_bytes, about.checks) = (self.file_bytes, Checks::Zip);
        about.model_path = self.model.clone();
        (about, Some(windows))
    }

    fn add_windows(&mut self, arrays: Arrays) -> Result<()> {
        let n_windows = arrays.windows.len();
        if u32::try_from(n_windows).is_err() {
            return Err(self.name.too_large("more than 2^32 windows"));
        }
        let meta = arrays.meta.as_ref().map(|meta| self.meta(meta));
        let meta = meta.transpose()?.unwrap_or_default();
        let n_prompts = meta.prompts.len();
        if n_prompts != 0 && n_prompts != n_windows {
            return Err(self.name.unsupported(format!(
                "meta_json has {n_prompts} prompts, but there are rows of {n_windows}: save it again"
            )));
        }
        self.model = meta.reference_model;
        let mut prompts = meta.prompts.into_iter();
        for (rows, ids) in arrays.windows {
            let matrix = self.matrix(&rows)?;
            let of_prompt = prompts.next();
            let tokens = match ids {
                Some(ids) => self.token_ids(&ids, matrix.n_rows)?,
                None => of_prompt.map_or_else(Vec::new, arrays::Prompt::into_ids),
            };
            let window = TensorWindow { matrix, tokens };
            let (first_rows, first) = self
                .windows
                .first()
                .map_or((&rows, &window), |(a, b)| (a, b));
            if let Some(fault) = window.fault(first, &first_rows.name) {
                let what = format!("{}: {fault}", rows.name);
                return Err(self.name.unsupported(what));
            }
            self.windows.push((rows, window));
        }
        Ok(())
    }

    fn array(&self, member: &Member) -> Result<Array> {
        Array::open(&self.name, &self.file, member)
    }

    fn meta(&self, member: &Member) -> Result<Meta> {
        let array = self.array(member)?;
        match (array.entry, &array.shape[..]) {
            (Number::Byte, &[n]) if n <= MAX_META_BYTES => {
                let json = array.whole(n)?;
                let unsupported = |what| self.name.unsupported(format!("meta_json: {what}"));
                Meta::parse(&json).map_err(unsupported)
            }
            _ => Err(array.unsupported("is not JSON as mlx-kld stores it, in bytes")),
        }
    }

    /// The type and the shape of an array of rows, whose length must match them.
    fn matrix(&self, member: &Member) -> Result<Matrix> {
        let array = self.array(member)?;
        let Number::Float(float) = array.entry else {
            return Err(array.unsupported("rows must be float16, float32 or float64"));
        };
        let matrix = Matrix::new(float, &array.shape).map_err(|what| array.unsupported(&what))?;
        let needed = array.n_bytes + matrix.bytes();
        if needed == member.plain_bytes {
            Ok(matrix)
        } else {
            let there = member.plain_bytes;
            Err(array.corrupt(&format!(
                "{needed} bytes for its shape, the zip states {there}"
            )))
        }
    }

    fn token_ids(&self, member: &Member, n_rows: u32) -> Result<Vec<u32>> {
        let array = self.array(member)?;
        let Number::Integer(integer) = array.entry else {
            return Err(array.unsupported("token ids must be int32, int64, uint32 or uint64"));
        };
        let n_ids = n_ids(&array.shape, n_rows).map_err(|what| array.unsupported(&what))?;
        let n = n_ids * array.entry.bytes();
        Ok(integer.decode(&array.whole(n)?))
    }

    /// Reads rows until one is finite, and starts over.
    fn find_values(&mut self) -> Result<Values> {
        let mut found = None;
        while found.is_none() && self.next_window()?.is_some() {
            while found.is_none()
                && let Some(block) = self.next_rows(1)?
            {
                let last = self.windows.get(self.next - 1);
                found = last.and_then(|(_, window)| values_of(&block, window.matrix.float));
            }
        }
        (self.next, self.open) = (0, None);
        Ok(found.unwrap_or_default())
    }
}

/// Windows are numbered in the order of the file; rows are f32. A checksum that does not match
/// comes with a window's last rows.
impl ReadStream for NpzReader {
    fn next_window(&mut self) -> Result<Option<WindowSpec>> {
        let index = self.next;
        self.open = None;
        let Some((member, window)) = self.windows.get(index) else {
            return Ok(None);
        };
        let array = self.array(member);
        let array = array.map_err(|error| error.in_window(index as u32))?;
        self.open = Some((array, 0));
        self.next += 1;
        Ok(Some(window.spec(index)))
    }

    fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>> {
        let index = self.next.saturating_sub(1);
        let (Some((array, n_read)), Some((_, window))) = (&mut self.open, self.windows.get(index))
        else {
            return Ok(None);
        };
        let matrix = window.matrix;
        let n_rows = max_rows.min((matrix.n_rows - *n_read) as usize);
        if n_rows == 0 {
            return Ok(None);
        }
        let shape = Shape::f32(index as u32, *n_read, n_rows, matrix.n_vocab);
        *n_read += n_rows as u32; // at most as many as there are
        let is_last = *n_read == matrix.n_rows;
        let packed = array.read(n_rows as u64 * matrix.row_bytes() as u64);
        let packed = packed.and_then(|packed| {
            is_last.then(|| array.finish()).transpose()?;
            Ok(packed)
        });
        let packed = packed.map_err(|error| error.in_window(shape.window))?;
        let mut block = RowBlock::prepare(None, shape);
        let logits = bytemuck::cast_slice_mut(block.buffers(shape.bytes()).1);
        matrix.float.decode(&packed, logits);
        Ok(Some(block))
    }

    fn reopen(&self) -> Result<Box<dyn ReadStream>> {
        Ok(Box::new(Self::open(self.name.path())?))
    }
}
