//! Messages whose content is a list of parts: `[{"type": "text", "text": "..."}]`.
//!
//! Some templates print the parts themselves, as those of models that see images do, and get them
//! as they are: the model was trained on what they print. Others expect a string. They would print
//! the list as Python does, or nothing, so that they get the texts, joined with spaces as
//! `transformers serve` joins them for models of text (`cli/serving/utils.py` of transformers 5).

use std::collections::BTreeSet;

use minijinja::Value;
use minijinja::value::ValueKind;

/// A text that no template has.
const PROBE: &str = "kl-probe-of-parts";

/// The messages as a template needs them. `render` applies it; `None` where it refuses.
///
/// A template may treat the messages of one role in another way than those of the next, so each
/// role is tried by itself.
pub(super) fn for_template(messages: Value, render: impl Fn(Value) -> Option<String>) -> Value {
    let roles: BTreeSet<String> = items(&messages)
        .filter(has_parts)
        .map(|message| role(&message))
        .collect();
    if roles.is_empty() {
        return messages;
    }
    let part = Value::from_pairs([("type", "text"), ("text", PROBE)]);
    let probe = Value::from_iter([part]);
    let takes_parts = |of: &String| {
        let probed = with_contents(&messages, |message| match role(message) == *of {
            true => probe.clone(),
            false => joined(message),
        });
        // Not as Python or JSON print the list.
        let printed = ["'", "\""].map(|quote| format!("{quote}text{quote}: {quote}{PROBE}{quote}"));
        render(probed).is_some_and(|text| {
            text.contains(PROBE) && !printed.iter().any(|list| text.contains(list))
        })
    };
    let takers: BTreeSet<&String> = roles.iter().filter(|role| takes_parts(role)).collect();
    with_contents(&messages, |message| match takers.contains(&role(message)) {
        true => field(message, "content"),
        false => joined(message),
    })
}

/// The messages with another content, where it was a list of parts.
fn with_contents(messages: &Value, content: impl Fn(&Value) -> Value) -> Value {
    let changed = items(messages).map(|message| match has_parts(&message) {
        false => message,
        true => Value::from_pairs(items(&message).map(|key| match key.as_str() {
            Some("content") => (key, content(&message)),
            _ => {
                let value = message.get_item(&key).unwrap_or_default();
                (key, value)
            }
        })),
    });
    Value::from_iter(changed)
}

fn has_parts(message: &Value) -> bool {
    field(message, "content").kind() == ValueKind::Seq
}

/// The texts of a message's parts as one string.
fn joined(message: &Value) -> Value {
    let parts = field(message, "content");
    let texts = items(&parts).map(|part| field(&part, "text"));
    let texts: Vec<String> = texts
        .map(|text| text.as_str().unwrap_or_default().to_owned())
        .collect();
    Value::from(texts.join(" "))
}

fn role(message: &Value) -> String {
    field(message, "role")
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn field(of: &Value, name: &str) -> Value {
    of.get_attr(name).unwrap_or_default()
}

/// The items of a list, or the keys of an object.
fn items(of: &Value) -> impl Iterator<Item = Value> {
    of.try_iter().into_iter().flatten()
}
