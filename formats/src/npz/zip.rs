//! The members of a zip: where their bytes are, and a stream of one's contents, with its checksum
//! compared at the end.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use flate2::bufread::DeflateDecoder;
use rawzip::{CompressionMethod, FileReader, RangeReader, ZipArchive};

use crate::gzip::checksum_matches;

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
        let name = String::from_utf8_lossy(path.as_ref()).into_owned();
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
            plain: match member.is_deflated {
                false => Box::new(packed),
                true => Box::new(DeflateDecoder::new(packed)),
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
        match checksum_matches(self.crc.clone().finalize(), self.member.crc) {
            true => Ok(()),
            false => invalid("does not match its checksum"),
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
