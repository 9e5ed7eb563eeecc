//! Messages whose content is a list of parts: `[{"type": "text", "text": "..."}]`.
//!
//! Some templates print the parts themselves, as those of models that see images do, and get them
//! as they are: the model was trained on what they print. Others expect a string. They would print
//! the list as Python does, or nothing, so that they get the texts, joined by line breaks as
//! llama-server joins them (`concat_content_parts` in llama.cpp's `common/chat.cpp`). A template
//! that prints nothing of a string gets it as a part, as from llama.cpp.

use std::collections::BTreeSet;

use minijinja::Value;
use minijinja::value::ValueKind;

/// A text that no template has.
const PROBE: &str = "kl-probe-of-parts";

/// The messages as a template needs them. `render` applies it; `None` where it refuses.
///
/// A template may treat the messages of one role in another way than those of the next, so each
/// role is tried by itself; or it may refuse strings of the others, so they are tried as they are, too.
pub(super) fn for_template(messages: Value, render: impl Fn(Value) -> Option<String>) -> Value {
    let with_parts = items(&messages).filter(has_parts);
    let roles: BTreeSet<Value> = with_parts.map(|message| field(&message, "role")).collect();
    if roles.is_empty() {
        return messages;
    }
    let takes_parts = |of: &Value| {
        let probed = |others: fn(&Value) -> Option<Value>| {
            with_content(&messages, |message| match field(message, "role") == *of {
                _ if !has_parts(message) => None,
                true => Some(as_part(&Value::from(PROBE))),
                false => others(message),
            })
        };
        is_printed(render(probed(|other| Some(joined(other)))))
            || is_printed(render(probed(|_| None)))
    };
    let others: BTreeSet<&Value> = roles.iter().filter(|role| !takes_parts(role)).collect();
    with_content(&messages, |message| {
        let is_joined = has_parts(message) && others.contains(&field(message, "role"));
        is_joined.then(|| joined(message))
    })
}

/// Returns true if a template prints parts, but not strings.
pub(super) fn takes_parts_only(render: impl Fn(Value) -> Option<String>) -> bool {
    let prints = |content: Value| {
        let message = Value::from_pairs([("role", Value::from("user")), ("content", content)]);
        is_printed(render(Value::from_iter([message])))
    };
    let text = Value::from(PROBE);
    prints(as_part(&text)) && !prints(text)
}

/// The messages with each string as a list of one part.
pub(super) fn with_parts(messages: &Value) -> Value {
    with_content(messages, |message| {
        let content = field(message, "content");
        content.as_str().is_some().then(|| as_part(&content))
    })
}

/// A list of one part, which has this text.
fn as_part(text: &Value) -> Value {
    let part = Value::from_pairs([("type", Value::from("text")), ("text", text.clone())]);
    Value::from_iter([part])
}

/// Returns true if [`PROBE`] is in a text, and not as Python or JSON print a list of parts.
fn is_printed(text: Option<String>) -> bool {
    let lists = ["'", "\""].map(|quote| format!("{quote}text{quote}: {quote}{PROBE}{quote}"));
    text.is_some_and(|text| text.contains(PROBE) && !lists.iter().any(|list| text.contains(list)))
}

/// The messages with another content, where `content` gives one.
fn with_content(messages: &Value, content: impl Fn(&Value) -> Option<Value>) -> Value {
    let changed = items(messages).map(|message| match content(&message) {
        None => message,
        Some(content) => with(&message, "content", &content),
    });
    Value::from_iter(changed)
}

/// Returns true if a message's content is a list of parts; what a tool returned may be another list.
fn has_parts(message: &Value) -> bool {
    let content = field(message, "content");
    let mut items = items(&content);
    content.kind() == ValueKind::Seq && items.all(|item| field(&item, "type").as_str().is_some())
}

/// The texts of a message's parts as one string. Empty ones before the first text add no line.
fn joined(message: &Value) -> Value {
    let parts = field(message, "content");
    let mut joined = String::new();
    for part in items(&parts) {
        joined.push_str(if joined.is_empty() { "" } else { "\n" });
        joined.push_str(field(&part, "text").as_str().unwrap_or_default());
    }
    Value::from(joined)
}

/// The value of an object's key; undefined without one.
pub(super) fn field(of: &Value, name: &str) -> Value {
    of.get_attr(name).unwrap_or_default()
}

/// The items of a list, or the keys of an object.
pub(super) fn items(of: &Value) -> impl Iterator<Item = Value> {
    of.try_iter().into_iter().flatten()
}

/// An object with another value for a key that it has. Keys keep their order.
pub(super) fn with(of: &Value, name: &str, value: &Value) -> Value {
    Value::from_pairs(items(of).map(|key| {
        let value = match key.as_str() {
            Some(other) if other == name => value.clone(),
            _ => of.get_item(&key).unwrap_or_default(),
        };
        (key, value)
    }))
}
