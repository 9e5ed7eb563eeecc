//! The key-value pairs: the few that matter are kept, the rest passed over.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};

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
    pub(super) types: Types,
    pub(super) chat_template: bool,
    pub(super) alignment: u64,
    /// Integers and bools, of those keys that may be asked for; of an array of them the largest.
    pub(super) numbers: HashMap<String, i128>,
    /// What is added before a division.
    pub(super) epsilons: HashMap<String, f64>,
    /// `<architecture>.rope.scaling.type`.
    pub(super) texts: HashMap<String, String>,
}

/// What the tokens are.
#[derive(Default)]
pub(super) struct Types {
    /// Tokens at the vocabulary's end that are there to fill it up.
    pub(super) n_padding: u32,
    /// Whether a token stands for a byte.
    has_bytes: bool,
}

/// A value that is neither a string nor an array.
enum Scalar {
    Integer(i128),
    Float(f64),
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
            ("tokenizer.ggml.token_type", ARRAY) => found.types = types(cursor)?,
            (_, STRING) if key.ends_with(".rope.scaling.type") => {
                let text = cursor.string(MAX_STRING_BYTES)?;
                found.texts.insert(key.clone(), text);
            }
            (_, STRING) => cursor.skip_string(|_| ())?,
            (_, ARRAY) if key.ends_with(".expert_used_count") => {
                found.numbers.insert(key.clone(), largest(cursor)?);
            }
            (_, ARRAY) => array(cursor, 1)?,
            _ => match scalar(cursor, kind)? {
                Scalar::Integer(number) if is_kept(&key) => {
                    found.numbers.insert(key.clone(), number);
                }
                Scalar::Float(epsilon) if key.ends_with("_epsilon") => {
                    found.epsilons.insert(key.clone(), epsilon);
                }
                _ => {}
            },
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
    match found.tokenizer_model.as_deref() {
        Some("none" | "no_vocab") => Err(cursor
            .name
            .unsupported("the model holds no tokenizer: convert it with one")),
        Some("bert") if found.types.has_bytes => {
            Err(cursor.corrupt("a tokenizer of words with tokens for bytes"))
        }
        _ => Ok(found),
    }
}

fn is_kept(key: &str) -> bool {
    const WHOLE: [&str; 4] = [
        "general.alignment",
        "split.no",
        "split.count",
        "tokenizer.ggml.add_bos_token",
    ];
    const ENDS: [&str; 14] = [
        ".attention.causal",
        ".attention.head_count",
        ".attention.head_count_kv",
        ".attention.key_length",
        ".block_count",
        ".context_length",
        ".embedding_length",
        ".expert_count",
        ".expert_group_count",
        ".expert_group_used_count",
        ".expert_used_count",
        ".nextn_predict_layers",
        ".pooling_type",
        ".rope.dimension_count",
    ];
    WHOLE.contains(&key) || ENDS.iter().any(|end| key.ends_with(end))
}

fn scalar(cursor: &mut Cursor, kind: u32) -> Result<Scalar> {
    Ok(Scalar::Integer(match kind {
        0 => cursor.array().map(u8::from_le_bytes)?.into(),
        1 => cursor.array().map(i8::from_le_bytes)?.into(),
        2 => cursor.array().map(u16::from_le_bytes)?.into(),
        3 => cursor.array().map(i16::from_le_bytes)?.into(),
        4 => cursor.u32()?.into(),
        5 => cursor.array().map(i32::from_le_bytes)?.into(),
        6 => {
            return Ok(Scalar::Float(
                cursor.array().map(f32::from_le_bytes)?.into(),
            ));
        }
        BOOL => match cursor.array()? {
            [value @ (0 | 1)] => value.into(),
            [value] => return Err(cursor.corrupt(format!("a bool of {value}"))),
        },
        10 => cursor.u64()?.into(),
        11 => cursor.array().map(i64::from_le_bytes)?.into(),
        12 => return Ok(Scalar::Float(cursor.array().map(f64::from_le_bytes)?)),
        _ => return Err(cursor.corrupt(format!("a value of unknown type {kind}"))),
    }))
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

/// The largest of an array of u32 or i32, which llama.cpp takes for u32; 0 for any other.
fn largest(cursor: &mut Cursor) -> Result<i128> {
    let mut largest = 0;
    words(cursor, |word| largest = word.max(largest))?;
    Ok(largest.into())
}

/// What the tokens' types say.
fn types(cursor: &mut Cursor) -> Result<Types> {
    /// llama.cpp's `LLAMA_TOKEN_TYPE_UNUSED` and `LLAMA_TOKEN_TYPE_BYTE`.
    const UNUSED: u32 = 5;
    const BYTE: u32 = 6;
    let mut types = Types::default();
    words(cursor, |kind| {
        types.has_bytes |= kind == BYTE;
        types.n_padding = match kind {
            UNUSED => types.n_padding.saturating_add(1),
            _ => 0,
        };
    })?;
    Ok(types)
}

/// Passes over an array; `also` sees the elements if they are u32 or i32.
fn words(cursor: &mut Cursor, mut also: impl FnMut(u32)) -> Result<()> {
    const U32: u32 = 4;
    const I32: u32 = 5;
    let kind = cursor.u32()?;
    if !matches!(kind, U32 | I32) {
        return array_of(cursor, kind, 1);
    }
    let n = cursor.count("array elements", 4)?;
    (0..n).try_for_each(|_| cursor.u32().map(&mut also))
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
    let mut texts = Vec::new();
    for i in 0..n_tokens {
        let bytes = cursor.string_len()?;
        hash.update(bytes.to_le_bytes());
        let mut text = TokenText::default();
        cursor.pass(bytes, |bytes| {
            hash.update(bytes);
            text.extend(bytes);
        })?;
        texts.push((text.finish(i), i));
    }
    texts.sort_unstable();
    let mut neighbours = texts.iter().zip(texts.iter().skip(1));
    if let Some(((_, i), (_, j))) = neighbours.find(|((a, _), (b, _))| a == b) {
        return Err(cursor.corrupt(format!("the tokens {i} and {j} are the same text")));
    }
    Ok(Tokens {
        n_tokens,
        sha256: hex(&hash.finalize()),
    })
}

/// A token's text as llama.cpp takes it, hashed: up to its first NUL, and `[EMPTY_<id>]` if that is
/// nothing. 128 bits do not meet by chance.
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
