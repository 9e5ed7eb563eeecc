//! Writes a map, or continues one.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use crc32fast::Hasher;
use serde::Serialize;

use super::builder::Builder;
use super::{Cell, CutOffMap, EndLine, ErrorsLine, MAX_LINE_BYTES, MapHeader, SensitivityMap};
use crate::GgmlType;
use crate::error::{Named, Result};

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
        match line.len() <= MAX_LINE_BYTES {
            true => Ok(line),
            false => Err(self.name.unwritable("a line of more than 64 MiB")),
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
