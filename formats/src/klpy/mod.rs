//! kl.py's file: gzip around a plain stream without an index or checksums of its own.
//!
//! The plain stream, all numbers little-endian:
//!
//! | part | bytes |
//! |---|---|
//! | the line `llama_kl_divergence_v1` | 23 |
//! | one line, a Python dict literal: `n_ctx`, `n_vocab`, `model`, `text_path` and others | |
//! | then for each window until the stream ends: u32 n_tokens, u32 n_logits, u32 n_vocab | 12 |
//! | the tokens, u32 | 4 n_tokens |
//! | the rows of the window's first n_logits positions, raw logits, f32 | 4 n_logits n_vocab |
//!
//! kl.py writes a row for every position. Where there are fewer, it compares row `i` with its own
//! row of position `i`: the missing rows are those of the last positions. Its `n_ctx` is the one
//! that llama.cpp allocated, padded to a multiple of 256, so windows may be shorter, never longer.
//!
//! `kl` also writes `n_windows` into the header: without it, a stream of several gzip members that
//! was cut between two of them would look whole. Where the rows are not logits, it writes
//! `kl_values`: `log_probabilities`, or `floored_log_probabilities` as llama.cpp's base file has
//! them. kl.py ignores both entries, and its own files lack them.

#[cfg(test)]
mod tests;

use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indexmap::IndexMap;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::about::{About, Values};
use crate::error::{Error, Named, Result};
use crate::gzip::gzip;
pub use crate::kinds::KL_PY as MAGIC_LINE;
use crate::kinds::Kind;
use crate::provenance::{BackendIdentity, hex};
use crate::python_literal;
use crate::reference::{Reference, Rows};
use crate::row::{ReadStream, RowBlock, RowLayout};
use crate::source::{Incoming, OpenFile, read_bytes};
use crate::window::{WindowSpec, longest_window, size_fault};
use crate::writing::{FileFormat, Start, WindowFormat};

/// Most bytes of the header line.
pub const MAX_HEADER_BYTES: usize = 64 << 10;

/// The backend of kl.py, which leaves flash attention off, llama-cpp-python's default.
pub(crate) fn backend() -> BackendIdentity {
    BackendIdentity {
        flash_attn: Some("off".to_owned()),
        ..BackendIdentity::default()
    }
}

/// Windows as gzip members.
const FORMAT: FileFormat = FileFormat {
    window_fault: |window, _n_ctx| {
        let what = "kl.py's file has rows from a window's first token on";
        (window.first_scored != 0).then_some(what)
    },
    before_rows: |window, n_vocab| {
        let counts = [window.entry().n_tokens, window.n_rows, n_vocab];
        bytemuck::cast_slice(&[&counts, &window.tokens[..]].concat()).to_vec()
    },
    has_checksum: false,
    pack: |bytes, _part, plain| gzip(bytes, plain),
    end: |_windows, _offset| Ok(Vec::new()),
};

/// The start of a file of these windows.
pub(crate) fn start(name: &Named, about: &About, windows: &[WindowSpec]) -> Result<Start> {
    let mut bytes = Vec::new();
    let n_ctx = about.n_ctx.max(longest_window(windows));
    let lines = to_lines(about, n_ctx, windows.len());
    gzip(&mut bytes, &lines.map_err(|what| name.unwritable(what))?);
    Ok(Start {
        bytes,
        format: WindowFormat::of_logits(name, &FORMAT, RowLayout::F32, n_ctx, about.n_vocab),
        n_windows: u32::try_from(windows.len()).unwrap_or(u32::MAX),
        n_rows: None,
        states: None,
    })
}

/// kl.py's name of the logical batch.
const N_BATCH: &str = "n_batch";

/// The fewest compressed bytes that a window takes, on the average over a file.
const MIN_WINDOW_BYTES: u64 = 8;

/// Plain bytes that are read ahead for the longest window: less than a second's work.
const SCANNED_BYTES: u64 = 256 << 20;

/// `kl`'s own key for the meaning of rows that are not logits, and its values.
const VALUES: &str = "kl_values";
const NOT_LOGITS: [(Values, &str); 2] = [
    (Values::LogProbabilities, "log_probabilities"),
    (Values::FlooredLogProbabilities, "floored_log_probabilities"),
];

/// The bytes of both lines of a file that will hold `n_windows` windows; the second is both JSON and
/// a Python literal. A value of [`About::others`] that is a decimal integer is written as one, any other
/// as a string.
fn to_lines(about: &About, n_ctx: u32, n_windows: usize) -> Result<Vec<u8>, String> {
    if let Some(fault) = size_fault(n_ctx, about.n_vocab) {
        return Err(fault);
    }
    let (model, text) = (about.model.as_ref(), about.text.as_ref());
    let model = (about.model_path.as_ref()).or_else(|| model?.file_name.as_ref());
    let text = (about.text_path.as_ref()).or_else(|| text?.name.as_ref());
    let values = NOT_LOGITS.iter().find(|(of, _)| *of == about.values);
    let others = about.others.iter().map(|(key, value)| {
        let number = value.parse().ok().filter(|n: &i64| n.to_string() == *value);
        let value = number.map_or_else(|| json!(value), Value::from);
        (key.as_str(), Some(value))
    });
    let of_backend = about.backend.as_ref().and_then(|backend| backend.n_batch);
    let n_batch = of_backend.filter(|_| about.others.iter().all(|(key, _)| key != N_BATCH));
    let own = [
        ("model", model.map(|model| json!(model))),
        ("text_path", text.map(|text| json!(text))),
        ("n_ctx", Some(json!(n_ctx))),
        ("n_vocab", Some(json!(about.n_vocab))),
        ("n_windows", Some(json!(n_windows))),
        (VALUES, values.map(|(_, values)| json!(values))),
    ];
    let known = own.into_iter().chain(others);
    let entries: Vec<String> = known
        .chain([(N_BATCH, n_batch.map(Value::from))])
        .filter_map(|(key, value)| Some(format!("{}: {}", json!(key), value?)))
        .collect();
    let lines = format!("{MAGIC_LINE}{{{}}}\n", entries.join(", ")).into_bytes();
    if lines.len() > MAX_HEADER_BYTES {
        return Err("a header of more than 64 KiB".to_owned());
    }
    Ok(lines)
}

/// Parses the second line. Entries that have no field of their own are kept in [`About::others`], in
/// order: key, and value (a string's text, else as Python writes it).
fn parse(line: &[u8], path: &Path) -> Result<About, String> {
    let parsed = python_literal::parse::<IndexMap<String, Value>>(line);
    let entries =
        parsed.map_err(|cause| format!("the second line is not a Python dict literal: {cause}"))?;
    let mut about = About::new(Kind::KlPy, path, 0, 0);
    about.first_scored = Some(0);
    about.backend = Some(backend());
    for (key, value) in entries {
        let integer = || {
            let n = value.as_u64().and_then(|n| u32::try_from(n).ok());
            n.ok_or_else(|| format!("{key} is not a whole number in range"))
        };
        match (key.as_str(), &value) {
            ("n_ctx", _) => about.n_ctx = integer()?,
            ("n_vocab", _) => about.n_vocab = integer()?,
            ("n_windows", _) => about.n_windows = Some(integer()?),
            (VALUES, _) => {
                let known = NOT_LOGITS.iter().find(|(_, known)| value == *known);
                let unknown = || format!("{VALUES} is {value}, which this kl does not know");
                about.values = known.ok_or_else(unknown)?.0;
            }
            ("model", Value::String(model)) => about.model_path = Some(model.clone()),
            ("text_path", Value::String(path)) => about.text_path = Some(path.clone()),
            (_, Value::String(text)) => about.others.push((key, text.clone())),
            (_, Value::Bool(true)) => about.others.push((key, "True".to_owned())),
            (_, Value::Bool(false)) => about.others.push((key, "False".to_owned())),
            (_, Value::Null) => about.others.push((key, "None".to_owned())),
            _ => about.others.push((key, value.to_string())),
        }
    }
    size_fault(about.n_ctx, about.n_vocab).map_or(Ok(about), Err)
}

/// Reads kl.py's file from its start to its end: a [`ReadStream`].
#[derive(Debug)]
pub(crate) struct KlPyReader {
    name: Named,
    stream: BufReader<MultiGzDecoder<BufReader<Incoming>>>,
    about: About,
    /// The most windows that a file of its length can hold.
    max_windows: u64,
    /// Bytes of the plain stream that have been read.
    offset: u64,
    /// The number of the window whose rows come next; `None` before the first.
    window: Option<u32>,
    /// Those of its rows that have not been read.
    rows: Range<u32>,
}

impl KlPyReader {
    /// Opens the file and reads its header.
    ///
    /// # Errors
    /// [`crate::Fault::NotAReference`], [`crate::Fault::Unsupported`] for what is not a regular file,
    /// [`crate::Fault::Header`], [`crate::Fault::Truncated`], [`crate::Fault::Corrupt`],
    /// [`crate::Fault::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let OpenFile { file, name, len } = OpenFile::open(path, "a reference")?;
        Self::read(name, Incoming::new(file), Some(len))
    }

    /// Reads the header of a file that comes in a stream, of a known or unknown length.
    ///
    /// # Errors
    /// Those of [`KlPyReader::open`].
    pub fn read(name: Named, stream: Incoming, len: Option<u64>) -> Result<Self> {
        let members = MultiGzDecoder::new(BufReader::with_capacity(256 << 10, stream));
        let mut reader = Self {
            stream: BufReader::with_capacity(64 << 10, members),
            about: About::new(Kind::KlPy, name.path(), 0, 0),
            max_windows: len.map_or(u64::MAX, |len| len / MIN_WINDOW_BYTES),
            offset: 0,
            window: None,
            rows: 0..0,
            name,
        };
        if reader.line(MAGIC_LINE.len())? != MAGIC_LINE.as_bytes() {
            let what = "its first line is not that of kl.py's file";
            return Err(reader.name.not_a_reference(what));
        }
        let line = reader.line(MAX_HEADER_BYTES)?;
        let parsed = parse(&line, reader.name.path());
        reader.about = parsed.map_err(|fault| reader.name.header(fault))?;
        reader.about.file_bytes = len.unwrap_or_default();
        Ok(reader)
    }

    /// The open file as a reference, without a list of windows.
    pub fn into_reference(self) -> Reference {
        let longest = Self::longest_window(self.name.path()).ok().flatten();
        let mut reference = Reference::new(self.about.clone(), None, Rows::Stream(Box::new(self)));
        reference.longest_of_stream = longest;
        reference
    }

    /// The stream as a reference without a list of windows. `start`: its first bytes.
    pub fn into_piped_reference(self, start: &[u8]) -> Reference {
        let mut reference = Reference::new(self.about.clone(), None, Rows::Stream(Box::new(self)));
        reference.fingerprint_of_pipe = Some(hex(&Sha256::digest(start)));
        reference
    }

    /// Tokens of the longest window. Reads up to the first window that is as long as the header states, in most files
    /// the first of all; `None` if it is not found in [`SCANNED_BYTES`], nor the file's end.
    fn longest_window(path: &Path) -> Result<Option<u32>> {
        let mut reader = Self::open(path)?;
        let mut longest = 1;
        while let Some(window) = reader.next_window()? {
            longest = longest.max(window.tokens.len() as u32); // at most n_ctx
            if longest == reader.about.n_ctx {
                break;
            }
            let rows = u64::from(window.n_rows) * 4 * u64::from(reader.about.n_vocab);
            if reader.offset.saturating_add(rows) > SCANNED_BYTES {
                return Ok(None);
            }
        }
        Ok(Some(longest))
    }

    /// A line of at most `max` bytes, with its line feed.
    fn line(&mut self, max: usize) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(max as u64);
        let read = limited.read_until(b'\n', &mut line);
        read.map_err(|cause| self.error(None, cause))?;
        self.offset += line.len() as u64;
        if line.ends_with(b"\n") {
            Ok(line)
        } else if line.len() == max {
            Err(self.name.header(format!("a line of more than {max} bytes")))
        } else {
            Err(self.error(None, io::ErrorKind::UnexpectedEof.into()))
        }
    }

    /// Reads `n` numbers of a window.
    fn words(&mut self, window: u32, n: u64) -> Result<Vec<u32>> {
        let bytes =
            read_bytes(&mut self.stream, 4 * n).map_err(|cause| self.error(Some(window), cause))?;
        self.offset += 4 * n;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    fn skip_rows(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows).len() as u64;
        let bytes = rows * 4 * u64::from(self.about.n_vocab); // 2^32 x 4 x 2^24
        let skipped = io::copy(&mut (&mut self.stream).take(bytes), &mut io::sink())
            .map_err(|cause| self.error(self.window, cause))?;
        self.offset += skipped;
        if skipped == bytes {
            Ok(())
        } else {
            Err(self.error(self.window, io::ErrorKind::UnexpectedEof.into()))
        }
    }

    /// The error for a failure to read.
    fn error(&self, window: Option<u32>, cause: io::Error) -> Error {
        let within = window.map_or("its header", |_| "a window");
        match cause.kind() {
            io::ErrorKind::UnexpectedEof => {
                let what = format!("the file ends within {within}");
                self.name.truncated(window, self.offset, what)
            }
            _ => self.name.of_stream(window, self.offset, cause),
        }
    }

    /// Checks the counts before a window against the header.
    fn counts_fault(&self, window: u32, counts: [u32; 3]) -> Option<String> {
        let (n_ctx, n_vocab) = (self.about.n_ctx, self.about.n_vocab);
        match counts {
            [_, _, other] if other != n_vocab => Some(format!(
                "rows of {other} entries, the header states {n_vocab}"
            )),
            [n_tokens, ..] if n_tokens > n_ctx => Some(format!(
                "a window of {n_tokens} tokens, the header states n_ctx {n_ctx}"
            )),
            // Empty windows shrink to a thousandth, and their number would decide how long a small file takes.
            // A row of real logits takes a hundred bytes and more.
            _ if u64::from(window) >= self.max_windows => {
                Some("more windows than a file of its length can hold".to_owned())
            }
            _ => (self.about.n_windows.is_some_and(|n| window >= n))
                .then(|| "more windows than the header states".to_owned()),
        }
    }
}

/// Windows are numbered in the order of the file.
impl ReadStream for KlPyReader {
    fn next_window(&mut self) -> Result<Option<WindowSpec>> {
        self.skip_rows()?;
        let (window, start) = (self.window.map_or(0, |last| last + 1), self.offset);
        let rest = self.stream.fill_buf().map(<[u8]>::is_empty);
        if rest.map_err(|cause| self.error(Some(window), cause))? {
            return match self.about.n_windows.filter(|&n| n != window) {
                Some(n) => {
                    let what = format!("the file ends after {window} windows of {n}");
                    Err(self.name.truncated(Some(window), start, what))
                }
                None => Ok(None),
            };
        }
        let words = self.words(window, 3)?;
        let counts = words.first_chunk().copied().unwrap_or_default(); // three were read
        if let Some(fault) = self.counts_fault(window, counts) {
            return Err(self.name.corrupt(Some(window), start, fault));
        }
        let [n_tokens, n_rows, n_vocab] = counts;
        let spec = WindowSpec {
            window,
            tokens: self.words(window, n_tokens.into())?,
            first_scored: 0,
            n_rows,
        };
        if let Some(fault) = spec.fault(n_vocab) {
            return Err(self.name.corrupt(Some(window), start, fault));
        }
        self.window = Some(window);
        self.rows = 0..n_rows;
        Ok(Some(spec))
    }

    fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>> {
        let n_rows = max_rows.min(self.rows.len());
        let Some(window) = self.window.filter(|_| n_rows > 0) else {
            return Ok(None);
        };
        let n_vocab = self.about.n_vocab as usize;
        let rows = self.rows.start..self.rows.start + n_rows as u32; // at most those left
        self.rows.start = rows.end;
        let mut block = RowBlock::prepare(None, window, rows, n_vocab, RowLayout::F32);
        block.storage = self.words(window, n_vocab as u64 * n_rows as u64)?;
        Ok(Some(block))
    }
}
