//! Messages in the form that a template takes: the parts of a content, the arguments of tool calls, and
//! reasoning.
//!
//! Some templates print the parts of a content, `[{"type": "text", "text": "..."}]`, themselves, as those
//! of models that see images do, and get them as they are: the model was trained on what they print.
//! Others expect a string. They would print the list as Python does, or nothing, so that they get the
//! texts, joined by line breaks as llama-server joins them (`concat_content_parts` in llama.cpp's
//! `common/chat.cpp`). A template that prints nothing of a string gets it as a part, as from llama.cpp.
//!
//! The arguments of a tool call are a string of JSON in OpenAI's API; templates differ. Most look into
//! them or print them as JSON, which would quote a string of JSON once more: they get an object. Others
//! print a string as it is: they get one, also of an object. So does llama-server
//! (`func_args_not_string` in llama.cpp's `common/chat.cpp`), which finds out in the same way, by a call
//! of a tool in a conversation (`caps_get` in `common/jinja/caps.cpp`).

use std::collections::{BTreeMap, BTreeSet};

use minijinja::Value;
use minijinja::value::ValueKind;

use serde_json::value::RawValue;

use super::{TemplateError, python, values};

/// The values of a template's variables, by their names.
pub(super) type Variables = BTreeMap<String, Value>;

/// A text that no template has.
const PROBE: &str = "kl-probe-of-parts";

/// A message in JSON as a template needs it: with the reasoning under all its names, and with arguments
/// of tool calls that are objects or strings.
///
/// # Errors
/// A value that cannot be read, or arguments that are a string but not JSON.
pub(super) fn of_json(json: &RawValue, takes_objects: bool) -> Result<Value, TemplateError> {
    let message = values::of_json(json).map_err(|error| TemplateError(error.to_string()))?;
    with_arguments(with_reasoning(without_nulls(&message)), takes_objects)
}

/// The messages as a template needs them. `render` applies it; `None` where it refuses.
///
/// A template may treat the messages of one role in another way than those of the next, so each
/// role is tried by itself; or it may refuse strings of the others, so they are tried as they are, too.
pub(super) fn with_texts(messages: Value, render: impl Fn(Value) -> Option<String>) -> Value {
    let with_parts = items(&messages).filter(has_parts);
    let roles: BTreeSet<Value> = with_parts.map(|message| field(&message, "role")).collect();
    if roles.is_empty() {
        return messages;
    }
    let takes_parts = |of: &Value| {
        let probed = |others: fn(&Value) -> Option<Value>| {
            with_content(&messages, |message| {
                if !has_parts(message) {
                    None
                } else if field(message, "role") == *of {
                    Some(as_part(&Value::from(PROBE)))
                } else {
                    others(message)
                }
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

/// True if a template prints parts, but not strings.
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

/// True if [`PROBE`] is in a text, and not as Python or JSON print a list of parts.
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

/// True if a message's content is a list of parts; what a tool returned may be another list.
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

/// A call of a tool and what follows it, as in llama.cpp, with an argument that no template has.
const PROBED_MESSAGES: &str = r#"[
    {"role": "user", "content": "User message"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function",
        "function": {"name": "tool1", "arguments": {"arg": "kl-probe-of-arguments"}}}]},
    {"role": "tool", "content": "Tool response", "tool_call_id": "call00001"},
    {"role": "assistant", "content": "The tool response was 'tool response'"},
    {"role": "user", "content": "User message"}]"#;

/// The tools of that conversation.
const PROBED_TOOLS: &str = r#"[{"name": "tool", "type": "function",
    "function": {"name": "tool1", "description": "Tool description", "parameters": {
        "type": "object", "properties": {"arg": {"type": "string", "description": "Arg description"}},
        "required": ["arg"]}}}]"#;

/// The messages and the values of a conversation with a call of a tool. `defaults` are the values
/// besides its tools.
///
/// # Errors
/// None, as long as the constants above are JSON.
pub(super) fn probed(defaults: &Variables) -> Result<(Value, Variables), TemplateError> {
    let read = |json: &str| -> Result<Value, TemplateError> {
        serde_json::from_str(json).map_err(|error| TemplateError(error.to_string()))
    };
    let mut values = defaults.clone();
    values.insert("tools".to_owned(), read(PROBED_TOOLS)?);
    Ok((read(PROBED_MESSAGES)?, values))
}

/// True if a template reads arguments as an object, by what it makes of
/// [`PROBED_MESSAGES`]: printed whole, an object would look as in Python.
pub(super) fn are_objects_in(rendered: &str) -> bool {
    rendered.contains("kl-probe-of-arguments")
        && !rendered.contains("{'arg': 'kl-probe-of-arguments'}")
}

/// A message whose calls of tools have the arguments that a template takes, objects or strings.
fn with_arguments(message: Value, as_objects: bool) -> Result<Value, TemplateError> {
    let calls = field(&message, "tool_calls");
    if calls.kind() != ValueKind::Seq {
        return Ok(message);
    }
    let changed = items(&calls).map(|call| {
        let function = field(&call, "function");
        let arguments = field(&function, "arguments");
        let arguments = match arguments.as_str() {
            _ if arguments.is_undefined() => return Ok(call),
            Some(text) if as_objects => object(text).map_err(|error| {
                let what = "the arguments of a tool call are a string that is not JSON";
                TemplateError(format!("{what}: {error}"))
            })?,
            None if !as_objects => Value::from(python::compact(&arguments)?),
            _ => return Ok(call),
        };
        Ok(with(
            &call,
            "function",
            &with(&function, "arguments", &arguments),
        ))
    });
    let changed = changed.collect::<Result<Vec<Value>, TemplateError>>()?;
    Ok(with(&message, "tool_calls", &Value::from(changed)))
}

/// The value of a text in JSON.
fn object(text: &str) -> Result<Value, serde_json::Error> {
    values::of_json(serde_json::from_str(text)?)
}

/// A message without the keys whose value is null, as transformers passes it on: OpenAI's API has
/// `"content": null` beside calls of tools, and `"tool_calls": null` beside a content.
fn without_nulls(message: &Value) -> Value {
    if message.kind() != ValueKind::Map {
        return message.clone();
    }
    let fields = items(message).map(|key| {
        let value = message.get_item(&key).unwrap_or_default();
        (key, value)
    });
    Value::from_pairs(fields.filter(|(_, value)| !value.is_none()))
}

/// The names of a message's reasoning. transformers fills in the first two from any of them.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A message whose reasoning has all names that templates use.
fn with_reasoning(message: Value) -> Value {
    let mut given = REASONING.iter().map(|name| field(&message, name));
    let Some(reasoning) = given.find(|value| !value.is_undefined() && !value.is_none()) else {
        return message;
    };
    // A key that is there keeps its position.
    let message = with(&message, REASONING[0], &reasoning);
    let missing = |name: &str| {
        let named = (Value::from(name), reasoning.clone());
        Some(named).filter(|_| field(&message, name).is_undefined())
    };
    let given = items(&message).map(|key| {
        let value = message.get_item(&key).unwrap_or_default();
        (key, value)
    });
    let all = missing(REASONING[1]).into_iter().chain(given);
    Value::from_pairs(all.chain(missing(REASONING[0])))
}

/// The value of an object's key; undefined without one.
fn field(of: &Value, name: &str) -> Value {
    of.get_attr(name).unwrap_or_default()
}

/// The items of a list, or the keys of an object.
fn items(of: &Value) -> impl Iterator<Item = Value> {
    of.try_iter().into_iter().flatten()
}

/// An object with another value for a key that it has. Keys keep their order.
fn with(of: &Value, name: &str, value: &Value) -> Value {
    Value::from_pairs(items(of).map(|key| {
        let value = match key.as_str() {
            Some(other) if other == name => value.clone(),
            _ => of.get_item(&key).unwrap_or_default(),
        };
        (key, value)
    }))
}
