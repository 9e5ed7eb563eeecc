//! A model's header, read without llama.cpp: a bounded look that ends in a clear error where
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

mod contents;
mod cursor;
mod error;
mod found;
mod limits;
mod metadata;
mod place;
mod sample;
mod split;
mod tensors;
mod values;
mod vocabulary;

#[cfg(test)]
mod tests;

use std::path::Path;

use kl_formats::{ModelIdentity, TokenizerIdentity};

use cursor::Cursor;
pub use error::GgufError;
use error::Result;

/// The file's first bytes.
const MAGIC: [u8; 4] = *b"GGUF";

/// What a model's header states, as far as `kl` needs it before llama.cpp loads the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufSummary {
    /// Bytes of the file; of a split model, of this part.
    pub file_bytes: u64,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `general.type`: `model`, or what the file holds instead, such as `adapter` or `mmproj`.
    pub kind: Option<String>,
    /// `general.name`.
    pub name: Option<String>,
    /// `<architecture>.attention.causal`: false for an encoder, which has no next token.
    pub causal_attention: Option<bool>,
    /// `<architecture>.pooling_type`: present in embedding models.
    pub pooling_type: Option<u32>,
    /// The tokenizer, if the file has a tokenizer model and a list of tokens. Of a split model,
    /// only the first part has them: see [`GgufSummary::split`].
    pub tokenizer: Option<TokenizerIdentity>,
    /// Whether the tokenizer is a BPE without `tokenizer.ggml.pre`, which says how a text is split
    /// before its pieces are merged: llama.cpp then splits it in a way that may not be the model's.
    pub lacks_pre_tokenizer: bool,
    /// How many positions have a learned vector (`position_embd.weight`); `None` where positions are
    /// computed. llama.cpp aborts on a token beyond the last one.
    pub n_positions: Option<u64>,
    /// Tokens at the vocabulary's end that are marked unused: they pad it to a round size.
    pub n_padding: u32,
    /// `split.no` (from 0) and `split.count` of a part of a split model. Parts after the first have
    /// few keys besides these two.
    pub split: Option<(u16, u16)>,
    /// Whether it holds tensors. The first part of a split model may have none.
    pub has_tensors: bool,
    /// SHA-256 (hex) of the file's bytes up to the end of the tensor infos: all keys and values,
    /// and the names, shapes, types and offsets of all tensors, but not their data.
    pub metadata_sha256: String,
    /// SHA-256 (hex) of 64 samples of 4 KiB spread over the file, which tells apart models with the
    /// same header.
    pub sample_sha256: String,
}

impl GgufSummary {
    /// The model in the file at `path`, as far as its header shows it.
    pub fn identity(&self, path: &Path) -> ModelIdentity {
        let file_name = path.file_name().unwrap_or(path.as_os_str());
        let mut identity = ModelIdentity::named(file_name.to_string_lossy());
        identity.name.clone_from(&self.name);
        identity.architecture.clone_from(&self.architecture);
        identity.file_bytes = Some(self.file_bytes);
        identity.metadata_sha256 = Some(self.metadata_sha256.clone());
        identity.sample_sha256 = Some(self.sample_sha256.clone());
        identity
    }
}

/// Reads a model's header, and checks that its tensors lie within the file.
///
/// # Errors
/// [`GgufError::NotGguf`]; [`GgufError::Unsupported`] for a version or a byte order that is not
/// read, a model without a tokenizer, and a path that is not a regular file;
/// [`GgufError::Truncated`] if the header or a tensor reaches past the file's end;
/// [`GgufError::Corrupt`]; [`GgufError::Io`].
pub fn read(path: &Path) -> Result<GgufSummary> {
    /// One row for each position, in gpt2, starcoder and some mpt models.
    const POSITIONS: &str = "position_embd.weight";
    let mut n_positions = None;
    let mut n_tensors = 0_u64;
    let (cursor, found, _) = read_header(path, |info| {
        n_tensors += 1;
        if info.name == POSITIONS {
            let row = info.shape.first().copied().unwrap_or(1);
            n_positions = info.elements.checked_div(row);
        }
    })?;
    let number = |key: &str| found.numbers.get(key).copied();
    let own = |what: &str| number(&format!("{}.{what}", found.architecture.as_deref()?));
    let split = |key: &str| number(key).and_then(|n| u16::try_from(n).ok());
    let lacks_pre_tokenizer = found.lacks_pre_tokenizer();
    Ok(GgufSummary {
        file_bytes: cursor.len,
        causal_attention: own("attention.causal").map(|n| n != 0),
        pooling_type: own("pooling_type").and_then(|n| n.try_into().ok()),
        tokenizer: found
            .tokenizer_model
            .zip(found.tokens)
            .map(|(model, tokens)| TokenizerIdentity {
                model,
                n_tokens: tokens.n_tokens,
                sha256: tokens.sha256,
            }),
        lacks_pre_tokenizer,
        n_positions,
        n_padding: found.types.n_padding,
        split: split("split.no").zip(split("split.count")),
        metadata_sha256: cursor.sha256(),
        sample_sha256: sample::sha256(path, cursor.len)?,
        architecture: found.architecture,
        name: found.name,
        kind: found.kind,
        has_tensors: n_tensors > 0,
    })
}

pub use contents::{GgufContents, contents};
pub use place::{TensorPlace, find_tensor};
pub use split::read_whole;

/// Reads everything before the tensors' data, and passes each tensor's info to `on_info`. Returns
/// the pairs, and where the data starts.
fn read_header(
    path: &Path,
    on_info: impl FnMut(&tensors::Info<'_>),
) -> Result<(Cursor, metadata::Metadata, u64)> {
    let mut cursor = Cursor::open(path)?;
    read_start(&mut cursor)?;
    let n_tensors = cursor.count("tensors", tensors::MIN_INFO_BYTES)?;
    let n_pairs = cursor.count("key-value pairs", metadata::MIN_PAIR_BYTES)?;
    let found = metadata::read(&mut cursor, n_pairs)?;
    if let Some(fault) = limits::fault(&found) {
        return Err(cursor.corrupt(fault));
    }
    let start = tensors::read(&mut cursor, n_tensors, found.alignment, on_info)?;
    Ok((cursor, found, start))
}

/// Reads magic and version.
fn read_start(cursor: &mut Cursor) -> Result<()> {
    let len = cursor.left();
    if len < 4 {
        return Err(cursor.not_gguf(format!("it has {len} bytes; give a model in GGUF format")));
    }
    if cursor.array::<4>()? != MAGIC {
        return Err(cursor.not_gguf(found::in_words(cursor.path())));
    }
    match cursor.u32()? {
        2 | 3 => Ok(()),
        1 => Err(cursor.unsupported("GGUF version 1 is no longer read: convert the model again")),
        version if (1..=0xffff).contains(&version.swap_bytes()) => {
            Err(cursor.unsupported("a big-endian GGUF: convert it to little-endian"))
        }
        version => Err(cursor.unsupported(format!(
            "GGUF version {version} is unknown, kl reads 2 and 3: use a newer kl"
        ))),
    }
}
