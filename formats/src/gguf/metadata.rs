//! The key-value pairs: the few that matter are kept, the rest passed over.

use std::collections::{HashMap, HashSet};

use sha2::{Digest, Sha256};

use super::cursor::Cursor;
use crate::error::Result;
use crate::hex;

/// Bytes of the shortest pair: a key's length, a type, a bool.
pub(super) const MIN_PAIR_BYTES: u64 = 8 + 4 + 1;

/// Longest key, as ggml's `docs/gguf.md` has it.
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Longest string that is kept.
const MAX_STRING_BYTES: u64 = 1 << 20;

/// Arrays within arrays; llama.cpp reads none.
const MAX_DEPTH: u32 = 4;

/// `general.alignment` where a file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Value types (ggml's `docs/gguf.md`).
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// What was kept.
#[derive(Default)]
pub(super) struct Metadata {
    pub(super) architecture: Option<String>,
    pub(super) name: Option<String>,
    pub(super) tokenizer_model: Option<String>,
    pub(super) tokens: Option<Tokens>,
    /// Tokens at the vocabulary's end that are there to fill it up.
    pub(super) n_padding: u32,
    pub(super) chat_template: bool,
    pub(super) alignment: u64,
    /// Integers and bools, of those keys that may be asked for.
    pub(super) numbers: HashMap<String, i128>,
}

/// The vocabulary.
pub(super) struct Tokens {
    pub(super) n_tokens: u32,
    pub(super) sha256: String,
}

/// Reads all pairs.
pub(super) fn read(cursor: &mut Cursor, n_pairs: u64) -> Result<Metadata> {
    let mut found = Metadata {
        alignment: DEFAULT_ALIGNMENT,
        ..Metadata::default()
    };
    let mut keys = HashSet::new();
    for _ in 0..n_pairs {
        let key = cursor.string(MAX_KEY_BYTES)?;
        let kind = cursor.u32()?;
        match (key.as_str(), kind) {
            ("general.architecture", STRING) => {
                found.architecture = Some(cursor.string(MAX_STRING_BYTES)?);
            }
            ("general.name", STRING) => found.name = Some(cursor.string(MAX_STRING_BYTES)?),
            ("tokenizer.ggml.model", STRING) => {
                found.tokenizer_model = Some(cursor.string(MAX_STRING_BYTES)?);
            }
            ("tokenizer.chat_template", STRING) => {
                cursor.skip_string(|_| ())?;
                found.chat_template = true;
            }
            ("tokenizer.ggml.tokens", ARRAY) => found.tokens = Some(tokens(cursor)?),
            ("tokenizer.ggml.token_type", ARRAY) => found.n_padding = padding(cursor)?,
            (_, STRING) => cursor.skip_string(|_| ())?,
            (_, ARRAY) => array(cursor, 1)?,
            _ => {
                let number = scalar(cursor, kind)?;
                if let (true, Some(number)) = (is_kept(&key), number) {
                    found.numbers.insert(key.clone(), number);
                }
            }
        }
        if keys.contains(&key) {
            return Err(cursor.corrupt(format!("the key {key:?} comes twice")));
        }
        keys.insert(key);
    }
    if let Some(&alignment) = found.numbers.get("general.alignment") {
        found.alignment = u64::try_from(alignment)
            .ok()
            .filter(|n| n.is_power_of_two() && *n <= 1 << 30)
            .ok_or_else(|| cursor.corrupt(format!("an alignment of {alignment}")))?;
    }
    Ok(found)
}

fn is_kept(key: &str) -> bool {
    const WHOLE: [&str; 4] = [
        "general.alignment",
        "split.no",
        "split.count",
        "tokenizer.ggml.add_bos_token",
    ];
    const ENDS: [&str; 3] = [".attention.causal", ".pooling_type", ".context_length"];
    WHOLE.contains(&key) || ENDS.iter().any(|end| key.ends_with(end))
}

/// A value that is neither a string nor an array; `None` for a float.
fn scalar(cursor: &mut Cursor, kind: u32) -> Result<Option<i128>> {
    Ok(match kind {
        0 => Some(cursor.array().map(u8::from_le_bytes)?.into()),
        1 => Some(cursor.array().map(i8::from_le_bytes)?.into()),
        2 => Some(cursor.array().map(u16::from_le_bytes)?.into()),
        3 => Some(cursor.array().map(i16::from_le_bytes)?.into()),
        4 => Some(cursor.u32()?.into()),
        5 => Some(cursor.array().map(i32::from_le_bytes)?.into()),
        BOOL => match cursor.array()? {
            [value @ (0 | 1)] => Some(value.into()),
            [value] => return Err(cursor.corrupt(format!("a bool of {value}"))),
        },
        10 => Some(cursor.u64()?.into()),
        11 => Some(cursor.array().map(i64::from_le_bytes)?.into()),
        6 | 12 => {
            let bytes = if kind == 6 { 4 } else { 8 };
            cursor.pass(bytes, |_| ())?;
            None
        }
        _ => return Err(cursor.corrupt(format!("a value of unknown type {kind}"))),
    })
}

/// Bytes of an array's element of fixed size.
fn scalar_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | BOOL => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Passes over an array.
fn array(cursor: &mut Cursor, depth: u32) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(cursor.corrupt("arrays nested too deep"));
    }
    let kind = cursor.u32()?;
    array_of(cursor, kind, depth)
}

/// Passes over an array behind the type of its elements.
fn array_of(cursor: &mut Cursor, kind: u32, depth: u32) -> Result<()> {
    match (kind, scalar_bytes(kind)) {
        (_, Some(bytes)) => {
            let n = cursor.count("array elements", bytes)?;
            cursor.pass(n.saturating_mul(bytes), |_| ())
        }
        (STRING, _) => {
            let n = cursor.count("strings", 8)?;
            (0..n).try_for_each(|_| cursor.skip_string(|_| ()))
        }
        (ARRAY, _) => {
            let n = cursor.count("arrays", 12)?;
            (0..n).try_for_each(|_| array(cursor, depth + 1))
        }
        _ => Err(cursor.corrupt(format!("an array of unknown type {kind}"))),
    }
}

/// How many of the tokens' types, at the list's end, say that the token is not used.
fn padding(cursor: &mut Cursor) -> Result<u32> {
    /// llama.cpp's `LLAMA_TOKEN_TYPE_UNUSED`.
    const UNUSED: i32 = 5;
    const U32: u32 = 4;
    const I32: u32 = 5;
    let kind = cursor.u32()?;
    if !matches!(kind, U32 | I32) {
        array_of(cursor, kind, 1)?;
        return Ok(0);
    }
    let n = cursor.count("token types", 4)?;
    let mut n_padding = 0u32;
    for _ in 0..n {
        n_padding = match cursor.array().map(i32::from_le_bytes)? {
            UNUSED => n_padding.saturating_add(1),
            _ => 0,
        };
    }
    Ok(n_padding)
}

/// The list of tokens.
fn tokens(cursor: &mut Cursor) -> Result<Tokens> {
    if cursor.u32()? != STRING {
        return Err(cursor.corrupt("tokenizer.ggml.tokens is no list of strings"));
    }
    let n = cursor.count("tokens", 8)?;
    let n_tokens =
        u32::try_from(n).map_err(|_| cursor.corrupt(format!("a vocabulary of {n} tokens")))?;
    let mut hash = Sha256::new();
    for _ in 0..n {
        cursor.skip_string(|bytes| hash.update(bytes))?;
    }
    Ok(Tokens {
        n_tokens,
        sha256: hex(&hash.finalize()),
    })
}
