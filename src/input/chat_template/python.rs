//! Python's `str`, `repr`, `len` and `json.dumps`, where minijinja's differ.

use std::borrow::Cow;
use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

/// The constant day that `strftime_now` returns, so that a reference written tomorrow holds the
/// same prompts. Llama 3.1's own template falls back to this day.
const DAY: [(char, &str); 14] = [
    ('d', "26"),
    ('b', "Jul"),
    ('B', "July"),
    ('m', "07"),
    ('Y', "2024"),
    ('y', "24"),
    ('j', "208"),
    ('a', "Fri"),
    ('A', "Friday"),
    ('e', "26"),
    ('H', "00"),
    ('M', "00"),
    ('S', "00"),
    ('%', "%"),
];

/// `strftime_now(format)`, on the constant [`DAY`].
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        // `%-d` has no leading zero.
        let (directive, bare) = match chars.next() {
            Some('-') => (chars.next(), true),
            directive => (directive, false),
        };
        let known = DAY.iter().find(|(letter, _)| directive == Some(*letter));
        let (_, value) = known.ok_or_else(|| {
            invalid(format!(
                "strftime_now: '{format}' has a directive that is not supported"
            ))
        })?;
        text.push_str(match (bare, value.trim_start_matches('0')) {
            (true, "") => "0",
            (true, trimmed) => trimmed,
            (false, _) => value,
        });
    }
    Ok(text)
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
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => repr(value, 0),
    }
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

/// Returns true if a value has a length and items, as strings and dicts do in Python.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

/// `repr(value)` of a value nested `depth` deep. Characters that only Python's tables list as
/// unprintable are not escaped.
fn repr(value: &Value, depth: usize) -> Result<String, Error> {
    check_depth(depth)?;
    let item = |item: &Value| repr(item, depth + 1);
    Ok(match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool if value.is_true() => "True".to_owned(),
        ValueKind::Bool => "False".to_owned(),
        ValueKind::Number => number(value),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq if value.is_tuple() => match items(value, item)?.as_slice() {
            [one] => format!("({one},)"),
            items => format!("({})", items.join(", ")),
        },
        ValueKind::Seq => format!("[{}]", items(value, item)?.join(", ")),
        ValueKind::Map => {
            let pair =
                |key: &Value| Ok(format!("{}: {}", item(key)?, item(&value.get_item(key)?)?));
            format!("{{{}}}", items(value, pair)?.join(", "))
        }
        _ => value.to_string(),
    })
}

/// Applies `of` to the items of a list, or to the keys of a dict.
fn items(
    value: &Value,
    of: impl Fn(&Value) -> Result<String, Error>,
) -> Result<Vec<String>, Error> {
    value.try_iter()?.map(|item| of(&item)).collect()
}

fn check_depth(depth: usize) -> Result<(), Error> {
    match depth <= MAX_DEPTH {
        true => Ok(()),
        false => Err(invalid(format!(
            "a value nested more than {MAX_DEPTH} levels deep cannot be printed"
        ))),
    }
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
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}

/// `tojson`: Python's `json.dumps(value, ensure_ascii=False)`, as transformers defines it.
pub(super) fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = kwargs.get::<Option<u8>>("indent")?;
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?;
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?;
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;
    if ensure_ascii == Some(true) {
        return Err(invalid("tojson(ensure_ascii=True) is not supported"));
    }
    let comma = if indent.is_some() { "," } else { ", " };
    let separators = separators.unwrap_or_else(|| vec![comma.to_owned(), ": ".to_owned()]);
    let [comma, colon] = <[String; 2]>::try_from(separators)
        .map_err(|_| invalid("tojson: separators must be two strings"))?;
    let json = Json {
        indent,
        sort_keys: sort_keys == Some(true),
        comma,
        colon,
    };
    let mut out = String::new();
    json.write(value, 0, &mut out)?;
    Ok(out)
}

/// The layout of JSON.
struct Json {
    /// Spaces per level; `None` for one line.
    indent: Option<u8>,
    sort_keys: bool,
    comma: String,
    colon: String,
}

impl Json {
    /// Appends a value nested `depth` deep.
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => out.push_str(&escaped(value.as_str().unwrap_or_default())?),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.enclose(['[', ']'], items, depth, out, |item, out| {
                    self.write(&item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.enclose(['{', '}'], keys, depth, out, |key, out| {
                    // A key that is not a string becomes the string of its JSON.
                    let mut name = String::new();
                    match key.as_str() {
                        Some(text) => name.push_str(text),
                        None => self.write(&key, depth + 1, &mut name)?,
                    }
                    out.push_str(&escaped(&name)?);
                    out.push_str(&self.colon);
                    self.write(&value.get_item(&key)?, depth + 1, out)
                })?;
            }
            kind => {
                let what = format!("tojson: {kind} has no JSON form");
                return Err(Error::new(ErrorKind::BadSerialization, what));
            }
        }
        Ok(())
    }

    /// Appends items between brackets.
    fn enclose(
        &self,
        [open, close]: [char; 2],
        items: Vec<Value>,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let is_empty = items.is_empty();
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                out.push_str(&self.comma);
            }
            self.break_line(depth + 1, out);
            write(item, out)?;
        }
        if !is_empty {
            self.break_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', usize::from(indent) * depth));
        }
    }
}

/// A string in JSON. serde escapes what Python escapes, and nothing else.
fn escaped(text: &str) -> Result<String, Error> {
    serde_json::to_string(text)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}
