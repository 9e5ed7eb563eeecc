//! Any reference, recognised by its bytes and never by its name.

use std::fmt;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use crate::error::{Named, Result};
use crate::native::{self, NativeReader};
use crate::{
    KlPyReader, LlamaCppReader, NpzReader, SafetensorsReader, klpy, llamacpp, npz, sidecar, source,
};

/// Bytes looked at, raw and plain.
const LOOK_BYTES: usize = 64;

/// What wrote a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceKind {
    /// `kl` itself.
    Native,
    /// kl.py.
    KlPy,
    /// llama-perplexity with `--save-all-logits`.
    LlamaCpp,
    /// Another program, a `safetensors` file a window, all in one folder.
    Safetensors,
    /// numpy, or a program with it.
    Npz,
}

impl fmt::Display for ReferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ReferenceKind::Native => "kl",
            ReferenceKind::KlPy => "kl.py",
            ReferenceKind::LlamaCpp => "llama.cpp",
            ReferenceKind::Safetensors => "safetensors",
            ReferenceKind::Npz => "npz",
        })
    }
}

/// The kind of reference that the file's first bytes show. A folder can only be one of
/// `safetensors` files.
///
/// # Errors
/// [`crate::Error::NotAReference`] saying what the file is instead,
/// [`crate::Error::Unsupported`] for what is no regular file, [`crate::Error::Io`].
pub fn sniff(path: &Path) -> Result<ReferenceKind> {
    let name = Named::new(path);
    if path.is_dir() {
        return Ok(ReferenceKind::Safetensors);
    }
    let (mut file, _) = source::open(&name, "a reference")?;
    let raw = look(&mut file).map_err(|source| name.io("read", source))?;
    if raw.starts_with(&llamacpp::MAGIC) {
        return Ok(ReferenceKind::LlamaCpp);
    }
    if raw.starts_with(&npz::MAGIC) {
        return Ok(ReferenceKind::Npz);
    }
    let found = if raw.is_empty() {
        "it is empty"
    } else if raw.starts_with(b"GGUF") {
        "it is a model (a run evaluates it with -m)"
    } else if raw.starts_with(sidecar::MAGIC_LINE.as_bytes()) {
        "it is a sidecar, the result of an evaluation"
    } else if raw.starts_with(&[0x1f, 0x8b]) {
        let (file, _) = source::open(&name, "a reference")?;
        // A damaged stream shows nothing, or too little.
        let plain = look(&mut GzDecoder::new(file)).unwrap_or_default();
        if plain.starts_with(native::MAGIC_LINE.as_bytes()) {
            return Ok(ReferenceKind::Native);
        } else if plain.starts_with(klpy::MAGIC_LINE.as_bytes()) {
            return Ok(ReferenceKind::KlPy);
        }
        "gzip, but what it holds does not start as a reference does"
    } else if raw.get(8) == Some(&b'{') {
        "it seems to be a safetensors file (give the folder that holds 0.safetensors and so on)"
    } else {
        "it starts as no reference does"
    };
    Err(name.not_a_reference(found))
}

/// The first bytes, or all that came before a failure.
fn look(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match stream.take(LOOK_BYTES as u64).read_to_end(&mut bytes) {
        Err(error) if bytes.is_empty() => Err(error),
        _ => Ok(bytes),
    }
}

/// An open reference.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one per run
pub enum Reference {
    /// `kl`'s own file.
    Native(NativeReader),
    /// kl.py's file.
    KlPy(KlPyReader),
    /// llama.cpp's base file. Its windows' first tokens depend on the model: see
    /// [`LlamaCppReader::head`].
    LlamaCpp(LlamaCppReader),
    /// A folder of `safetensors` files.
    Safetensors(SafetensorsReader),
    /// An `npz` file.
    Npz(NpzReader),
}

impl Reference {
    /// Opens a reference of any kind.
    ///
    /// # Errors
    /// Those of [`sniff`] and of the kind's own reader.
    pub fn open(path: &Path) -> Result<Self> {
        match sniff(path)? {
            ReferenceKind::Native => NativeReader::open(path).map(Reference::Native),
            ReferenceKind::KlPy => KlPyReader::open(path).map(Reference::KlPy),
            ReferenceKind::LlamaCpp => LlamaCppReader::open(path).map(Reference::LlamaCpp),
            ReferenceKind::Safetensors => SafetensorsReader::open(path).map(Reference::Safetensors),
            ReferenceKind::Npz => NpzReader::open(path).map(Reference::Npz),
        }
    }

    /// What wrote it.
    pub fn kind(&self) -> ReferenceKind {
        match self {
            Reference::Native(_) => ReferenceKind::Native,
            Reference::KlPy(_) => ReferenceKind::KlPy,
            Reference::LlamaCpp(_) => ReferenceKind::LlamaCpp,
            Reference::Safetensors(_) => ReferenceKind::Safetensors,
            Reference::Npz(_) => ReferenceKind::Npz,
        }
    }

    /// Whether it is one of those that other programs store without a text or a model behind it:
    /// what `TENSORS.md` specifies.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Reference::Safetensors(_) | Reference::Npz(_))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        match self {
            Reference::Native(reader) => reader.path(),
            Reference::KlPy(reader) => reader.path(),
            Reference::LlamaCpp(reader) => reader.path(),
            Reference::Safetensors(reader) => reader.path(),
            Reference::Npz(reader) => reader.path(),
        }
    }

    /// Most tokens in a window; most rows, of those that other programs store.
    pub fn n_ctx(&self) -> u32 {
        match self {
            Reference::Native(reader) => reader.header().n_ctx,
            Reference::KlPy(reader) => reader.header().n_ctx,
            Reference::LlamaCpp(reader) => reader.header().n_ctx,
            Reference::Safetensors(reader) => reader.rows_per_window().max().unwrap_or(0),
            Reference::Npz(reader) => reader.rows_per_window().max().unwrap_or(0),
        }
    }

    /// Entries of a row.
    pub fn n_vocab(&self) -> u32 {
        match self {
            Reference::Native(reader) => reader.header().n_vocab,
            Reference::KlPy(reader) => reader.header().n_vocab,
            Reference::LlamaCpp(reader) => reader.header().n_vocab,
            Reference::Safetensors(reader) => reader.n_vocab(),
            Reference::Npz(reader) => reader.n_vocab(),
        }
    }

    /// Windows in the file, where it says.
    pub fn n_windows(&self) -> Option<u32> {
        match self {
            Reference::Native(reader) => Some(reader.header().n_windows),
            Reference::KlPy(reader) => reader.header().n_windows,
            Reference::LlamaCpp(reader) => Some(reader.header().n_windows),
            Reference::Safetensors(reader) => Some(reader.n_windows() as u32),
            Reference::Npz(reader) => Some(reader.n_windows() as u32),
        }
    }

    /// Rows in the file, where it says.
    pub fn n_rows(&self) -> Option<u64> {
        match self {
            Reference::Native(reader) => Some(reader.header().n_rows),
            Reference::KlPy(_) => None,
            Reference::LlamaCpp(reader) => Some(reader.header().n_rows()),
            Reference::Safetensors(reader) => Some(reader.rows_per_window().map(u64::from).sum()),
            Reference::Npz(reader) => Some(reader.rows_per_window().map(u64::from).sum()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Scratch, header};
    use crate::{Encoding, Error, KlPyHeader, KlPyWriter, LlamaCppWriter, NativeWriter};

    fn native() -> Vec<u8> {
        let header = header(Encoding::U16, 5, &[]);
        NativeWriter::create(Vec::new(), Path::new(""), &header)
            .unwrap()
            .finish()
            .unwrap()
    }

    fn kl_py() -> Vec<u8> {
        let header = KlPyHeader {
            n_ctx: 8,
            n_vocab: 5,
            ..Default::default()
        };
        KlPyWriter::create(Vec::new(), Path::new(""), &header)
            .unwrap()
            .finish()
            .unwrap()
    }

    /// Windows of one token, which have no rows.
    fn llama_cpp() -> Vec<u8> {
        LlamaCppWriter::create(Vec::new(), Path::new(""), 1, 5, &[4, 0])
            .unwrap()
            .finish()
            .unwrap()
    }

    #[test]
    fn kinds_are_known_by_their_bytes() {
        let scratch = Scratch::new();
        assert_eq!(
            sniff(scratch.file(&native())).unwrap(),
            ReferenceKind::Native
        );
        assert_eq!(sniff(scratch.file(&kl_py())).unwrap(), ReferenceKind::KlPy);
        assert_eq!(
            sniff(scratch.file(b"_logits_")).unwrap(),
            ReferenceKind::LlamaCpp
        );
        for (bytes, what) in [
            (&b""[..], "empty"),
            (b"GGUF\x03\0\0\0", "evaluates it with -m"),
            (b"kl_sidecar_v1\n{}", "sidecar"),
            (b"\x1f\x8b\x08", "gzip, but"),
            (b"_logits", "no reference"),
            (b"\x40\0\0\0\0\0\0\0{\"a\":", "the folder that holds"),
        ] {
            let error = sniff(scratch.file(bytes)).unwrap_err();
            assert!(matches!(error, Error::NotAReference { .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
        assert!(matches!(
            sniff(Path::new("/no/such/file")),
            Err(Error::Io { .. })
        ));
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let save_first = "a reference must be a regular file: save it first";
        for (path, what) in [
            (pipe.as_path(), save_first), // and opening it would wait for ever
            (Path::new("/dev/null"), save_first),
            (folder.path(), "is a folder without safetensors files"),
        ] {
            let errors = [sniff(path).err(), Reference::open(path).err()];
            for error in errors.into_iter().flatten() {
                assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                let start = format!("{}: {what}", path.display());
                assert!(error.to_string().starts_with(&start), "{error}");
            }
            assert!(Reference::open(path).is_err());
            assert!(!sidecar::is_sidecar(path));
        }
    }

    #[test]
    fn what_is_known_is_told() {
        let scratch = Scratch::new();
        let reference = Reference::open(scratch.file(&native())).unwrap();
        assert_eq!(
            (reference.kind(), reference.n_ctx()),
            (ReferenceKind::Native, 8)
        );
        assert_eq!(
            (reference.n_windows(), reference.n_rows()),
            (Some(0), Some(0))
        );
        let reference = Reference::open(scratch.file(&kl_py())).unwrap();
        assert_eq!(
            (reference.kind(), reference.n_vocab()),
            (ReferenceKind::KlPy, 5)
        );
        assert_eq!((reference.n_windows(), reference.n_rows()), (None, None));
        let reference = Reference::open(scratch.file(&llama_cpp())).unwrap();
        assert_eq!(
            (reference.kind(), reference.n_ctx(), reference.n_vocab()),
            (ReferenceKind::LlamaCpp, 1, 5)
        );
        assert_eq!(
            (reference.n_windows(), reference.n_rows()),
            (Some(2), Some(0))
        );
        let error = Reference::open(scratch.file(b"_logits_")).unwrap_err();
        assert!(matches!(error, Error::Truncated { .. }), "{error}");
    }
}
