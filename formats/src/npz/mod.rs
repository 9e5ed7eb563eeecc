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

use crate::error::{Named, Result};
use crate::kinds::Kind;
use crate::numbers::{Float, Number};
use crate::reference::{Reference, Rows};
use crate::row::{ReadStream, RowBlock};
use crate::source::Source;
use crate::tensors::{Matrix, TensorWindow, bytes_of_ids, describe, first_fault, values_of};
use crate::window::WindowSpec;
use arrays::{Arrays, MAX_META_BYTES, Meta};
use zip::{Array, Member};

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
    /// The array of the window before it, of whose rows so many were read.
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
        let Source { file, name, len } = Source::open(path, "a reference")?;
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
        let fault = first_fault(&reader.windows, |rows| rows.name.clone());
        let fault = fault.map(|(rows, fault)| format!("{}: {fault}", rows.name));
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
        let meta = arrays.meta.as_ref().map(|meta| self.meta(meta));
        let meta = meta.transpose()?.unwrap_or_default();
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
        let matrix = Matrix::new(array.number, &array.shape);
        let matrix = matrix.map_err(|what| array.unsupported(what))?;
        let needed = array.number.bytes_of(&array.shape).unwrap_or_default(); // sizes are bounded
        let (needed, there) = (array.n_bytes + needed, member.plain_bytes);
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
        let n_bytes = bytes_of_ids(number, &array.shape, n_rows);
        let n_bytes = n_bytes.map_err(|what| array.unsupported(what))?;
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
        let array = self.array(&window.rows);
        let array = array.map_err(|error| error.in_window(index as u32))?;
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
        let mut packed = array.read(n_rows as u64 * matrix.row_bytes() as u64);
        if packed.is_ok() && *n_read == matrix.n_rows {
            packed = array.finish().and(packed);
        }
        let packed = packed.map_err(|error| error.in_window(block.window))?;
        let logits = bytemuck::cast_slice_mut(block.buffers(block.usual_bytes()).1);
        matrix.float.decode(&packed, logits);
        Ok(Some(block))
    }
}
