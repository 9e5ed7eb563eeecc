//! Python's values, methods and `json.dumps`, jinja2's filters and transformers' functions, where minijinja's
//! differ.

mod json;
mod slices;
mod strings;
mod text;
mod time;

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::globals::{cycler, joiner};

use super::values::LongInteger;
pub(super) use json::compact;

/// Makes an environment's values, filters and functions those of Python, of jinja2 and of transformers.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(strings::call_method);
    environment.set_formatter(text::print);
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("string", text::to_string);
    environment.add_filter("join", text::join);
    environment.add_filter("trim", strings::trim);
    environment.add_filter("format", strings::format_filter);
    environment.add_filter("replace", strings::replace);
    environment.add_filter("center", strings::center);
    environment.add_filter("int", strings::int);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("indent", indent);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment.add_test("number", is_number);
    environment.add_test("integer", is_integer);
    let refuse = |message: String| Err::<Value, _>(invalid(message));
    environment.add_function("raise_exception", refuse);
    environment.add_function("strftime_now", time::strftime_now);
    environment.add_function("joiner", joiner);
    environment.add_function("cycler", |items: Rest<Value>| cycler(items.to_vec()));
    // What `source` writes in place of operators.
    environment.add_filter("python_slice", slices::python_slice);
    environment.add_filter("python_format", strings::python_format);
}

/// The error of a function that refuses its arguments.
fn invalid(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// True for a number, which in Python a bool is, too.
fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool) || is_long(value)
}

/// True for an integer that is no bool.
fn is_integer(value: &Value) -> bool {
    value.is_integer() || is_long(value)
}

fn is_long(value: &Value) -> bool {
    value.downcast_object_ref::<LongInteger>().is_some()
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
