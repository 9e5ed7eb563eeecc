//! Reads a map, whole or as far as it was written.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crc32fast::Hasher;
use serde::Deserialize;

use super::builder::Builder;
use super::{EndLine, MAGIC, MAX_LINE_BYTES, MapHeader, SensitivityMap};
use crate::error::{Named, Result};
use crate::{Fault, Found, source};

/// A map as far as it was written, to be continued by [`MapWriter::resume`](super::MapWriter::resume).
#[derive(Debug)]
pub struct CutOffMap {
    pub(super) builder: Builder,
    pub(super) n_bytes: u64,
    pub(super) n_lines: u64,
    pub(super) crc: Hasher,
    /// Bytes of the file.
    file_bytes: u64,
}

impl CutOffMap {
    /// The whole lines.
    pub fn map(&self) -> &SensitivityMap {
        &self.builder.map
    }

    /// Bytes of the whole lines, without the end line.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}

impl SensitivityMap {
    /// Reads a map. One that was not finished or was cut off gives all its whole lines:
    /// [`SensitivityMap::is_cut_off`]. It is held in memory, at most some hundred times the file's
    /// bytes.
    ///
    /// # Errors
    /// [`Fault::NotAMap`], [`Fault::Header`], [`Fault::Unsupported`], [`Fault::Io`];
    /// [`Fault::Truncated`] without a whole header; [`Fault::TooLarge`] for a line of more than
    /// [`MAX_LINE_BYTES`]; [`Fault::Corrupt`] with the number of a line that is damaged or contradicts
    /// those before it.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self::read_cut_off(path)?.builder.map)
    }

    /// Reads a map to continue it.
    ///
    /// # Errors
    /// Those of [`SensitivityMap::read`].
    pub fn read_cut_off(path: &Path) -> Result<CutOffMap> {
        let name = Named::new(path);
        let (file, file_bytes) = source::open(&name, "a map")?;
        let mut lines = Lines {
            file: BufReader::with_capacity(1 << 16, file),
            line: Vec::new(),
        };
        let is_whole = lines.next(&name)?;
        if !lines.line.starts_with(MAGIC.as_bytes()) {
            return Err(name.error(Fault::NotAMap(Found::look(path))));
        }
        if !is_whole {
            return Err(name.truncated(None, file_bytes, "the file ends within its header"));
        }
        let mut read = CutOffMap {
            builder: Builder::new(MapHeader::from_line(&lines.line, &name)?),
            n_bytes: 0,
            n_lines: 0,
            crc: Hasher::new(),
            file_bytes,
        };
        read.count(&lines.line);
        while lines.next(&name)? {
            match read.add(&lines.line) {
                Ok(None) => read.count(&lines.line),
                Ok(Some(end)) => {
                    read.check_end(end, &mut lines, &name)?;
                    break;
                }
                Err(fault) => return Err(read.corrupt(&name, &fault)),
            }
        }
        Ok(read)
    }
}

impl CutOffMap {
    /// Counts a line that was read.
    fn count(&mut self, line: &[u8]) {
        self.crc.update(line);
        self.n_bytes += line.len() as u64;
        self.n_lines += 1;
    }

    /// Adds a line; returns an end line. The first key distinguishes the kinds of lines.
    fn add(&mut self, line: &[u8]) -> std::result::Result<Option<EndLine>, String> {
        if line.starts_with(b"{\"exchanged\":") {
            self.builder.add_cell(parse(line)?)?;
        } else if line.starts_with(b"{\"tensor\":") {
            self.builder.add_errors(parse(line)?)?;
        } else if line.starts_with(b"{\"n_lines\":") {
            return Ok(Some(parse(line)?));
        } else {
            return Err("neither a cell nor weight errors nor the end".to_owned());
        }
        Ok(None)
    }

    /// Checks the lines before the end line against it, and that nothing follows it.
    fn check_end(&mut self, end: EndLine, lines: &mut Lines, name: &Named) -> Result<()> {
        let EndLine { n_lines, crc32 } = end;
        if n_lines != self.n_lines {
            let what = format!("{n_lines} lines, and there are {}", self.n_lines);
            return Err(self.corrupt(name, &what));
        }
        if crc32 != self.crc.clone().finalize() {
            return Err(self.corrupt(name, "the checksum of the lines before it does not match"));
        }
        lines.next(name)?;
        if !lines.line.is_empty() {
            return Err(self.corrupt(name, "more bytes follow the end"));
        }
        self.builder.map.is_cut_off = false;
        Ok(())
    }

    /// The error for the line that follows those that were counted.
    fn corrupt(&self, name: &Named, what: &str) -> crate::Error {
        name.corrupt(
            None,
            self.n_bytes,
            format!("line {}: {what}", self.n_lines + 1),
        )
    }
}

/// Parses a line; an error gives the column.
fn parse<'l, T: Deserialize<'l>>(line: &'l [u8]) -> std::result::Result<T, String> {
    serde_json::from_slice(line.trim_ascii_end()).map_err(|error| {
        let (position, column) = (
            format!(" at line 1 column {}", error.column()),
            error.column(),
        );
        let what = error.to_string().replace(&position, "");
        format!("{what} in column {column}")
    })
}

/// The lines of a file, one after the other.
struct Lines {
    file: BufReader<File>,
    line: Vec<u8>,
}

impl Lines {
    /// Reads the next line into `line`; returns false if the file ends before its line feed.
    fn next(&mut self, name: &Named) -> Result<bool> {
        self.line.clear();
        let mut limited = (&mut self.file).take(MAX_LINE_BYTES as u64);
        let read = limited.read_until(b'\n', &mut self.line);
        read.map_err(|cause| name.io("read", cause))?;
        match self.line.last() == Some(&b'\n') {
            false if self.line.len() == MAX_LINE_BYTES => {
                Err(name.too_large("a line of more than 64 MiB"))
            }
            is_whole => Ok(is_whole),
        }
    }
}

/// Reads the whole file and checks each byte: header, lines and end. Returns the number of lines
/// before the end.
///
/// # Errors
/// Those of [`SensitivityMap::read`], and [`Fault::Truncated`] without an end line.
pub fn verify(path: &Path) -> Result<u64> {
    let read = SensitivityMap::read_cut_off(path)?;
    match read.map().is_cut_off {
        false => Ok(read.n_lines),
        true => {
            let what = format!("the map ends after {} whole lines", read.n_lines);
            Err(Named::new(path).truncated(None, read.file_bytes, what))
        }
    }
}
