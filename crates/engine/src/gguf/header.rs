//! Reads the header of one file, from its first byte on: key-value pairs, then the tensors' infos. Before
//! each read, what is left of the file is checked.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use kl_formats::{GgmlType, TokenizerIdentity, hex};
use sha2::{Digest, Sha256};

use super::pieces::{JOINED, MAGIC, is_joined};
use super::{
    Gguf, ModelError, Result, Tensor, Value, foreign_types, instead_of_gguf, sample_sha256,
};

/// Bytes of the shortest pair: a key's length, a type, a bool.
const MIN_PAIR_BYTES: u64 = 8 + 4 + 1;

/// Bytes of the shortest tensor info: a name's length, no dimensions, type, offset.
const MIN_INFO_BYTES: u64 = 8 + 4 + 4 + 8;

/// Longest key (ggml's `docs/gguf.md`).
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Longest string that is kept.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Longest tensor name that is accepted; ggml's own limit is 64.
const MAX_NAME_BYTES: u64 = 1 << 10;

/// Most dimensions (GGML_MAX_DIMS).
const MAX_DIMS: u32 = 4;

/// `general.alignment` of a file that does not state it.
const DEFAULT_ALIGNMENT: i128 = 32;

/// llama.cpp's `LLAMA_TOKEN_TYPE_UNUSED`.
const UNUSED_TOKEN: u32 = 5;

/// Value types (ggml's `docs/gguf.md`).
const U32: u32 = 4;
const I32: u32 = 5;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Skipped bytes are read in steps of this many: most are tokens, which are far shorter.
const STEP_BYTES: usize = 256;

/// Opens a regular file, and returns its length too. A model is opened more than once and read at
/// any position; a pipe allows neither.
///
/// # Errors
/// A file that is not regular or cannot be opened.
pub fn open(path: &Path) -> Result<(File, u64)> {
    let failed = |cause| ModelError::io(path, "open", &cause);
    // Before opening, which would wait for a named pipe's writer.
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.is_dir() {
        return Err(ModelError::new(path, "is a folder: give a file"));
    }
    if !metadata.is_file() {
        let what = "is not a regular file: save it to one first";
        return Err(ModelError::new(path, what));
    }
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    Ok((file, metadata.len()))
}

/// Reads a file in order, and hashes the bytes that it reads.
pub struct Cursor {
    stream: BufReader<File>,
    /// The hash of all bytes read so far.
    hash: Sha256,
    /// The hash of the elements of the list that is read.
    list_hash: Sha256,
    path: PathBuf,
    /// Bytes read so far.
    offset: u64,
    /// Bytes of the file.
    len: u64,
    /// The advice for a damaged file besides downloading it again, in one verb.
    remedy: &'static str,
}

impl Cursor {
    /// Opens a file. `remedy`: what to do if it is damaged, besides downloading it again, in one verb.
    ///
    /// # Errors
    /// Those of [`open`].
    pub fn open(path: &Path, remedy: &'static str) -> Result<Self> {
        let (file, len) = open(path)?;
        Ok(Self {
            stream: BufReader::with_capacity(256 << 10, file),
            hash: Sha256::new(),
            list_hash: Sha256::new(),
            path: path.to_owned(),
            offset: 0,
            len,
            remedy,
        })
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.len.saturating_sub(self.offset)
    }

    /// The error for a file that is wrong up to here.
    pub fn corrupt(&self, what: impl Display) -> ModelError {
        self.damaged("corrupt", self.offset, what)
    }

    fn damaged(&self, kind: &str, offset: u64, what: impl Display) -> ModelError {
        let remedy = self.remedy;
        let what = format!("{kind} at byte {offset}: {what}; download or {remedy} it again");
        ModelError::new(&self.path, what)
    }

    /// Fails unless at least `bytes` are left.
    fn need(&self, bytes: u64, what: &str) -> Result<()> {
        let left = self.left();
        if bytes <= left {
            return Ok(());
        }
        let what = format!(
            "{what} takes {bytes} bytes but only {left} are left: the file was cut off, or a length is damaged"
        );
        Err(self.damaged("incomplete", self.offset, what))
    }

    /// Reads as many bytes as `bytes` holds.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.need(bytes.len() as u64, "the header")?;
        self.stream
            .read_exact(bytes)
            .map_err(|cause| ModelError::io(&self.path, "read", &cause))?;
        self.hash.update(&*bytes);
        self.list_hash.update(&*bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Reads `n` bytes, which `what` takes.
    ///
    /// # Errors
    /// A file that ends before, or cannot be read.
    pub fn bytes(&mut self, n: u64, what: &str) -> Result<Vec<u8>> {
        self.need(n, what)?;
        let mut bytes = vec![0; n as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a number, little-endian.
    ///
    /// # Errors
    /// A file that ends before, or cannot be read.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a number of items of at least `each` bytes, which the file must have room for.
    fn count(&mut self, what: &str, each: u64) -> Result<u64> {
        let n = self.u64()?;
        self.need(n.saturating_mul(each), &format!("a list of {n} {what}"))?;
        Ok(n)
    }

    /// Reads a string's length, then its text, where invalid UTF-8 becomes U+FFFD; skips one of more than
    /// `max` bytes.
    fn text(&mut self, max: u64) -> Result<Option<String>> {
        let n = self.count("characters", 1)?;
        if n > max {
            self.skip(n)?;
            return Ok(None);
        }
        let bytes = self.bytes(n, "a string")?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Reads a name of at most `max` bytes.
    fn name(&mut self, max: u64) -> Result<String> {
        let name = self.text(max)?;
        name.ok_or_else(|| self.corrupt(format!("a name of more than {max} bytes")))
    }

    fn skip(&mut self, n: u64) -> Result<()> {
        self.need(n, "a value")?;
        let end = self.offset + n;
        let mut bytes = [0; STEP_BYTES];
        while self.offset < end {
            let step = (end - self.offset).min(STEP_BYTES as u64) as usize;
            self.fill(bytes.get_mut(..step).unwrap_or_default())?;
        }
        Ok(())
    }
}

/// Reads everything before the tensors' data, and checks that the file holds all of the data.
pub(super) fn read(path: &Path) -> Result<Gguf> {
    let mut cursor = Cursor::open(path, "convert")?;
    read_start(&mut cursor)?;
    let n_tensors = cursor.count("tensors", MIN_INFO_BYTES)?;
    let n_pairs = cursor.count("key-value pairs", MIN_PAIR_BYTES)?;
    let mut gguf = Gguf::default();
    for _ in 0..n_pairs {
        let start = cursor.offset;
        let key = cursor.name(MAX_KEY_BYTES)?;
        let value = match cursor.u32()? {
            ARRAY => list(&mut cursor, &key, &mut gguf)?,
            STRING => cursor
                .text(MAX_TEXT_BYTES)?
                .map_or(Value::Other(String::new()), Value::Text),
            kind => number(&mut cursor, kind)?,
        };
        let bytes = cursor.offset - start;
        gguf.pairs.insert(key, (value, bytes));
    }
    let alignment = gguf
        .number("general.alignment")
        .unwrap_or(DEFAULT_ALIGNMENT);
    let architecture = gguf.architecture().unwrap_or_default().to_owned();
    gguf.tensors = tensors(&mut cursor, n_tensors, alignment, &architecture)?;
    let model = gguf.text("tokenizer.ggml.model").map(str::to_owned);
    let tokens = gguf.tokenizer.take().zip(model);
    gguf.tokenizer = tokens.map(|(tokens, model)| TokenizerIdentity { model, ..tokens });
    gguf.files = vec![path.to_owned()];
    gguf.file_bytes = cursor.len;
    gguf.metadata_sha256 = hex(&cursor.hash.finalize());
    gguf.sample_sha256 = sample_sha256(path, cursor.len)?;
    Ok(gguf)
}

/// Reads magic and version.
fn read_start(cursor: &mut Cursor) -> Result<()> {
    let what = if cursor.len < 4 {
        let len = cursor.len;
        format!("not a GGUF model: it has {len} bytes; give a model in GGUF format")
    } else if cursor.array::<4>()? != MAGIC {
        instead_of_gguf(&cursor.path)
    } else {
        match cursor.u32()? {
            2 | 3 => return Ok(()),
            1 => "GGUF version 1, of August 2023, which llama.cpp does not read any more: download a newer file of this model, or convert the original again".to_owned(),
            version if matches!(version.swap_bytes(), 1..=3) => format!(
                "a big-endian GGUF, as s390x has them: make it little-endian with llama.cpp's gguf-py (gguf-convert-endian {} little), or download a file for this machine",
                cursor.path.display()
            ),
            version @ 4..=99 => format!(
                "GGUF version {version}: kl reads 2 and 3: use a newer kl, or download a file of version 3"
            ),
            version => format!(
                "not a GGUF model: it begins like one, but states version {version}: download it again"
            ),
        }
    };
    Err(ModelError::new(&cursor.path, what))
}

/// Reads a number, or a bool as 0 or 1.
fn number(cursor: &mut Cursor, kind: u32) -> Result<Value> {
    let n_bytes = number_bytes(cursor, kind)? as usize;
    let mut bytes = [0; 8];
    cursor.fill(bytes.get_mut(..n_bytes).unwrap_or_default())?;
    let unsigned = u64::from_le_bytes(bytes);
    let above = 64 - 8 * n_bytes as u32;
    Ok(match kind {
        6 => Value::Float(f32::from_bits(unsigned as u32).into()),
        12 => Value::Float(f64::from_bits(unsigned)),
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

/// Reads an array: what `gguf` holds of it, or nothing. llama.cpp reads no array of arrays either.
fn list(cursor: &mut Cursor, key: &str, gguf: &mut Gguf) -> Result<Value> {
    let kind = cursor.u32()?;
    let least_bytes = match kind {
        STRING => 8,
        _ => number_bytes(cursor, kind)?,
    };
    let n = cursor.count("array elements", least_bytes)?;
    cursor.list_hash = Sha256::new();
    match (key, kind) {
        ("tokenizer.ggml.token_type", U32 | I32) => {
            gguf.n_padding = 0;
            for _ in 0..n {
                let is_unused = cursor.u32()? == UNUSED_TOKEN;
                let before = if is_unused { gguf.n_padding } else { 0 };
                gguf.n_padding = before.saturating_add(is_unused.into());
            }
        }
        ("imatrix.datasets", STRING) => {
            for _ in 0..n {
                gguf.datasets.extend(cursor.text(MAX_TEXT_BYTES)?);
            }
        }
        (_, STRING) => (0..n).try_for_each(|_| cursor.text(0).map(drop))?,
        _ => cursor.skip(n.saturating_mul(least_bytes))?,
    }
    let sha256 = hex(&cursor.list_hash.clone().finalize());
    if (key, kind) == ("tokenizer.ggml.tokens", STRING) {
        let n_tokens = u32::try_from(n);
        gguf.tokenizer = Some(TokenizerIdentity {
            // Another key has its name.
            model: String::new(),
            n_tokens: n_tokens
                .map_err(|_| cursor.corrupt(format!("a vocabulary of {n} tokens")))?,
            sha256: sha256.clone(),
        });
    }
    Ok(Value::Other(sha256))
}

/// Reads all infos, and checks that each tensor's data ends within the file.
fn tensors(
    cursor: &mut Cursor,
    n: u64,
    alignment: i128,
    architecture: &str,
) -> Result<Vec<Tensor>> {
    // Not collected at once: the number may be damaged.
    let mut tensors = Vec::new();
    for _ in 0..n {
        tensors.push(tensor(cursor, architecture)?);
    }
    let stated = u64::try_from(alignment).ok();
    let valid = stated.filter(|n| n.is_power_of_two() && *n <= 1 << 30);
    let alignment = valid.ok_or_else(|| {
        let limit = "not a power of 2 up to 2^30";
        cursor.corrupt(format!("general.alignment is {alignment}, {limit}"))
    })?;
    let padded = |offset: u64| offset.saturating_add(alignment - 1) & !(alignment - 1);
    let start = padded(cursor.offset);
    let mut data_end = start;
    for tensor in &mut tensors {
        let name = &tensor.name;
        tensor.offset = tensor.offset.saturating_add(start);
        let end = tensor.offset.saturating_add(tensor.bytes);
        if end > cursor.len {
            let what = format!("tensor {name:?} ends at byte {end}");
            return Err(cursor.damaged("incomplete", cursor.len, what));
        }
        data_end = data_end.max(end);
    }
    if is_joined(&cursor.path, [data_end, padded(data_end)]) {
        return Err(ModelError::new(&cursor.path, JOINED));
    }
    Ok(tensors)
}

/// Reads an info; its offset counts from the start of all tensors' data.
fn tensor(cursor: &mut Cursor, architecture: &str) -> Result<Tensor> {
    let name = cursor.name(MAX_NAME_BYTES)?;
    let n_dims = cursor.u32()?;
    if n_dims > MAX_DIMS {
        return Err(cursor.corrupt(format!("tensor {name:?} has {n_dims} dimensions")));
    }
    let shape: Vec<u64> = (0..n_dims).map(|_| cursor.u64()).collect::<Result<_>>()?;
    let (type_id, offset) = (cursor.u32()?, cursor.u64()?);
    let kind = GgmlType::of(type_id).ok_or_else(|| {
        let explained = foreign_types::explain(type_id, architecture);
        ModelError::new(
            &cursor.path,
            format!("tensor {name:?} has type {explained}"),
        )
    })?;
    let (mut dimensions, row) = (shape.iter(), shape.first().copied().unwrap_or(1));
    let elements = dimensions.try_fold(1_u64, |product, n| product.checked_mul(*n));
    // deepseek4's table from tokens to experts is the one weight of integers.
    let is_weight = name.ends_with(".weight") && !name.contains("tid2eid");
    let what = if is_weight && !kind.is_for_weights {
        // ggml would call a kernel that does not exist.
        "is a weight of a type that llama.cpp cannot multiply"
    } else if !row.is_multiple_of(kind.block) {
        "has rows that are not whole blocks of its type"
    } else if let Some(bytes) = elements.and_then(|n| kind.bytes(n)) {
        return Ok(Tensor {
            name,
            shape,
            kind,
            file: 0,
            offset,
            bytes,
        });
    } else {
        "is too large"
    };
    Err(cursor.corrupt(format!("tensor {name:?} {what}")))
}
