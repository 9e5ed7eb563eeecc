//! The reading side.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::{MAGIC_LINE, MAX_HEADER_BYTES, RECORD_BYTES, SidecarHeader, TokenRecord};
use crate::checksum;
use crate::error::{Error, Named, Result};
use crate::source;

/// Reads a sidecar record by record: an iterator of `Result<TokenRecord>`.
#[derive(Debug)]
pub struct SidecarReader {
    name: Named,
    stream: BufReader<File>,
    header: SidecarHeader,
    header_crc: u32,
    /// Where the first record starts.
    start: u64,
    /// Records read.
    i: u64,
}

/// The whole records of a sidecar that was cut off.
#[derive(Debug)]
pub struct CutOffSidecar {
    /// The header.
    pub header: SidecarHeader,
    /// Its first records.
    pub records: Vec<TokenRecord>,
}

/// Whether the file starts like a sidecar. A file that cannot be read does not.
pub fn is_sidecar(path: &Path) -> bool {
    let mut magic = [0; MAGIC_LINE.len()];
    source::open(&Named::new(path), "a sidecar")
        .is_ok_and(|(mut file, _)| file.read_exact(&mut magic).is_ok())
        && magic == *MAGIC_LINE.as_bytes()
}

impl SidecarReader {
    /// Opens the file, reads its header and checks the file's length against it.
    ///
    /// # Errors
    /// [`crate::Error::NotASidecar`], [`crate::Error::Header`], [`crate::Error::Unsupported`],
    /// [`crate::Error::Truncated`], [`crate::Error::Corrupt`], [`crate::Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let (reader, len) = Self::open_header(path)?;
        let Self {
            name,
            header,
            start,
            ..
        } = &reader;
        let start = *start;
        let expected = header
            .n_records
            .checked_mul(RECORD_BYTES as u64)
            .and_then(|n| n.checked_add(start));
        match expected {
            Some(expected) if expected == len => {}
            Some(expected) if expected < len => {
                let what = format!("{} bytes after the last record", len - expected);
                return Err(name.corrupt(None, expected, what));
            }
            _ => {
                let whole = len.saturating_sub(start) / RECORD_BYTES as u64;
                let what = format!(
                    "the file ends after {whole} whole records of {}",
                    header.n_records
                );
                return Err(name.truncated(None, len, what));
            }
        }
        Ok(reader)
    }

    /// Reads what a writer that was cut off has left: the records before the first that is missing
    /// or damaged.
    ///
    /// # Errors
    /// Those of [`SidecarReader::open`] about a header.
    pub fn open_cut_off(path: &Path) -> Result<CutOffSidecar> {
        let (mut reader, _) = Self::open_header(path)?;
        let mut records = Vec::new();
        for record in &mut reader {
            match record {
                Ok(record) => records.push(record),
                Err(Error::Corrupt { .. } | Error::Truncated { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(CutOffSidecar {
            header: reader.header,
            records,
        })
    }

    /// Reads the header; returns the file's length too.
    fn open_header(path: &Path) -> Result<(Self, u64)> {
        let name = Named::new(path);
        let (file, len) = source::open(&name, "a sidecar")?;
        let mut stream = BufReader::with_capacity(256 << 10, file);
        let io = |source| name.io("read", source);
        let mut lines = Vec::new();
        let limit = MAGIC_LINE.len() as u64;
        (&mut stream)
            .take(limit)
            .read_to_end(&mut lines)
            .map_err(io)?;
        if lines != MAGIC_LINE.as_bytes() {
            return Err(name.not_a_sidecar("its first line is not that of a sidecar"));
        }
        let limit = (MAX_HEADER_BYTES - MAGIC_LINE.len()) as u64;
        (&mut stream)
            .take(limit)
            .read_until(b'\n', &mut lines)
            .map_err(io)?;
        let mut crc = [0; 4];
        let ended = (lines.len() as u64)
            .checked_add(4)
            .is_none_or(|start| start > len);
        if ended {
            return Err(name.truncated(None, len, "the file ends within its header"));
        }
        if lines.last() != Some(&b'\n') {
            return Err(name.too_large("a header of more than 1 MiB"));
        }
        stream.read_exact(&mut crc).map_err(io)?;
        let header_crc = crc32fast::hash(&lines);
        let start = lines.len() as u64 + 4;
        if !checksum::matches(header_crc, u32::from_le_bytes(crc)) {
            return Err(name.corrupt(None, 0, "the header's checksum does not match"));
        }
        let json = lines.get(MAGIC_LINE.len()..).unwrap_or_default();
        let header = SidecarHeader::from_json(json, &name)?;
        let reader = Self {
            name,
            stream,
            header,
            header_crc,
            start,
            i: 0,
        };
        Ok((reader, len))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.name.path()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        // Checked against the file's length.
        self.start + self.header.n_records * RECORD_BYTES as u64
    }

    /// The header.
    pub fn header(&self) -> &SidecarHeader {
        &self.header
    }

    /// Reads all remaining records.
    ///
    /// # Errors
    /// The first of the records' errors.
    pub fn read_all(self) -> Result<Vec<TokenRecord>> {
        self.collect()
    }

    fn read(&mut self) -> Result<TokenRecord> {
        // Both were checked against the file's length.
        let offset = self.start + self.i * RECORD_BYTES as u64;
        let mut bytes = [0; RECORD_BYTES];
        self.stream
            .read_exact(&mut bytes)
            .map_err(|source| match source.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    self.name
                        .truncated(None, offset, "the file has become shorter")
                }
                _ => self.name.io("read", source),
            })?;
        TokenRecord::from_bytes(&bytes, self.i, self.header_crc).ok_or_else(|| {
            let what = format!("the checksum of record {} does not match", self.i);
            self.name.corrupt(None, offset, what)
        })
    }
}

impl Iterator for SidecarReader {
    type Item = Result<TokenRecord>;

    /// The next record; `None` after an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.i >= self.header.n_records {
            return None;
        }
        let record = self.read();
        self.i = match record {
            Ok(_) => self.i + 1,
            Err(_) => self.header.n_records,
        };
        Some(record)
    }
}
