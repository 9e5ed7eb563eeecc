//! A prompt as it was given: a text, or the messages of a chat.

use std::iter::{repeat, repeat_n};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The span of all tokens before an answer.
pub const PROMPT_SPAN: &str = "prompt";

/// One prompt of a reference.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(try_from = "Fields")]
pub struct Prompt {
    /// The text, or the messages.
    #[serde(flatten)]
    pub content: PromptContent,
    /// The chat template's input beside the messages: of a conversation with several answers, the
    /// first one's prompt has them.
    #[serde(skip_serializing_if = "Variables::is_empty")]
    pub variables: Variables,
    /// The number of tokens it was decoded as: with an inserted BOS, without those of the answer.
    pub n_tokens: u32,
    /// True if it continues the conversation of the prompt before it: the content is what follows
    /// that one's answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
    /// The spans of the window's tokens, from its first on: runs of tokens of one span, each an index
    /// into [`crate::Prompts::spans`] and a number of tokens. Empty without spans; tokens after the
    /// last run are of span 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<(u32, u32)>,
}

/// The content of a prompt.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub enum PromptContent {
    /// A text.
    #[serde(rename = "prompt")]
    Text(String),
    /// A chat.
    #[serde(rename = "messages")]
    Messages(Messages),
}

/// A prompt as it is read: serde cannot flatten messages that are kept byte for byte.
#[derive(Deserialize)]
struct Fields {
    prompt: Option<String>,
    messages: Option<Messages>,
    #[serde(default)]
    variables: Variables,
    n_tokens: u32,
    #[serde(default)]
    continues: bool,
    #[serde(default)]
    spans: Vec<(u32, u32)>,
}

impl TryFrom<Fields> for Prompt {
    type Error = &'static str;

    fn try_from(fields: Fields) -> Result<Self, Self::Error> {
        let content = match (fields.prompt, fields.messages) {
            (Some(text), None) => PromptContent::Text(text),
            (None, Some(messages)) => PromptContent::Messages(messages),
            _ => return Err("a prompt is either prompt or messages"),
        };
        Ok(Self {
            content,
            variables: fields.variables,
            n_tokens: fields.n_tokens,
            continues: fields.continues,
            spans: fields.spans,
        })
    }
}

impl Prompt {
    /// A prompt that begins a conversation, without spans.
    pub fn new(content: PromptContent, n_tokens: u32) -> Self {
        Self {
            content,
            variables: Variables::default(),
            n_tokens,
            continues: false,
            spans: Vec::new(),
        }
    }

    /// The span of each of the window's tokens, from its first on, without end.
    pub fn span_of_each(&self) -> impl Iterator<Item = u32> {
        let runs = self.spans.iter();
        let in_runs = runs.flat_map(|(span, n_tokens)| repeat_n(*span, *n_tokens as usize));
        in_runs.chain(repeat(0))
    }
}

impl PromptContent {
    /// Reads a JSON object with `prompt`, a string, or `messages`, a list. Other keys are ignored.
    ///
    /// # Errors
    /// A phrase that states what is wrong with it.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let unlike = |what: &str| {
            format!(r#"{what}; expected {{"prompt": "..."}} or {{"messages": [...]}}"#)
        };
        let object = object(json).map_err(|fault| unlike(&fault))?;
        let value = |key| object.get(key).filter(|value| value.get() != "null");
        match (value("prompt"), value("messages")) {
            (Some(prompt), None) => serde_json::from_str(prompt.get())
                .map(Self::Text)
                .map_err(|_| unlike("prompt is not a string")),
            (None, Some(messages)) => {
                let messages = Messages(messages.clone());
                let expected = r#"expected [{"role": "...", "content": "..."}]"#;
                let checked = messages.check();
                checked.map_err(|fault| format!("{fault}; {expected}"))?;
                Ok(Self::Messages(messages))
            }
            (Some(_), Some(_)) => Err(unlike("both prompt and messages")),
            (None, None) => Err(unlike("neither prompt nor messages")),
        }
    }

    /// A label to show: its text, or that of the user's last message. Without one, the last message that says
    /// anything, after its role, as in `tool: 21 degrees`; or the number of messages.
    pub fn label(&self) -> String {
        let messages = match self {
            Self::Text(text) => return text.clone(),
            Self::Messages(messages) => messages,
        };
        let values = messages.values().unwrap_or_default();
        let is_users = |message: &&Value| Role::speaking(message) == Some(Role::User);
        let text = |message: &Value| text_of(message.get("content")?);
        let of_user = values.iter().rfind(is_users).and_then(text);
        of_user.unwrap_or_else(|| {
            let said = values.iter().rev().find_map(said);
            said.unwrap_or_else(|| match values.len() {
                0 => messages.json().to_owned(),
                1 => "1 message".to_owned(),
                n => format!("{n} messages"),
            })
        })
    }

    /// Bytes of the text, or of the messages' JSON.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Messages(messages) => messages.json().len(),
        }
    }
}

/// The values of a JSON object, byte for byte. Of a key that comes twice the last value counts, as in
/// Python.
fn object(json: &str) -> Result<IndexMap<String, Json>, String> {
    serde_json::from_str(json).map_err(|error| {
        if error.is_eof() {
            "not valid JSON: it ends too early".to_owned()
        } else if error.is_data() {
            "not a JSON object".to_owned()
        } else {
            format!("not valid JSON at column {}", error.column())
        }
    })
}

/// Keys of a prompt's JSON object that are not variables.
const NOT_VARIABLES: [&str; 3] = ["prompt", "messages", "group"];

/// Variables that are lists in transformers, and the form of each, for errors.
const LISTS: [(&str, &str); 2] = [
    ("tools", r#"[{"type": "function", "function": {...}}]"#),
    ("documents", r#"[{"title": "...", "text": "..."}]"#),
];

/// A value in JSON, kept byte for byte.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(transparent)]
struct Json(Box<RawValue>);

impl Json {
    fn get(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Json {}

/// Variables for a chat template, such as `tools`: names with values in JSON, which are kept byte for
/// byte.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(transparent)]
pub struct Variables(IndexMap<String, Json>);

impl Variables {
    /// Reads the keys of a prompt's JSON object, all but `prompt`, `messages` and `group`.
    ///
    /// # Errors
    /// If `json` is not a JSON object, or if `tools` or `documents` is neither a list nor null.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let mut all = Self(object(json)?);
        all.retain(|name| !NOT_VARIABLES.contains(&name));
        for (name, form) in LISTS {
            let value = all.0.get(name).map_or("null", |value| value.get());
            if !value.starts_with('[') && value != "null" {
                return Err(format!("{name} is not a list; expected {form}"));
            }
        }
        Ok(all)
    }

    /// Keeps the variables that `is_wanted` wants, by their names.
    pub fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_wanted(name));
    }

    /// The names, and the values in JSON.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, value.get()))
    }

    /// True if there are none.
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

/// A list of messages: JSON, kept byte for byte.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(transparent)]
pub struct Messages(Json);

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `assistant`: the model.
    Assistant,
    /// `system` or `developer`: what applies to the messages around it.
    System,
    /// `tool`, or another name that templates have for what a tool returned.
    Tool,
    /// `user`: whoever the model answers.
    User,
    /// Any other name: context, which nobody answers.
    Other,
}

impl Role {
    /// The speaker of a message; `None` without a role.
    fn speaking(message: &Value) -> Option<Self> {
        Some(match message.get("role")?.as_str()? {
            "assistant" => Self::Assistant,
            "system" | "developer" => Self::System,
            "user" => Self::User,
            "tool" | "ipython" | "function" | "observation" => Self::Tool,
            _ => Self::Other,
        })
    }
}

impl Messages {
    /// The JSON itself.
    pub fn json(&self) -> &str {
        self.0.get()
    }

    /// The JSON of each message; none if this is not a list.
    pub fn each(&self) -> Vec<&str> {
        let each: Vec<&RawValue> = serde_json::from_str(self.json()).unwrap_or_default();
        each.into_iter().map(RawValue::get).collect()
    }

    /// The list of these messages, each in JSON.
    ///
    /// # Errors
    /// If one of them is not JSON.
    pub fn from_each(each: &[&str]) -> Result<Self, serde_json::Error> {
        let list = RawValue::from_string(format!("[{}]", each.join(",")))?;
        Ok(Self(Json(list)))
    }

    /// The message of a user, who says `text`.
    pub fn of_user(text: &str) -> Self {
        let text = serde_json::to_string(text).unwrap_or_default();
        let json = format!(r#"[{{"role":"user","content":{text}}}]"#);
        Self(Json(RawValue::from_string(json).unwrap_or_default()))
    }

    fn values(&self) -> Option<Vec<Value>> {
        serde_json::from_str(self.json()).ok()
    }

    /// The speaker of each message.
    pub fn roles(&self) -> Vec<Role> {
        let values = self.values().unwrap_or_default();
        let roles = values.iter().map(Role::speaking);
        roles.map(|role| role.unwrap_or(Role::Other)).collect()
    }

    /// Checks the list: it must have messages, each with a `role` and a `content`, which is a string or
    /// a list of parts, all of them texts. What a tool returned may be any value, and an assistant's
    /// message may have something else in place of a content, such as `tool_calls`.
    fn check(&self) -> Result<(), String> {
        let messages = self.values().ok_or("messages is not a list")?;
        if messages.is_empty() {
            return Err("no message in messages".to_owned());
        }
        (1..).zip(&messages).try_for_each(|(number, message)| {
            check_message(message).map_err(|fault| format!("message {number}: {fault}"))
        })
    }
}

/// Checks a message: see [`Messages::check`].
fn check_message(message: &Value) -> Result<(), String> {
    let fields = message.as_object().ok_or("not an object")?;
    let role = Role::speaking(message).ok_or("no role that is a string")?;
    let is_tool = role == Role::Tool;
    match fields.get("content").unwrap_or_default() {
        Value::Null => {
            let mut others = fields.iter().filter(|(name, _)| *name != "role");
            if role == Role::Assistant && others.any(|(_, value)| !value.is_null()) {
                Ok(())
            } else {
                Err("no content".to_owned())
            }
        }
        Value::Array(parts) if !is_tool || parts.iter().all(|of| of["type"].is_string()) => {
            (1..).zip(parts).try_for_each(|(number, part)| {
                check_part(part).map_err(|fault| format!("part {number} of its content {fault}"))
            })
        }
        content if is_tool || content.is_string() => Ok(()),
        _ => Err("content is neither a string nor a list of parts".to_owned()),
    }
}

/// Checks a part of a message's content: only texts can be put into a template.
fn check_part(part: &Value) -> Result<(), String> {
    match (part["type"].as_str(), &part["text"]) {
        (Some("text"), Value::String(_)) => Ok(()),
        (None | Some("text"), _) => Err(r#"is not {"type": "text", "text": "..."}"#.to_owned()),
        (Some(kind), _) => Err(format!(
            "is of type {kind:?}, but only texts can be used: leave this prompt out"
        )),
    }
}

/// The role and the content of a message, as a label; `None` without a content. What a tool returned may be any
/// value.
fn said(message: &Value) -> Option<String> {
    let role = message.get("role")?.as_str()?;
    let content = message.get("content").filter(|of| !of.is_null())?;
    let text = text_of(content).unwrap_or_else(|| content.to_string());
    Some(format!("{role}: {text}")).filter(|_| !text.trim().is_empty())
}

/// The text of a message's content: a string, or a list of parts, some with a `text`.
fn text_of(content: &Value) -> Option<String> {
    if let Some(text) = content.as_str() {
        return Some(text.to_owned());
    }
    let parts = content.as_array()?.iter();
    let texts = parts.filter_map(|part| part.get("text"));
    texts.map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(json: &str) -> Messages {
        serde_json::from_str(json).unwrap()
    }

    /// The cases of a table, and what the error about each states.
    fn cases(table: &str) -> impl Iterator<Item = (&str, &str)> {
        let lines = table.trim().lines();
        lines.map(|line| line.split_once(" => ").unwrap())
    }

    const WRONG_LINES: &str = r#"
{ => it ends too early
{"prompt": a} => not valid JSON at column 12
{"prompt":"a"} b => not valid JSON at column 16
plain => not valid JSON at column 1
7 => not a JSON object
["a", null] => not a JSON object
{} => neither
{"prompt":null} => neither
{"prompt":7} => prompt is not a string
{"prompt":"a","messages":[]} => both
{"messages":[]} => no message
{"messages":{}} => messages is not a list
{"messages":[7]} => message 1: not an object
{"messages":[{"role":"user"}]} => message 1: no content
{"messages":[{"content":"a"}]} => message 1: no role
{"messages":[{"role":1,"content":"a"}]} => no role
"#;

    /// What a user's message holds.
    const WRONG_CONTENTS: &str = r#"
7 => message 1: content is neither
null => message 1: no content
[7] => part 1 of its content is not {"type": "text"
[{"text":"a"}] => part 1
[{"type":"text","text":7}] => part 1
[{"type":"text","text":"a"},{"type":"image_url"}] => message 1: part 2 of its content is of type "image_url", but only texts
"#;

    const WRONG_MESSAGES: &str = r#"
[{"role":"assistant"}] => message 1: no content
[{"role":"assistant","content":null,"tool_calls":null}] => no content
[{"role":"tool","content":null}] => no content
[{"role":"user","content":null,"name":"a"}] => no content
[{"role":"user","content":{"a":1}}] => neither a string
[{"role":"tool","content":[{"type":"image","url":"b"}]}] => is of type "image"
"#;

    #[test]
    fn a_prompt_is_kept_to_the_byte() {
        for json in [
            r#"{"prompt":"a \"b\"\n","n_tokens":3}"#,
            r#"{"messages":[ {"content":1.50,  "role":"x"}, 1e400 ],"n_tokens":0}"#,
            r#"{"prompt":"a","variables":{"tools":[ 1.0],"think":false},"n_tokens":3}"#,
            r#"{"prompt":"a","n_tokens":3,"continues":true,"spans":[[0,3],[2,1]]}"#,
        ] {
            let prompt: Prompt = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&prompt).unwrap(), json);
        }
        for json in [
            r#"{"n_tokens":3}"#,
            r#"{"prompt":"a","messages":[],"n_tokens":3}"#,
            r#"{"prompt":1,"n_tokens":3}"#,
            r#"{"prompt":"a","n_tokens":-3}"#,
        ] {
            assert!(serde_json::from_str::<Prompt>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_token_is_of_the_run_that_it_is_in() {
        let json = r#"{"prompt":"a","n_tokens":3,"spans":[[0,3],[2,1],[1,4294967295]]}"#;
        let prompt: Prompt = serde_json::from_str(json).unwrap();
        let spans: Vec<u32> = prompt.span_of_each().take(6).collect();
        assert_eq!(spans, [0, 0, 0, 2, 1, 1]);
        assert_eq!(
            Prompt::new(prompt.content, 3).span_of_each().nth(2),
            Some(0)
        );
    }

    #[test]
    fn the_label_is_what_the_user_said_last() {
        for (json, label) in [
            (
                r#"[{"role":"user","content":"a"},{"role":"user","content":"\u00e9"},{"role":"assistant","content":"c"}]"#,
                "\u{e9}",
            ),
            (
                r#"[{"role":"user","content":[{"type":"text","text":"a "},{"type":"image"},{"text":"b"}]}]"#,
                "a b",
            ),
            // What nobody asked for is known by who said it last.
            (r#"[{"role":"system","content":"a"}]"#, "system: a"),
            (r#"[{"role":"user","content":7}]"#, "user: 7"),
            (
                r#"[{"role":"assistant","content":null},{"role":"tool","content":{"degrees":21}}]"#,
                r#"tool: {"degrees":21}"#,
            ),
            (
                r#"[{"role":"tool","content":"21"},{"role":"assistant","content":" "}]"#,
                "tool: 21",
            ),
            (
                r#"[{"role":"assistant","tool_calls":[]},{"role":"assistant"}]"#,
                "2 messages",
            ),
            ("7", "7"),
        ] {
            assert_eq!(PromptContent::Messages(messages(json)).label(), label);
        }
        assert_eq!(PromptContent::Text("a\nb".into()).label(), "a\nb");
    }

    #[test]
    fn an_error_states_what_is_wrong_with_a_line() {
        let text = PromptContent::from_json(r#"{"id":7,"prompt":"a"}"#);
        assert_eq!(text, Ok(PromptContent::Text("a".into())));
        let chat = r#"{"messages": [{"role":"x","content":"","more":1}] }"#;
        let kept = messages(r#"[{"role":"x","content":"","more":1}]"#);
        let chat = PromptContent::from_json(chat);
        assert_eq!(chat, Ok(PromptContent::Messages(kept)));
        let part = r#"{"type":"text","text":"a","cache_control":null}"#;
        let user =
            |content: &str| format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#);
        assert!(PromptContent::from_json(&user(&format!("[{part},{part}]"))).is_ok());
        for (json, said) in cases(WRONG_LINES) {
            let reason = PromptContent::from_json(json).unwrap_err();
            assert!(reason.contains(said), "{json}: {reason}");
        }
        for (content, said) in cases(WRONG_CONTENTS) {
            let json = user(content);
            let reason = PromptContent::from_json(&json).unwrap_err();
            assert!(reason.contains(said), "{json}: {reason}");
        }
    }

    #[test]
    fn each_message_keeps_its_bytes_and_has_a_speaker() {
        let given = messages(r#"[ {"role":"system" , "content":"a"},{"role":"us\u0065r"}, 7]"#);
        let each = given.each();
        let second = r#"{"role":"us\u0065r"}"#;
        assert_eq!(each, [r#"{"role":"system" , "content":"a"}"#, second, "7"]);
        let some = Messages::from_each(&each[1..]).unwrap();
        assert_eq!(some.json(), format!("[{second},7]"));
        assert_eq!(given.roles(), [Role::System, Role::User, Role::Other]);
        let said = Messages::of_user("a\"b");
        assert_eq!(said.json(), r#"[{"role":"user","content":"a\"b"}]"#);
    }

    #[test]
    fn what_templates_use_is_accepted() {
        for json in [
            r#"[{"role":"assistant","content":null,"tool_calls":[]}]"#,
            r#"[{"role":"assistant","reasoning_content":"a"}]"#,
            r#"[{"role":"tool","content":{"a":1}}]"#,
            r#"[{"role":"ipython","content":[1,"a",{"b":2}]}]"#,
            r#"[{"role":"tool","content":[{"type":"text","text":"a"}]}]"#,
            r#"[{"role":"observation","content":7}]"#,
        ] {
            assert_eq!(messages(json).check(), Ok(()), "{json}");
        }
        for (json, said) in cases(WRONG_MESSAGES) {
            let fault = messages(json).check().unwrap_err();
            assert!(fault.contains(said), "{json}: {fault}");
        }
    }

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
