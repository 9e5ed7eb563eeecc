//! kl.py's file: gzip around a plain stream without an index or checksums of its own.
//!
//! The plain stream, all numbers little-endian:
//!
//! | part | bytes |
//! |---|---|
//! | the line `llama_kl_divergence_v1` | 23 |
//! | one line, a Python dict literal: `n_ctx`, `n_vocab`, `model`, `text_path` and others | |
//! | then for each window until the stream ends: u32 n_tokens, u32 n_logits, u32 n_vocab | 12 |
//! | the tokens, u32 | 4 n_tokens |
//! | the rows of the window's first n_logits positions, raw logits, f32 | 4 n_logits n_vocab |
//!
//! kl.py writes a row for every position. Where there are fewer, it compares row `i` with its own
//! row of position `i`: the missing rows are those of the last positions. Its `n_ctx` is the one
//! that llama.cpp allocated, padded to a multiple of 256, so windows may be shorter, never longer.
//!
//! `kl` also writes `n_windows` into the header: without it, a stream of several gzip members that
//! was cut between two of them would look whole. Where the rows are not logits, it writes
//! `kl_values`: `log_probabilities`, or `floored_log_probabilities` as llama.cpp's base file has
//! them. kl.py ignores both entries, and its own files lack them.

mod reader;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use py_literal::Value;

use crate::about::{About, Checks, Values};
use crate::error::{Named, Result};
use crate::gzip::gzip;
pub use crate::kinds::KL_PY as MAGIC_LINE;
use crate::kinds::Kind;
use crate::provenance::BackendIdentity;
use crate::python_literal;
use crate::row::RowLayout;
use crate::window::{WindowSpec, longest_window, size_fault};
use crate::writing::{FileFormat, Start, WindowFormat};
pub(crate) use reader::KlPyReader;

/// Most bytes of the header line.
pub const MAX_HEADER_BYTES: usize = 64 << 10;

/// The backend of kl.py, which leaves flash attention off, llama-cpp-python's default.
pub(crate) fn backend() -> BackendIdentity {
    BackendIdentity {
        flash_attn: Some("off".to_owned()),
        ..BackendIdentity::default()
    }
}

/// Windows as gzip members.
const FORMAT: FileFormat = FileFormat {
    window_fault: |window, n_ctx| {
        if window.first_scored != 0 {
            Some("kl.py's file has rows from a window's first token on")
        } else if window.tokens.len() > n_ctx as usize {
            Some("more tokens than n_ctx")
        } else {
            None
        }
    },
    before_rows: |window, n_vocab| {
        let counts = [window.entry().n_tokens, window.n_rows, n_vocab];
        bytemuck::cast_slice(&[&counts, &window.tokens[..]].concat()).to_vec()
    },
    has_checksum: false,
    pack: Some(|bytes, _part, plain| gzip(bytes, plain)),
    end: |_windows, _offset| Ok(Vec::new()),
};

/// The start of a file of these windows.
pub(crate) fn start(name: &Named, about: &About, windows: &[WindowSpec]) -> Result<Start> {
    let mut bytes = Vec::new();
    let n_ctx = about.n_ctx.max(longest_window(windows));
    gzip(&mut bytes, &to_lines(about, n_ctx, windows.len(), name)?);
    Ok(Start {
        bytes,
        format: WindowFormat::of_logits(name, &FORMAT, RowLayout::F32, n_ctx, about.n_vocab),
        n_windows: u32::try_from(windows.len()).unwrap_or(u32::MAX),
        n_rows: None,
        states: None,
    })
}

/// kl.py's name of the logical batch.
const N_BATCH: &str = "n_batch";

/// `kl`'s own key for the meaning of rows that are not logits, and its values.
const VALUES: &str = "kl_values";
const NOT_LOGITS: [(Values, &str); 2] = [
    (Values::LogProbabilities, "log_probabilities"),
    (Values::FlooredLogProbabilities, "floored_log_probabilities"),
];

/// The bytes of both lines of a file that will hold so many windows; the second is both JSON and a
/// Python literal. A value of [`About::others`] that is a decimal integer is written as one, any other
/// as a string.
fn to_lines(about: &About, n_ctx: u32, n_windows: usize, name: &Named) -> Result<Vec<u8>> {
    if let Some(fault) = size_fault(n_ctx, about.n_vocab) {
        return Err(name.unwritable(fault));
    }
    let mut entries = Vec::new();
    let mut put = |key: &str, value: serde_json::Value| {
        entries.push(format!("{}: {value}", serde_json::Value::from(key)));
    };
    let model = || about.model.as_ref()?.file_name.clone();
    if let Some(model) = about.model_path.clone().or_else(model) {
        put("model", model.into());
    }
    let text = || about.text.as_ref()?.name.clone();
    if let Some(text_path) = about.text_path.clone().or_else(text) {
        put("text_path", text_path.into());
    }
    put("n_ctx", n_ctx.into());
    put("n_vocab", about.n_vocab.into());
    put("n_windows", n_windows.into());
    if let Some((_, values)) = NOT_LOGITS.iter().find(|(of, _)| *of == about.values) {
        put(VALUES, (*values).into());
    }
    for (key, value) in &about.others {
        match value.parse::<i64>() {
            Ok(n) if n.to_string() == *value => put(key, n.into()),
            _ => put(key, value.as_str().into()),
        }
    }
    let n_batch = about.backend.as_ref().and_then(|backend| backend.n_batch);
    if let Some(n_batch) = n_batch
        && !about.others.iter().any(|(key, _)| key == N_BATCH)
    {
        put(N_BATCH, n_batch.into());
    }
    let lines = format!("{MAGIC_LINE}{{{}}}\n", entries.join(", "));
    if lines.len() <= MAX_HEADER_BYTES {
        Ok(lines.into_bytes())
    } else {
        Err(name.unwritable("a header of more than 64 KiB"))
    }
}

/// Parses the second line, without its line feed. Entries that have no field of their own are kept in
/// [`About::others`], in order: key, and value (a string's text, else its Python literal).
fn parse(line: &[u8], name: &Named) -> Result<About> {
    let unusable = |what: &str| name.header(what);
    let text = str::from_utf8(line).map_err(|_| unusable("it is not UTF-8"))?;
    let entries = python_literal::dict(text)
        .map_err(unusable)?
        .ok_or_else(|| unusable("the second line is not a Python dict literal"))?;
    let mut about = About {
        n_ctx_is_padded: true,
        checks: Checks::Gzip,
        ..About::new(Kind::KlPy, name.path(), 0, 0)
    };
    about.first_scored = Some(0);
    about.backend = Some(backend());
    for (key, value) in last_of_each(entries).ok_or_else(|| unusable("a key is not a string"))? {
        match (key.as_str(), value) {
            ("n_ctx", value) => about.n_ctx = integer(&key, &value, name)?,
            ("n_vocab", value) => about.n_vocab = integer(&key, &value, name)?,
            ("n_windows", value) => about.n_windows = Some(integer(&key, &value, name)?),
            (VALUES, value) => about.values = values(&value, name)?,
            ("model", Value::String(model)) => about.model_path = Some(model),
            ("text_path", Value::String(path)) => about.text_path = Some(path),
            (_, Value::String(text)) => about.others.push((key, text)),
            (_, value) => about.others.push((key, value.to_string())),
        }
    }
    match size_fault(about.n_ctx, about.n_vocab) {
        Some(fault) => Err(name.header(fault)),
        None => Ok(about),
    }
}

/// A dict's entries as Python reads them: each key once, at the index of its first occurrence, with
/// its last value. `None` if a key is not a string.
fn last_of_each(entries: Vec<(Value, Value)>) -> Option<Vec<(String, Value)>> {
    let mut indices = HashMap::new();
    let mut found: Vec<(String, Value)> = Vec::new();
    for (key, value) in entries {
        let Value::String(key) = key else {
            return None;
        };
        let index = *indices.entry(key.clone()).or_insert(found.len());
        match found.get_mut(index) {
            Some(entry) => entry.1 = value,
            None => found.push((key, value)),
        }
    }
    Some(found)
}

fn values(value: &Value, name: &Named) -> Result<Values> {
    let known = NOT_LOGITS
        .iter()
        .find(|(_, known)| value.as_string().is_some_and(|value| value == known));
    known
        .map(|(values, _)| *values)
        .ok_or_else(|| name.header(format!("{VALUES} is {value}, which this kl does not know")))
}

fn integer(key: &str, value: &Value, name: &Named) -> Result<u32> {
    match value {
        Value::Integer(n) => n.try_into().ok(),
        _ => None,
    }
    .ok_or_else(|| name.header(format!("{key} is not a whole number in range")))
}
