//! What a model file says of itself, read without llama.cpp: a bounded look that ends in a clear
//! error where llama.cpp would abort, or load for minutes before it failed.
//!
//! The layout is that of ggml's `docs/gguf.md`: magic, version, counts, key-value pairs, tensor
//! infos, padding to the alignment, tensor data. Versions 2 and 3 are read, little-endian.

mod cursor;
mod limits;
mod metadata;
mod sample;
mod tensors;

#[cfg(test)]
mod tests;

use std::path::Path;

use crate::TokenizerIdentity;
use crate::error::{Named, Result};
use cursor::Cursor;

/// The file's first bytes.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// What is known of a model file from its header alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufSummary {
    /// GGUF version: 2 or 3.
    pub version: u32,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `general.name`.
    pub name: Option<String>,
    /// `<architecture>.attention.causal`: false for an encoder, which has no next token.
    pub causal_attention: Option<bool>,
    /// `<architecture>.pooling_type`: present in embedding models.
    pub pooling_type: Option<u32>,
    /// `<architecture>.context_length`: tokens the model was trained for.
    pub context_length: Option<u64>,
    /// The tokenizer, if the file holds one with a model's name and a list of tokens. Of a split
    /// model, the first part alone holds it: see [`GgufSummary::split`].
    pub tokenizer: Option<TokenizerIdentity>,
    /// Tokens at the vocabulary's end whose type says that no text uses them: they fill it up to
    /// a round size.
    pub n_padding: u32,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// Tensors in this file.
    pub n_tensors: u64,
    /// Elements of all tensors in this file.
    pub n_params: u64,
    /// `split.no` (from 0) and `split.count`, for a part of a split model. Parts after the first
    /// have little but these two keys and their tensors.
    pub split: Option<(u16, u16)>,
    /// SHA-256 (hex) of the file's bytes up to the end of the tensor infos: names, shapes, types
    /// and places of all tensors and every key, but not the tensors' data.
    pub metadata_sha256: String,
    /// Whether a `tokenizer.chat_template` is there.
    pub chat_template: bool,
    /// SHA-256 (hex) of 64 samples of 4 KiB spread over the file, which tells apart models whose
    /// headers are equal.
    pub sample_sha256: String,
}

/// Reads a model's header, and checks that its tensors lie within the file.
///
/// # Errors
/// [`crate::Error::NotAModel`], [`crate::Error::Unsupported`] for a version or a byte order that
/// is not read and for what is no regular file, [`crate::Error::Truncated`] where a tensor or the header reaches past the file's
/// end, [`crate::Error::Corrupt`], [`crate::Error::Io`].
pub fn read(path: &Path) -> Result<GgufSummary> {
    let name = Named::new(path);
    let (file, file_bytes) = crate::source::open(&name, "a model")?;
    let mut cursor = Cursor::new(file, file_bytes, name);
    let version = read_start(&mut cursor)?;
    let n_tensors = cursor.count("tensors", tensors::MIN_INFO_BYTES)?;
    let n_pairs = cursor.count("key-value pairs", metadata::MIN_PAIR_BYTES)?;
    let found = metadata::read(&mut cursor, n_pairs)?;
    if let Some(fault) = limits::fault(&found) {
        return Err(cursor.corrupt(fault));
    }
    let n_params = tensors::check(&mut cursor, n_tensors, found.alignment)?;
    let own = |what: &str| {
        found
            .architecture
            .as_ref()
            .map(|name| format!("{name}.{what}"))
    };
    let numbers = &found.numbers;
    let number = |key: Option<String>| key.and_then(|key| numbers.get(&key).copied());
    let split = |key: &str| numbers.get(key).and_then(|&n| u16::try_from(n).ok());
    Ok(GgufSummary {
        version,
        file_bytes,
        causal_attention: number(own("attention.causal")).map(|n| n != 0),
        pooling_type: number(own("pooling_type")).and_then(|n| n.try_into().ok()),
        context_length: number(own("context_length")).and_then(|n| n.try_into().ok()),
        tokenizer: found
            .tokenizer_model
            .zip(found.tokens)
            .map(|(model, tokens)| TokenizerIdentity {
                model,
                n_tokens: tokens.n_tokens,
                sha256: tokens.sha256,
            }),
        n_padding: found.types.n_padding,
        add_bos: numbers.get("tokenizer.ggml.add_bos_token").map(|&n| n != 0),
        n_tensors,
        n_params,
        split: split("split.no").zip(split("split.count")),
        metadata_sha256: cursor.sha256(),
        sample_sha256: sample::sha256(path, file_bytes)?,
        chat_template: found.chat_template,
        architecture: found.architecture,
        name: found.name,
    })
}

/// Magic and version.
fn read_start(cursor: &mut Cursor) -> Result<u32> {
    let len = cursor.left();
    if len < 4 {
        return Err(cursor.name.not_a_model(format!("it has {len} bytes")));
    }
    if cursor.array::<4>()? != MAGIC {
        return Err(cursor.name.not_a_model("its first bytes are not GGUF"));
    }
    match cursor.u32()? {
        version @ (2 | 3) => Ok(version),
        1 => Err(cursor
            .name
            .unsupported("GGUF version 1 is no longer read: convert it anew")),
        version if (1..=0xffff).contains(&version.swap_bytes()) => Err(cursor
            .name
            .unsupported("a big-endian GGUF: convert it to little-endian")),
        version => Err(cursor
            .name
            .unsupported(format!("GGUF version {version}: this kl reads 2 and 3"))),
    }
}
