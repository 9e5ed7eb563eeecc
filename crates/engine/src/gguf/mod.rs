//! Reads a model's header without llama.cpp, in bounded memory, and returns a clear error where
//! llama.cpp would abort, or load for minutes before it fails.
//!
//! The layout is that of ggml's `docs/gguf.md`: magic, version, counts, key-value pairs, tensor
//! infos, padding to the alignment, tensor data. Versions 2 and 3 are read, little-endian.
//!
//! A fuzz target includes this module alone, so nothing in it refers to the rest of the crate.
#![forbid(unsafe_code)]
// No file can make the reader panic.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

#[cfg(test)]
#[path = "../../../../formats/src/testing/change.rs"]
pub(crate) mod change;
mod faults;
mod foreign_types;
mod header;
mod pieces;
mod purpose;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use kl_formats::{Found, GgmlType, Kind, ModelIdentity, TokenizerIdentity, hex};
use kl_system::shell;
use sha2::{Digest, Sha256};

pub use faults::FileFault;
pub use header::{Cursor, open};
pub use pieces::Piece;
pub use purpose::NotAModel;

/// The contents of the header of a model's file; of a split model, those of all its files.
#[derive(Debug, Default)]
pub struct Gguf {
    /// Its files, the first part first.
    pub files: Vec<PathBuf>,
    /// Bytes of the files.
    pub file_bytes: u64,
    /// The tokenizer, if the file has a tokenizer model and a list of tokens.
    pub tokenizer: Option<TokenizerIdentity>,
    /// The number of tokens at the vocabulary's end that are marked unused: they pad it to a round size.
    pub n_padding: u32,
    /// The tensors of all files.
    pub tensors: Vec<Tensor>,
    /// SHA-256 (hex) of the first file's bytes up to the end of the tensor infos: all keys and
    /// values, and the names, shapes, types and offsets of its tensors, but not their data.
    pub metadata_sha256: String,
    /// SHA-256 (hex) of 64 samples of 4 KiB spread over the file, which tells apart models with the
    /// same header; of a split model, of the parts' own hashes (hex), one after the other.
    pub sample_sha256: String,
    /// The names of the texts that an importance matrix was made of.
    pub datasets: Vec<String>,
    /// The first file's values by their keys, and the bytes of both.
    pairs: HashMap<String, (Value, u64)>,
}

/// A key's value.
#[derive(Debug)]
enum Value {
    /// An integer, or a bool as 0 or 1.
    Number(i128),
    Float(f64),
    Text(String),
    /// The SHA-256 (hex) of a list's elements; empty for a string that is too long to keep.
    Other(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            // Most are f32, which is shown with the digits that it has.
            Self::Float(number) => write!(f, "{}", *number as f32),
            Self::Text(text) => write!(f, "{} bytes {text:?}", text.len()),
            Self::Other(sha256) => write!(f, "list {sha256:.16}"),
        }
    }
}

/// A tensor's description, and where its data lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// Elements in each dimension, the innermost first.
    pub shape: Vec<u64>,
    pub kind: GgmlType,
    /// Index of the file that holds it.
    file: usize,
    /// First byte of its data in the file.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

/// Reads a model's header, and checks that its tensors lie within the file. Given the first part of a
/// split model, it reads the headers of all parts.
///
/// # Errors
/// A file that cannot be read, or is not a whole GGUF of a version that is known; a part that is not the
/// first, or does not have the name that llama.cpp looks for.
pub fn read(path: &Path) -> Result<Gguf> {
    let mut model = header::read(path).map_err(|error| match Piece::of(path) {
        Some(piece) if path.is_file() => ModelError::new(path, piece.advice()),
        _ => error,
    })?;
    let split = |key: &str| model.number(key).and_then(|n| u16::try_from(n).ok());
    let count = match split("split.no").zip(split("split.count")) {
        Some((0, count @ 2..)) => count,
        Some((part @ 1.., parts)) => {
            let part = part.saturating_add(1);
            let what = format!(
                "part {part} of {parts} of a split model: give the first part; llama.cpp finds the others beside it"
            );
            return Err(ModelError::new(path, what));
        }
        _ => return Ok(model),
    };
    let mut hash = Sha256::new_with_prefix(&model.sample_sha256);
    for number in 2..=count {
        let part_path = part_path(path, number, count)?;
        if let Ok(false) = part_path.try_exists() {
            let what = format!(
                "is missing: the model is split into {count} files, which must lie in one folder"
            );
            return Err(ModelError::new(&part_path, what));
        }
        let part = header::read(&part_path)?;
        let file = model.files.len();
        let tensors = part.tensors.into_iter();
        model
            .tensors
            .extend(tensors.map(|tensor| Tensor { file, ..tensor }));
        model.files.push(part_path);
        model.file_bytes = model.file_bytes.saturating_add(part.file_bytes);
        hash.update(&part.sample_sha256);
    }
    model.sample_sha256 = hex(&hash.finalize());
    Ok(model)
}

/// The path of a part, counted from 1, in the folder of the first one: `llama_split_path` in
/// llama.cpp's `llama.cpp`.
fn part_path(first: &Path, number: u16, count: u16) -> Result<PathBuf> {
    let name = first.file_name().and_then(|name| name.to_str());
    let stem = name.and_then(|name| name.strip_suffix(&format!("-00001-of-{count:05}.gguf")));
    let prefix = stem.ok_or_else(|| {
        let what = format!(
            "the first of {count} parts, whose name does not end in -00001-of-{count:05}.gguf: give it the name that llama.cpp looks for"
        );
        ModelError::new(first, what)
    })?;
    Ok(first.with_file_name(format!("{prefix}-{number:05}-of-{count:05}.gguf")))
}

impl Gguf {
    /// The file, of a split model the first.
    pub fn path(&self) -> &Path {
        self.files.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Identifies the model by what its header records.
    pub fn identity(&self) -> ModelIdentity {
        let path = self.path();
        let file_name = path.file_name().unwrap_or(path.as_os_str());
        let mut identity = ModelIdentity::named(file_name.to_string_lossy());
        identity.name = self.text("general.name").map(str::to_owned);
        identity.architecture = self.architecture().map(str::to_owned);
        identity.file_bytes = Some(self.file_bytes);
        identity.metadata_sha256 = Some(self.metadata_sha256.clone());
        identity.sample_sha256 = Some(self.sample_sha256.clone());
        let context_length = self.architecture_number("context_length");
        identity.context_length = context_length.and_then(|n| u64::try_from(n).ok());
        identity
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> Option<&str> {
        self.text("general.architecture")
    }

    /// The string of a key, unless it was too long to keep.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.pairs.get(key)? {
            (Value::Text(text), _) => Some(text),
            _ => None,
        }
    }

    /// The integer of a key, or its bool as 0 or 1.
    pub fn number(&self, key: &str) -> Option<i128> {
        match self.pairs.get(key)? {
            (Value::Number(number), _) => Some(*number),
            _ => None,
        }
    }

    /// The sampling that the file asks for: what follows `general.sampling.` in the keys, with the values.
    pub fn sampling(&self) -> BTreeMap<String, String> {
        let pairs = self.pairs.iter();
        let asked = pairs.filter_map(|(key, (value, _))| {
            let name = key.strip_prefix("general.sampling.")?;
            let value = match value {
                Value::Text(text) => text.clone(),
                other => other.to_string(),
            };
            Some((name.to_owned(), value))
        });
        asked.collect()
    }

    /// The keys of the first file, and the bytes of each with its value.
    pub fn pair_bytes(&self) -> impl Iterator<Item = (&str, u64)> {
        let pairs = self.pairs.iter();
        pairs.map(|(key, (_, bytes))| (key.as_str(), *bytes))
    }

    /// The facts besides the weights that decide the model's output, by name: the shapes of its tensors, and
    /// the values of the keys of its architecture and its tokenizer.
    fn decisive(&self) -> BTreeMap<&str, String> {
        let prefix_of_architecture = format!("{}.", self.architecture().unwrap_or_default());
        let prefixes = [
            "tokenizer.",
            "general.architecture",
            &prefix_of_architecture,
        ];
        let tensors = self.tensors.iter();
        let shapes = tensors.map(|tensor| (&*tensor.name, format!("shape {:?}", tensor.shape)));
        let pairs = self.pairs.iter();
        let values = pairs.map(|(key, (value, _))| (&**key, value.to_string()));
        let kept = values.filter(|(key, _)| prefixes.iter().any(|prefix| key.starts_with(prefix)));
        shapes.chain(kept).collect()
    }

    /// The tensors and the keys that are not the original's, each with what is there: the quantizer would have
    /// copied them.
    pub fn changes(&self, original: &Self) -> BTreeMap<String, String> {
        let (own, other) = (self.decisive(), original.decisive());
        let changed = own.keys().chain(other.keys()).filter_map(|name| {
            let [own, other] =
                [&own, &other].map(|of| of.get(name).map_or("nothing", String::as_str));
            let what = format!("{own:.60}, but in the original {other:.60}");
            (own != other).then(|| ((*name).to_owned(), what))
        });
        changed.collect()
    }

    /// The [`number`](Self::number) of the key `<architecture>.<name>`.
    pub fn architecture_number(&self, name: &str) -> Option<i128> {
        self.number(&format!("{}.{name}", self.architecture()?))
    }

    /// True if its layers send each token to a few of many experts.
    pub fn has_experts(&self) -> bool {
        matches!(self.architecture_number("expert_count"), Some(1..))
    }

    /// `general.file_type` (`llama_ftype` in `llama.h`), by llama-quantize's name if that is known here,
    /// else as a number.
    pub fn file_type(&self) -> Option<String> {
        /// Added to a type that was guessed (`LLAMA_FTYPE_GUESSED`).
        const GUESSED: i128 = 1024;
        let number = self.number("general.file_type")?;
        let known = file_kinds().find(|kind| i128::from(kind.id) == number % GUESSED);
        Some(known.map_or_else(|| number.to_string(), |kind| kind.name.to_owned()))
    }

    /// `tokenizer.ggml.pre`, which names the rule by which a text is split before pieces are merged.
    pub fn pre_tokenizer(&self) -> Option<&str> {
        let name = self.text("tokenizer.ggml.pre");
        name.filter(|name| !name.is_empty())
    }

    /// True if the tokenizer is a BPE and names no pre-tokenizer: llama.cpp then splits
    /// texts in a way that may not be the model's (`llama_vocab::impl::load` in `llama-vocab.cpp`).
    pub fn lacks_pre_tokenizer(&self) -> bool {
        self.is_bpe() && self.pre_tokenizer().is_none()
    }

    /// True if the tokenizer is a BPE that names its pre-tokenizer; Gemma 4's has its own.
    pub fn is_bpe(&self) -> bool {
        const BPE: [&str; 3] = ["gpt2", "hybriddna", "whitespace"];
        let model = self.text("tokenizer.ggml.model");
        model.is_some_and(|model| BPE.contains(&model))
    }

    /// Returns the number of positions that have a learned vector, in gpt2, starcoder and some mpt
    /// models; `None` where positions are computed. llama.cpp aborts on a token beyond the last
    /// one.
    pub fn n_positions(&self) -> Option<u64> {
        self.tensor("position_embd.weight")?.shape.get(1).copied()
    }

    /// The factors of LongRoPE: of each rotation, one for short contexts and one for long ones. llama.cpp uses
    /// the long ones where the context of a sequence, a multiple of 256 tokens, is longer than this
    /// (`llama_model::get_rope_factors` in `llama-model.cpp`). `None` without such factors.
    pub fn long_rope_above(&self) -> Option<u32> {
        let is_long = |tensor: &Tensor| tensor.name.ends_with("rope_factors_long.weight");
        if !self.tensors.iter().any(is_long) {
            return None;
        }
        let stated = self.architecture_number("rope.scaling.original_context_length");
        let n_ctx = stated.or_else(|| self.architecture_number("context_length"))?;
        u32::try_from(n_ctx).ok()
    }

    /// Finds a tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Opens the file that holds a tensor, to read the tensor's bytes: the first one is at 0.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn open(&self, tensor: &Tensor) -> Result<impl Read + Seek + use<>> {
        let path = self.files.get(tensor.file).map_or(self.path(), |path| path);
        let (mut file, _) = open(path)?;
        file.seek(SeekFrom::Start(tensor.offset))
            .map_err(|cause| ModelError::io(path, "read", &cause))?;
        Ok(file.take(tensor.bytes))
    }

    /// Reads all bytes of a tensor.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read_tensor(&self, tensor: &Tensor) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.open(tensor)?.read_to_end(&mut bytes);
        read.map_err(|cause| ModelError::io(self.path(), "read", &cause))?;
        Ok(bytes)
    }
}

impl Tensor {
    /// The number of its elements.
    pub fn n_params(&self) -> u64 {
        // The header's reader has refused a product past 2^64.
        self.shape.iter().product()
    }
}

/// Hashes all bytes of a file from where it stands: SHA-256 (hex).
///
/// # Errors
/// A file that cannot be read.
pub fn sha256_of(file: impl Read) -> io::Result<String> {
    let mut hash = Sha256::new();
    add_to_hash(&mut hash, file)?;
    Ok(hex(&hash.finalize()))
}

fn add_to_hash(hash: &mut Sha256, mut file: impl Read) -> io::Result<()> {
    let mut piece = Vec::new();
    while (&mut file).take(1 << 20).read_to_end(&mut piece)? > 0 {
        hash.update(&piece);
        piece.clear();
    }
    Ok(())
}

/// The number of samples that are hashed: hashing the whole file would take minutes.
const SAMPLES: u64 = 64;

/// Bytes of each sample.
const SAMPLE_BYTES: u64 = 4096;

/// SHA-256 (hex) of 64 samples of 4 KiB, evenly spaced from the file's first byte to its last; of
/// the whole file, if it is not longer than that.
///
/// # Errors
/// A file that cannot be read.
fn sample_sha256(path: &Path, file_bytes: u64) -> Result<String> {
    let (mut file, _) = open(path)?;
    let (mut n, mut bytes) = (SAMPLES, SAMPLE_BYTES);
    if file_bytes <= n * bytes {
        (n, bytes) = (1, file_bytes);
    }
    let mut hash = Sha256::new();
    for i in 0..n {
        // No overflow: no file has 2^58 bytes.
        let start = file_bytes.saturating_sub(bytes).saturating_mul(i) / (SAMPLES - 1);
        file.seek(SeekFrom::Start(start))
            .and_then(|_| add_to_hash(&mut hash, (&mut file).take(bytes)))
            .map_err(|cause| ModelError::io(path, "read", &cause))?;
    }
    Ok(hex(&hash.finalize()))
}

/// Why a model, or its file, cannot be used: one line that states what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct ModelError {
    /// The model's file.
    pub path: PathBuf,
    /// The fault, and the remedy.
    pub what: String,
}

impl ModelError {
    /// The error for the model in this file.
    pub fn new(path: &Path, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            what: what.into(),
        }
    }

    /// The error for a file that the system refuses to open or read, with the system's own words.
    fn io(path: &Path, verb: &str, cause: &io::Error) -> Self {
        Self::new(path, format!("cannot {verb}: {cause}"))
    }
}

/// A result of reading a model's header.
type Result<T> = std::result::Result<T, ModelError>;

/// Names the contents of a file that does not begin as a GGUF, and states what to do.
fn instead_of_gguf(path: &Path) -> String {
    let found = Found::look(path);
    let what = match found {
        Found::Gzip => "it is gzip".to_owned(),
        Found::SafetensorsFile => "it is a safetensors file".to_owned(),
        Found::Unpacked => "it is a reference that was unpacked".to_owned(),
        _ => found.to_string(),
    };
    let advice = match found {
        Found::Sidecar => &format!("kl report {} shows it", shell::file(path)),
        Found::Reference(Kind::Npz) => "kl compare compares it with another",
        Found::Reference(_) | Found::Unpacked => "give it to -r, and a model to -m",
        Found::Gzip | Found::Packed(_) => "unpack it",
        Found::Zip | Found::SafetensorsFile => "make a GGUF with llama.cpp's convert_hf_to_gguf.py",
        Found::OldModel => "convert the original model again, or download it as GGUF",
        Found::LfsPointer => "run 'git lfs pull' there",
        Found::WebPage | Found::Zeros => "download the model again",
        Found::Imatrix => "give the model that it was computed with",
        Found::Text => "give a model in GGUF format (a text goes to -t)",
        _ => "give a model in GGUF format",
    };
    format!("not a GGUF model: {what}; {advice}")
}

/// The kinds of files that llama-quantize writes: the number that a file states as `general.file_type`
/// (`llama_ftype`), llama-quantize's name, and the type of tensors for which it is the file's kind, if most
/// parameters have that type. With Q2_K_S llama-quantize would ask for an importance matrix.
const FILE_KINDS: &str = "
    0 F32, 1 F16, 2 Q4_0 q4_0, 3 Q4_1 q4_1, 7 Q8_0 q8_0, 8 Q5_0 q5_0, 9 Q5_1 q5_1, 10 Q2_K q2_K,
    11 Q3_K_S, 12 Q3_K_M q3_K, 13 Q3_K_L, 14 Q4_K_S, 15 Q4_K_M q4_K, 16 Q5_K_S, 17 Q5_K_M q5_K,
    18 Q6_K q6_K, 19 IQ2_XXS iq2_xxs, 20 IQ2_XS iq2_xs, 21 Q2_K_S, 22 IQ3_XS, 23 IQ3_XXS iq3_xxs,
    24 IQ1_S iq1_s, 25 IQ4_NL iq4_nl, 26 IQ3_S iq3_s, 27 IQ3_M, 28 IQ2_S, 29 IQ2_M iq2_s,
    30 IQ4_XS iq4_xs, 31 IQ1_M iq1_m, 32 BF16, 36 TQ1_0 tq1_0, 37 TQ2_0 tq2_0, 38 MXFP4_MOE mxfp4,
    39 NVFP4, 40 Q1_0 q1_0, 41 Q2_0 q2_0";

/// A kind of file that llama-quantize writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileKind {
    /// Its number, `llama_ftype`.
    pub id: u32,
    /// llama-quantize's name for it, such as `Q4_K_M`.
    pub name: &'static str,
    /// The type of most of its parameters; empty where that does not decide it.
    pub main_type: &'static str,
}

impl FileKind {
    /// The kind of a file of `q8_0`.
    pub const Q8_0: Self = Self {
        id: 7,
        name: "Q8_0",
        main_type: "q8_0",
    };
}

/// The kinds of files that llama-quantize writes.
pub fn file_kinds() -> impl Iterator<Item = FileKind> {
    FILE_KINDS.split(',').filter_map(|kind| {
        let mut words = kind.split_whitespace();
        Some(FileKind {
            id: words.next()?.parse().ok()?,
            name: words.next()?,
            main_type: words.next().unwrap_or_default(),
        })
    })
}
