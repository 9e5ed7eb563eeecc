//! The kinds of reference, and which of them a file is: recognised by its bytes, never by its name.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::GzDecoder;

use super::Reference;
use crate::error::{Named, Result};
use crate::gzip::GZIP_MAGIC;
use crate::{Fault, Found, NativeReader, klpy, llamacpp, native, npz, safetensors, source};

/// A kind of reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `kl`'s own file: [`native`].
    Kl,
    /// kl.py's file: [`klpy`].
    KlPy,
    /// llama.cpp's base file: [`llamacpp`].
    LlamaCpp,
    /// A folder of `safetensors` files: [`safetensors`].
    Safetensors,
    /// An npz: [`npz`].
    Npz,
    /// No file: a model computes the rows.
    Model,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Kl => "kl",
            Kind::KlPy => "kl.py",
            Kind::LlamaCpp => "llama.cpp",
            Kind::Safetensors => "safetensors",
            Kind::Npz => "npz",
            Kind::Model => "model",
        }
    }

    /// The kind of a file with these first bytes.
    pub(crate) fn of(start: &FirstBytes) -> Option<Self> {
        let starts: [(_, &[u8], &[u8]); 5] = [
            (Kind::Kl, &start.plain, native::MAGIC_LINE.as_bytes()),
            (Kind::KlPy, &start.plain, klpy::MAGIC_LINE.as_bytes()),
            (Kind::LlamaCpp, &start.raw, &llamacpp::MAGIC),
            (Kind::LlamaCpp, &start.raw, &llamacpp::LOGITS2_MAGIC),
            (Kind::Npz, &start.raw, &npz::MAGIC),
        ];
        let mut starts = starts.into_iter();
        let of_file = starts.find(|(_, bytes, magic)| bytes.starts_with(magic));
        let folder = start.is_folder.then_some(Kind::Safetensors);
        folder.or(of_file.map(|(kind, ..)| kind))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The kind of reference that a file is, as its first bytes show. A folder can only be one of
/// `safetensors` files.
///
/// # Errors
/// [`crate::Fault::NotAReference`] with what the file is instead, [`crate::Fault::Unsupported`] for
/// what is not a regular file, [`crate::Fault::Io`].
pub fn sniff(path: &Path) -> Result<Kind> {
    let name = Named::new(path);
    let start = FirstBytes::read(&name)?;
    let found = || Fault::NotAReference(Found::of(&start));
    Kind::of(&start).ok_or_else(|| name.error(found()))
}

impl Reference {
    /// Opens a reference of any kind.
    ///
    /// # Errors
    /// Those of [`sniff`] and of the kind's own reader.
    pub fn open(path: &Path) -> Result<Self> {
        let name = Named::new(path);
        let start = FirstBytes::read(&name)?;
        match Kind::of(&start) {
            Some(Kind::Kl) => NativeReader::open(path).map(NativeReader::into_reference),
            Some(Kind::KlPy) => klpy::open(path),
            Some(Kind::LlamaCpp) => llamacpp::open(path),
            Some(Kind::Safetensors) => safetensors::open(path),
            Some(Kind::Npz) => npz::open(path),
            Some(Kind::Model) | None => Err(name.error(Fault::NotAReference(Found::of(&start)))),
        }
    }
}

/// Bytes that recognition reads, raw and plain.
const START_BYTES: u64 = 512;

/// The start of a file, by which its kind is recognised.
#[derive(Debug, Default)]
pub(crate) struct FirstBytes {
    /// The first bytes.
    pub(crate) raw: Vec<u8>,
    /// The first inflated bytes, if the file is gzip.
    plain: Vec<u8>,
    /// Set for a folder, which has no bytes.
    is_folder: bool,
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
    match stream.take(START_BYTES).read_to_end(&mut bytes) {
        Err(error) if bytes.is_empty() => Err(error),
        _ => Ok(bytes),
    }
}
