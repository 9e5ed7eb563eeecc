//! Writes a sidecar, or resumes one that was cut off.

use std::io::Write;
use std::path::Path;

use super::end::Trailer;
use super::{RECORD_BYTES, SIDECAR_VERSION, SidecarHeader, TokenRecord, TokenTexts};
use crate::error::{Named, Result};
use crate::provenance::OwnHeader as _;

/// Writes a sidecar to anything that accepts bytes. Records are small: give it a buffered output.
///
/// Until [`SidecarWriter::finish`] the file is one that was cut off, which can be resumed.
#[derive(Debug)]
pub struct SidecarWriter<W: Write> {
    out: W,
    name: Named,
    header: SidecarHeader,
    header_crc: u32,
    n_records: u64,
}

impl<W: Write> SidecarWriter<W> {
    /// Writes the header. `path` is only used in messages.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if the header is not valid, [`crate::Fault::Io`].
    pub fn create(out: W, path: &Path, header: &SidecarHeader) -> Result<Self> {
        let (mut writer, lines) = Self::with_header(out, path, header)?;
        writer.put(&lines)?;
        writer.put(&writer.header_crc.to_le_bytes())?;
        Ok(writer)
    }

    /// Resumes after the first `n_records` of a sidecar that was cut off; `seek` moves `out` to the
    /// byte that follows them.
    ///
    /// # Errors
    /// Those of [`SidecarWriter::create`], and what `seek` returns.
    pub fn resume(
        out: W,
        path: &Path,
        header: &SidecarHeader,
        n_records: u64,
        seek: impl FnOnce(&mut W, u64) -> std::io::Result<()>,
    ) -> Result<Self> {
        let (mut writer, lines) = Self::with_header(out, path, header)?;
        let offset = lines.len() as u64 + 4 + n_records * RECORD_BYTES as u64;
        seek(&mut writer.out, offset).map_err(|source| writer.name.io("write", source))?;
        writer.n_records = n_records;
        Ok(writer)
    }

    /// A writer that has written nothing yet, and the header's lines.
    fn with_header(out: W, path: &Path, header: &SidecarHeader) -> Result<(Self, Vec<u8>)> {
        let name = Named::new(path);
        let header = SidecarHeader {
            version: SIDECAR_VERSION,
            ..header.clone()
        };
        let lines = header.to_lines(&name)?;
        let writer = Self {
            out,
            name,
            header,
            header_crc: crc32fast::hash(&lines),
            n_records: 0,
        };
        Ok((writer, lines))
    }

    /// Writes the next record.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] past the header's count, or of a group or a span that the header does
    /// not name, [`crate::Fault::Io`].
    pub fn push(&mut self, record: &TokenRecord) -> Result<()> {
        if Some(self.n_records) == self.header.n_records {
            let n = self.n_records;
            let what = format!("more records than the header's {n}");
            return Err(self.name.unwritable(what));
        }
        if let Some(fault) = self.header.nameless(record) {
            return Err(self.name.unwritable(fault));
        }
        let bytes = record
            .to_bytes(self.n_records, self.header_crc)
            .ok_or_else(|| self.name.unwritable("a record of another size"))?;
        self.put(&bytes)?;
        self.n_records += 1;
        Ok(())
    }

    /// Records written so far.
    pub fn n_records(&self) -> u64 {
        self.n_records
    }

    /// Flushes `out`, so that the records so far are kept if the writer is cut off.
    ///
    /// # Errors
    /// [`crate::Fault::Io`].
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.out.flush();
        flushed.map_err(|source| self.name.io("write", source))
    }

    /// Writes the texts of tokens and the trailer, flushes, and returns the output.
    ///
    /// # Errors
    /// [`crate::Fault::Io`].
    pub fn finish(mut self, texts: &TokenTexts) -> Result<W> {
        let section = texts.to_section();
        self.put(&section)?;
        let trailer = Trailer::new(self.n_records, &section, self.header_crc);
        self.put(bytemuck::bytes_of(&trailer))?;
        self.flush()?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out
            .write_all(bytes)
            .map_err(|source| self.name.io("write", source))
    }
}
