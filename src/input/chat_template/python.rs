//! Python's `len` and `json.dumps`, jinja2's `indent` and others, where minijinja's differ.

use std::borrow::Cow;
use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Makes an environment's values, filters and functions those of Python, of jinja2 and of transformers.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(print);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", to_string);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("indent", indent);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    let refuse = |message: String| Err::<Value, _>(invalid(message));
    environment.add_function("raise_exception", refuse);
    environment.add_function("strftime_now", strftime_now);
}

/// The constant day that `strftime_now` returns, so that a reference written tomorrow holds the
/// same prompts. Llama 3.1's own template falls back to this day.
///
/// Each directive's letter, and its value.
const DAY: &str = "d26 bJul BJuly m07 Y2024 y24 j208 aFri AFriday e26 H00 M00 S00 %%";

/// `strftime_now(format)`, on the constant [`DAY`].
fn strftime_now(format: &str) -> Result<String, Error> {
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
fn invalid(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// The deepest nesting of a printed value, as in JSON parsers: deeper ones could overflow the
/// stack.
const MAX_DEPTH: usize = 128;

/// Prints a value in `{{ … }}`.
fn print(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    Ok(out.write_str(&to_string(value)?)?)
}

/// `str(value)`: minijinja prints as Python does, but for numbers.
fn to_string(value: &Value) -> Result<String, Error> {
    check_depth(value, 0)?;
    let is_number = value.kind() == ValueKind::Number;
    Ok(if is_number {
        number(value)
    } else {
        value.to_string()
    })
}

/// Refuses a value that is nested too deep to be printed.
fn check_depth(value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!(
            "a value nested more than {MAX_DEPTH} levels deep cannot be printed"
        )));
    }
    let is_dict = value.kind() == ValueKind::Map;
    if !is_dict && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    value.try_iter()?.try_for_each(|item| {
        let inner = if is_dict {
            value.get_item(&item)?
        } else {
            item
        };
        check_depth(&inner, depth + 1)
    })
}

/// `len(value)`; 0 if the value is undefined.
fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        _ if value.is_undefined() => Ok(0),
        Some(length) => Ok(length),
        None => Err(invalid(format!(
            "a value of type {} has no length",
            value.kind()
        ))),
    }
}

/// True if a value has a length and items, as strings and dicts do in Python.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

/// True if a loop can go over a value, which excludes `None`: `tools is iterable` asks whether
/// there are tools.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// `indent`: jinja2's, which keeps an empty last line.
fn indent(
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
fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = kwargs.get::<Option<u8>>("indent")?;
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?;
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?;
    let given = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;
    let comma = if indent.is_some() { "," } else { ", " };
    let separators: Result<[String; 2], _> = given
        .unwrap_or_else(|| vec![comma.to_owned(), ": ".to_owned()])
        .try_into();
    check_depth(value, 0)?;
    let layout = Layout {
        is_ascii: ensure_ascii == Some(true),
        indent,
        sort_keys: sort_keys == Some(true),
        separators: separators.map_err(|_| invalid("tojson: separators must be two strings"))?,
    };
    layout.json(value, 0)
}

/// The layout of a value in JSON.
struct Layout {
    /// True if all but ASCII is escaped.
    is_ascii: bool,
    /// Spaces per level; `None` for one line.
    indent: Option<u8>,
    sort_keys: bool,
    /// The texts between items, and after a key.
    separators: [String; 2],
}

impl Layout {
    /// The JSON of a value nested `depth` deep.
    fn json(&self, value: &Value, depth: usize) -> Result<String, Error> {
        match value.kind() {
            ValueKind::None => Ok("null".to_owned()),
            ValueKind::Bool => Ok(value.is_true().to_string()),
            ValueKind::Number => Ok(number(value)),
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
        let Some(indent) = self.indent.filter(|_| !items.is_empty()) else {
            return items.join(comma);
        };
        let line = |depth| format!("\n{}", " ".repeat(usize::from(indent) * depth));
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
