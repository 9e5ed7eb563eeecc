//! JSON as a template's values. Integers are exact, as in Python.

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};
use serde::Deserialize;
use serde_json::Error;
use serde_json::value::RawValue;

/// The value of a text in JSON, which is nested at most as deep as serde_json reads. Keys keep their
/// order.
///
/// # Errors
/// A number that is too large for a double.
pub(super) fn of_json(json: &RawValue) -> Result<Value, Error> {
    let text = json.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let fields: IndexMap<String, &RawValue> = serde_json::from_str(text)?;
            let fields = fields
                .into_iter()
                .map(|(key, json)| Ok((key, of_json(json)?)));
            fields
                .collect::<Result<Vec<_>, Error>>()
                .map(Value::from_pairs)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            items.into_iter().map(of_json).collect()
        }
        Some(b'-' | b'0'..=b'9') => number(text),
        _ => Value::deserialize(&mut serde_json::Deserializer::from_str(text)),
    }
}

/// The value of a number: an integer has neither a fraction nor an exponent.
fn number(text: &str) -> Result<Value, Error> {
    if text.contains(['.', 'e', 'E']) {
        return serde_json::from_str::<f64>(text).map(Value::from);
    }
    let short = text.parse::<i64>().map(Value::from).ok();
    let long = short.or_else(|| text.parse::<i128>().map(Value::from).ok());
    Ok(long.unwrap_or_else(|| Value::from_object(LongInteger(text.to_owned()))))
}

/// An integer of more than 128 bits, which minijinja cannot compute with: its digits.
#[derive(Debug)]
pub(super) struct LongInteger(String);

impl Object for LongInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
