//! The kind of a file, by its first bytes, where another kind was expected: for error messages.

use std::fmt;
use std::path::Path;

use crate::error::Named;
use crate::gzip::GZIP_MAGIC;
use crate::reference::kind::FirstBytes;
use crate::{Kind, klpy, map, native, sidecar};

/// The kind that a file seems to be, where another was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// No bytes at all.
    Empty,
    /// A GGUF.
    Model,
    /// The result of an evaluation.
    Sidecar,
    /// A map of sensitivity.
    Map,
    /// A reference of this kind.
    Reference(Kind),
    /// A reference of kl or kl.py that was decompressed.
    Unpacked,
    /// Gzip with other contents.
    Gzip,
    /// Compressed by the named program.
    Packed(&'static str),
    /// A zip file, as PyTorch's models are, without numpy arrays.
    Zip,
    /// A single file of `safetensors`.
    SafetensorsFile,
    /// A model in one of the formats that GGUF replaced.
    OldModel,
    /// A pointer of Git LFS, which stands for another file.
    LfsPointer,
    /// HTML.
    WebPage,
    /// An importance matrix of llama-imatrix, in the format from before GGUF.
    Imatrix,
    /// Parquet.
    Parquet,
    /// PDF.
    Pdf,
    /// JSON.
    Json,
    /// Another text.
    Text,
    /// None of these.
    Unknown,
    /// Something else, in words.
    Other(String),
}

/// The first bytes of files that are not references.
static MAGICS: [(&[u8], Found); 13] = [
    (b"GGUF", Found::Model),
    (sidecar::MAGIC_LINE.as_bytes(), Found::Sidecar),
    (map::MAGIC.as_bytes(), Found::Map),
    (native::MAGIC_LINE.as_bytes(), Found::Unpacked),
    (klpy::MAGIC_LINE.as_bytes(), Found::Unpacked),
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
        let start = FirstBytes::read(&Named::new(path));
        start.map_or(Self::Unknown, |start| Self::of(&start))
    }

    /// Recognises a file by its first bytes.
    pub(crate) fn of(start: &FirstBytes) -> Self {
        let raw = start.raw.as_slice();
        match Kind::of(start) {
            Some(Kind::Npz) if !is_npz(raw) => return Self::Zip,
            Some(kind) => return Self::Reference(kind),
            None => {}
        }
        let magic = MAGICS.iter().find(|(magic, _)| raw.starts_with(magic));
        // In an old imatrix, the number of entries and the length of a name precede the first name.
        let name = raw.get(8..).unwrap_or_default();
        match magic {
            Some((_, found)) => found.clone(),
            None if raw.is_empty() => Self::Empty,
            None if raw.starts_with(&GZIP_MAGIC) => Self::Gzip,
            None if name.starts_with(b"blk.") || name.starts_with(b"output.weight") => {
                Self::Imatrix
            }
            None => of_text(raw),
        }
    }
}

/// Returns true if the first file in a zip file is a numpy array.
fn is_npz(raw: &[u8]) -> bool {
    /// Where a local file header states the length of its name, and where the name begins.
    const NAME: (usize, usize) = (26, 30);
    let length = raw.get(NAME.0..).and_then(|rest| rest.first_chunk());
    let length = length.map_or(0, |n| u16::from_le_bytes(*n).into());
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
        Found::Unknown
    } else if text.starts_with(['{', '[']) {
        Found::Json
    } else {
        Found::Text
    }
}

/// Returns true if these are the first bytes of UTF-8, whose last character may be cut off.
fn is_utf8(raw: &[u8]) -> bool {
    let error = std::str::from_utf8(raw).err();
    error.is_none_or(|error| error.error_len().is_none())
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::Model => "it is a model, not what a model computed",
            Self::Sidecar => "it is a sidecar, the result of an evaluation",
            Self::Map => "it is a map of sensitivity, which kl recipe reads",
            Self::Reference(Kind::LlamaCpp) => "it is a base file of llama-perplexity",
            Self::Reference(kind) => return write!(f, "it is a reference ({kind})"),
            Self::Unpacked => "it is a reference that was unpacked; use it as it was written",
            Self::Gzip => "it is gzip, but its contents do not start like a reference",
            Self::Packed(program) => return write!(f, "it is packed by {program}"),
            Self::Zip => "it is a zip file",
            Self::SafetensorsFile => {
                "it seems to be a safetensors file (give the folder that holds 0.safetensors and so on)"
            }
            Self::OldModel => "it is a model, in a format from before GGUF",
            Self::LfsPointer => "it is a pointer of Git LFS, which stands for the file",
            Self::WebPage => "it is a web page, perhaps an error page saved by a download",
            Self::Imatrix => "it is an importance matrix",
            Self::Parquet => "it is Parquet",
            Self::Pdf => "it is a PDF",
            Self::Json => "it is JSON",
            Self::Text => "it is a text",
            Self::Unknown => "its first bytes are of no kind that is known",
            Self::Other(what) => what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn files_are_known_by_their_first_bytes() {
        let scratch = Scratch::new();
        let npz = |name: &str| {
            let length = [name.len() as u8, 0];
            [
                b"PK\x03\x04".as_slice(),
                &[0; 22],
                &length,
                &[0; 2],
                name.as_bytes(),
            ]
            .concat()
        };
        for (bytes, what) in [
            (b"".to_vec(), Found::Empty),
            (b"GGUF\x03\0\0\0".to_vec(), Found::Model),
            (b"kl_sidecar_v1\n{}".to_vec(), Found::Sidecar),
            (b"{\"kl_map\":1,\"model\":{}}".to_vec(), Found::Map),
            (b"_logits_\0\x02".to_vec(), Found::Reference(Kind::LlamaCpp)),
            (npz("logits_0.npy"), Found::Reference(Kind::Npz)),
            (npz("archive/data.pkl"), Found::Zip),
            (npz(""), Found::Zip),
            (b"llama_kl_divergence_v2\n{".to_vec(), Found::Unpacked),
            (b"\x1f\x8b\x08".to_vec(), Found::Gzip),
            (b"\x28\xb5\x2f\xfd\x04".to_vec(), Found::Packed("zstd")),
            (b"tjgg\x03\0\0\0".to_vec(), Found::OldModel),
            (b"PAR1\x15\x04".to_vec(), Found::Parquet),
            (b"%PDF-1.7".to_vec(), Found::Pdf),
            (
                b"\x40\0\0\0\0\0\0\0{\"a\":".to_vec(),
                Found::SafetensorsFile,
            ),
            (b"\x03\0\0\0\x13\0\0\0blk.0.attn_q".to_vec(), Found::Imatrix),
            (
                b"version https://git-lfs.github.com/".to_vec(),
                Found::LfsPointer,
            ),
            (b"\n  <html lang=\"en\">".to_vec(), Found::WebPage),
            (b"<!DOCTYPE html>\n\xe9".to_vec(), Found::WebPage),
            (b"{\"error\":\"Invalid\"}".to_vec(), Found::Json),
            (b"Entry {not found".to_vec(), Found::Text),
            ("\u{e9}".repeat(400).into_bytes(), Found::Text),
            (
                ("a".to_owned() + &"\u{e9}".repeat(400)).into_bytes(),
                Found::Text,
            ),
            (b"caf\xe9 au lait".to_vec(), Found::Unknown),
            (b"\x07\x07\x07\0\xff\xff".to_vec(), Found::Unknown),
        ] {
            assert_eq!(Found::look(scratch.file(&bytes)), what, "{bytes:?}");
        }
        assert_eq!(Found::look(Path::new("/no/such/file")), Found::Unknown);
    }
}
