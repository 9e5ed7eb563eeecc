//! The members of a zip, each a numpy array: where their bytes are, and a stream of one's contents,
//! with its checksum compared at the end. An array begins with a magic, a version, and a Python dict
//! literal.

use std::fs::File;
use std::io::ErrorKind::{InvalidData, UnexpectedEof, Unsupported};
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::sync::Arc;

use byteorder::{LittleEndian, ReadBytesExt};
use flate2::bufread::DeflateDecoder;
use rawzip::{CompressionMethod, FileReader, RangeReader, ZipArchive};
use serde::Deserialize;

use crate::error::{Error, Named, Result};
use crate::gzip::checksum_matches;
use crate::numbers::Number;
use crate::python_literal;
use crate::source::read_bytes;

/// Bytes of the file, and of its directory, that are read at once: the longest entry fits.
const READ_BYTES: usize = 256 << 10;

/// A member of a zip, as the zip's directory describes it.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// Where its packed bytes are in the file.
    bytes: Range<u64>,
    is_deflated: bool,
    /// The bytes that the directory states for it: only compared with those that arrive.
    pub(super) plain_bytes: u64,
    crc: u32,
}

/// The members of a zip in the order of its directory, and the file they are read from.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] for a file without a directory at its end,
/// [`io::ErrorKind::InvalidData`] for a damaged one and for members that share bytes,
/// [`io::ErrorKind::Unsupported`] for a member that is encrypted or packed otherwise than numpy
/// does.
pub(super) fn directory(file: File) -> io::Result<(Arc<FileReader>, Vec<Member>)> {
    let mut buffer = vec![0; READ_BYTES];
    let archive = ZipArchive::from_file(file, &mut buffer).map_err(zip_error)?;
    let mut members = Vec::new();
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(zip_error)? {
        let path = entry.file_path();
        // Messages show it in one line, whatever it is.
        let name = String::from_utf8_lossy(path.as_ref())
            .escape_debug()
            .to_string();
        let is_deflated = entry.compression_method() == CompressionMethod::DEFLATE;
        let is_stored = entry.compression_method() == CompressionMethod::STORE;
        if entry.flags().is_encrypted() || !(is_deflated || is_stored) {
            let what = format!(
                "{name} is encrypted, or neither stored nor deflated: save it with numpy.savez or \
                 numpy.savez_compressed"
            );
            return Err(io::Error::new(Unsupported, what));
        }
        let wayfinder = entry.wayfinder();
        let place = archive.get_entry(wayfinder).map_err(zip_error)?;
        let (start, end) = place.compressed_data_range();
        members.push(Member {
            bytes: start..end,
            is_deflated,
            plain_bytes: wayfinder.uncompressed_size_hint(),
            crc: entry.crc32(),
            name,
        });
    }
    if members.len() as u64 != archive.entries_hint() {
        let what = "its zip directory does not have as many members as it states";
        return Err(io::Error::new(InvalidData, what));
    }
    // Many members that share bytes would make large arrays of a small file.
    let mut by_offset: Vec<&Member> = members.iter().collect();
    by_offset.sort_unstable_by_key(|member| (member.bytes.start, member.bytes.end));
    let mut pairs = by_offset.array_windows();
    if let Some([_, next]) = pairs.find(|[one, next]| next.bytes.start < one.bytes.end) {
        let what = format!("{} shares bytes with another member", next.name);
        return Err(io::Error::new(InvalidData, what));
    }
    Ok((Arc::new(archive.into_inner()), members))
}

fn zip_error(error: rawzip::Error) -> io::Error {
    use rawzip::ErrorKind;
    let kind = match error.kind() {
        ErrorKind::IO(error) => error.kind(),
        ErrorKind::Eof | ErrorKind::MissingEndOfCentralDirectory => UnexpectedEof,
        _ => InvalidData,
    };
    io::Error::new(kind, format!("zip: {error}"))
}

/// An array whose header has been read, and a stream of the bytes that follow it.
pub(super) struct Array {
    file: Named,
    member: Member,
    plain: Box<dyn Read + Send>,
    crc: crc32fast::Hasher,
    /// Bytes read so far.
    pub(super) n_bytes: u64,
    pub(super) number: Number,
    pub(super) shape: Vec<u64>,
}

impl Array {
    pub(super) fn open(name: &Named, file: &Arc<FileReader>, member: &Member) -> Result<Self> {
        let range = RangeReader::new(Arc::clone(file), member.bytes.clone());
        let packed = BufReader::with_capacity(READ_BYTES, range);
        let mut array = Self {
            file: name.clone(),
            member: member.clone(),
            plain: if member.is_deflated {
                Box::new(DeflateDecoder::new(packed))
            } else {
                Box::new(packed)
            },
            crc: crc32fast::Hasher::new(),
            n_bytes: 0,
            number: Number::Byte,
            shape: Vec::new(),
        };
        let header = read_header(&mut array);
        (array.number, array.shape) = header.map_err(|error| array.error(error))?;
        Ok(array)
    }

    /// Reads the next `n` bytes.
    pub(super) fn read(&mut self, n: u64) -> Result<Vec<u8>> {
        read_bytes(self, n).map_err(|error| self.error(error))
    }

    /// Reads all that follows the header: `n` bytes.
    pub(super) fn whole(mut self, n: u64) -> Result<Vec<u8>> {
        let bytes = self.read(n)?;
        self.finish()?;
        Ok(bytes)
    }

    /// Checks that nothing is left, and that length and checksum are as stated.
    pub(super) fn finish(&mut self) -> Result<()> {
        let more = Read::read(self, &mut [0]).map_err(|error| self.error(error))?;
        let fault = if more != 0 {
            "holds more than its shape states"
        } else if self.n_bytes != self.member.plain_bytes {
            "holds more or less than the zip states"
        } else if !checksum_matches(self.crc.clone().finalize(), self.member.crc) {
            "does not match its checksum"
        } else {
            return Ok(());
        };
        Err(self.corrupt(fault))
    }

    pub(super) fn unsupported(&self, what: impl Into<String>) -> Error {
        self.error(io::Error::new(Unsupported, what.into()))
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> Error {
        self.error(io::Error::new(InvalidData, what.into()))
    }

    fn error(&self, error: io::Error) -> Error {
        let what = match error.kind() {
            UnexpectedEof => "ends before all of its shape is read".to_owned(),
            _ => error.to_string(),
        };
        let named = io::Error::new(error.kind(), format!("{}: {what}", self.member.name));
        self.file.of_stream(None, self.n_bytes, named)
    }
}

impl Read for Array {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.plain.read(bytes)?;
        self.crc.update(bytes.get(..n).unwrap_or_default());
        self.n_bytes += n as u64;
        Ok(n)
    }
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.member.fmt(f)
    }
}

/// The first bytes of an array.
const NPY_MAGIC: [u8; 6] = *b"\x93NUMPY";

/// Most bytes of the dict; numpy itself refuses to parse more than 10,000.
const MAX_DICT_BYTES: u32 = 64 << 10;

/// The dict in an array's header.
#[derive(Deserialize)]
struct NpyHeader {
    /// The type of its numbers; a list for records.
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Reads a header: type and shape. An array of another kind than those read here is an error of
/// [`io::ErrorKind::Unsupported`].
fn read_header(array: &mut impl Read) -> io::Result<(Number, Vec<u64>)> {
    let unsupported = |what: String| io::Error::new(Unsupported, what);
    let mut start = [0; 8];
    array.read_exact(&mut start)?;
    let length = match start {
        [magic @ .., 1, _] if magic == NPY_MAGIC => array.read_u16::<LittleEndian>()?.into(),
        [magic @ .., 2 | 3, _] if magic == NPY_MAGIC => array.read_u32::<LittleEndian>()?,
        _ => return Err(unsupported("is not a numpy array of format 1 to 3".into())),
    };
    if length > MAX_DICT_BYTES {
        return Err(unsupported("has a header of more than 64 KiB".into()));
    }
    let parsed = python_literal::parse(&read_bytes(array, length.into())?);
    let header: NpyHeader = parsed
        .map_err(|error| unsupported(format!("has a header that is not numpy's: {error}")))?;
    if header.fortran_order {
        let what = "is in Fortran order: save numpy.ascontiguousarray of it";
        return Err(unsupported(what.into()));
    }
    Ok((Number::named(&header.descr), header.shape))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::Float;

    fn header(version: u8, dict: &str) -> Vec<u8> {
        let length = dict.len();
        let length = match version {
            1 => (length as u16).to_le_bytes().to_vec(),
            _ => (length as u32).to_le_bytes().to_vec(),
        };
        [&NPY_MAGIC[..], &[version, 0], &length, dict.as_bytes()].concat()
    }

    #[test]
    fn headers_of_all_versions_are_read() {
        let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n";
        for version in 1..=3 {
            let bytes = header(version, dict);
            let found = read_header(&mut &bytes[..]).unwrap();
            assert_eq!(found, (Number::Float(Float::F32), vec![3, 4]));
            for cut in 0..bytes.len() {
                let error = read_header(&mut &bytes[..cut]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
            }
        }
    }

    #[test]
    fn an_error_states_why_an_array_is_refused() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}";
        for (from, to, what) in [
            (
                "'<f4'",
                "[('a', '<f4')]",
                "not numpy's: invalid type: sequence",
            ),
            ("False", "True", "Fortran"),
            (
                "'fortran_order': False, ",
                "",
                "missing field `fortran_order`",
            ),
            ("(3, 4)", "(3, -4)", "`-4`, expected u64"),
            ("(3, 4)", "('a', 4)", "\"a\", expected u64"),
            ("(3, 4)", "(36893488147419103232, 4)", "expected u64"),
            ("(3, 4)", &"(".repeat(10_000), "not numpy's"),
            ("'shape'", "'form'", "missing field `shape`"),
        ] {
            let dict = good.replace(from, to);
            let error = read_header(&mut &header(1, &dict)[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{dict}");
            assert!(error.to_string().contains(what), "{dict}: {error}");
        }
        for bytes in [
            header(2, &" ".repeat(1 << 20)),
            header(4, good),
            b"\x93NUMPX\x01\0\0\0".to_vec(),
        ] {
            let error = read_header(&mut &bytes[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        }
    }
}
