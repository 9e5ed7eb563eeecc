//! The writing side.

use std::io::Write;
use std::path::Path;

use super::{SidecarHeader, TokenRecord};
use crate::error::{Named, Result};

/// Writes a sidecar to anything that takes bytes. Records are small: give it a buffered output.
#[derive(Debug)]
pub struct SidecarWriter<W: Write> {
    out: W,
    name: Named,
    header_crc: u32,
    n_expected: u64,
    n_records: u64,
}

impl<W: Write> SidecarWriter<W> {
    /// Writes the header. `path` is for messages alone.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the header cannot be, [`crate::Error::Io`].
    pub fn create(out: W, path: &Path, header: &SidecarHeader) -> Result<Self> {
        let name = Named::new(path);
        let lines = header.to_lines(&name)?;
        let header_crc = crc32fast::hash(&lines);
        let mut writer = Self {
            out,
            name,
            header_crc,
            n_expected: header.n_records,
            n_records: 0,
        };
        writer.put(&lines)?;
        writer.put(&header_crc.to_le_bytes())?;
        Ok(writer)
    }

    /// Writes the next record.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] past the header's count, [`crate::Error::Io`].
    pub fn push(&mut self, record: &TokenRecord) -> Result<()> {
        if self.n_records == self.n_expected {
            return Err(self.name.unwritable(format!(
                "more records than the header's {}",
                self.n_expected
            )));
        }
        let bytes = record
            .to_bytes(self.n_records, self.header_crc)
            .ok_or_else(|| self.name.unwritable("a record of another size"))?;
        self.put(&bytes)?;
        self.n_records += 1;
        Ok(())
    }

    /// Checks the count, flushes, and gives the output back.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if records are missing, [`crate::Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        if self.n_records != self.n_expected {
            return Err(self.name.unwritable(format!(
                "{} records were given, the header says {}",
                self.n_records, self.n_expected
            )));
        }
        self.out
            .flush()
            .map_err(|source| self.name.io("write", source))?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out
            .write_all(bytes)
            .map_err(|source| self.name.io("write", source))
    }
}
