//! The variables that a prompt gives to its chat template beside the messages.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Keys of a prompt's JSON object that are not variables.
const NOT_VARIABLES: [&str; 3] = ["prompt", "messages", "group"];

/// Variables that are lists in transformers, and the form of each, for errors.
const LISTS: [(&str, &str); 2] = [
    ("tools", r#"[{"type": "function", "function": {...}}]"#),
    ("documents", r#"[{"title": "...", "text": "..."}]"#),
];

/// Variables for a chat template, such as `tools`: names with values in JSON, which are kept byte for
/// byte.
#[derive(Clone, Debug, Default)]
pub struct Variables(Vec<(String, Box<RawValue>)>);

impl Variables {
    /// Reads the keys of a prompt's JSON object, all but `prompt`, `messages` and `group`. Of a key that
    /// comes twice the last value counts, as in Python.
    ///
    /// # Errors
    /// If `json` is not a JSON object, or if `tools` or `documents` is neither a list nor null.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let mut all: Self = serde_json::from_str(json)
            .map_err(|error| format!("not a JSON object: {}", super::messages::invalid(&error)))?;
        all.0
            .retain(|(name, _)| !NOT_VARIABLES.contains(&name.as_str()));
        for (name, form) in LISTS {
            let mut values = all.iter().filter(|(other, _)| *other == name);
            if values.any(|(_, value)| !value.starts_with('[') && value != "null") {
                return Err(format!("{name} is not a list; expected {form}"));
            }
        }
        Ok(all)
    }

    /// Keeps the variables that `is_wanted` wants, by their names.
    pub fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.0.retain(|(name, _)| is_wanted(name));
    }

    /// The names, and the values in JSON.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, value.get()))
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of the names and of the values' JSON.
    pub fn bytes(&self) -> usize {
        self.iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }
}

impl PartialEq for Variables {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Variables {}

impl Serialize for Variables {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Variables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Pairs)
    }
}

/// Reads an object's pairs in their order.
struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Variables;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Variables, A::Error> {
        let mut variables = Vec::<(String, Box<RawValue>)>::new();
        while let Some((name, value)) = pairs.next_entry::<String, Box<RawValue>>()? {
            match variables.iter_mut().find(|(other, _)| *other == name) {
                Some((_, earlier)) => *earlier = value,
                None => variables.push((name, value)),
            }
        }
        Ok(Variables(variables))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_to_the_byte() {
        let line = r#"{"id":1,"prompt":"a","tools":[ {"b":1.50} ],"group":"x","id":  null}"#;
        let mut variables = Variables::from_json(line).unwrap();
        let kept: Vec<_> = variables.iter().collect();
        assert_eq!(kept, [("id", "null"), ("tools", r#"[ {"b":1.50} ]"#)]);
        variables.retain(|name| name == "tools");
        assert_eq!(variables.bytes(), "tools".len() + 14);
        let json = serde_json::to_string(&variables).unwrap();
        assert_eq!(json, r#"{"tools":[ {"b":1.50} ]}"#);
        assert_eq!(serde_json::from_str::<Variables>(&json).unwrap(), variables);
        assert!(Variables::from_json("[]").is_err());
        assert!(serde_json::from_str::<Variables>("7").is_err());
    }

    #[test]
    fn tools_and_documents_are_lists() {
        for name in ["tools", "documents"] {
            for value in ["[]", "  [ {} ]", "null", " null "] {
                let line = format!(r#"{{"{name}": {value}}}"#);
                assert!(Variables::from_json(&line).is_ok(), "{line}");
            }
            for value in ["{}", "7", "false", r#""[]""#] {
                let line = format!(r#"{{"{name}": {value}}}"#);
                let fault = Variables::from_json(&line).unwrap_err();
                assert!(fault.starts_with(&format!("{name} is not a list; expected [{{")));
            }
        }
    }
}
