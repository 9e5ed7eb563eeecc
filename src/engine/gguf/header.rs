//! The header of one file: key-value pairs, then the tensors' infos.

use std::path::Path;

use kl_formats::{GgmlType, TokenizerIdentity, hex};
use sha2::{Digest, Sha256};

use super::cursor::Cursor;
use super::{Gguf, Pair, Result, Tensor, Value, instead_of_gguf, sample_sha256};

/// The file's first bytes.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";

/// Bytes of the shortest pair: a key's length, a type, a bool.
const MIN_PAIR_BYTES: u64 = 8 + 4 + 1;

/// Bytes of the shortest tensor info: a name's length, no dimensions, type, offset.
const MIN_INFO_BYTES: u64 = 8 + 4 + 4 + 8;

/// Longest key (ggml's `docs/gguf.md`).
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Longest string that is kept.
const MAX_TEXT_BYTES: u64 = 1 << 16;

/// Longest tensor name that is accepted; ggml's own limit is 64.
const MAX_NAME_BYTES: u64 = 1 << 10;

/// Most dimensions (GGML_MAX_DIMS).
const MAX_DIMS: u32 = 4;

/// The deepest nesting of arrays that is skipped; llama.cpp itself reads no nested arrays.
const MAX_DEPTH: u32 = 4;

/// `general.alignment` of a file that does not state it.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Value types (ggml's `docs/gguf.md`).
const U32: u32 = 4;
const I32: u32 = 5;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Reads everything before the tensors' data, and checks that the file holds all of the data.
pub(super) fn read(path: &Path) -> Result<Gguf> {
    let mut cursor = Cursor::open(path, "convert")?;
    read_start(&mut cursor)?;
    let n_tensors = cursor.count("tensors", MIN_INFO_BYTES)?;
    let n_pairs = cursor.count("key-value pairs", MIN_PAIR_BYTES)?;
    let mut gguf = Gguf::default();
    let mut tokens = None;
    for _ in 0..n_pairs {
        let start = cursor.copied();
        let key = cursor.name(MAX_KEY_BYTES)?;
        let value = match (cursor.u32()?, key.as_str()) {
            (ARRAY, key) => {
                let list = List::read(&mut cursor)?;
                match (key, list.kind) {
                    ("tokenizer.ggml.tokens", STRING) => tokens = Some(list.hash(&mut cursor)?),
                    ("tokenizer.ggml.token_type", U32 | I32) => {
                        gguf.n_padding = list.n_unused_at_end(&mut cursor)?;
                    }
                    ("imatrix.datasets", STRING) => gguf.datasets = list.texts(&mut cursor)?,
                    _ => list.skip(&mut cursor, 1)?,
                }
                Value::Other
            }
            (STRING, _) => text(&mut cursor)?,
            (kind, _) => number(&mut cursor, kind)?,
        };
        let bytes = cursor.copied() - start;
        gguf.pairs.insert(key, Pair { value, bytes });
    }
    gguf.tensors = tensors(&mut cursor, n_tensors, gguf.number("general.alignment"))?;
    let model = gguf.text("tokenizer.ggml.model").map(str::to_owned);
    gguf.tokenizer = model
        .zip(tokens)
        .map(|(model, (n_tokens, sha256))| TokenizerIdentity {
            model,
            n_tokens,
            sha256,
        });
    gguf.files = vec![path.to_owned()];
    gguf.file_bytes = cursor.len;
    gguf.metadata_sha256 = hex(&cursor.hash.finalize());
    gguf.sample_sha256 = sample_sha256(path, cursor.len)?;
    Ok(gguf)
}

/// Reads magic and version.
fn read_start(cursor: &mut Cursor) -> Result<()> {
    let len = cursor.left();
    if len < 4 {
        return Err(cursor.fault(format!(
            "not a GGUF model: it has {len} bytes; give a model in GGUF format"
        )));
    }
    if cursor.array::<4>()? != MAGIC {
        return Err(cursor.fault(instead_of_gguf(&cursor.path)));
    }
    match cursor.u32()? {
        2 | 3 => Ok(()),
        1 => Err(cursor.fault("GGUF version 1 is no longer read: convert the model again")),
        version if (1..=0xffff).contains(&version.swap_bytes()) => {
            Err(cursor.fault("a big-endian GGUF: convert it to little-endian"))
        }
        version => Err(cursor.fault(format!(
            "GGUF version {version} is unknown, kl reads 2 and 3: use a newer kl"
        ))),
    }
}

/// Reads a string, or skips a long one.
fn text(cursor: &mut Cursor) -> Result<Value> {
    let bytes = cursor.string_len()?;
    if bytes > MAX_TEXT_BYTES {
        cursor.skip_text(bytes, |_| ())?;
        return Ok(Value::Long(bytes));
    }
    Ok(Value::Text(cursor.text(bytes)?))
}

/// Reads an integer, or a bool as 0 or 1, or skips a number with a fraction.
fn number(cursor: &mut Cursor, kind: u32) -> Result<Value> {
    let n_bytes = number_bytes(cursor, kind)? as usize;
    let mut bytes = [0; 8];
    cursor.fill(bytes.get_mut(..n_bytes).unwrap_or_default())?;
    let unsigned = u64::from_le_bytes(bytes);
    let above = 64 - 8 * n_bytes as u32;
    Ok(match kind {
        // f32 and f64.
        6 | 12 => Value::Other,
        // Signed, of 8, 16, 32 and 64 bits.
        1 | 3 | 5 | 11 => Value::Number(((unsigned << above) as i64 >> above).into()),
        _ => Value::Number(unsigned.into()),
    })
}

/// Bytes of a number of this type.
fn number_bytes(cursor: &Cursor, kind: u32) -> Result<u64> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => Err(cursor.corrupt(format!("a value of unknown type {kind}"))),
    }
}

/// An array whose elements follow: their type and their number.
struct List {
    kind: u32,
    n: u64,
}

impl List {
    fn read(cursor: &mut Cursor) -> Result<Self> {
        let kind = cursor.u32()?;
        let least_bytes = match kind {
            STRING => 8,
            ARRAY => 12,
            _ => number_bytes(cursor, kind)?,
        };
        let n = cursor.count("array elements", least_bytes)?;
        Ok(Self { kind, n })
    }

    fn skip(self, cursor: &mut Cursor, depth: u32) -> Result<()> {
        match self.kind {
            STRING => (0..self.n).try_for_each(|_| {
                let bytes = cursor.string_len()?;
                cursor.skip_text(bytes, |_| ())
            }),
            ARRAY if depth == MAX_DEPTH => Err(cursor.corrupt("arrays nested too deep")),
            ARRAY => (0..self.n).try_for_each(|_| Self::read(cursor)?.skip(cursor, depth + 1)),
            _ => {
                let bytes = number_bytes(cursor, self.kind)?;
                cursor.skip(self.n.saturating_mul(bytes), |_| ())
            }
        }
    }

    fn texts(self, cursor: &mut Cursor) -> Result<Vec<String>> {
        let texts = (0..self.n).map(|_| {
            let bytes = cursor.string_len()?;
            cursor.text(bytes)
        });
        texts.collect()
    }

    /// Reads the vocabulary's tokens: their number and [`TokenizerIdentity::sha256`].
    fn hash(self, cursor: &mut Cursor) -> Result<(u32, String)> {
        let n_tokens = u32::try_from(self.n)
            .map_err(|_| cursor.corrupt(format!("a vocabulary of {} tokens", self.n)))?;
        let mut hash = Sha256::new();
        for _ in 0..n_tokens {
            let bytes = cursor.string_len()?;
            hash.update(bytes.to_le_bytes());
            cursor.skip_text(bytes, |bytes| hash.update(bytes))?;
        }
        Ok((n_tokens, hex(&hash.finalize())))
    }

    /// Reads the tokens' types, and counts the unused ones at the vocabulary's end.
    fn n_unused_at_end(self, cursor: &mut Cursor) -> Result<u32> {
        /// llama.cpp's `LLAMA_TOKEN_TYPE_UNUSED`.
        const UNUSED: u32 = 5;
        let mut n_unused = 0_u32;
        for _ in 0..self.n {
            n_unused = match cursor.u32()? {
                UNUSED => n_unused.saturating_add(1),
                _ => 0,
            };
        }
        Ok(n_unused)
    }
}

/// Reads all infos, and checks that each tensor's data ends within the file.
fn tensors(cursor: &mut Cursor, n: u64, alignment: Option<i128>) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    for _ in 0..n {
        tensors.push(tensor(cursor)?);
    }
    let alignment = match alignment {
        None => DEFAULT_ALIGNMENT,
        Some(given) => u64::try_from(given)
            .ok()
            .filter(|n| n.is_power_of_two() && *n <= 1 << 30)
            .ok_or_else(|| {
                let limit = "not a power of 2 up to 2^30";
                cursor.corrupt(format!("general.alignment is {given}, {limit}"))
            })?,
    };
    let start = cursor.offset.saturating_add(alignment - 1) & !(alignment - 1);
    for tensor in &mut tensors {
        let name = &tensor.name;
        tensor.offset = tensor.offset.saturating_add(start);
        let end = tensor
            .offset
            .checked_add(tensor.bytes)
            .ok_or_else(|| cursor.corrupt(format!("tensor {name:?} ends past byte 2^64")))?;
        if end > cursor.len {
            let what = format!("tensor {name:?} ends at byte {end}");
            return Err(cursor.truncated(cursor.len, &what));
        }
    }
    Ok(tensors)
}

/// Reads an info; its offset counts from the start of all tensors' data.
fn tensor(cursor: &mut Cursor) -> Result<Tensor> {
    let name = cursor.name(MAX_NAME_BYTES)?;
    let fault = |cursor: &Cursor, what: &str| cursor.corrupt(format!("tensor {name:?} {what}"));
    let n_dims = cursor.u32()?;
    if n_dims > MAX_DIMS {
        return Err(fault(cursor, &format!("has {n_dims} dimensions")));
    }
    let shape: Vec<u64> = (0..n_dims).map(|_| cursor.u64()).collect::<Result<_>>()?;
    let elements = shape
        .iter()
        .try_fold(1_u64, |product, n| product.checked_mul(*n));
    let row = shape.first().copied().unwrap_or(1);
    let type_id = cursor.u32()?;
    let offset = cursor.u64()?;
    let kind = GgmlType::of(type_id);
    // deepseek4's table from tokens to experts is the one weight of integers.
    let is_weight = name.ends_with(".weight") && !name.contains("tid2eid");
    if is_weight && kind.is_some_and(|kind| !kind.is_for_weights) {
        // ggml would call a kernel that does not exist.
        let what = "is a weight of a type that llama.cpp cannot multiply";
        return Err(fault(cursor, what));
    }
    let bytes = match (kind, elements) {
        (Some(GgmlType { block, .. }), _) if !row.is_multiple_of(block) => {
            let what = format!("has rows of {row} elements, not a multiple of its type's {block}");
            return Err(fault(cursor, &what));
        }
        (Some(kind), Some(elements)) => kind.bytes(elements),
        // Types that are unknown here are left to llama.cpp: such data has at least one byte.
        (None, Some(elements)) => Some(elements.min(1)),
        (_, None) => None,
    };
    let bytes = bytes.ok_or_else(|| fault(cursor, "is too large"))?;
    Ok(Tensor {
        name,
        shape,
        type_id,
        file: 0,
        offset,
        bytes,
    })
}
