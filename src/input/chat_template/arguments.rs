//! The arguments of tool calls. In OpenAI's API they are a string of JSON; templates differ.
//!
//! Most templates look into the arguments or print them as JSON, which would quote a string of JSON
//! once more: they get an object. Others print a string as it is: they get one, also of an object. So
//! does llama-server (`func_args_not_string` in llama.cpp's `common/chat.cpp`), which finds out in the
//! same way, by a call of a tool in a conversation (`caps_get` in `common/jinja/caps.cpp`).

use minijinja::Value;
use minijinja::value::ValueKind;

use super::TemplateError;
use super::parts::{field, items, with};

/// A call of a tool and what follows it, as in llama.cpp, with an argument that no template has.
pub(super) const PROBED_MESSAGES: &str = r#"[
    {"role": "user", "content": "User message"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function",
        "function": {"name": "tool1", "arguments": {"arg": "kl-probe-of-arguments"}}}]},
    {"role": "tool", "content": "Tool response", "tool_call_id": "call00001"},
    {"role": "assistant", "content": "The tool response was 'tool response'"},
    {"role": "user", "content": "User message"}]"#;

/// The variables of that conversation.
pub(super) const PROBED_VARIABLES: &str = r#"{"tools": [{"name": "tool", "type": "function",
    "function": {"name": "tool1", "description": "Tool description", "parameters": {
        "type": "object", "properties": {"arg": {"type": "string", "description": "Arg description"}},
        "required": ["arg"]}}}]}"#;

/// Returns true if a template reads arguments as an object, by what it makes of
/// [`PROBED_MESSAGES`]: printed whole, an object would look as in Python.
pub(super) fn are_objects_in(rendered: &str) -> bool {
    rendered.contains("kl-probe-of-arguments")
        && !rendered.contains("{'arg': 'kl-probe-of-arguments'}")
}

/// A message whose calls of tools have the arguments that a template takes, objects or strings.
pub(super) fn for_template(message: Value, as_objects: bool) -> Result<Value, TemplateError> {
    let calls = field(&message, "tool_calls");
    if calls.kind() != ValueKind::Seq {
        return Ok(message);
    }
    let changed = items(&calls).map(|call| {
        let function = field(&call, "function");
        let arguments = field(&function, "arguments");
        let arguments = match arguments.as_str() {
            _ if arguments.is_undefined() => return Ok(call),
            Some(text) if as_objects => serde_json::from_str(text).map_err(|error| {
                let what = "the arguments of a tool call are a string that is not JSON";
                TemplateError(format!("{what}: {error}"))
            })?,
            None if !as_objects => {
                let json = serde_json::to_string(&arguments);
                Value::from(json.map_err(|error| TemplateError(error.to_string()))?)
            }
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
