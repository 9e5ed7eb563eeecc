//! Reads a map, whole or as far as it was written; writes one, or continues it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use super::builder::Builder;
use super::{Cell, EndLine, ErrorsLine, MAGIC, MAX_LINE_BYTES, MapHeader, SensitivityMap};
use crate::error::{Error, Fault, Named, Result};
use crate::kinds::Found;
use crate::numbers::GgmlType;
use crate::source;

/// A map as far as it was written, to be continued by [`MapWriter::resume`].
#[derive(Debug)]
pub struct CutOffMap {
    builder: Builder,
    n_bytes: u64,
    n_lines: u64,
    crc: Hasher,
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
    fn add(&mut self, line: &[u8]) -> Result<Option<EndLine>, String> {
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
    fn corrupt(&self, name: &Named, what: &str) -> Error {
        name.corrupt(
            None,
            self.n_bytes,
            format!("line {}: {what}", self.n_lines + 1),
        )
    }
}

/// Parses a line; an error gives the column.
fn parse<'l, T: Deserialize<'l>>(line: &'l [u8]) -> Result<T, String> {
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
    if read.map().is_cut_off {
        let what = format!("the map ends after {} whole lines", read.n_lines);
        Err(Named::new(path).truncated(None, read.file_bytes, what))
    } else {
        Ok(read.n_lines)
    }
}

/// Writes a map to anything that accepts bytes, line by line; each line is flushed, so that a writer
/// that is cut off loses one line at most. [`MapWriter::map`] is what was written so far.
///
/// Until [`MapWriter::finish`] the map is one that was cut off, which can be resumed.
#[derive(Debug)]
pub struct MapWriter<W: Write> {
    out: W,
    name: Named,
    builder: Builder,
    n_lines: u64,
    crc: Hasher,
}

impl<W: Write> MapWriter<W> {
    /// Writes the header. `path` is only used in messages.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if the header is not valid, [`crate::Fault::Io`].
    pub fn create(out: W, path: &Path, header: MapHeader) -> Result<Self> {
        let name = Named::new(path);
        let line = header.to_line(&name)?;
        let mut writer = Self {
            out,
            name,
            builder: Builder::new(header),
            n_lines: 0,
            crc: Hasher::new(),
        };
        writer.put(&line)?;
        Ok(writer)
    }

    /// Continues a map after its whole lines; `seek` moves `out` to the byte that follows them, and
    /// drops what is there.
    ///
    /// # Errors
    /// [`crate::Fault::Io`] with what `seek` returns.
    pub fn resume(
        mut out: W,
        path: &Path,
        cut_off: CutOffMap,
        seek: impl FnOnce(&mut W, u64) -> io::Result<()>,
    ) -> Result<Self> {
        let name = Named::new(path);
        seek(&mut out, cut_off.n_bytes).map_err(|cause| name.io("write", cause))?;
        let mut builder = cut_off.builder;
        builder.map.is_cut_off = true;
        Ok(Self {
            out,
            name,
            builder,
            n_lines: cut_off.n_lines,
            crc: cut_off.crc,
        })
    }

    /// The map so far.
    pub fn map(&self) -> &SensitivityMap {
        &self.builder.map
    }

    /// Writes weight errors of a tensor, at types that it has none of yet.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if a reader would refuse the line, [`crate::Fault::Io`].
    pub fn write_errors(&mut self, tensor: &str, errors: &BTreeMap<GgmlType, f64>) -> Result<()> {
        let errors_line = ErrorsLine {
            tensor: tensor.to_owned(),
            errors: errors.clone(),
        };
        let line = self.line(&errors_line)?;
        let added = self.builder.add_errors(errors_line);
        added.map_err(|fault| self.name.unwritable(fault))?;
        self.put(&line)
    }

    /// Writes a cell, or continues one: [`Cell::from`] is then the number of its windows so far.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if a reader would refuse the line, [`crate::Fault::Io`].
    pub fn write_cell(&mut self, cell: &Cell) -> Result<()> {
        let line = self.line(cell)?;
        let added = self.builder.add_cell(cell.clone());
        added.map_err(|fault| self.name.unwritable(fault))?;
        self.put(&line)
    }

    /// Writes the end line, and returns the output and the map.
    ///
    /// # Errors
    /// [`crate::Fault::Io`].
    pub fn finish(mut self) -> Result<(W, SensitivityMap)> {
        let end = EndLine {
            n_lines: self.n_lines,
            crc32: self.crc.clone().finalize(),
        };
        let line = self.line(&end)?;
        self.put(&line)?;
        let mut map = self.builder.map;
        map.is_cut_off = false;
        Ok((self.out, map))
    }

    /// The bytes of a line.
    fn line(&self, value: &impl Serialize) -> Result<Vec<u8>> {
        let unwritable = |error| self.name.unwritable(format!("a line as JSON: {error}"));
        let mut line = serde_json::to_vec(value).map_err(unwritable)?;
        line.push(b'\n');
        if line.len() <= MAX_LINE_BYTES {
            Ok(line)
        } else {
            Err(self.name.unwritable("a line of more than 64 MiB"))
        }
    }

    fn put(&mut self, line: &[u8]) -> Result<()> {
        let written = self.out.write_all(line).and_then(|()| self.out.flush());
        written.map_err(|cause| self.name.io("write", cause))?;
        self.crc.update(line);
        self.n_lines += 1;
        Ok(())
    }
}
