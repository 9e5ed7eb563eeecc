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

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use rawzip::FileReader;

use crate::about::{About, Checks};
use crate::error::{Error, Named, Result};
use crate::kinds::Kind;
use crate::row::{ReadStream, RowBlock, RowLayout, Shape};
use crate::source;
use crate::tensors::{Matrix, TensorWindow, describe, is_normalised, n_ids, n_ids_fault};
use crate::window::{WindowEntry, WindowSpec};
use arrays::{Arrays, MAX_META_BYTES, Meta, TokenIds};
use zip::{EntryType, Header, Member, Stream};

/// Most memory that is allocated before its bytes have arrived.
const STEP_BYTES: u64 = 1 << 20;

/// A window, and the array that its rows are in.
#[derive(Debug)]
struct WindowArrays {
    array: Member,
    window: TensorWindow,
}

/// The rows of a window that are still to come.
#[derive(Debug)]
struct OpenRows {
    stream: Stream,
    matrix: Matrix,
    /// The index of the window.
    index: usize,
    n_read: u32,
}

/// Reads an npz from its first window to its last: a [`ReadStream`].
#[derive(Debug)]
pub(crate) struct NpzReader {
    name: Named,
    file: Arc<FileReader>,
    file_bytes: u64,
    windows: Vec<WindowArrays>,
    model: Option<String>,
    log_probabilities: bool,
    /// The index of the next window.
    next: usize,
    rows: Option<OpenRows>,
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
            zip::directory(file).map_err(|e| read_error(&name, None, file_bytes, e))?;
        let arrays = Arrays::of(members).map_err(|what| name.unsupported(what))?;
        let mut reader = Self {
            name,
            file,
            file_bytes,
            windows: Vec::new(),
            model: None,
            log_probabilities: false,
            next: 0,
            rows: None,
        };
        let meta = reader.meta(arrays.meta.as_ref())?;
        reader.add_windows(arrays.windows, meta.prompts)?;
        reader.model = meta.reference_model;
        reader.log_probabilities = reader.looks_normalised()?;
        Ok(reader)
    }

    /// Describes the open file, and lists its windows.
    pub(crate) fn describe(&self) -> (About, Option<Vec<WindowEntry>>) {
        let windows = self.windows.iter().map(|arrays| &arrays.window);
        let (mut about, windows) =
            describe(Kind::Npz, self.name.path(), windows, self.log_probabilities);
        (about.file_bytes, about.checks) = (self.file_bytes, Checks::Zip);
        about.model_path = self.model.clone();
        (about, Some(windows))
    }

    fn meta(&self, meta: Option<&Member>) -> Result<Meta> {
        let Some(meta) = meta else {
            return Ok(Meta::default());
        };
        let ((), json) = self.array(meta, |array| match (array.entry, &array.shape[..]) {
            (EntryType::Bytes, &[n]) if n <= MAX_META_BYTES => Ok(((), n)),
            _ => Err("is not JSON as mlx-kld stores it, in bytes".to_owned()),
        })?;
        Meta::parse(&json).map_err(|what| self.name.unsupported(what))
    }

    fn add_windows(
        &mut self,
        arrays: Vec<(Member, Option<Member>)>,
        mut prompts: TokenIds,
    ) -> Result<()> {
        if u32::try_from(arrays.len()).is_err() {
            return Err(self.name.too_large("more than 2^32 windows"));
        }
        if !prompts.is_empty() && prompts.n_prompts != arrays.len() {
            return Err(self.name.unsupported(format!(
                "meta_json has {} prompts, but there are rows of {}: save it again",
                prompts.n_prompts,
                arrays.len()
            )));
        }
        for (index, (array, ids)) in arrays.into_iter().enumerate() {
            let matrix = self.matrix(&array)?;
            let tokens = match ids {
                Some(ids) => self.token_ids(&ids, matrix)?,
                None => prompts.take(index),
            };
            let window = TensorWindow { matrix, tokens };
            let first = self.windows.first();
            let beside =
                first.and_then(|first| window.fault_beside(&first.window, &first.array.name));
            if let Some(fault) = beside.or_else(|| window.token_fault()) {
                return Err(self.name.unsupported(format!("{}: {fault}", array.name)));
            }
            self.windows.push(WindowArrays { array, window });
        }
        Ok(())
    }

    /// The type and the shape of an array of rows, whose length must match them.
    fn matrix(&self, member: &Member) -> Result<Matrix> {
        let (header, stream) = self.open_array(member)?;
        let unsupported = |what: String| self.name.unsupported(format!("{}: {what}", member.name));
        let EntryType::Float(float) = header.entry else {
            return Err(unsupported(
                "rows must be float16, float32 or float64".to_owned(),
            ));
        };
        let matrix = Matrix::new(float, &header.shape).map_err(unsupported)?;
        let needed = header.bytes + matrix.bytes();
        if needed == member.plain_bytes {
            Ok(matrix)
        } else {
            Err(self.name.corrupt(
                None,
                stream.n_bytes(),
                format!(
                    "{}: {needed} bytes for its shape, the zip states {}",
                    member.name, member.plain_bytes
                ),
            ))
        }
    }

    fn token_ids(&self, member: &Member, matrix: Matrix) -> Result<Vec<u32>> {
        let (integer, bytes) = self.array(member, |array| {
            let (EntryType::Integer(kind), Some(n)) = (array.entry, n_ids(&array.shape)) else {
                return Err(
                    "token ids must be int32, int64, uint32 or uint64, of shape [tokens]"
                        .to_owned(),
                );
            };
            match n_ids_fault(n, matrix.n_rows) {
                Some(fault) => Err(fault),
                None => Ok((kind, n * kind.bytes() as u64)),
            }
        })?;
        Ok(integer.decode(&bytes))
    }

    /// Reads a whole array whose header `size` accepts. Returns the value that `size` gives, and as
    /// many bytes as it asks for.
    fn array<T>(
        &self,
        member: &Member,
        size: impl FnOnce(&Header) -> Result<(T, u64), String>,
    ) -> Result<(T, Vec<u8>)> {
        let (header, mut stream) = self.open_array(member)?;
        let (of, n) = size(&header)
            .map_err(|what| self.name.unsupported(format!("{}: {what}", member.name)))?;
        let bytes = read_bytes(&mut stream, n)
            .and_then(|bytes| stream.finish().map(|()| bytes))
            .map_err(|e| array_error(&self.name, None, &stream, e))?;
        Ok((of, bytes))
    }

    /// An array's header, and a stream of the bytes that follow it.
    fn open_array(&self, member: &Member) -> Result<(Header, Stream)> {
        let mut stream = Stream::new(&self.file, member);
        match zip::read_header(&mut stream) {
            Ok(header) => Ok((header, stream)),
            Err(e) => Err(array_error(&self.name, None, &stream, e)),
        }
    }

    /// Reads rows until one is finite, and starts over.
    fn looks_normalised(&mut self) -> Result<bool> {
        let mut found = None;
        while found.is_none() && self.next_window()?.is_some() {
            while found.is_none()
                && let Some(block) = self.next_rows(1)?
            {
                let matrix = self.rows.as_ref().map(|rows| rows.matrix);
                found = matrix.and_then(|matrix| is_normalised(&block, matrix.float));
            }
        }
        (self.next, self.rows) = (0, None);
        Ok(found.unwrap_or(false))
    }
}

/// Windows are numbered in the order of the file; rows are f32. A checksum that does not match
/// comes with a window's last rows.
impl ReadStream for NpzReader {
    fn next_window(&mut self) -> Result<Option<WindowSpec>> {
        let index = self.next;
        self.rows = None;
        let Some(WindowArrays { array, window }) = self.windows.get(index) else {
            return Ok(None);
        };
        self.rows = Some(OpenRows {
            stream: self
                .open_array(array)
                .map_err(|error| error.in_window(index as u32))?
                .1,
            matrix: window.matrix,
            index,
            n_read: 0,
        });
        self.next += 1;
        Ok(Some(window.spec(index)))
    }

    fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>> {
        let Some(rows) = &mut self.rows else {
            return Ok(None);
        };
        let block = rows.next(max_rows);
        block.map_err(|e| array_error(&self.name, Some(rows.index as u32), &rows.stream, e))
    }

    fn reopen(&self) -> Result<Box<dyn ReadStream>> {
        Ok(Box::new(Self::open(self.name.path())?))
    }
}

impl OpenRows {
    fn next(&mut self, max_rows: usize) -> io::Result<Option<RowBlock>> {
        let matrix = self.matrix;
        let n_rows = max_rows.min((matrix.n_rows - self.n_read) as usize);
        if n_rows == 0 {
            return Ok(None);
        }
        let shape = Shape {
            window: self.index as u32,
            first_row: self.n_read,
            n_rows,
            row_len: matrix.n_vocab as usize,
            layout: RowLayout::F32,
        };
        let packed_bytes = n_rows as u64 * matrix.row_bytes() as u64;
        let packed = read_bytes(&mut self.stream, packed_bytes)?;
        let mut block = RowBlock::prepare(None, shape, shape.bytes());
        let (_, plain) = block.buffers();
        let logits = bytemuck::cast_slice_mut(plain);
        matrix.float.decode(&packed, logits);
        self.n_read += n_rows as u32; // at most n_rows
        if self.n_read == matrix.n_rows {
            self.stream.finish()?;
        }
        Ok(Some(block))
    }
}

/// Reads `n` bytes. Memory is allocated as they arrive.
fn read_bytes(stream: &mut impl Read, n: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(n.min(STEP_BYTES) as usize);
    match stream.take(n).read_to_end(&mut bytes)? as u64 {
        read if read == n => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The error for a failure to read an array.
fn array_error(name: &Named, window: Option<u32>, stream: &Stream, error: io::Error) -> Error {
    let what = match error.kind() {
        io::ErrorKind::UnexpectedEof => "ends before all of its shape is read".to_owned(),
        _ => error.to_string(),
    };
    let named = io::Error::new(error.kind(), format!("{} {what}", stream.name()));
    read_error(name, window, stream.n_bytes(), named)
}

/// The error for a failure to read.
fn read_error(name: &Named, window: Option<u32>, offset: u64, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => name.truncated(window, offset, error.to_string()),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            name.corrupt(window, offset, error.to_string())
        }
        io::ErrorKind::Unsupported => name.unsupported(error.to_string()),
        _ => name.io("read", error),
    }
}
