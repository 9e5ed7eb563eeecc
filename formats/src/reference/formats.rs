//! All kinds of reference, and which of them a file is: recognised by its bytes, never by its name.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use flate2::read::GzDecoder;

use super::format::{FirstBytes, Format, WriteFormat};
use super::{Kind, Reference};
use crate::error::{Named, Result};
use crate::gzip::GZIP_MAGIC;
use crate::{Found, klpy, llamacpp, native, npz, safetensors, source};

/// Every kind there is.
static FORMATS: [&Format; 5] = [
    &native::FORMAT,
    &klpy::FORMAT,
    &llamacpp::FORMAT,
    &safetensors::FORMAT,
    &npz::FORMAT,
];

/// Bytes that recognition reads, raw and plain.
const START_BYTES: usize = 512;

/// The kind of reference that a file is, as its first bytes show. A folder can only be one of
/// `safetensors` files.
///
/// # Errors
/// [`crate::Error::NotAReference`] with what the file is instead, [`crate::Error::Unsupported`] for
/// what is not a regular file, [`crate::Error::Io`].
pub fn sniff(path: &Path) -> Result<Kind> {
    recognise(path).map(|format| format.kind)
}

impl Reference {
    /// Opens a reference of any kind.
    ///
    /// # Errors
    /// Those of [`sniff`] and of the kind's own reader.
    pub fn open(path: &Path) -> Result<Self> {
        (recognise(path)?.open)(path)
    }
}

/// The writing side of a kind, if it is one that this crate writes.
pub(crate) fn write_format_of(kind: Kind) -> Option<&'static WriteFormat> {
    let mut formats = FORMATS.iter();
    formats.find(|format| format.kind == kind)?.write.as_ref()
}

impl Kind {
    /// The kinds that can be written.
    pub fn written() -> impl Iterator<Item = Kind> {
        let written = FORMATS.iter().filter(|format| format.write.is_some());
        written.map(|format| format.kind)
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    /// The kind with this name, if it can be written.
    fn from_str(name: &str) -> std::result::Result<Self, UnknownKind> {
        Kind::written()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

/// A name that does not belong to any kind that can be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no reference is written as {0:?}: give {known}", known = Kind::written().map(Kind::name).collect::<Vec<_>>().join(", "))]
pub struct UnknownKind(String);

fn recognise(path: &Path) -> Result<&'static Format> {
    let name = Named::new(path);
    let start = FirstBytes::read(&name)?;
    let mut formats = FORMATS.into_iter();
    formats
        .find(|format| (format.recognise)(&start))
        .ok_or_else(|| name.not_a_reference(Found::of(&start)))
}

impl FirstBytes {
    pub(crate) fn read(name: &Named) -> Result<Self> {
        if name.path().is_dir() {
            return Ok(Self {
                is_folder: true,
                ..Self::default()
            });
        }
        let open = || -> Result<File> { Ok(source::open(name, "a reference")?.0) };
        let raw = first_bytes(&mut open()?).map_err(|source| name.io("read", source))?;
        let plain = match raw.starts_with(&GZIP_MAGIC) {
            // A damaged stream gives nothing, or too little.
            true => first_bytes(&mut GzDecoder::new(open()?)).unwrap_or_default(),
            false => Vec::new(),
        };
        Ok(Self {
            raw,
            plain,
            is_folder: false,
        })
    }
}

/// The first bytes, or all that came before a failure.
fn first_bytes(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match stream.take(START_BYTES as u64).read_to_end(&mut bytes) {
        Err(error) if bytes.is_empty() => Err(error),
        _ => Ok(bytes),
    }
}
