//! The kinds of files, and the bytes that they start with.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The first line of `kl`'s own reference, unpacked.
pub const NATIVE: &str = "llama_kl_divergence_v2\n";

/// The first line of kl.py's reference, unpacked.
pub const KL_PY: &str = "llama_kl_divergence_v1\n";

/// The first bytes of llama.cpp's base file.
pub const LLAMA_CPP: [u8; 8] = *b"_logits_";

/// The first bytes of beellama.cpp's file.
pub const LOGITS2: [u8; 8] = *b"_logits2";

/// The first bytes of an npz: a zip's first member.
pub const NPZ: [u8; 4] = *b"PK\x03\x04";

/// The first line of a sidecar.
pub const SIDECAR: &str = "kl_sidecar_v1\n";

/// The first bytes of a map.
pub const MAP: &str = "{\"kl_map\":";

/// A kind of reference. Headers and JSON state it by its name.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `kl`'s own file: [`crate::native`].
    #[serde(rename = "kl")]
    Kl,
    /// kl.py's file: [`crate::klpy`].
    #[serde(rename = "kl.py")]
    KlPy,
    /// llama.cpp's base file: [`crate::llamacpp`].
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// A folder of `safetensors` files: [`crate::safetensors`].
    #[serde(rename = "safetensors")]
    Safetensors,
    /// An npz: [`crate::npz`].
    #[serde(rename = "npz")]
    Npz,
    /// No file: a model computes the rows.
    #[serde(rename = "model")]
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

    /// The checks that a file of this kind allows.
    pub const fn checks(self) -> Checks {
        match self {
            Kind::Kl => Checks::Checksums,
            Kind::KlPy => Checks::Gzip,
            Kind::LlamaCpp => Checks::LengthAndTokens,
            Kind::Safetensors => Checks::Lengths,
            Kind::Npz => Checks::Zip,
            Kind::Model => Checks::Nothing,
        }
    }
}

/// The checks that a kind of file allows.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Checks {
    /// A checksum over every byte.
    Checksums,
    /// gzip's own checksums, and the counts.
    Gzip,
    /// zip's own checksums of the arrays of rows, and the counts.
    Zip,
    /// The lengths of the files and their tokens: a changed logit goes unnoticed.
    Lengths,
    /// The file's length and its tokens, and that rows are distributions: a changed logit goes
    /// unnoticed.
    LengthAndTokens,
    /// Nothing: the rows are computed, not stored.
    Nothing,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The kind that a file seems to be, where another was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
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
    /// Zeros: space that a download has taken in advance.
    Zeros,
    /// An importance matrix of llama-imatrix, in the format from before GGUF.
    Imatrix,
    /// Parquet.
    Parquet,
    /// PDF.
    Pdf,
    /// Another text.
    Text,
    /// Something else, in words.
    Other(&'static str),
}

impl Found {
    /// None of these.
    pub const UNKNOWN: Self = Self::Other("its first bytes are of no kind that is known");
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
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
            Self::Zeros => "it begins with zeros, as a download does that has not finished",
            Self::Imatrix => "it is an importance matrix",
            Self::Parquet => "it is Parquet",
            Self::Pdf => "it is a PDF",
            Self::Text => "it is a text",
            Self::Other(what) => what,
        })
    }
}
