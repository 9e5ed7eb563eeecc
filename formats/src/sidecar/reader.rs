//! Reads a sidecar record by record, or what a writer that was cut off has left.

use std::collections::HashSet;
use std::path::Path;

use super::end::Trailer;
use super::{
    MAGIC_LINE, MAX_HEADER_BYTES, SidecarHeader, TRAILER_BYTES, TokenRecord, TokenTexts,
    record::record_bytes,
};
use crate::error::{Error, Fault, Result};
use crate::gzip::checksum_matches;
use crate::kinds::Found;
use crate::provenance::OwnHeader as _;
use crate::source::Source;

/// Records that are read at once, about 256 KiB.
const RECORDS_AT_ONCE: u64 = 2048;

/// Reads a sidecar record by record: an iterator of `Result<TokenRecord>`.
#[derive(Debug)]
pub struct SidecarReader {
    source: Source,
    header: SidecarHeader,
    header_crc: u32,
    /// Bytes of a record.
    record_bytes: usize,
    /// Where the first record starts.
    start: u64,
    /// The trailer. Of a file that was cut off, only the number of whole records is set.
    trailer: Trailer,
    /// The number of records that have been read.
    i: u64,
    /// The bytes of the records that come next.
    bytes: Vec<u8>,
    /// How many of `bytes` have been read.
    used: usize,
}

/// The whole records of a sidecar that was cut off.
#[derive(Debug)]
pub struct CutOffSidecar {
    /// The header.
    pub header: SidecarHeader,
    /// Its first records.
    pub records: Vec<TokenRecord>,
}

/// True if the file starts like a sidecar, and false if it cannot be read.
pub fn is_sidecar(path: &Path) -> bool {
    let source = Source::open(path, "a sidecar");
    source.is_ok_and(|source| starts_like_one(&source).unwrap_or(false))
}

fn starts_like_one(source: &Source) -> Result<bool> {
    let magic = source.array_at::<{ MAGIC_LINE.len() }>(0)?;
    Ok(magic.is_some_and(|magic| magic == MAGIC_LINE.as_bytes()))
}

impl SidecarReader {
    /// Opens the file, reads its header and its trailer, and checks its length against them.
    ///
    /// # Errors
    /// [`crate::Fault::NotASidecar`], [`crate::Fault::Header`], [`crate::Fault::Unsupported`],
    /// [`crate::Fault::Truncated`], [`crate::Fault::Corrupt`], [`crate::Fault::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let mut reader = Self::open_header(path)?;
        let (len, name) = (reader.source.len, reader.source.name.clone());
        let at = len.saturating_sub(TRAILER_BYTES as u64).max(reader.start);
        let bytes = reader.source.array_at(at)?;
        let Some(trailer) = bytes.as_ref().and_then(Trailer::read) else {
            return Err(reader.cut_off(""));
        };
        if !checksum_matches(trailer.computed_crc(reader.header_crc), trailer.crc) {
            return Err(name.corrupt(None, at, "the trailer's checksum does not match"));
        }
        let n_records = trailer.n_records;
        let end = n_records
            .checked_mul(reader.record_bytes as u64)
            .and_then(|bytes| bytes.checked_add(trailer.texts_bytes))
            .and_then(|bytes| bytes.checked_add(reader.start + TRAILER_BYTES as u64));
        match end.filter(|&end| end <= len) {
            None => Err(reader.cut_off(&format!(" of {n_records}"))),
            Some(end) if end < len => {
                let what = format!("{} bytes that the trailer does not count", len - end);
                Err(name.corrupt(None, end, what))
            }
            Some(_) if reader.header.n_records.is_some_and(|n| n_records > n) => {
                let what = format!("{n_records} records, more than the header's");
                Err(name.corrupt(None, len, what))
            }
            Some(_) => {
                reader.trailer = trailer;
                Ok(reader)
            }
        }
    }

    /// Whole records that the file has room for.
    fn n_whole(&self) -> u64 {
        self.source.len.saturating_sub(self.start) / self.record_bytes as u64
    }

    /// The error for a file that ends too early.
    fn cut_off(&self, of: &str) -> Error {
        let what = format!("the file ends after {} whole records{of}", self.n_whole());
        self.source.name.truncated(None, self.source.len, what)
    }

    /// Reads what a writer that was cut off has left: the records before the first that is missing
    /// or damaged.
    ///
    /// # Errors
    /// Those of [`SidecarReader::open`] about a header.
    pub fn open_cut_off(path: &Path) -> Result<CutOffSidecar> {
        let mut reader = Self::open_header(path)?;
        reader.trailer.n_records = reader.n_whole();
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
        let source = Source::open(path, "a sidecar")?;
        let (name, len) = (&source.name, source.len);
        if !starts_like_one(&source)? {
            return Err(name.error(Fault::NotASidecar(Found::look(path))));
        }
        let mut bytes = vec![0; len.min(MAX_HEADER_BYTES as u64) as usize];
        source.read_exact_at(&mut bytes, 0)?;
        let rest = bytes.get(MAGIC_LINE.len()..).unwrap_or_default();
        let mut lines = rest.split_inclusive(|&byte| byte == b'\n');
        let json = lines.next().unwrap_or_default();
        let n_bytes = MAGIC_LINE.len() + json.len();
        let Some(stated) = source.array_at(n_bytes as u64)? else {
            return Err(name.truncated(None, len, "the file ends within its header"));
        };
        if json.last() != Some(&b'\n') {
            return Err(name.too_large("a header of more than 1 MiB"));
        }
        let header_crc = crc32fast::hash(bytes.get(..n_bytes).unwrap_or_default());
        if !checksum_matches(header_crc, u32::from_le_bytes(stated)) {
            return Err(name.corrupt(None, 0, "the header's checksum does not match"));
        }
        let header = SidecarHeader::from_json(json, name)?;
        Ok(Self {
            record_bytes: record_bytes(header.version),
            header,
            header_crc,
            start: n_bytes as u64 + 4,
            trailer: Trailer::default(),
            i: 0,
            bytes: Vec::new(),
            used: 0,
            source,
        })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.source.name.path()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.source.len
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
    pub fn texts(&self) -> Result<TokenTexts> {
        // Within the file: `open` has compared its length.
        let at = self.start + self.n_records() * self.record_bytes as u64;
        let mut section = vec![0; self.trailer.texts_bytes as usize];
        self.source.read_exact_at(&mut section, at)?;
        let corrupt = |what| self.source.name.corrupt(None, at, what);
        if !checksum_matches(crc32fast::hash(&section), self.trailer.texts_crc) {
            return Err(corrupt("the checksum of the tokens' texts does not match"));
        }
        TokenTexts::from_bytes(section).ok_or_else(|| corrupt("the tokens' texts are out of order"))
    }

    fn read(&mut self) -> Result<TokenRecord> {
        let offset = self.start + self.i * self.record_bytes as u64;
        if self.used == self.bytes.len() {
            let n = RECORDS_AT_ONCE.min(self.n_records() - self.i) as usize;
            self.bytes.resize(n * self.record_bytes, 0);
            self.used = 0;
            self.source.read_exact_at(&mut self.bytes, offset)?;
        }
        let bytes = self.bytes.get(self.used..self.used + self.record_bytes);
        self.used += self.record_bytes;
        let corrupt = |window, what| self.source.name.corrupt(window, offset, what);
        let record = bytes
            .and_then(|bytes| TokenRecord::from_bytes(bytes, self.i, self.header_crc))
            .ok_or_else(|| {
                let what = format!("the checksum of record {} does not match", self.i);
                corrupt(None, what)
            })?;
        let fault = self.header.nameless(&record);
        if let Some(fault) = fault.or_else(|| self.header.impossible(&record)) {
            let (i, position) = (self.i, record.position);
            let what = format!("record {i}, of position {position}: {fault}");
            return Err(corrupt(Some(record.window), what));
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
        self.i = record.as_ref().map_or(self.n_records(), |_| self.i + 1);
        Some(record)
    }
}

/// Reads the whole file and checks each byte: header, length, texts, and every record. Returns how
/// many different windows its records are of.
///
/// # Errors
/// The first fault, with its byte: those of [`SidecarReader::open`], of its texts and its records.
pub fn verify(path: &Path) -> Result<u64> {
    let reader = SidecarReader::open(path)?;
    reader.texts()?;
    // Records of a window follow each other: one look-up a window, not a record.
    let (mut windows, mut last) = (HashSet::new(), None);
    for record in reader {
        let window = record?.window;
        if last.replace(window) != Some(window) {
            windows.insert(window);
        }
    }
    Ok(windows.len() as u64)
}
