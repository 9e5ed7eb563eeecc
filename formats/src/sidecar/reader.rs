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
use crate::source::OpenFile;

/// Records that are read at once, about 256 KiB.
const RECORDS_AT_ONCE: u64 = 2048;

/// A sidecar that is open: its header and its trailer are read, and its records can be, as often as they are wanted.
#[derive(Debug)]
pub struct SidecarReader {
    source: OpenFile,
    /// The header.
    pub header: SidecarHeader,
    header_crc: u32,
    /// Where the first record starts.
    start: u64,
    /// The trailer. Of a file that was cut off, only the number of whole records is set.
    trailer: Trailer,
}

/// The records of a sidecar, one after another.
#[derive(Debug)]
pub struct SidecarRecords<'r> {
    reader: &'r SidecarReader,
    /// The number of records that have been read.
    i: u64,
    /// The bytes of the records that were last read at once.
    bytes: Vec<u8>,
}

/// The whole records of a sidecar that was cut off.
#[derive(Debug)]
pub struct CutOffSidecar {
    /// The header.
    pub header: SidecarHeader,
    /// Its first records.
    pub records: Vec<TokenRecord>,
}

impl SidecarReader {
    /// Opens the file, reads its header and its trailer, and checks its length against them.
    ///
    /// # Errors
    /// [`crate::Fault::NotASidecar`], [`crate::Fault::Header`], [`crate::Fault::Unsupported`],
    /// [`crate::Fault::Truncated`], [`crate::Fault::Corrupt`], [`crate::Fault::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let mut reader = Self::open_header(path)?;
        let (source, len) = (&reader.source, reader.source.len);
        let at = len.saturating_sub(TRAILER_BYTES as u64).max(reader.start);
        let Some(trailer) = source.array_at(at)?.as_ref().and_then(Trailer::read) else {
            return Err(reader.cut_off(""));
        };
        let corrupt = |at, what: String| Err(source.name.corrupt(None, at, what));
        if !checksum_matches(trailer.computed_crc(reader.header_crc), trailer.crc) {
            return corrupt(at, "the trailer's checksum does not match".to_owned());
        }
        let n_records = trailer.n_records;
        let records = u128::from(n_records) * reader.record_bytes() as u128;
        let others = reader.start + TRAILER_BYTES as u64;
        let end = records + u128::from(trailer.texts_bytes) + u128::from(others);
        if end > len.into() {
            return Err(reader.cut_off(&format!(" of {n_records}")));
        }
        let end = end as u64; // within the file
        if end < len {
            let what = format!("{} bytes that the trailer does not count", len - end);
            return corrupt(end, what);
        }
        if reader.header.n_records.is_some_and(|n| n_records > n) {
            return corrupt(len, format!("{n_records} records, more than the header's"));
        }
        reader.trailer = trailer;
        Ok(reader)
    }

    /// Bytes of a record.
    fn record_bytes(&self) -> usize {
        record_bytes(self.header.version)
    }

    /// Whole records that the file has room for.
    fn n_whole(&self) -> u64 {
        self.source.len.saturating_sub(self.start) / self.record_bytes() as u64
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
        for record in reader.records() {
            match record {
                Ok(record) => records.push(record),
                Err(error) if error.is_damage() => break,
                Err(error) => return Err(error),
            }
        }
        let header = reader.header;
        Ok(CutOffSidecar { header, records })
    }

    /// Reads the header. How many records follow is not known yet.
    fn open_header(path: &Path) -> Result<Self> {
        let source = OpenFile::open(path, "a sidecar")?;
        let (name, len) = (&source.name, source.len);
        let mut bytes = vec![0; len.min(MAX_HEADER_BYTES as u64) as usize];
        source.read_exact_at(&mut bytes, 0)?;
        let Some(rest) = bytes.strip_prefix(MAGIC_LINE.as_bytes()) else {
            return Err(name.error(Fault::NotASidecar(Found::look(path))));
        };
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
        Ok(Self {
            header: SidecarHeader::from_json(json, name)?,
            header_crc,
            start: n_bytes as u64 + 4,
            trailer: Trailer::default(),
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

    /// The records, from the first on.
    pub fn records(&self) -> SidecarRecords<'_> {
        SidecarRecords {
            reader: self,
            i: 0,
            bytes: Vec::new(),
        }
    }

    /// Reads all records.
    ///
    /// # Errors
    /// The first of the records' errors.
    pub fn read_all(&self) -> Result<Vec<TokenRecord>> {
        self.records().collect()
    }

    /// Reads the texts of the tokens that occur, at any time; empty where the file has none.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`], [`crate::Fault::Truncated`], [`crate::Fault::Io`].
    pub fn texts(&self) -> Result<TokenTexts> {
        // Within the file: `open` has compared its length.
        let at = self.start + self.n_records() * self.record_bytes() as u64;
        let mut section = vec![0; self.trailer.texts_bytes as usize];
        self.source.read_exact_at(&mut section, at)?;
        let corrupt = |what| self.source.name.corrupt(None, at, what);
        if !checksum_matches(crc32fast::hash(&section), self.trailer.texts_crc) {
            return Err(corrupt("the checksum of the tokens' texts does not match"));
        }
        let texts = TokenTexts::from_section(&section);
        texts.ok_or_else(|| corrupt("the tokens' texts are out of order"))
    }
}

impl SidecarRecords<'_> {
    fn read(&mut self) -> Result<TokenRecord> {
        let (reader, i) = (self.reader, self.i);
        let record_bytes = reader.record_bytes();
        let offset = reader.start + i * record_bytes as u64;
        let among_read = (i % RECORDS_AT_ONCE) as usize;
        if among_read == 0 {
            let n = RECORDS_AT_ONCE.min(reader.n_records() - i) as usize;
            self.bytes.resize(n * record_bytes, 0);
            reader.source.read_exact_at(&mut self.bytes, offset)?;
        }
        let corrupt = |window, what| reader.source.name.corrupt(window, offset, what);
        let mut bytes = self.bytes.chunks_exact(record_bytes);
        let record = bytes
            .nth(among_read)
            .and_then(|bytes| TokenRecord::from_bytes(bytes, i, reader.header_crc))
            .ok_or_else(|| corrupt(None, format!("the checksum of record {i} does not match")))?;
        let fault = reader.header.nameless(&record);
        if let Some(fault) = fault.or_else(|| reader.header.impossible(&record)) {
            let what = format!("record {i}, of position {}: {fault}", record.position);
            return Err(corrupt(Some(record.window), what));
        }
        Ok(record)
    }
}

impl Iterator for SidecarRecords<'_> {
    type Item = Result<TokenRecord>;

    /// The next record; `None` after an error.
    fn next(&mut self) -> Option<Self::Item> {
        let n_records = self.reader.n_records();
        if self.i >= n_records {
            return None;
        }
        let record = self.read();
        self.i = record.as_ref().map_or(n_records, |_| self.i + 1);
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
    let windows = reader.records().map(|record| Ok(record?.window));
    Ok(windows.collect::<Result<HashSet<u32>>>()?.len() as u64)
}
