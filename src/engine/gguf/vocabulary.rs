//! The list of tokens and their types.

use std::hash::{DefaultHasher, Hasher};

use kl_formats::hex;
use sha2::{Digest, Sha256};

use super::cursor::Cursor;
use super::error::Result;
use super::values::{STRING, words};

/// `tokenizer.ggml.tokens`.
pub(super) struct Tokens {
    pub(super) n_tokens: u32,
    /// See [`kl_formats::TokenizerIdentity::sha256`].
    pub(super) sha256: String,
}

/// What matters of `tokenizer.ggml.token_type`.
#[derive(Default)]
pub(super) struct TokenTypes {
    /// Unused tokens at the vocabulary's end.
    pub(super) n_padding: u32,
    /// Whether any token stands for a byte.
    pub(super) has_bytes: bool,
}

/// Reads the tokens' types.
pub(super) fn types(cursor: &mut Cursor) -> Result<TokenTypes> {
    /// llama.cpp's `LLAMA_TOKEN_TYPE_UNUSED` and `LLAMA_TOKEN_TYPE_BYTE`.
    const UNUSED: u32 = 5;
    const BYTE: u32 = 6;
    let mut types = TokenTypes::default();
    words(cursor, |kind| {
        types.has_bytes |= kind == BYTE;
        types.n_padding = match kind {
            UNUSED => types.n_padding.saturating_add(1),
            _ => 0,
        };
    })?;
    Ok(types)
}

/// Reads the list of tokens. No two may have the same text: llama.cpp asserts it.
pub(super) fn tokens(cursor: &mut Cursor) -> Result<Tokens> {
    if cursor.u32()? != STRING {
        return Err(cursor.corrupt("tokenizer.ggml.tokens is not a list of strings"));
    }
    let n = cursor.count("tokens", 8)?;
    let n_tokens =
        u32::try_from(n).map_err(|_| cursor.corrupt(format!("a vocabulary of {n} tokens")))?;
    let mut hash = Sha256::new();
    let mut texts = Vec::new();
    for i in 0..n_tokens {
        let bytes = cursor.string_len()?;
        hash.update(bytes.to_le_bytes());
        let mut text = TokenText::default();
        cursor.skip(bytes, |bytes| {
            hash.update(bytes);
            text.extend(bytes);
        })?;
        texts.push((text.finish(i), i));
    }
    texts.sort_unstable();
    let mut neighbours = texts.iter().zip(texts.iter().skip(1));
    if let Some(((_, i), (_, j))) = neighbours.find(|((a, _), (b, _))| a == b) {
        return Err(cursor.corrupt(format!("the tokens {i} and {j} have the same text")));
    }
    Ok(Tokens {
        n_tokens,
        sha256: hex(&hash.finalize()),
    })
}

/// A hash of a token's text as llama.cpp sees it: up to its first NUL, or `[EMPTY_<id>]` if that
/// leaves nothing. It has 128 bits, so that two texts do not collide by chance.
#[derive(Default)]
struct TokenText {
    hash: DefaultHasher,
    has_bytes: bool,
    is_over: bool,
}

impl TokenText {
    fn extend(&mut self, bytes: &[u8]) {
        let end = bytes.iter().position(|&byte| byte == 0);
        let text = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        if !self.is_over {
            self.hash.write(text);
            self.has_bytes |= !text.is_empty();
        }
        self.is_over |= end.is_some();
    }

    fn finish(mut self, id: u32) -> [u64; 2] {
        if !self.has_bytes {
            self.hash.write(format!("[EMPTY_{id}]").as_bytes());
        }
        let first = self.hash.finish();
        self.hash.write_u8(0);
        [first, self.hash.finish()]
    }
}
