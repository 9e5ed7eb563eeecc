//! `tojson`: Python's `json.dumps`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::text::{MAX_DEPTH, number};
use super::{invalid, is_long};

/// `tojson`: Python's `json.dumps(value, ensure_ascii=False)`, as transformers defines it.
pub fn to_json(
    value: &Value,
    ensure_ascii: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let indent = match kwargs
        .get::<Option<Value>>("indent")?
        .filter(|indent| !indent.is_none())
    {
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::from(u8::try_from(indent)?)),
        }),
        None => None,
    };
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?;
    let ensure_ascii = match ensure_ascii {
        Some(given) => Some(given),
        None => kwargs.get::<Option<Value>>("ensure_ascii")?,
    };
    let given = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;
    let comma = if indent.is_some() { "," } else { ", " };
    let separators: Result<[String; 2], _> = given
        .unwrap_or_else(|| vec![comma.to_owned(), ": ".to_owned()])
        .try_into();
    let layout = Layout {
        is_ascii: ensure_ascii.is_some_and(|given| given.is_true()),
        indent,
        sort_keys: sort_keys == Some(true),
        separators: separators.map_err(|_| invalid("tojson: separators must be two strings"))?,
    };
    layout.json(value, 0)
}

/// The shortest JSON of a value, with Python's numbers.
pub fn compact(value: &Value) -> Result<String, Error> {
    let layout = Layout {
        is_ascii: false,
        indent: None,
        sort_keys: false,
        separators: [",", ":"].map(str::to_owned),
    };
    layout.json(value, 0)
}

/// The layout of a value in JSON.
struct Layout {
    /// True if all but ASCII is escaped.
    is_ascii: bool,
    /// The text before an item for each level; `None` for one line.
    indent: Option<String>,
    sort_keys: bool,
    /// The texts between items, and after a key.
    separators: [String; 2],
}

impl Layout {
    /// The JSON of a value nested `depth` deep.
    fn json(&self, value: &Value, depth: usize) -> Result<String, Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!(
                "a value nested more than {MAX_DEPTH} levels deep has no JSON form"
            )));
        }
        match value.kind() {
            ValueKind::None => Ok("null".to_owned()),
            ValueKind::Bool => Ok(value.is_true().to_string()),
            ValueKind::Number => Ok(match number(value).as_str() {
                "nan" => "NaN".to_owned(),
                "inf" => "Infinity".to_owned(),
                "-inf" => "-Infinity".to_owned(),
                number => number.to_owned(),
            }),
            ValueKind::Plain if is_long(value) => Ok(value.to_string()),
            ValueKind::String => self.escaped(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| self.json(&item, depth + 1));
                Ok(format!(
                    "[{}]",
                    self.joined(items.collect::<Result<_, _>>()?, depth)
                ))
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                let entries = keys.iter().map(|key| {
                    // A key that is not a string becomes the string of its JSON.
                    let json = key
                        .as_str()
                        .map_or_else(|| self.json(key, depth), |key| Ok(key.to_owned()));
                    let (key, value) = (self.escaped(&json?)?, value.get_item(key)?);
                    let [_, colon] = &self.separators;
                    Ok(format!("{key}{colon}{}", self.json(&value, depth + 1)?))
                });
                Ok(format!(
                    "{{{}}}",
                    self.joined(entries.collect::<Result<_, Error>>()?, depth)
                ))
            }
            kind => {
                let what = format!("tojson: {kind} has no JSON form");
                Err(Error::new(ErrorKind::BadSerialization, what))
            }
        }
    }

    /// The text between the brackets of a list or a dict that is nested `depth` deep.
    fn joined(&self, items: Vec<String>, depth: usize) -> String {
        let [comma, _] = &self.separators;
        let Some(indent) = self.indent.as_ref().filter(|_| !items.is_empty()) else {
            return items.join(comma);
        };
        let line = |depth| format!("\n{}", indent.repeat(depth));
        let (inner, outer) = (line(depth + 1), line(depth));
        format!("{inner}{}{outer}", items.join(&format!("{comma}{inner}")))
    }

    /// A string in JSON. serde escapes what Python escapes unless it is to write ASCII.
    fn escaped(&self, text: &str) -> Result<String, Error> {
        let json = serde_json::to_string(text)
            .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
        if !self.is_ascii {
            return Ok(json);
        }
        let mut ascii = String::new();
        for c in json.chars() {
            match c {
                ' '..='~' => ascii.push(c),
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(ascii, "\\u{unit:04x}");
                    }
                }
            }
        }
        Ok(ascii)
    }
}
