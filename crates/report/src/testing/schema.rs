//! The JSON Schemas of all documents, in `docs/schema`: they are made from the types that the documents are
//! serialized from, whose comments describe the keys.
//!
//! After an intended change, `INSTA_UPDATE=always cargo test --release -p kl-report` rewrites them.
//! Read the difference before you commit it, and docs/PROMISES.md.

use std::env;
use std::fs;
use std::path::Path;

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

/// The schema of a document that is published under this title.
pub fn schema<T: JsonSchema>(title: &str) -> Value {
    let mut schema = schema_of::<T>(Plain);
    schema.insert("title".to_owned(), title.into());
    schema.to_value()
}

fn schema_of<T: JsonSchema>(transform: impl Transform + Clone + Send + 'static) -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let generator = settings.with_transform(transform).into_generator();
    generator.into_root_schema_for::<T>()
}

/// Checks a document: all its keys have to be in the schema of its type.
#[track_caller]
pub fn check<T: JsonSchema>(json: &str) {
    let schema = schema_of::<T>(Closed).to_value();
    let document = serde_json::from_str(json).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors = validator.iter_errors(&document);
    let errors = Vec::from_iter(errors.map(|e| format!("{}: {e}", e.instance_path())));
    assert!(errors.is_empty(), "{errors:#?}");
}

/// Forbids the keys that a schema does not name. Readers have to accept them, so the published ones
/// do not.
#[derive(Clone, Debug)]
struct Closed;

impl Transform for Closed {
    fn transform(&mut self, schema: &mut Schema) {
        if schema.get("properties").is_some() {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
        transform_subschemas(self, schema);
    }
}

/// Makes descriptions of comments: one line a paragraph, and `null` for Rust's `None`. Removes the
/// names of Rust's number types, which JSON Schema does not know.
#[derive(Clone, Debug)]
struct Plain;

impl Transform for Plain {
    fn transform(&mut self, schema: &mut Schema) {
        schema.remove("format");
        if let Some(Value::String(text)) = schema.get_mut("description") {
            let paragraphs = text.split("\n\n").map(|lines| lines.replace('\n', " "));
            let plain = Vec::from_iter(paragraphs).join("\n\n");
            *text = plain.replace("`None`", "null").replace(" in JSON)", ")");
        }
        transform_subschemas(self, schema);
    }
}

/// Checks that a file of `docs/schema` holds this schema, or rewrites it if the environment asks for that; and that
/// each of its keys is described.
#[track_caller]
pub fn check_published(file: &str, schema: &Value) {
    let text = serde_json::to_string_pretty(schema).unwrap() + "\n";
    is_current(file, &text);
    check_described(file, schema);
}

fn is_current(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/schema")
        .join(file);
    if env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::write(&path, text).unwrap();
    }
    let published = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        published == text,
        "docs/schema/{file} is not what the types give: INSTA_UPDATE=always rewrites it"
    );
}

/// Checks the descriptions in a schema and in those below it.
fn check_described(path: &str, schema: &Value) {
    if let Some(text) = schema["description"].as_str() {
        assert!(!text.contains("[`"), "{path}: a link of rustdoc: {text}");
    }
    match schema {
        Value::Object(fields) => {
            for (key, field) in fields {
                if let ("properties", Value::Object(keys)) = (key.as_str(), field) {
                    check_keys(path, keys);
                }
                check_described(&format!("{path}/{key}"), field);
            }
        }
        Value::Array(schemas) => schemas.iter().for_each(|of| check_described(path, of)),
        _ => {}
    }
}

fn check_keys(path: &str, keys: &Map<String, Value>) {
    for (key, schema) in keys {
        let is_described = schema["description"].is_string() || schema["const"].is_string();
        assert!(is_described, "{path}: the key {key} has no description");
    }
}
