//! The header line, a Python dict literal.

use std::collections::HashMap;

use py_literal::Value;

use super::{MAGIC_LINE, MAX_HEADER_BYTES, backend};
use crate::WindowSpec;
use crate::error::{Named, Result};
use crate::provenance::size_fault;
use crate::python_literal;
use crate::reference::{About, Checks, Kind, Values};
use crate::window::longest_window;

/// kl.py's name of the logical batch.
const N_BATCH: &str = "n_batch";

/// `kl`'s own key for the meaning of rows that are not logits, and its values.
const VALUES: &str = "kl_values";
const NOT_LOGITS: [(Values, &str); 2] = [
    (Values::LogProbabilities, "log_probabilities"),
    (Values::FlooredLogProbabilities, "floored_log_probabilities"),
];

/// The bytes of both lines of a file that will hold exactly `windows`; the second is both JSON and a
/// Python literal. A value of [`About::others`] that is a decimal integer is written as one, any other
/// as a string.
pub(super) fn to_lines(about: &About, windows: &[WindowSpec], name: &Named) -> Result<Vec<u8>> {
    let n_ctx = n_ctx(about, windows);
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
    put("n_windows", windows.len().into());
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
    match lines.len() <= MAX_HEADER_BYTES {
        true => Ok(lines.into_bytes()),
        false => Err(name.unwritable("a header of more than 64 KiB")),
    }
}

/// The `n_ctx` of a file of these windows.
pub(super) fn n_ctx(about: &About, windows: &[WindowSpec]) -> u32 {
    about.n_ctx.max(longest_window(windows))
}

/// Parses the second line, without its line feed. Entries that have no field of their own are kept in
/// [`About::others`], in order: key, and value (a string's text, else its Python literal).
pub(super) fn parse(line: &[u8], name: &Named) -> Result<About> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Fault};

    fn parse(line: &str) -> Result<About> {
        super::parse(line.as_bytes(), &Named::default())
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
        assert_eq!(header.model_path.as_deref(), Some("../models/s.gguf"));
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
        assert_eq!((header.n_ctx, header.model_path.as_deref()), (8, Some("b")));
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
                matches!(
                    parse(line),
                    Err(Error {
                        fault: Fault::Header(_),
                        ..
                    })
                ),
                "{line:.60}"
            );
        }
        assert!(super::parse(b"{'\xff': 1}", &Named::default()).is_err());
    }

    #[test]
    fn what_is_written_is_read() {
        let mut about = About {
            values: Values::FlooredLogProbabilities,
            others: [
                ("n_batch", "512"),
                ("n_tokens", "-1"),
                ("zip", "007"),
                ("read_path", "None"),
            ]
            .map(|(key, value)| (key.into(), value.into()))
            .into(),
            ..About::new(Kind::KlPy, "", 256, 512)
        };
        about.model_path = Some("it's \"quoted\" \\ caf\u{e9}\n\u{7}.gguf".into());
        let lines = to_lines(&about, &[], &Named::default()).unwrap();
        let line = lines
            .strip_prefix(MAGIC_LINE.as_bytes())
            .unwrap()
            .strip_suffix(b"\n")
            .unwrap();
        let found = super::parse(line, &Named::default()).unwrap();
        assert_eq!((found.n_ctx, found.n_vocab), (256, 512));
        assert_eq!((found.n_windows, &found.text_path), (Some(0), &None));
        assert_eq!((found.values, &found.others), (about.values, &about.others));
        assert_eq!(found.model_path, about.model_path);
        assert!(serde_json::from_slice::<serde_json::Value>(line).is_ok());
    }
}
