//! The header line, a Python dict literal.

use std::collections::HashMap;

use py_literal::Value;

use super::{MAGIC_LINE, MAX_HEADER_BYTES};
use crate::error::{Named, Result};
use crate::python_literal::{self, NotADict};
use crate::reference::{About, Values};
use crate::window::longest;
use crate::{MAX_N_CTX, MAX_N_VOCAB, WindowSpec};

/// kl.py's name of the logical batch.
const N_BATCH: &str = "n_batch";

/// `kl`'s own key, and its values, where the rows are not logits.
const VALUES: &str = "kl_values";
const NOT_LOGITS: [(Values, &str); 2] = [
    (Values::LogProbabilities, "log_probabilities"),
    (Values::FlooredLogProbabilities, "floored_log_probabilities"),
];

/// The contents of kl.py's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KlPyHeader {
    /// Most tokens in a window; padded by kl.py, whose windows may all be shorter.
    pub n_ctx: u32,
    /// Entries of a row.
    pub n_vocab: u32,
    /// Windows in the file; kl.py's own files do not state it.
    pub n_windows: Option<u32>,
    /// Path of the model.
    pub model: Option<String>,
    /// Path of the text.
    pub text_path: Option<String>,
    /// The meaning of the rows' values; kl.py's own are logits.
    pub values: Values,
    /// Every other entry, in order: key, and value (a string's text, else its Python literal).
    /// A value that is a decimal integer is written as one, any other as a string.
    pub others: Vec<(String, String)>,
}

impl KlPyHeader {
    /// The header of a file that will hold exactly `windows`.
    pub(super) fn new(about: &About, windows: &[WindowSpec]) -> Self {
        let model = || about.model.as_ref()?.file_name.clone();
        let text = || about.text.as_ref()?.name.clone();
        let n_batch = about.backend.as_ref().and_then(|backend| backend.n_batch);
        let mut others = about.others.clone();
        if let Some(n_batch) = n_batch
            && !others.iter().any(|(key, _)| key == N_BATCH)
        {
            others.push((N_BATCH.to_owned(), n_batch.to_string()));
        }
        Self {
            n_ctx: about.n_ctx.max(longest(windows)),
            n_vocab: about.n_vocab,
            n_windows: Some(u32::try_from(windows.len()).unwrap_or(u32::MAX)),
            model: about.model_path.clone().or_else(model),
            text_path: about.text_path.clone().or_else(text),
            values: about.values,
            others,
        }
    }

    /// The bytes of both lines; the second is both JSON and a Python literal.
    pub(super) fn to_lines(&self, name: &Named) -> Result<Vec<u8>> {
        if let Some(fault) = self.fault() {
            return Err(name.unwritable(fault));
        }
        let mut entries = Vec::new();
        let mut put = |key: &str, value: serde_json::Value| {
            entries.push(format!("{}: {value}", serde_json::Value::from(key)));
        };
        if let Some(model) = &self.model {
            put("model", model.as_str().into());
        }
        if let Some(text_path) = &self.text_path {
            put("text_path", text_path.as_str().into());
        }
        put("n_ctx", self.n_ctx.into());
        put("n_vocab", self.n_vocab.into());
        if let Some(n_windows) = self.n_windows {
            put("n_windows", n_windows.into());
        }
        if let Some((_, values)) = NOT_LOGITS.iter().find(|(of, _)| *of == self.values) {
            put(VALUES, (*values).into());
        }
        for (key, value) in &self.others {
            match value.parse::<i64>() {
                Ok(n) if n.to_string() == *value => put(key, n.into()),
                _ => put(key, value.as_str().into()),
            }
        }
        let lines = format!("{MAGIC_LINE}{{{}}}\n", entries.join(", "));
        match lines.len() <= MAX_HEADER_BYTES {
            true => Ok(lines.into_bytes()),
            false => Err(name.unwritable("a header of more than 64 KiB")),
        }
    }

    /// Parses the second line, without its line feed.
    pub(super) fn from_line(line: &[u8], name: &Named) -> Result<Self> {
        let unusable = |what: &str| name.header(what);
        let text = str::from_utf8(line).map_err(|_| unusable("it is not UTF-8"))?;
        let entries = python_literal::dict(text).map_err(|why| {
            unusable(match why {
                NotADict::Unsafe => "its brackets nest too deep, or it holds a \\N escape",
                NotADict::Other => "the second line is not a Python dict literal",
            })
        })?;
        let mut header = Self::default();
        for (key, value) in
            last_of_each(entries).ok_or_else(|| unusable("a key is not a string"))?
        {
            match (key.as_str(), value) {
                ("n_ctx", value) => header.n_ctx = integer(&key, &value, name)?,
                ("n_vocab", value) => header.n_vocab = integer(&key, &value, name)?,
                ("n_windows", value) => header.n_windows = Some(integer(&key, &value, name)?),
                (VALUES, value) => header.values = values(&value, name)?,
                ("model", Value::String(model)) => header.model = Some(model),
                ("text_path", Value::String(path)) => header.text_path = Some(path),
                (_, Value::String(text)) => header.others.push((key, text)),
                (_, value) => header.others.push((key, value.to_string())),
            }
        }
        match header.fault() {
            Some(fault) => Err(name.header(fault)),
            None => Ok(header),
        }
    }

    fn fault(&self) -> Option<String> {
        if !(1..=MAX_N_VOCAB).contains(&self.n_vocab) {
            Some(format!("n_vocab {}, not 1 to {MAX_N_VOCAB}", self.n_vocab))
        } else if !(1..=MAX_N_CTX).contains(&self.n_ctx) {
            Some(format!("n_ctx {}, not 1 to {MAX_N_CTX}", self.n_ctx))
        } else {
            None
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<KlPyHeader> {
        KlPyHeader::from_line(line.as_bytes(), &Named::default())
    }

    #[test]
    fn a_line_of_kl_py_is_parsed() {
        let header = parse(
            "{'model': '../models/s.gguf', 'text_path': \"it's.txt\", 'n_ctx': 256, \
             'n_batch': 256, 'read_path': None, 'n_tokens': -1, 'verbose': False, 'n_vocab': 512}",
        )
        .unwrap();
        assert_eq!(
            (header.n_ctx, header.n_vocab, header.n_windows),
            (256, 512, None)
        );
        assert_eq!(header.model.as_deref(), Some("../models/s.gguf"));
        assert_eq!(header.text_path.as_deref(), Some("it's.txt"));
        let others: Vec<_> = header
            .others
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let expected = [
            ("n_batch", "256"),
            ("read_path", "None"),
            ("n_tokens", "-1"),
            ("verbose", "False"),
        ];
        assert_eq!(others, expected);
    }

    #[test]
    fn the_last_value_of_a_repeated_key_counts() {
        let header = parse(
            "{'n_ctx': None, 'model': 'a', 'x': 1, 'y': 2, 'x': 3, 'n_vocab': 5, 'n_ctx': 8, \
             'model': 'b', 'x': 'z'}",
        )
        .unwrap();
        assert_eq!((header.n_ctx, header.model.as_deref()), (8, Some("b")));
        assert_eq!(
            header.others,
            [("x", "z"), ("y", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()))
        );
    }

    #[test]
    fn hostile_lines_are_refused_at_once() {
        let nested = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
        let hidden = "{'a': ".repeat(30) + "'}'";
        for line in [
            "",
            "[]",
            "{",
            "{'n_ctx': 256}",
            "{'n_ctx': 256, 'n_vocab': 0}",
            "{'n_ctx': 256, 'n_vocab': -1}",
            "{'n_ctx': 4294967296, 'n_vocab': 5}",
            "{'n_ctx': '256', 'n_vocab': 5}",
            "{'n_ctx': 256, 'n_vocab': 16777217}",
            "{'n_ctx': 256, 'n_vocab': 5, 'kl_values': 'logits'}",
            "{'n_ctx': 256, 'n_vocab': 5, 'kl_values': 1}",
            "{5: 6, 'n_ctx': 256, 'n_vocab': 5}",
            "{'n_ctx': 256, 'n_vocab': 5, 'a': '\\N{ ' }'}",
            nested.as_str(),
            hidden.as_str(),
        ] {
            assert!(
                matches!(parse(line), Err(crate::Error::Header { .. })),
                "{line:.60}"
            );
        }
        assert!(KlPyHeader::from_line(b"{'\xff': 1}", &Named::default()).is_err());
    }

    #[test]
    fn what_is_written_is_read() {
        let header = KlPyHeader {
            n_ctx: 256,
            n_vocab: 512,
            n_windows: Some(3),
            model: Some("it's \"quoted\" \\ caf\u{e9}\n\u{7}.gguf".into()),
            text_path: None,
            values: Values::FlooredLogProbabilities,
            others: vec![
                ("n_batch".into(), "512".into()),
                ("n_tokens".into(), "-1".into()),
                ("zip".into(), "007".into()),
                ("read_path".into(), "None".into()),
            ],
        };
        let lines = header.to_lines(&Named::default()).unwrap();
        let line = lines
            .strip_prefix(MAGIC_LINE.as_bytes())
            .unwrap()
            .strip_suffix(b"\n")
            .unwrap();
        assert_eq!(
            KlPyHeader::from_line(line, &Named::default()).unwrap(),
            header
        );
        assert!(serde_json::from_slice::<serde_json::Value>(line).is_ok());
    }
}
