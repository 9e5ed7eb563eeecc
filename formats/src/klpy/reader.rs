//! Reads a file as a stream, window after window.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::GzDecoder;

use super::{MAGIC_LINE, MAX_HEADER_BYTES};
use crate::about::About;
use crate::error::{Error, Fault, Named, Result};
use crate::gzip::GZIP_MAGIC;
use crate::kinds::Kind;
use crate::row::{ReadStream, RowBlock, RowLayout, Shape};
use crate::source;
use crate::window::{WindowEntry, WindowSpec};

/// Most memory that is allocated before its bytes have arrived, in words.
const STEP_WORDS: usize = 256 << 10;

/// Reads kl.py's file from its start to its end: a [`ReadStream`].
#[derive(Debug)]
pub(crate) struct KlPyReader {
    name: Named,
    stream: BufReader<Members<BufReader<File>>>,
    about: About,
    /// Bytes of the plain stream that have been read.
    offset: u64,
    /// The index of the next window.
    next: u32,
    n_rows: u32,
    rows_left: u32,
}

impl KlPyReader {
    /// Opens the file and reads its header.
    ///
    /// # Errors
    /// [`crate::Fault::NotAReference`], [`crate::Fault::Unsupported`] for what is not a regular file,
    /// [`crate::Fault::Header`], [`crate::Fault::Truncated`], [`crate::Fault::Corrupt`],
    /// [`crate::Fault::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let name = Named::new(path);
        let (file, file_bytes) = source::open(&name, "a reference")?;
        let members = Members::new(BufReader::with_capacity(256 << 10, file));
        let mut reader = Self {
            stream: BufReader::with_capacity(64 << 10, members),
            about: About::new(Kind::KlPy, path, 0, 0),
            offset: 0,
            next: 0,
            n_rows: 0,
            rows_left: 0,
            name,
        };
        let magic = reader
            .line(MAGIC_LINE.len())
            .map_err(|error| match error.fault {
                Fault::Corrupt { .. } | Fault::Header(_) => reader
                    .name
                    .not_a_reference("it is not gzip, or not kl.py's file"),
                _ => error,
            })?;
        if magic != MAGIC_LINE.trim_end().as_bytes() {
            return Err(reader
                .name
                .not_a_reference("its first line is not that of kl.py's file"));
        }
        let line = reader.line(MAX_HEADER_BYTES)?;
        reader.about = super::parse(&line, &reader.name)?;
        reader.about.file_bytes = file_bytes;
        Ok(reader)
    }

    /// Describes the open file, which does not list its windows.
    pub(crate) fn describe(&self) -> (About, Option<Vec<WindowEntry>>) {
        (self.about.clone(), None)
    }

    fn skip_rows(&mut self) -> Result<()> {
        let rows = u64::from(std::mem::take(&mut self.rows_left));
        let bytes = rows * 4 * u64::from(self.about.n_vocab); // 2^32 x 4 x 2^24
        let window = self.next.saturating_sub(1);
        let skipped = io::copy(&mut (&mut self.stream).take(bytes), &mut io::sink())
            .map_err(|e| self.error(Some(window), e))?;
        self.offset += skipped;
        if skipped == bytes {
            Ok(())
        } else {
            Err(self.error(Some(window), io::ErrorKind::UnexpectedEof.into()))
        }
    }

    /// Reads `n` numbers. Memory is allocated as they arrive.
    fn words(&mut self, window: u32, n: usize) -> Result<Vec<u32>> {
        let mut words = Vec::new();
        while words.len() < n {
            let start = words.len();
            // At most doubles what has arrived already.
            let step = (n - start).min(STEP_WORDS.max(start));
            words.resize(start + step, 0);
            let fresh = words.get_mut(start..).unwrap_or_default();
            self.fill(window, bytemuck::cast_slice_mut(fresh))?;
        }
        Ok(words)
    }

    fn fill(&mut self, window: u32, bytes: &mut [u8]) -> Result<()> {
        self.stream
            .read_exact(bytes)
            .map_err(|e| self.error(Some(window), e))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// A line of at most `max` bytes, without its line feed.
    fn line(&mut self, max: usize) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        (&mut self.stream)
            .take(max as u64)
            .read_until(b'\n', &mut line)
            .map_err(|e| self.error(None, e))?;
        self.offset += line.len() as u64;
        match line.pop() {
            Some(b'\n') => Ok(line),
            _ if line.len() + 1 >= max => {
                Err(self.name.header(format!("a line of more than {max} bytes")))
            }
            _ => Err(self.error(None, io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// The error for a failure to read.
    fn error(&self, window: Option<u32>, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                let what = match window {
                    Some(_) => "the file ends within a window",
                    None => "the file ends within its header",
                };
                self.name.truncated(window, self.offset, what)
            }
            io::ErrorKind::InvalidInput => {
                self.name
                    .corrupt(window, self.offset, format!("gzip: {source}"))
            }
            io::ErrorKind::InvalidData => {
                self.name.corrupt(window, self.offset, source.to_string())
            }
            _ => self.name.io("read", source),
        }
    }
}

/// Windows are numbered in the order of the file.
impl ReadStream for KlPyReader {
    fn next_window(&mut self) -> Result<Option<WindowSpec>> {
        self.skip_rows()?;
        let window = self.next;
        let start = self.offset;
        let rest = self.stream.fill_buf().map(<[u8]>::is_empty);
        if rest.map_err(|e| self.error(Some(window), e))? {
            return match self.about.n_windows {
                Some(n) if n != window => Err(self.name.truncated(
                    Some(window),
                    start,
                    format!("the file ends after {window} windows of {n}"),
                )),
                _ => Ok(None),
            };
        }
        let mut counts = [0u32; 3];
        self.fill(window, bytemuck::cast_slice_mut(&mut counts))?;
        let [n_tokens, n_rows, n_vocab] = counts;
        let about = &self.about;
        let fault = if n_vocab != about.n_vocab {
            let there = about.n_vocab;
            format!("rows of {n_vocab} entries, the header states {there}")
        } else if n_tokens > about.n_ctx {
            let there = about.n_ctx;
            format!("a window of {n_tokens} tokens, the header states n_ctx {there}")
        } else if about.n_windows.is_some_and(|n| window >= n) || window == u32::MAX {
            "more windows than the header states".to_owned()
        } else if n_rows > n_tokens {
            format!("{n_rows} rows for {n_tokens} tokens")
        } else {
            String::new()
        };
        if !fault.is_empty() {
            return Err(self.name.corrupt(Some(window), start, fault));
        }
        let tokens = self.words(window, n_tokens as usize)?;
        let spec = WindowSpec {
            window,
            tokens,
            first_scored: 0,
            n_rows,
        };
        if let Some(fault) = spec.fault(n_vocab) {
            return Err(self.name.corrupt(Some(window), start, fault));
        }
        self.next = window + 1;
        (self.n_rows, self.rows_left) = (n_rows, n_rows);
        Ok(Some(spec))
    }

    fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>> {
        let n_rows = max_rows.min(self.rows_left as usize);
        if n_rows == 0 {
            return Ok(None);
        }
        let window = self.next.saturating_sub(1);
        let n_vocab = self.about.n_vocab as usize;
        let shape = Shape {
            window,
            first_row: self.n_rows - self.rows_left,
            n_rows,
            row_len: n_vocab,
            layout: RowLayout::F32,
        };
        let storage = self.words(window, n_vocab.saturating_mul(n_rows))?;
        self.rows_left -= n_rows as u32; // at most rows_left
        Ok(Some(RowBlock::of_words(shape, storage)))
    }

    fn reopen(&self) -> Result<Box<dyn ReadStream>> {
        Ok(Box::new(Self::open(self.name.path())?))
    }
}

/// The contents of all gzip members. Unlike [`flate2::bufread::MultiGzDecoder`], it distinguishes bytes
/// after the last member, which fail with [`io::ErrorKind::InvalidData`], from a member that is cut
/// short.
#[derive(Debug)]
struct Members<R> {
    /// The member being read; `None` after the last one.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    fn new(stream: R) -> Self {
        Self {
            member: Some(GzDecoder::new(stream)),
        }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            let n = member.read(into)?;
            if n > 0 {
                return Ok(n);
            }
            // This may be a single byte: the buffer may end there.
            let next = member.get_mut().fill_buf()?;
            if !next.iter().zip(&GZIP_MAGIC).all(|(a, b)| a == b) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "trailing bytes: what follows the gzip stream is not gzip",
                ));
            }
            let is_end = next.is_empty();
            self.member = self
                .member
                .take()
                .filter(|_| !is_end)
                .map(|member| GzDecoder::new(member.into_inner()));
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        crate::gzip::gzip(&mut bytes, plain);
        bytes
    }

    fn read(bytes: &[u8], buffer_bytes: usize) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        Members::new(io::BufReader::with_capacity(buffer_bytes, bytes)).read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn members_are_joined_and_trailing_bytes_are_not_a_cut_member() {
        let two = [gzip(b"one, "), gzip(b""), gzip(b"two")].concat();
        // Wherever the buffer ends.
        for buffer_bytes in 1..=two.len() {
            assert_eq!(read(&two, buffer_bytes).unwrap(), b"one, two");
            for trailing in [&b"\0"[..], b"no gzip at all"] {
                let error = read(&[&two[..], trailing].concat(), buffer_bytes).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{trailing:?}");
            }
            let cut = [&two[..], &two[..9]].concat();
            let error = read(&cut, buffer_bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
