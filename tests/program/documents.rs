//! The program's JSON documents: each that a test reads is checked against its schema in `docs/schema`.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

/// The kinds of document by the names of their schemas, each with a key that no other kind has.
const KINDS: [(&str, &str); 8] = [
    ("pick", "pick"),
    ("evaluation", "complete"),
    ("report", "not_compared"),
    ("pair", "nearer"),
    ("sensitivity", "by_role"),
    ("recipe", "frontier"),
    ("info", "file_bytes"),
    ("check", "cells"),
];

/// The keys of version 1 that later documents lack.
const REMOVED: [&str; 6] = [
    "design_effect",
    "kld_macro",
    "sign_test",
    "by_entropy",
    "windows_for_5_percent",
    "windows_needed",
];

/// Which release wrote a document.
#[derive(Clone, Copy, PartialEq)]
enum Release {
    This,
    /// It may lack keys that are newer.
    Earlier,
}

static THIS: LazyLock<Vec<Validator>> = LazyLock::new(|| validators(Release::This));
static EARLIER: LazyLock<Vec<Validator>> = LazyLock::new(|| validators(Release::Earlier));

/// Parses a document, which has to be as its schema states.
#[track_caller]
pub fn parse(json: &[u8]) -> Value {
    checked(serde_json::from_slice(json).unwrap(), &THIS)
}

/// Parses a document of an earlier release: each of its keys that was not removed has to be in the schema
/// still.
#[track_caller]
pub fn parse_earlier(json: &[u8]) -> Value {
    let mut document = serde_json::from_slice(json).unwrap();
    remove_keys(&mut document);
    checked(document, &EARLIER)
}

fn remove_keys(document: &mut Value) {
    match document {
        Value::Object(fields) => {
            fields.retain(|key, _| !REMOVED.contains(&key.as_str()));
            fields.values_mut().for_each(remove_keys);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_keys),
        _ => {}
    }
}

#[track_caller]
fn checked(document: Value, validators: &[Validator]) -> Value {
    let faults = faults(&document, validators);
    assert!(faults.is_empty(), "docs/schema: {faults:#?}");
    document
}

/// What is wrong with a document, a line each.
fn faults(document: &Value, validators: &[Validator]) -> Vec<String> {
    let kind = KINDS
        .iter()
        .position(|(_, key)| document.get(key).is_some());
    let Some(kind) = kind else {
        return vec![format!("a document of no known kind: {document}")];
    };
    let errors = validators[kind].iter_errors(document);
    Vec::from_iter(errors.map(|error| format!("{}: {error}", error.instance_path())))
}

fn validators(release: Release) -> Vec<Validator> {
    let names = KINDS.iter().map(|(name, _)| *name);
    names.map(|name| validator(name, release)).collect()
}

fn validator(name: &str, release: Release) -> Validator {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema");
    let schema = fs::read(folder.join(format!("{name}.json"))).unwrap();
    let mut schema = serde_json::from_slice(&schema).unwrap();
    make_strict(&mut schema, release);
    jsonschema::validator_for(&schema).unwrap()
}

/// Readers have to accept keys that they do not know, so the schemas do. Here they are mistakes.
fn make_strict(schema: &mut Value, release: Release) {
    match schema {
        Value::Object(fields) => {
            let schemas = fields.values_mut();
            schemas.for_each(|schema| make_strict(schema, release));
            if fields.get("properties").is_some_and(Value::is_object) {
                fields
                    .entry("additionalProperties")
                    .or_insert(Value::Bool(false));
                if release == Release::Earlier {
                    fields.remove("required");
                }
            }
        }
        Value::Array(schemas) => schemas
            .iter_mut()
            .for_each(|schema| make_strict(schema, release)),
        _ => {}
    }
}

#[test]
fn what_a_schema_does_not_state_is_found() {
    let session = crate::session::Session::new();
    session.reference("-n 100");
    let document = session.json("-m @q4 -r ref.gz");
    assert_eq!(faults(&document, &THIS), [""; 0]);
    // What comes on request is not there otherwise.
    let model = document["models"][0].as_object().unwrap();
    assert!(
        !["top", "tokens", "conditions"]
            .iter()
            .any(|key| model.contains_key(*key))
    );
    let changed = |parent: &str, change: &dyn Fn(&mut Value)| {
        let mut document = document.clone();
        change(document.pointer_mut(parent).unwrap());
        assert_eq!(faults(&document, &THIS).len(), 1, "{parent}");
    };
    for (parent, key, value) in [
        ("", "json_version", Value::from("1")),
        ("/reference", "new", Value::from(1)),
        ("/models/0/kld/mean", "new", Value::from(1)),
        ("/models/0/clusters", "kind", Value::from("token")),
        ("/models/0/kld", "mean", Value::Null),
    ] {
        changed(parent, &|of| of[key] = value.clone());
    }
    // Without the second, no kind has the document.
    for (parent, key) in [("/models/0", "n_excluded"), ("", "complete")] {
        changed(parent, &|of| drop(of.as_object_mut().unwrap().remove(key)));
    }
}
