//! Calls of tools that no marker shows: JSON, or a line, with the name of a tool that the prompt offers.
//!
//! Llama 3 and Qwen2.5-Coder write such JSON by itself or in a block of code; Granite 3.1 after a marker that its
//! template does not have; Functionary 3.2 writes the name on a line of its own.

use kl_formats::Variables;
use serde::Deserialize;
use serde_json::{Deserializer, Value};

/// What begins a message of Functionary 3.2, before the name of what it is for.
const MESSAGE: &[u8] = b">>>";

/// The most bytes of a marker before JSON, such as `<tool_call>`.
const MARKER_BYTES: usize = 32;

/// The tools that a prompt offers to the model, by their names.
#[derive(Debug, Default)]
pub struct OfferedTools(Vec<String>);

impl OfferedTools {
    /// Reads the variable `tools` of a prompt: functions as OpenAI's API has them,
    /// `{"type": "function", "function": {"name": ...}}`, or by themselves.
    pub fn of(variables: &Variables) -> Self {
        let tools: Vec<Value> = variables
            .iter()
            .find(|(name, _)| *name == "tools")
            .and_then(|(_, json)| serde_json::from_str(json).ok())
            .unwrap_or_default();
        let name = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            Some(function.get("name")?.as_str()?.to_owned())
        };
        Self(tools.iter().filter_map(name).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|tool| tool == name)
    }

    /// The bytes of the calls in JSON with which a text begins, to the end of the last one: objects, or lists of these,
    /// one after the other, with the same marker before each or none. JSON that is cut off within a call runs to the
    /// end.
    pub fn json_calls(&self, text: &[u8]) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let marker = marker(text);
        let (mut next_call, mut end) = (text, None);
        while let Some(after) = self.after_json_call(next_call, marker) {
            end = Some(text.len() - after.len());
            let n_between = after
                .iter()
                .take_while(|byte| byte.is_ascii_whitespace() || b",;".contains(byte))
                .count();
            next_call = after.get(n_between..).unwrap_or_default();
        }
        end
    }

    /// What follows the call in JSON with which a text begins: after this marker, and up to what closes that, if
    /// anything does.
    fn after_json_call<'t>(&self, text: &'t [u8], marker: &[u8]) -> Option<&'t [u8]> {
        let json = text.strip_prefix(marker)?;
        let after = json.get(self.json_call(json)?..)?;
        let after_closing = marker.strip_prefix(b"<").and_then(|name| {
            let closing_name = after.trim_ascii_start().strip_prefix(b"</")?;
            closing_name.strip_prefix(name)
        });
        Some(after_closing.unwrap_or(after))
    }

    /// The bytes of a call in JSON with which a text begins, blanks before it included.
    fn json_call(&self, text: &[u8]) -> Option<usize> {
        let first = text.trim_ascii_start().first()?;
        if !b"{[".contains(first) {
            return None;
        }
        let mut values = Deserializer::from_slice(text).into_iter::<Value>();
        match values.next()? {
            Ok(value) => self.is_call(&value).then(|| values.byte_offset()),
            Err(error) if error.is_eof() => self.begins_call(text).then_some(text.len()),
            Err(_) => None,
        }
    }

    /// True for an object with a tool's name and its arguments, and for a list of such objects.
    fn is_call(&self, value: &Value) -> bool {
        if let Some(list) = value.as_array() {
            return !list.is_empty() && list.iter().all(|item| self.is_call(item));
        }
        let function = value
            .get("function")
            .filter(|function| function.is_object())
            .unwrap_or(value);
        let name = function.get("name").and_then(Value::as_str);
        let has_arguments = ["arguments", "parameters"]
            .iter()
            .any(|key| function.get(key).is_some());
        has_arguments && name.is_some_and(|name| self.has(name))
    }

    /// True if the first key of the object, or of the first one in a list, is `name`, and its value a tool's.
    fn begins_call(&self, text: &[u8]) -> bool {
        let text = text.trim_ascii_start();
        let object = text.strip_prefix(b"[").unwrap_or(text).trim_ascii_start();
        let Some(text) = object.strip_prefix(b"{") else {
            return false;
        };
        let mut keys = Deserializer::from_slice(text).into_iter::<String>();
        if !matches!(keys.next(), Some(Ok(key)) if key == "name") {
            return false;
        }
        let after_key = text.get(keys.byte_offset()..).unwrap_or_default();
        let value = after_key.trim_ascii_start().strip_prefix(b":");
        let name = value.and_then(|value| {
            let mut value = Deserializer::from_slice(value);
            String::deserialize(&mut value).ok()
        });
        name.is_some_and(|name| self.has(&name))
    }

    /// The bytes of a call as Functionary 3.2 writes it with which a text begins, after what comes before: a line with
    /// the tool's name, and its arguments up to the next message. The marker `>>>` is in the text, or the text begins
    /// an answer and the marker ends the prompt.
    pub fn named_call(&self, before: &[u8], text: &[u8]) -> Option<usize> {
        let length = match text.strip_prefix(MESSAGE) {
            Some(_) => MESSAGE.len(),
            None if before.ends_with(MESSAGE) => 0,
            None => return None,
        };
        let call = text.get(length..)?;
        let line = call.split(|&byte| byte == b'\n').next()?;
        let name = str::from_utf8(line).ok()?;
        if !self.has(name.trim_end()) {
            return None;
        }
        let next_message = call
            .windows(MESSAGE.len())
            .position(|bytes| bytes == MESSAGE);
        Some(length + next_message.unwrap_or(call.len()))
    }
}

/// The marker in angle brackets with which a text begins, such as `<tool_call>`; empty if there is none.
fn marker(text: &[u8]) -> &[u8] {
    if !text.starts_with(b"<") {
        return b"";
    }
    let end = text
        .iter()
        .take(MARKER_BYTES)
        .take_while(|byte| **byte != b'>' && !byte.is_ascii_whitespace())
        .count();
    match text.get(end) {
        Some(b'>') => text.get(..=end).unwrap_or_default(),
        _ => b"",
    }
}
