//! Python's `str`, `repr`, `len` and `json.dumps`, where minijinja's differ.

use std::borrow::Cow;
use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

/// The constant day that `strftime_now` returns, so that a reference written tomorrow holds the
/// same prompts. Llama 3.1's own template falls back to this day.
///
/// Each directive's letter, and its value.
const DAY: &str = "d26 bJul BJuly m07 Y2024 y24 j208 aFri AFriday e26 H00 M00 S00 %%";

/// `strftime_now(format)`, on the constant [`DAY`].
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let (mut text, mut rest) = (String::new(), format);
    while let Some((before, after)) = rest.split_once('%') {
        // `%-d` has no leading zero.
        let bare = after.strip_prefix('-');
        let known = DAY.split(' ').find_map(|directive| {
            let (letter, value) = directive.split_at_checked(1)?;
            let rest = bare.unwrap_or(after).strip_prefix(letter)?;
            Some((bare.and(value.strip_prefix('0')).unwrap_or(value), rest))
        });
        let (value, after) = known.ok_or_else(|| {
            invalid(format!(
                "strftime_now: '{format}' has a directive that is not supported"
            ))
        })?;
        text.extend([before, value]);
        rest = after;
    }
    Ok(text + rest)
}

/// The error of a function that refuses its arguments.
pub(super) fn invalid(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// The deepest nesting of a printed value, as in JSON parsers: deeper ones could overflow the
/// stack.
const MAX_DEPTH: usize = 128;

/// Prints a value in `{{ … }}`.
pub(super) fn print(
    out: &mut Output<'_>,
    _: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    Ok(out.write_str(&to_string(value)?)?)
}

/// `str(value)`.
pub(super) fn to_string(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let layout = Layout {
        is_json: false,
        is_ascii: false,
        indent: None,
        sort_keys: false,
        separators: [", ", ": "].map(str::to_owned),
    };
    layout.text(value)
}

/// `len(value)`; 0 if the value is undefined.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        _ if value.is_undefined() => Ok(0),
        Some(length) => Ok(length),
        None => Err(invalid(format!(
            "a value of type {} has no length",
            value.kind()
        ))),
    }
}

/// Whether a value has a length and items, as strings and dicts do in Python.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

/// Whether a loop can go over a value, which excludes `None`: `tools is iterable` asks whether
/// there are tools.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// `indent`: jinja2's, which keeps an empty last line.
pub(super) fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let flag = |given: Option<bool>, name: &str| match given {
        Some(given) => Ok(given),
        None => Ok::<_, Error>(kwargs.get::<Option<bool>>(name)?.unwrap_or(false)),
    };
    let (first, blank) = (flag(first, "first")?, flag(blank, "blank")?);
    let width: Value = match width {
        Some(width) => width,
        None => kwargs.get::<Option<Value>>("width")?.unwrap_or(4.into()),
    };
    kwargs.assert_all_used()?;
    let margin = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::from(u8::try_from(width.clone())?)),
    };
    let mut out = String::new();
    for (i, line) in text.split('\n').enumerate() {
        let is_indented = if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        out.push_str(if i > 0 { "\n" } else { "" });
        out.push_str(if is_indented { &margin } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// `str` of a number. Rust and Python switch floats to exponents at the same sizes, but write those
/// differently.
fn number(value: &Value) -> String {
    let (false, Ok(float)) = (value.is_integer(), f64::try_from(value.clone())) else {
        return value.to_string();
    };
    let text = format!("{float:?}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// `tojson`: Python's `json.dumps(value, ensure_ascii=False)`, as transformers defines it.
pub(super) fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = kwargs.get::<Option<u8>>("indent")?;
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?;
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?;
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;
    let comma = if indent.is_some() { "," } else { ", " };
    let separators: Result<[String; 2], _> = separators
        .unwrap_or_else(|| vec![comma.to_owned(), ": ".to_owned()])
        .try_into();
    let json = Layout {
        is_json: true,
        is_ascii: ensure_ascii == Some(true),
        indent,
        sort_keys: sort_keys == Some(true),
        separators: separators.map_err(|_| invalid("tojson: separators must be two strings"))?,
    };
    json.text(value)
}

/// The layout of a value in JSON, or in Python's `repr`, which differ in a few words and in their
/// strings.
struct Layout {
    /// False for `repr`, in which characters that only Python's tables list as unprintable are not
    /// escaped.
    is_json: bool,
    /// True if JSON escapes all but ASCII.
    is_ascii: bool,
    /// Spaces per level; `None` for one line.
    indent: Option<u8>,
    sort_keys: bool,
    /// What stands between items, and after a key.
    separators: [String; 2],
}

impl Layout {
    fn text(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    /// Appends a value nested `depth` deep.
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!(
                "a value nested more than {MAX_DEPTH} levels deep cannot be printed"
            )));
        }
        let word = |json: &'static str, python| if self.is_json { json } else { python };
        match value.kind() {
            ValueKind::None => out.push_str(word("null", "None")),
            ValueKind::Bool if value.is_true() => out.push_str(word("true", "True")),
            ValueKind::Bool => out.push_str(word("false", "False")),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                out.push_str(&if self.is_json {
                    self.escaped(text)?
                } else {
                    quoted(text)
                });
            }
            ValueKind::Seq | ValueKind::Map => self.write_items(value, depth, out)?,
            ValueKind::Iterable if self.is_json => self.write_items(value, depth, out)?,
            kind if self.is_json => {
                let what = format!("tojson: {kind} has no JSON form");
                return Err(Error::new(ErrorKind::BadSerialization, what));
            }
            _ => out.push_str(&value.to_string()),
        }
        Ok(())
    }

    /// Appends a list, a tuple or a dict.
    fn write_items(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let [comma, colon] = &self.separators;
        let is_dict = value.kind() == ValueKind::Map;
        let mut items: Vec<Value> = value.try_iter()?.collect();
        if is_dict && self.sort_keys {
            items.sort();
        }
        let [open, close] = match items.len() {
            _ if is_dict => ["{", "}"],
            _ if self.is_json || !value.is_tuple() => ["[", "]"],
            1 => ["(", ",)"],
            _ => ["(", ")"],
        };
        out.push_str(open);
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { comma } else { "" });
            self.break_line(depth + 1, out);
            let start = out.len();
            self.write(item, depth + 1, out)?;
            if is_dict {
                if self.is_json && item.as_str().is_none() {
                    // A key that is not a string becomes the string of its JSON.
                    let key = self.escaped(&out.split_off(start))?;
                    out.push_str(&key);
                }
                out.push_str(colon);
                self.write(&value.get_item(item)?, depth + 1, out)?;
            }
        }
        if !items.is_empty() {
            self.break_line(depth, out);
        }
        out.push_str(close);
        Ok(())
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', usize::from(indent) * depth));
        }
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
