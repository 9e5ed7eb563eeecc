//! The members of a zip: where their bytes are, and a stream of one's contents, with its checksum
//! compared at the end; and the header of a numpy array, which each begins with: a magic, a version,
//! and a Python dict literal.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use flate2::bufread::DeflateDecoder;
use py_literal::Value;
use rawzip::{CompressionMethod, FileReader, RangeReader, ZipArchive};

use crate::gzip::checksum_matches;
use crate::numbers::{Float, Integer};
use crate::python_literal;

/// The bytes of the directory that are read at once: the longest entry fits.
const DIRECTORY_BYTES: usize = 256 << 10;

/// Bytes of the file read at once.
const READ_BYTES: usize = 256 << 10;

/// A member of a zip, as the zip's directory describes it.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// Where its packed bytes are in the file.
    start: u64,
    end: u64,
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
    let mut buffer = vec![0; DIRECTORY_BYTES];
    let archive = ZipArchive::from_file(file, &mut buffer).map_err(zip_error)?;
    let mut members = Vec::new();
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(zip_error)? {
        let path = entry.file_path();
        // Messages show it in one line, whatever it is.
        let name = String::from_utf8_lossy(path.as_ref())
            .escape_debug()
            .to_string();
        let is_deflated = match entry.compression_method() {
            _ if entry.flags().is_encrypted() => return Err(unsupported(&name, "is encrypted")),
            CompressionMethod::STORE => false,
            CompressionMethod::DEFLATE => true,
            _ => return Err(unsupported(&name, "is neither stored nor deflated")),
        };
        let wayfinder = entry.wayfinder();
        let (start, end) = archive
            .get_entry(wayfinder)
            .map_err(zip_error)?
            .compressed_data_range();
        members.push(Member {
            start,
            end,
            is_deflated,
            plain_bytes: wayfinder.uncompressed_size_hint(),
            crc: entry.crc32(),
            name,
        });
    }
    if members.len() as u64 != archive.entries_hint() {
        let what = "its zip directory does not have as many members as it states";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    match overlapping(&members) {
        Some(member) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} shares bytes with another member", member.name),
        )),
        None => Ok((Arc::new(archive.into_inner()), members)),
    }
}

/// A member that begins within another. Many members that share bytes would make large arrays of a
/// small file.
fn overlapping(members: &[Member]) -> Option<&Member> {
    let mut by_offset: Vec<&Member> = members.iter().collect();
    by_offset.sort_unstable_by_key(|member| (member.start, member.end));
    let mut pairs = by_offset.array_windows();
    pairs.find_map(|[one, next]| (next.start < one.end).then_some(*next))
}

fn unsupported(name: &str, what: &str) -> io::Error {
    let what = format!("{name} {what}: save it with numpy.savez or numpy.savez_compressed");
    io::Error::new(io::ErrorKind::Unsupported, what)
}

fn zip_error(error: rawzip::Error) -> io::Error {
    use rawzip::ErrorKind;
    let kind = match error.kind() {
        ErrorKind::IO(error) => error.kind(),
        ErrorKind::Eof | ErrorKind::MissingEndOfCentralDirectory => io::ErrorKind::UnexpectedEof,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, format!("zip: {error}"))
}

/// The contents of a member, from the first byte on.
pub(super) struct Stream {
    plain: Box<dyn Read + Send>,
    crc: crc32fast::Hasher,
    n_bytes: u64,
    member: Member,
}

impl Stream {
    pub(super) fn new(file: &Arc<FileReader>, member: &Member) -> Self {
        let range = RangeReader::new(Arc::clone(file), member.start..member.end);
        let packed = BufReader::with_capacity(READ_BYTES, range);
        Self {
            plain: if member.is_deflated {
                Box::new(DeflateDecoder::new(packed))
            } else {
                Box::new(packed)
            },
            crc: crc32fast::Hasher::new(),
            n_bytes: 0,
            member: member.clone(),
        }
    }

    /// The member's name.
    pub(super) fn name(&self) -> &str {
        &self.member.name
    }

    /// Bytes read so far.
    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Checks that nothing is left, and that length and checksum are as stated.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let invalid = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if self.read(&mut [0])? != 0 {
            return invalid("holds more than its shape states");
        }
        if self.n_bytes != self.member.plain_bytes {
            return invalid("holds more or less than the zip states");
        }
        if checksum_matches(self.crc.clone().finalize(), self.member.crc) {
            Ok(())
        } else {
            invalid("does not match its checksum")
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.plain.read(bytes)?;
        self.crc.update(bytes.get(..n).unwrap_or_default());
        self.n_bytes += n as u64;
        Ok(n)
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

/// The first bytes of an array.
const NPY_MAGIC: [u8; 6] = *b"\x93NUMPY";

/// Most bytes of the dict; numpy itself refuses to parse more than 10,000.
const MAX_DICT_BYTES: u32 = 64 << 10;

/// The type of an array's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryType {
    Float(Float),
    Integer(Integer),
    /// Bytes: mlx-kld's `meta_json`.
    Bytes,
}

/// An array's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) entry: EntryType,
    pub(super) shape: Vec<u64>,
    /// Bytes before the first entry.
    pub(super) bytes: u64,
}

/// Reads a header. An array of another kind than those read here is an error of
/// [`io::ErrorKind::Unsupported`].
pub(super) fn read_header(array: &mut impl Read) -> io::Result<Header> {
    let mut start = [0; 8];
    array.read_exact(&mut start)?;
    let [magic @ .., version, _] = &start;
    if *magic != NPY_MAGIC {
        return Err(unsupported_array("is not a numpy array"));
    }
    let (length, before) = match version {
        1 => {
            let mut length = [0; 2];
            array.read_exact(&mut length)?;
            (u16::from_le_bytes(length).into(), 10)
        }
        2 | 3 => {
            let mut length = [0; 4];
            array.read_exact(&mut length)?;
            (u32::from_le_bytes(length), 12)
        }
        other => {
            return Err(unsupported_array(&format!(
                "has version {other} of numpy's format; 1 to 3 can be read"
            )));
        }
    };
    if length > MAX_DICT_BYTES {
        return Err(unsupported_array(&format!(
            "has a header of {length} bytes"
        )));
    }
    let mut dict = vec![0; length as usize];
    array.read_exact(&mut dict)?;
    let (entry, shape) = parse(&dict)?;
    Ok(Header {
        entry,
        shape,
        bytes: before + u64::from(length),
    })
}

fn parse(dict: &[u8]) -> io::Result<(EntryType, Vec<u64>)> {
    let text = str::from_utf8(dict).ok();
    let entries = text
        .and_then(|text| python_literal::dict(text).ok()?)
        .ok_or_else(|| unsupported_array("has a header that is not a Python dict"))?;
    let entry = |wanted: &str| {
        let is_wanted = |key: &Value| matches!(key, Value::String(key) if key == wanted);
        let found = entries.iter().find(|(key, _)| is_wanted(key));
        found.map(|(_, value)| value)
    };
    let entry_type = match entry("descr") {
        Some(Value::String(descr)) => entry_type(descr)?,
        _ => return Err(unsupported_array("holds records, not numbers")),
    };
    match entry("fortran_order") {
        Some(Value::Boolean(false)) => {}
        _ => {
            return Err(unsupported_array(
                "is in Fortran order: save numpy.ascontiguousarray of it",
            ));
        }
    }
    let Some(Value::Tuple(shape) | Value::List(shape)) = entry("shape") else {
        return Err(unsupported_array("has a header without a shape"));
    };
    let size = |value: &Value| match value {
        Value::Integer(n) => n.try_into().ok(),
        _ => None,
    };
    let shape: Option<Vec<u64>> = shape.iter().map(size).collect();
    let shape =
        shape.ok_or_else(|| unsupported_array("has a shape that is not a list of sizes"))?;
    Ok((entry_type, shape))
}

/// The meaning of `descr`: byte order, type and bytes of an entry.
fn entry_type(descr: &str) -> io::Result<EntryType> {
    Ok(match descr {
        "<f2" => EntryType::Float(Float::F16),
        "<f4" => EntryType::Float(Float::F32),
        "<f8" => EntryType::Float(Float::F64),
        "<i4" => EntryType::Integer(Integer::I32),
        "<i8" => EntryType::Integer(Integer::I64),
        "<u4" => EntryType::Integer(Integer::U32),
        "<u8" => EntryType::Integer(Integer::U64),
        "|u1" => EntryType::Bytes,
        _ if descr.starts_with('>') => {
            return Err(unsupported_array(
                "is big-endian: save it as a little-endian type, as '<f4'",
            ));
        }
        _ if descr.starts_with("|O") => {
            return Err(unsupported_array(
                "holds Python objects, which are not read: save numbers",
            ));
        }
        _ => {
            return Err(unsupported_array(&format!(
                "is of type {descr:?}: rows must be float16, float32 or float64, token ids int32, \
                 int64, uint32 or uint64"
            )));
        }
    })
}

fn unsupported_array(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (version, before) in [(1, 10), (2, 12), (3, 12)] {
            let bytes = header(version, dict);
            let got = read_header(&mut &bytes[..]).unwrap();
            assert_eq!(
                (got.entry, got.shape),
                (EntryType::Float(Float::F32), vec![3, 4])
            );
            assert_eq!(got.bytes, before + dict.len() as u64);
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
            ("<f4", ">f4", "big-endian"),
            ("<f4", "|O", "Python objects"),
            ("<f4", "<c8", "\"<c8\""),
            ("'<f4'", "[('a', '<f4')]", "records"),
            ("False", "True", "Fortran"),
            ("'fortran_order': False, ", "", "Fortran"),
            ("(3, 4)", "(3, -4)", "shape"),
            ("(3, 4)", "('a', 4)", "shape"),
            ("(3, 4)", "(36893488147419103232, 4)", "shape"),
            ("(3, 4)", "((((((((3,),),),),),),),)", "not a Python dict"),
            ("'shape'", "'form'", "without a shape"),
        ] {
            let dict = good.replace(from, to);
            let error = read_header(&mut &header(1, &dict)[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{dict}");
            assert!(error.to_string().contains(what), "{dict}: {error}");
        }
        let huge = header(2, &" ".repeat(1 << 20));
        assert!(
            read_header(&mut &huge[..])
                .unwrap_err()
                .to_string()
                .contains("1048576")
        );
        let newer = header(4, good);
        assert!(
            read_header(&mut &newer[..])
                .unwrap_err()
                .to_string()
                .contains("version 4")
        );
        assert!(read_header(&mut &b"\x93NUMPX\x01\0\0\0"[..]).is_err());
    }
}
