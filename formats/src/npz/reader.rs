//! The reading side: a stream, window after window.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use rawzip::FileReader;

use super::arrays::Arrays;
use super::member::{self, Member, Stream};
use super::npy::{self, Kind};
use super::prompts::{MAX_BYTES, Prompts, TokenIds};
use crate::error::{Named, Result};
use crate::row::{Layout, Shape};
use crate::source;
use crate::tensors::{Float, Matrix, count_fault, head, id_fault, is_normalised, n_ids};
use crate::{Encoding, Error, RowBlock, WindowHead};

/// How much memory is taken before its bytes have come.
const STEP_BYTES: usize = 1 << 20;

/// Reads an npz from its first window to its last.
#[derive(Debug)]
pub struct NpzReader {
    name: Named,
    file: Arc<FileReader>,
    file_bytes: u64,
    windows: Vec<Window>,
    model: Option<String>,
    log_probabilities: bool,
    /// The place of the next window.
    next: usize,
    rows: Option<Rows>,
}

#[derive(Debug)]
struct Window {
    array: Member,
    matrix: Matrix,
    /// Empty where the file holds none.
    tokens: Vec<u32>,
}

/// The rows of a window that are still to come.
#[derive(Debug)]
struct Rows {
    stream: Stream,
    place: usize,
    taken: u32,
}

impl NpzReader {
    /// Opens the file: reads the zip's directory, the header of each array, all token ids, and rows
    /// until one is finite, which tells log-probabilities from logits.
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

    /// The model that mlx-kld says it is of.
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
    pub fn head(&self, i: usize) -> WindowHead {
        let window = self.window(i);
        head(i, &window.tokens, window.matrix.n_rows)
    }

    /// The next window; `None` at the end. Rows of the window before that were not read are passed
    /// over.
    ///
    /// # Errors
    /// [`Error::Corrupt`] or [`Error::Truncated`] with the window and the byte of its array,
    /// [`Error::Io`].
    pub fn next_window(&mut self) -> Result<Option<WindowHead>> {
        let place = self.next;
        self.rows = None;
        if place >= self.windows.len() {
            return Ok(None);
        }
        self.rows = Some(self.start(place)?);
        self.next += 1;
        Ok(Some(self.head(place)))
    }

    /// Up to `max_rows` more rows of the window last given, as f32; `None` when there are no more,
    /// or `max_rows` is 0.
    ///
    /// # Errors
    /// As [`NpzReader::next_window`]; a checksum that does not match comes with the last rows.
    pub fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>> {
        let Some(rows) = &mut self.rows else {
            return Ok(None);
        };
        let Some(window) = self.windows.get(rows.place) else {
            return Ok(None);
        };
        rows.next(window, max_rows)
            .map_err(|e| window.fault(&self.name, rows, e))
    }

    /// The rows of a window, from the first on.
    fn start(&self, place: usize) -> Result<Rows> {
        let window = self.window(place);
        let mut rows = Rows {
            stream: Stream::new(&self.file, &window.array),
            place,
            taken: 0,
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
            _ => Err("is no JSON as mlx-kld stores it, in bytes".to_owned()),
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
                "meta_json has {} prompts, and there are rows of {}: save it anew",
                prompts.n_prompts,
                arrays.len()
            )));
        }
        for (place, (array, ids)) in arrays.into_iter().enumerate() {
            let matrix = self.matrix(&array)?;
            let tokens = match ids {
                Some(ids) => self.token_ids(&ids, matrix)?,
                None => prompts.take(place),
            };
            let window = Window {
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

    /// The shape of an array of rows, which has to have the bytes that it makes.
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
                    "{}: {needed} bytes for its shape, the zip says {}",
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
                    "token ids must be int32, int64 or uint32, of shape [tokens]".to_owned(),
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

    /// A whole array, if `size` takes it and says how many bytes it has.
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

    #[expect(clippy::indexing_slicing, reason = "the caller's place, as documented")]
    fn window(&self, i: usize) -> &Window {
        &self.windows[i]
    }

    fn looks_normalised(&self) -> Result<bool> {
        for (place, window) in self.windows.iter().enumerate() {
            let mut rows = self.start(place)?;
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

impl Window {
    /// Whether it is of one model with `first`, and its tokens go with its rows.
    fn check(&self, first: Option<&Window>) -> std::result::Result<(), String> {
        let (n_rows, n_vocab) = (self.matrix.n_rows, self.matrix.n_vocab);
        if let Some(first) = first {
            let there = first.matrix.n_vocab;
            let name = &first.array.name;
            if n_vocab != there {
                return Err(format!(
                    "has rows of {n_vocab}, and {name} of {there}: a file holds windows of one model"
                ));
            }
            if self.tokens.is_empty() != first.tokens.is_empty() {
                return Err(format!("it and {name} do not both have token ids"));
            }
        }
        if self.tokens.is_empty() {
            return Ok(());
        }
        let fault = count_fault(self.tokens.len() as u64, n_rows);
        fault
            .or(id_fault(&self.tokens, n_vocab))
            .map_or(Ok(()), Err)
    }

    fn fault(&self, name: &Named, rows: &Rows, error: io::Error) -> Error {
        let (window, offset) = (rows.place as u32, rows.stream.n_bytes());
        fault(name, Some(window), offset, in_array(&self.array, error))
    }
}

impl Rows {
    fn next(&mut self, window: &Window, max_rows: usize) -> io::Result<Option<RowBlock>> {
        let matrix = window.matrix;
        let n_rows = max_rows.min((matrix.n_rows - self.taken) as usize);
        if n_rows == 0 {
            return Ok(None);
        }
        let shape = Shape {
            window: self.place as u32,
            first_row: self.taken,
            n_rows,
            n_vocab: matrix.n_vocab as usize,
            layout: Layout::Own(Encoding::F32),
        };
        let too_large = || io::Error::new(io::ErrorKind::InvalidData, "rows past all memory");
        let mut packed = Vec::new();
        fill(
            &mut self.stream,
            &mut packed,
            n_rows as u64 * matrix.row_bytes() as u64,
        )?;
        let mut block = RowBlock::prepare(None, shape, 0).ok_or_else(too_large)?;
        let (_, plain) = block.buffers();
        matrix
            .float
            .decode(&packed, bytemuck::cast_slice_mut(plain));
        self.taken += n_rows as u32; // at most n_rows
        if self.taken == matrix.n_rows {
            self.stream.finish()?;
        }
        Ok(Some(block))
    }
}

/// Reads `n` bytes, taking memory as they come.
fn fill(stream: &mut impl Read, bytes: &mut Vec<u8>, n: u64) -> io::Result<()> {
    let mut left = n;
    while left > 0 {
        let start = bytes.len();
        // Doubling at most what has come already.
        let step = left.min(STEP_BYTES.max(start) as u64);
        bytes.resize(start + step as usize, 0);
        stream.read_exact(bytes.get_mut(start..).unwrap_or_default())?;
        left -= step;
    }
    Ok(())
}

/// The failure, its array named.
fn in_array(member: &Member, error: io::Error) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::UnexpectedEof => "ends before all of its shape has come".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{} {what}", member.name))
}

/// What a failure to read means.
fn fault(name: &Named, window: Option<u32>, offset: u64, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => name.truncated(window, offset, error.to_string()),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            name.corrupt(window, offset, error.to_string())
        }
        io::ErrorKind::Unsupported => name.unsupported(error.to_string()),
        _ => name.io("read", error),
    }
}
