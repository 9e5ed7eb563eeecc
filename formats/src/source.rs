//! Files that are read: what kind each is, by its first bytes and never by its name, and its bytes at
//! any offset, for many threads at once.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use flate2::read::GzDecoder;

use crate::error::{Fault, Named, Result};
use crate::gzip::GZIP_MAGIC;
use crate::kinds::{self, Found, Kind};

/// An open file of known length.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) name: Named,
    pub(crate) len: u64,
}

impl OpenFile {
    /// Opens a regular file. Files are opened more than once and read at given offsets, which a pipe
    /// does not allow. `role` is what messages call the file.
    pub(crate) fn open(path: &Path, role: &str) -> Result<Self> {
        let name = Named::new(path);
        let failed = |cause| name.io("open", cause);
        // Before opening: that would wait for a named pipe's writer.
        let metadata = fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            return Err(name.unsupported(format!("is a folder: {role} must be a regular file")));
        }
        if !metadata.is_file() {
            return Err(name.unsupported(format!("{role} must be a regular file: save it first")));
        }
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        Ok(Self { file, name, len })
    }

    /// Fills `bytes` from `offset` on.
    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        read_exact_at(&self.file, bytes, offset).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                self.name
                    .truncated(None, offset, "the file has become shorter")
            }
            _ => self.name.io("read", source),
        })
    }

    /// Asks the system to fetch bytes that will be read soon. Returns at once; a failure is
    /// ignored.
    pub(crate) fn prefetch(&self, offset: u64, bytes: u64) {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{Advice, fadvise};
            let bytes = std::num::NonZeroU64::new(bytes);
            let _ = fadvise(&self.file, offset, bytes, Advice::WillNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
    }

    /// `N` bytes from `offset` on; `None` if the file has fewer.
    pub(crate) fn array_at<const N: usize>(&self, offset: u64) -> Result<Option<[u8; N]>> {
        let end = offset.checked_add(N as u64);
        if end.is_none_or(|end| end > self.len) {
            return Ok(None);
        }
        let mut bytes = [0; N];
        self.read_exact_at(&mut bytes, offset)?;
        Ok(Some(bytes))
    }
}

/// Bytes that come once, from first to last: those of a file, or of a pipe.
pub(crate) struct Incoming(Box<dyn Read + Send>);

impl Incoming {
    pub(crate) fn new(stream: impl Read + Send + 'static) -> Self {
        Self(Box::new(stream))
    }
}

impl Read for Incoming {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Incoming")
    }
}

/// Reads `n` bytes of a stream. Memory is allocated as they arrive.
pub(crate) fn read_bytes(stream: &mut impl Read, n: u64) -> io::Result<Vec<u8>> {
    match read_up_to(stream, n)? {
        bytes if bytes.len() as u64 == n => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads `n` bytes of a stream, or all that it has. Memory is allocated as they arrive.
pub(crate) fn read_up_to(stream: &mut impl Read, n: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(n.min(1 << 20) as usize);
    stream.take(n).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_read(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                bytes = &mut bytes[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The kind of reference that a file is, as its first bytes show. A folder can only be one of
/// `safetensors` files.
///
/// # Errors
/// [`crate::Fault::NotAReference`] with what the file is instead, [`crate::Fault::Unsupported`] for
/// what is not a regular file, [`crate::Fault::Io`].
pub fn sniff(path: &Path) -> Result<Kind> {
    kind_of(recognise(path)?).map_err(|fault| Named::new(path).error(fault))
}

fn kind_of(found: Found) -> Result<Kind, Fault> {
    match found {
        Found::Reference(kind) => Ok(kind),
        // A damaged npz, perhaps.
        Found::Zip => Ok(Kind::Npz),
        found => Err(Fault::NotAReference(found)),
    }
}

/// The kind of reference that a stream holds, and its first bytes, which have been read: at most 64 KiB.
///
/// # Errors
/// Those of [`sniff`]; [`Fault::WriterEnded`] for an empty stream.
pub(crate) fn sniff_stream(name: &Named, stream: &mut impl Read) -> Result<(Kind, Vec<u8>)> {
    /// Bytes of a gzip file that surely hold the first line of what it holds.
    const GZIP_BYTES: u64 = 64 << 10;
    let failed = |cause| name.io("read", cause);
    let mut raw = first_bytes(&mut *stream).map_err(failed)?;
    if raw.is_empty() {
        return Err(name.writer_ended(None, 0, "it has written nothing"));
    }
    if raw.starts_with(&GZIP_MAGIC) {
        let more = read_up_to(stream, GZIP_BYTES.saturating_sub(raw.len() as u64));
        raw.extend(more.map_err(failed)?);
    }
    let kind = kind_of(of_start(&raw, io::empty()));
    Ok((kind.map_err(|fault| name.error(fault))?, raw))
}

/// Bytes that recognition reads, raw and plain.
const START_BYTES: u64 = 512;

/// Recognises a file by its first bytes, raw or inflated.
fn recognise(path: &Path) -> Result<Found> {
    if path.is_dir() {
        return Ok(Found::Reference(Kind::Safetensors));
    }
    let OpenFile { mut file, name, .. } = OpenFile::open(path, "a reference")?;
    let raw = first_bytes(&mut file).map_err(|cause| name.io("read", cause))?;
    Ok(of_start(&raw, file))
}

/// Recognises a file that starts with `raw`; `rest` follows.
fn of_start(raw: &[u8], rest: impl Read) -> Found {
    if !raw.starts_with(&GZIP_MAGIC) {
        return of_raw(raw);
    }
    // A damaged stream gives nothing, or too little.
    let plain = first_bytes(GzDecoder::new(raw.chain(rest))).unwrap_or_default();
    if plain.starts_with(kinds::NATIVE.as_bytes()) {
        Found::Reference(Kind::Kl)
    } else if plain.starts_with(kinds::KL_PY.as_bytes()) {
        Found::Reference(Kind::KlPy)
    } else {
        Found::Gzip
    }
}

/// The first bytes, or all that came before a failure.
fn first_bytes(stream: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match stream.take(START_BYTES).read_to_end(&mut bytes) {
        Err(error) if bytes.is_empty() => Err(error),
        _ => Ok(bytes),
    }
}

/// The first bytes of files that are not gzip.
static MAGICS: [(&[u8], Found); 16] = [
    (b"GGUF", Found::Model),
    (kinds::SIDECAR.as_bytes(), Found::Sidecar),
    (kinds::MAP.as_bytes(), Found::Map),
    (&kinds::LLAMA_CPP, Found::Reference(Kind::LlamaCpp)),
    (&kinds::LOGITS2, Found::Reference(Kind::LlamaCpp)),
    (&kinds::NPZ, Found::Reference(Kind::Npz)),
    (kinds::NATIVE.as_bytes(), Found::Unpacked),
    (kinds::KL_PY.as_bytes(), Found::Unpacked),
    (b"\x28\xb5\x2f\xfd", Found::Packed("zstd")),
    (b"\xfd7zXZ\0", Found::Packed("xz")),
    (b"BZh", Found::Packed("bzip2")),
    (b"7z\xbc\xaf\x27\x1c", Found::Packed("7z")),
    (b"tjgg", Found::OldModel),
    (b"lmgg", Found::OldModel),
    (b"PAR1", Found::Parquet),
    (b"%PDF-", Found::Pdf),
];

impl Found {
    /// Looks at a file. One that cannot be read is unknown.
    #[must_use]
    pub fn look(path: &Path) -> Self {
        recognise(path).unwrap_or(Self::UNKNOWN)
    }
}

/// Recognises a file that is not gzip.
fn of_raw(raw: &[u8]) -> Found {
    // In an old imatrix, the number of entries and the length of a name precede the first name.
    let name = raw.get(8..).unwrap_or_default();
    match MAGICS.iter().find(|(magic, _)| raw.starts_with(magic)) {
        Some((_, Found::Reference(Kind::Npz))) if !is_npz(raw) => Found::Zip,
        Some((_, found)) => found.clone(),
        None if raw.is_empty() => Found::Other("it is empty"),
        None if !name.is_empty() && raw.iter().all(|byte| *byte == 0) => Found::Zeros,
        None if name.starts_with(b"blk.") || name.starts_with(b"output.weight") => Found::Imatrix,
        None => of_text(raw),
    }
}

/// True if the first file in a zip file is a numpy array.
fn is_npz(raw: &[u8]) -> bool {
    /// Where a local file header states the length of its name, and where the name begins.
    const NAME: (usize, usize) = (26, 30);
    let length = raw
        .get(NAME.0..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |n| u16::from_le_bytes(*n).into());
    let name = raw.get(NAME.1..).and_then(|rest| rest.get(..length));
    name.is_some_and(|name| name.ends_with(b".npy"))
}

fn of_text(raw: &[u8]) -> Found {
    let text = String::from_utf8_lossy(raw).trim_start().to_lowercase();
    if text.starts_with("version https://git-lfs") {
        Found::LfsPointer
    } else if text.starts_with("<!doctype") || text.starts_with("<html") {
        Found::WebPage
    } else if raw.get(8) == Some(&b'{') && raw.contains(&0) {
        Found::SafetensorsFile
    } else if raw.contains(&0) || !is_utf8(raw) {
        Found::UNKNOWN
    } else if text.starts_with(['{', '[']) {
        Found::Other("it is JSON")
    } else {
        Found::Text
    }
}

/// True if these are the first bytes of UTF-8, whose last character may be cut off.
fn is_utf8(raw: &[u8]) -> bool {
    let error = std::str::from_utf8(raw).err();
    error.is_none_or(|error| error.error_len().is_none())
}
