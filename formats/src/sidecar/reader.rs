//! The reading side.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::end::Trailer;
use super::{
    MAGIC_LINE, MAX_HEADER_BYTES, RECORD_BYTES, SidecarHeader, TRAILER_BYTES, TokenRecord,
    TokenTexts,
};
use crate::error::{Error, Named, Result};
use crate::gzip::checksum_matches;
use crate::{Found, source};

/// Reads a sidecar record by record: an iterator of `Result<TokenRecord>`.
#[derive(Debug)]
pub struct SidecarReader {
    name: Named,
    stream: BufReader<File>,
    header: SidecarHeader,
    header_crc: u32,
    /// Where the first record starts.
    start: u64,
    /// Bytes of the file.
    len: u64,
    /// The trailer after the records, and their number; of a file that was cut off, more than it
    /// can hold.
    trailer: Trailer,
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

/// Returns true if the file starts like a sidecar. A file that cannot be read does not.
pub fn is_sidecar(path: &Path) -> bool {
    let mut magic = [0; MAGIC_LINE.len()];
    source::open(&Named::new(path), "a sidecar")
        .is_ok_and(|(mut file, _)| file.read_exact(&mut magic).is_ok())
        && magic == MAGIC_LINE.as_bytes()
}

impl SidecarReader {
    /// Opens the file, reads its header and its trailer, and checks its length against them.
    ///
    /// # Errors
    /// [`crate::Fault::NotASidecar`], [`crate::Fault::Header`], [`crate::Fault::Unsupported`],
    /// [`crate::Fault::Truncated`], [`crate::Fault::Corrupt`], [`crate::Fault::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let mut reader = Self::open_header(path)?;
        let most = reader.header.n_records;
        reader.trailer = reader.read_trailer()?;
        let (n_records, len) = (reader.n_records(), reader.len);
        let end = n_records
            .checked_mul(RECORD_BYTES as u64)
            .and_then(|n| n.checked_add(reader.start))
            .and_then(|n| n.checked_add(reader.trailer.texts_bytes))
            .and_then(|n| n.checked_add(TRAILER_BYTES as u64));
        let name = &reader.name;
        match end {
            Some(end) if end == len && most.is_none_or(|most| n_records <= most) => Ok(reader),
            Some(end) if end == len => {
                let what = format!("{n_records} records, more than the header's");
                Err(name.corrupt(None, len, what))
            }
            Some(end) if end < len => {
                let what = format!("{} bytes that the trailer does not count", len - end);
                Err(name.corrupt(None, end, what))
            }
            _ => Err(reader.cut_off(&format!(" of {n_records}"))),
        }
    }

    /// Reads the trailer.
    fn read_trailer(&mut self) -> Result<Trailer> {
        let len = self.len;
        let at = len.checked_sub(TRAILER_BYTES as u64);
        let Some(at) = at.filter(|&at| at >= self.start) else {
            return Err(self.cut_off(""));
        };
        let mut bytes = [0; TRAILER_BYTES];
        let stream = &mut self.stream;
        let read = stream
            .seek(SeekFrom::Start(at))
            .and_then(|_| stream.read_exact(&mut bytes))
            .and_then(|()| stream.seek(SeekFrom::Start(self.start)));
        read.map_err(|source| self.name.io("read", source))?;
        match Trailer::read(&bytes, self.header_crc) {
            Some(read) => read.map_err(|what| self.name.corrupt(None, at, what)),
            None => Err(self.cut_off("")),
        }
    }

    /// The error for a file that ends too early.
    fn cut_off(&self, of: &str) -> Error {
        let whole = self.len.saturating_sub(self.start) / RECORD_BYTES as u64;
        let what = format!("the file ends after {whole} whole records{of}");
        self.name.truncated(None, self.len, what)
    }

    /// Reads what a writer that was cut off has left: the records before the first that is missing
    /// or damaged.
    ///
    /// # Errors
    /// Those of [`SidecarReader::open`] about a header.
    pub fn open_cut_off(path: &Path) -> Result<CutOffSidecar> {
        let mut reader = Self::open_header(path)?;
        let mut records = Vec::new();
        for record in &mut reader {
            match record {
                Ok(record) => records.push(record),
                Err(error) if error.is_damage() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(CutOffSidecar {
            header: reader.header,
            records,
        })
    }

    /// Reads the header. How many records follow is not known yet.
    fn open_header(path: &Path) -> Result<Self> {
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
            return Err(name.not_a_sidecar(Found::look(path)));
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
        if !checksum_matches(header_crc, u32::from_le_bytes(crc)) {
            return Err(name.corrupt(None, 0, "the header's checksum does not match"));
        }
        let json = lines.get(MAGIC_LINE.len()..).unwrap_or_default();
        let header = SidecarHeader::from_json(json, &name)?;
        Ok(Self {
            name,
            stream,
            header,
            header_crc,
            start,
            len,
            trailer: Trailer {
                n_records: u64::MAX,
                ..Trailer::default()
            },
            i: 0,
        })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.name.path()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.len
    }

    /// Records in the file.
    pub fn n_records(&self) -> u64 {
        self.trailer.n_records
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

    /// Reads the texts of the tokens that occur, at any time; empty where the file has none. At most
    /// as large as the file.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`], [`crate::Fault::Truncated`], [`crate::Fault::Io`].
    pub fn texts(&mut self) -> Result<TokenTexts> {
        // Within the file: `open` has compared its length.
        let at = self.start + self.n_records() * RECORD_BYTES as u64;
        let (next, n_bytes) = (self.offset(), self.trailer.texts_bytes);
        let stream = &mut self.stream;
        let mut section = Vec::new();
        let read = stream
            .seek(SeekFrom::Start(at))
            .and_then(|_| stream.take(n_bytes).read_to_end(&mut section))
            .and_then(|_| stream.seek(SeekFrom::Start(next)));
        read.map_err(|source| self.name.io("read", source))?;
        if (section.len() as u64) < n_bytes {
            let what = "the file has become shorter";
            return Err(self.name.truncated(None, at, what));
        }
        if !checksum_matches(crc32fast::hash(&section), self.trailer.texts_crc) {
            let what = "the checksum of the tokens' texts does not match";
            return Err(self.name.corrupt(None, at, what));
        }
        TokenTexts::from_bytes(&section).ok_or_else(|| {
            let what = "the tokens' texts are out of order";
            self.name.corrupt(None, at, what)
        })
    }

    /// Where the next record starts. Every record before it was read.
    fn offset(&self) -> u64 {
        self.start + self.i * RECORD_BYTES as u64
    }

    fn read(&mut self) -> Result<TokenRecord> {
        let offset = self.offset();
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
        let record = TokenRecord::from_bytes(&bytes, self.i, self.header_crc).ok_or_else(|| {
            let what = format!("the checksum of record {} does not match", self.i);
            self.name.corrupt(None, offset, what)
        })?;
        if record.group as usize >= self.header.n_groups() {
            let what = format!("record {} is of a group without a name", self.i);
            return Err(self.name.corrupt(None, offset, what));
        }
        if let Some(fault) = record.impossible(&self.header) {
            let what = format!(
                "record {}, of position {}: {fault}",
                self.i, record.position
            );
            return Err(self.name.corrupt(Some(record.window), offset, what));
        }
        Ok(record)
    }
}

impl Iterator for SidecarReader {
    type Item = Result<TokenRecord>;

    /// The next record; `None` after an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.i >= self.n_records() {
            return None;
        }
        let record = self.read();
        self.i = match record {
            Ok(_) => self.i + 1,
            Err(_) => self.n_records(),
        };
        Some(record)
    }
}

/// The contents of a whole sidecar, after every byte was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Different windows among the records.
    pub n_windows: u32,
    /// Records.
    pub n_records: u64,
    /// Bytes of the file, each of which was read.
    pub file_bytes: u64,
}

/// Reads the whole file and checks each byte: header, length, and every record's checksum,
/// and the texts.
///
/// # Errors
/// The first fault, with its byte: those of [`SidecarReader::open`], of its texts and its records.
pub fn verify(path: &Path) -> Result<VerifyReport> {
    let mut reader = SidecarReader::open(path)?;
    reader.texts()?;
    let mut report = VerifyReport {
        file_bytes: reader.file_bytes(),
        ..Default::default()
    };
    // Records of a window follow each other: one look-up a window, not a record.
    let (mut windows, mut last) = (HashSet::new(), None);
    for record in &mut reader {
        let window = record?.window;
        if last.replace(window) != Some(window) {
            windows.insert(window);
        }
        report.n_records += 1;
    }
    report.n_windows = u32::try_from(windows.len()).unwrap_or(u32::MAX);
    Ok(report)
}
