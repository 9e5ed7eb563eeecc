//! The tables of `docs/JSON.md`.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::{Document, documents, is_current, path};

/// The line of the page from which on it is made.
const MARK: &str = "<!-- From here on, src/report/tests/schema makes this page. -->\n";

#[test]
fn the_page_has_every_key() {
    let page = fs::read_to_string(path("JSON.md")).unwrap();
    let (written, _) = page.split_once(MARK).expect("the mark");
    is_current("JSON.md", &format!("{written}{MARK}{}", tables()));
}

fn tables() -> String {
    let documents = documents();
    let mut text = String::new();
    let mut types = BTreeMap::new();
    for Document {
        file,
        title,
        calls,
        schema,
    } in &documents
    {
        text += &format!("\n## {title}\n\n{calls}: [schema/{file}](schema/{file}).\n");
        text += &described(schema);
        types.extend(schema["$defs"].as_object().into_iter().flatten());
    }
    text += "\n## Objects and names\n\nThose that the tables above link to.\n";
    for (name, schema) in types {
        text += &format!("\n### {name}\n{}", described(schema));
    }
    text
}

/// A type's description, and the table of its keys or of the values that it can have.
fn described(schema: &Value) -> String {
    let mut text = String::new();
    if let Some(description) = schema["description"].as_str() {
        text += &format!("\n{description}\n");
    }
    if schema["properties"].is_object() {
        text += &keys(schema);
    }
    let variants = schema["oneOf"].as_array().map_or(&[][..], Vec::as_slice);
    let (objects, values): (Vec<_>, Vec<_>) =
        variants.iter().partition(|of| of["properties"].is_object());
    if !values.is_empty() {
        text += "\n| value | meaning |\n|---|---|\n";
        for value in values {
            text += &format!("| `{}` | {} |\n", name(value), cell(value));
        }
    }
    for object in objects {
        text += &described(object);
    }
    text
}

/// The table of an object's keys.
fn keys(schema: &Value) -> String {
    let mut text = "\n| key | type | meaning |\n|---|---|---|\n".to_owned();
    let required = schema["required"].as_array();
    for (key, of) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = required.is_some_and(|names| names.contains(&key.as_str().into()));
        let absent = if is_required { "" } else { ", or absent" };
        text += &format!("| `{key}` | {}{absent} | {} |\n", kind(of), cell(of));
    }
    text
}

/// The type of a value, in words.
fn kind(schema: &Value) -> String {
    let list = |key: &str| {
        let kinds = schema[key].as_array()?.iter().map(kind);
        Some(Vec::from_iter(kinds))
    };
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.trim_start_matches("#/$defs/");
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(kinds) = list("anyOf") {
        return kinds.join(" or ");
    }
    if schema["const"].is_string() {
        return format!("`{}`", name(schema));
    }
    if let Some(kinds) = list("prefixItems") {
        return format!("[{}]", kinds.join(", "));
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        kind => vec![kind.clone()],
    };
    let in_words = |of: &Value| match of.as_str() {
        Some("array") => format!("list of {}", kind(&schema["items"])),
        Some("object") => format!("object of {}", kind(&schema["additionalProperties"])),
        of => of.expect("a type").to_owned(),
    };
    Vec::from_iter(types.iter().map(in_words)).join(" or ")
}

/// The name that a value is, if it is one of several.
fn name(schema: &Value) -> &str {
    schema["const"].as_str().expect("a name")
}

/// A description in a cell of a table.
fn cell(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.replace("\n\n", " ").replace('|', "\\|")
}
