//! Values as texts: Python's `str` and `repr`.

use minijinja::value::ValueKind;
use minijinja::{Error, Output, State, Value};

use super::invalid;

/// The deepest nesting of a printed value, as in JSON parsers.
pub const MAX_DEPTH: usize = 128;

/// Prints a value in `{{ … }}`.
pub fn print(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    Ok(out.write_str(&to_string(value)?)?)
}

/// `str(value)`.
pub fn to_string(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::Number => number(value),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            let mut text = String::new();
            add_repr(&mut text, value, 0)?;
            text
        }
        _ => value.to_string(),
    })
}

/// Adds `repr(value)`, of a value that is nested `depth` deep.
fn add_repr(text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!(
            "a value nested more than {MAX_DEPTH} levels deep cannot be printed"
        )));
    }
    match value.kind() {
        ValueKind::String => add_quoted(text, value.as_str().unwrap_or_default()),
        ValueKind::Undefined => text.push_str("Undefined"),
        ValueKind::Map => {
            for (i, key) in value.try_iter()?.enumerate() {
                text.push_str(if i == 0 { "{" } else { ", " });
                add_repr(text, &key, depth + 1)?;
                text.push_str(": ");
                add_repr(text, &value.get_item(&key)?, depth + 1)?;
            }
            text.push_str(if value.len() == Some(0) { "{}" } else { "}" });
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let [open, close] = if value.is_tuple() {
                ["(", ")"]
            } else {
                ["[", "]"]
            };
            let mut n_items = 0;
            text.push_str(open);
            for item in value.try_iter()? {
                text.push_str(if n_items == 0 { "" } else { ", " });
                add_repr(text, &item, depth + 1)?;
                n_items += 1;
            }
            text.push_str(if n_items == 1 && value.is_tuple() {
                ","
            } else {
                ""
            });
            text.push_str(close);
        }
        _ => text.push_str(&to_string(value)?),
    }
    Ok(())
}

/// Adds a string in quotes, as Python writes it.
fn add_quoted(text: &mut String, string: &str) {
    let quote = if string.contains('\'') && !string.contains('"') {
        '"'
    } else {
        '\''
    };
    text.push(quote);
    for c in string.chars() {
        match c {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            _ if c == quote => text.extend(['\\', c]),
            _ if is_printable(c) => text.push(c),
            _ => {
                let code = u32::from(c);
                text.push_str(&match code {
                    0..=0xff => format!("\\x{code:02x}"),
                    0x100..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
        }
    }
    text.push(quote);
}

/// `c.isprintable()`: Rust escapes the same classes of characters, and one that extends the character
/// before it only at the start of a text.
fn is_printable(c: char) -> bool {
    let after_another = ['a', c].iter().collect::<String>();
    let escaped = after_another.escape_debug().to_string();
    !escaped.starts_with("a\\u") && !escaped.starts_with("a\\0")
}

/// `str` of a number. Rust and Python switch floats to exponents at the same sizes, but write those
/// differently.
pub fn number(value: &Value) -> String {
    let (false, Ok(float)) = (value.is_integer(), f64::try_from(value.clone())) else {
        return value.to_string();
    };
    let text = if float.is_nan() {
        "nan".to_owned()
    } else {
        format!("{float:?}")
    };
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// `join`: the texts of a value's items, or of one of their attributes, with another between them.
pub fn join(
    value: &Value,
    between: Option<Value>,
    attribute: Option<Value>,
    kwargs: minijinja::value::Kwargs,
) -> Result<String, Error> {
    let named = |given: Option<Value>, name: &str| match given {
        Some(given) => Ok(Some(given)),
        None => kwargs.get::<Option<Value>>(name),
    };
    let (between, attribute) = (named(between, "d")?, named(attribute, "attribute")?);
    kwargs.assert_all_used()?;
    let between = between.map_or(Ok(String::new()), |between| to_string(&between))?;
    let items = value.try_iter()?.map(|item| {
        let item = match &attribute {
            Some(attribute) => item.get_item(attribute)?,
            None => item,
        };
        to_string(&item)
    });
    Ok(items.collect::<Result<Vec<_>, Error>>()?.join(&between))
}
