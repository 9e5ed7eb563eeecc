//! The reading side: a stream, window after window.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rawzip::FileReader;

use super::arrays::Arrays;
use super::member::{self, Member, Stream};
use super::npy::{self, Kind};
use super::prompts::{MAX_BYTES, Prompts, TokenIds};
use super::window::{OpenRows, WindowArrays, fault, fill, in_array};
use crate::error::{Named, Result};
use crate::reference::ReadStream;
use crate::source;
use crate::tensors::{Float, Matrix, count_fault, is_normalised, n_ids, window};
use crate::{Error, RowBlock, WindowSpec};

/// Reads an npz from its first window to its last: a [`ReadStream`].
#[derive(Debug)]
pub struct NpzReader {
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
    /// [`Error::Unsupported`] for arrays that are not rows of one model and their token ids, and
    /// for mlx-kld's sparse kind; [`Error::Truncated`], [`Error::Corrupt`], [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let name = Named::new(path);
        let (file, file_bytes) = source::open(&name, "a reference")?;
        let (file, members) =
            member::directory(file).map_err(|e| fault(&name, None, file_bytes, e))?;
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
        let prompts = reader.prompts(arrays.meta.as_ref())?;
        reader.add_windows(arrays.windows, prompts.token_ids)?;
        reader.model = prompts.model;
        reader.log_probabilities = reader.looks_normalised()?;
        Ok(reader)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.name.path()
    }

    /// Windows in the file; at least 1.
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

    /// Whether the file holds token ids: of all windows, or of none.
    pub fn holds_tokens(&self) -> bool {
        self.windows
            .first()
            .is_some_and(|window| !window.tokens.is_empty())
    }

    /// Whether the rows are log-probabilities: whether the first that is finite sums to 1.
    pub fn log_probabilities(&self) -> bool {
        self.log_probabilities
    }

    /// The model whose rows they are, as mlx-kld names it.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The `i`-th window; its tokens are empty where the file holds none.
    ///
    /// # Panics
    /// If `i` is not below [`NpzReader::n_windows`].
    pub fn window(&self, i: usize) -> WindowSpec {
        let arrays = self.arrays(i);
        window(i, &arrays.tokens, arrays.matrix.n_rows)
    }

    /// The rows of a window, from the first on.
    fn start(&self, index: usize) -> Result<OpenRows> {
        let window = self.arrays(index);
        let mut rows = OpenRows {
            stream: Stream::new(&self.file, &window.array),
            index,
            n_read: 0,
        };
        match npy::read(&mut rows.stream) {
            Ok(_) => Ok(rows),
            Err(e) => Err(window.fault(&self.name, &rows, e)),
        }
    }

    fn prompts(&self, meta: Option<&Member>) -> Result<Prompts> {
        let Some(meta) = meta else {
            return Ok(Prompts::default());
        };
        let json = self.array(meta, |array| match (array.kind, &array.shape[..]) {
            (Kind::Bytes, &[n]) if n <= MAX_BYTES => Ok(n),
            _ => Err("is not JSON as mlx-kld stores it, in bytes".to_owned()),
        })?;
        Prompts::parse(&json).map_err(|what| self.name.unsupported(what))
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
            let window = WindowArrays {
                array,
                matrix,
                tokens,
            };
            window.check(self.windows.first()).map_err(|what| {
                self.name
                    .unsupported(format!("{}: {what}", window.array.name))
            })?;
            self.windows.push(window);
        }
        Ok(())
    }

    /// The shape of an array of rows, whose length must match it.
    fn matrix(&self, member: &Member) -> Result<Matrix> {
        let mut stream = Stream::new(&self.file, member);
        let header = npy::read(&mut stream).map_err(|e| self.fault(member, &stream, e))?;
        let unsupported = |what: String| self.name.unsupported(format!("{}: {what}", member.name));
        let Kind::Float(float) = header.kind else {
            return Err(unsupported(
                "rows must be float16, float32 or float64".to_owned(),
            ));
        };
        let matrix = Matrix::new(float, &header.shape).map_err(unsupported)?;
        let needed = header.bytes + matrix.bytes();
        match needed == member.plain_bytes {
            true => Ok(matrix),
            false => Err(self.name.corrupt(
                None,
                stream.n_bytes(),
                format!(
                    "{}: {needed} bytes for its shape, the zip states {}",
                    member.name, member.plain_bytes
                ),
            )),
        }
    }

    fn token_ids(&self, member: &Member, matrix: Matrix) -> Result<Vec<u32>> {
        let mut integer = None;
        let bytes = self.array(member, |array| {
            let (Kind::Integer(kind), Some(n)) = (array.kind, n_ids(&array.shape)) else {
                return Err(
                    "token ids must be int32, int64, uint32 or uint64, of shape [tokens]"
                        .to_owned(),
                );
            };
            integer = Some(kind);
            match count_fault(n, matrix.n_rows) {
                Some(fault) => Err(fault),
                None => Ok(n * kind.bytes() as u64),
            }
        })?;
        Ok(integer
            .map(|integer| integer.decode(&bytes))
            .unwrap_or_default())
    }

    /// A whole array, if `size` accepts it and returns how many bytes it has.
    fn array(
        &self,
        member: &Member,
        size: impl FnOnce(&npy::Header) -> std::result::Result<u64, String>,
    ) -> Result<Vec<u8>> {
        let mut stream = Stream::new(&self.file, member);
        let header = npy::read(&mut stream).map_err(|e| self.fault(member, &stream, e))?;
        let n = size(&header)
            .map_err(|what| self.name.unsupported(format!("{}: {what}", member.name)))?;
        let mut bytes = Vec::new();
        let read = fill(&mut stream, &mut bytes, n).and_then(|()| stream.finish());
        match read {
            Ok(()) => Ok(bytes),
            Err(e) => Err(self.fault(member, &stream, e)),
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the caller's index, as documented")]
    fn arrays(&self, i: usize) -> &WindowArrays {
        &self.windows[i]
    }

    fn looks_normalised(&self) -> Result<bool> {
        for (index, window) in self.windows.iter().enumerate() {
            let mut rows = self.start(index)?;
            while let Some(block) = rows
                .next(window, 1)
                .map_err(|e| window.fault(&self.name, &rows, e))?
            {
                if let Some(normalised) = is_normalised(&block, window.matrix.float) {
                    return Ok(normalised);
                }
            }
        }
        Ok(false)
    }

    fn fault(&self, member: &Member, stream: &Stream, error: io::Error) -> Error {
        fault(&self.name, None, stream.n_bytes(), in_array(member, error))
    }
}

/// Windows are numbered in the order of the file; rows are f32. A checksum that does not match
/// comes with a window's last rows.
impl ReadStream for NpzReader {
    fn next_window(&mut self) -> Result<Option<WindowSpec>> {
        let index = self.next;
        self.rows = None;
        if index >= self.windows.len() {
            return Ok(None);
        }
        self.rows = Some(self.start(index)?);
        self.next += 1;
        Ok(Some(self.window(index)))
    }

    fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>> {
        let Some(rows) = &mut self.rows else {
            return Ok(None);
        };
        let Some(window) = self.windows.get(rows.index) else {
            return Ok(None);
        };
        rows.next(window, max_rows)
            .map_err(|e| window.fault(&self.name, rows, e))
    }

    fn reopen(&self) -> Result<Box<dyn ReadStream>> {
        Ok(Box::new(Self::open(self.path())?))
    }
}
