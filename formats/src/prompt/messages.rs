//! The messages of a chat.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The form of messages, for errors.
const MESSAGES: &str = r#"[{"role": "...", "content": "..."}]"#;

/// The roles of messages that hold what a tool returned, by the names that templates have for them.
const TOOL_ROLES: [&str; 4] = ["tool", "ipython", "function", "observation"];

/// A list of messages: JSON, kept byte for byte.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(transparent)]
pub struct Messages(pub(super) Box<RawValue>);

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        self.json() == other.json()
    }
}

impl Eq for Messages {}

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `assistant`: the model.
    Assistant,
    /// `system` or `developer`: what applies to the messages around it.
    System,
    /// `tool`, or another name for what a tool returned.
    Tool,
    /// `user`: whoever the model answers.
    User,
    /// Any other name: context, which nobody answers.
    Other,
}

impl Role {
    fn of(name: &str) -> Self {
        match name {
            "assistant" => Self::Assistant,
            "system" | "developer" => Self::System,
            "user" => Self::User,
            name if TOOL_ROLES.contains(&name) => Self::Tool,
            _ => Self::Other,
        }
    }
}

/// Where a line stops being JSON.
pub(super) fn invalid(error: &serde_json::Error) -> String {
    if error.is_eof() {
        "not valid JSON: it ends too early".to_owned()
    } else {
        format!("not valid JSON at column {}", error.column())
    }
}

/// The fields of a message that are read here; a template may use more.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// A part of a message's content.
#[derive(Deserialize)]
struct Part<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
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
    pub fn of(each: &[&str]) -> Result<Self, serde_json::Error> {
        RawValue::from_string(format!("[{}]", each.join(","))).map(Self)
    }

    /// The message of a user, who says `text`.
    pub fn of_user(text: &str) -> Self {
        let text = serde_json::to_string(text).unwrap_or_default();
        let json = format!(r#"[{{"role":"user","content":{text}}}]"#);
        Self(RawValue::from_string(json).unwrap_or_default())
    }

    /// The speaker of each message.
    pub fn roles(&self) -> Vec<Role> {
        let each = self.each().into_iter();
        let role = |message| serde_json::from_str::<Message<'_>>(message).ok()?.role;
        let names = each.map(|message| string(role(message)?));
        names
            .map(|name| name.map_or(Role::Other, |name| Role::of(&name)))
            .collect()
    }

    /// Finds a fault in the list: it must have messages, each with a `role` and a `content`, which is
    /// a string or a list of parts, all of them texts. What a tool returned may be any value, and an
    /// assistant's message may have something else in place of a content, such as `tool_calls`.
    pub(super) fn fault(&self) -> Option<String> {
        let Ok(messages) = serde_json::from_str::<Vec<&RawValue>>(self.json()) else {
            return Some(format!("messages is not a list; expected {MESSAGES}"));
        };
        if messages.is_empty() {
            return Some(format!("no message in messages; expected {MESSAGES}"));
        }
        let mut numbered = (1..).zip(&messages);
        numbered.find_map(|(number, message)| {
            let fault = message_fault(message)?;
            Some(format!("message {number}: {fault}"))
        })
    }

    /// The text of the user's last message; all of the JSON if there is none.
    pub(super) fn label(&self) -> String {
        let messages: Vec<Message<'_>> = serde_json::from_str(self.json()).unwrap_or_default();
        let is_users = |role: &RawValue| serde_json::from_str(role.get()).ok() == Some("user");
        let last = messages
            .iter()
            .rfind(|message| message.role.is_some_and(is_users));
        last.and_then(|last| text_of(last.content?))
            .unwrap_or_else(|| self.json().to_owned())
    }
}

fn string(json: &RawValue) -> Option<String> {
    serde_json::from_str(json.get()).ok()
}

/// Finds a fault in a message.
fn message_fault(message: &RawValue) -> Option<String> {
    let unlike = |what: &str| Some(format!("{what}; expected {MESSAGES}"));
    let fields = match serde_json::from_str::<Message<'_>>(message.get()) {
        Ok(fields) if message.get().starts_with('{') => fields,
        _ => return unlike("not an object with one role and one content"),
    };
    let role = match fields.role {
        None => return unlike("no role"),
        Some(role) => string(role).as_deref().map(Role::of),
    };
    let Some(role) = role else {
        return unlike("role is not a string");
    };
    match fields.content {
        None if role == Role::Assistant && has_other_keys(message) => None,
        None => unlike("no content"),
        Some(content) if content.get().starts_with('"') => None,
        Some(content) => match serde_json::from_str::<Vec<&RawValue>>(content.get()) {
            Ok(parts) if role != Role::Tool || parts.iter().all(|part| is_part(part)) => {
                (1..).zip(parts).find_map(|(number, part)| {
                    let fault = part_fault(part)?;
                    Some(format!("part {number} of its content {fault}"))
                })
            }
            _ if role == Role::Tool => None,
            _ => unlike("content is neither a string nor a list of parts"),
        },
    }
}

/// True if a message has a value besides its role and its content.
fn has_other_keys(message: &RawValue) -> bool {
    let fields = serde_json::from_str::<BTreeMap<String, Option<IgnoredAny>>>(message.get());
    let is_other = |name: &String| !["role", "content"].contains(&name.as_str());
    fields.is_ok_and(|fields| {
        fields
            .iter()
            .any(|(name, value)| is_other(name) && value.is_some())
    })
}

/// True if an item of a content's list is meant as a part.
fn is_part(item: &RawValue) -> bool {
    let part = serde_json::from_str::<Part<'_>>(item.get());
    item.get().starts_with('{') && part.is_ok_and(|part| part.kind.is_some())
}

/// Finds a fault in a part of a message's content: only texts can be put into a template.
fn part_fault(part: &RawValue) -> Option<String> {
    let unlike = |what: &str| {
        Some(format!(
            r#"{what}; expected {{"type": "text", "text": "..."}}"#
        ))
    };
    match serde_json::from_str::<Part<'_>>(part.get()) {
        Ok(fields) if part.get().starts_with('{') => match (fields.kind.as_deref(), fields.text) {
            (Some("text"), Some(text)) if text.get().starts_with('"') => None,
            (Some("text"), _) => unlike("has no text"),
            (Some(kind), _) => Some(format!(
                "is of type {kind:?}, but only texts can be used: leave this prompt out"
            )),
            (None, _) => unlike("has no type"),
        },
        _ => unlike("is not a part"),
    }
}

/// The text of a message's content: a string, or a list of parts of which some have a `text`.
fn text_of(content: &RawValue) -> Option<String> {
    if let Ok(text) = serde_json::from_str(content.get()) {
        return Some(text);
    }
    let parts: Vec<Part<'_>> = serde_json::from_str(content.get()).ok()?;
    let texts = parts.iter().filter_map(|part| part.text);
    texts
        .map(|text| serde_json::from_str::<String>(text.get()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(json: &str) -> Messages {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn each_message_keeps_its_bytes_and_has_a_speaker() {
        let given = messages(r#"[ {"role":"system" , "content":"a"},{"role":"us\u0065r"}, 7]"#);
        let each = given.each();
        let second = r#"{"role":"us\u0065r"}"#;
        assert_eq!(each, [r#"{"role":"system" , "content":"a"}"#, second, "7"]);
        let some = Messages::of(&each[1..]).unwrap();
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
            assert_eq!(messages(json).fault(), None, "{json}");
        }
        for (json, said) in [
            (r#"[{"role":"assistant"}]"#, "message 1: no content"),
            (
                r#"[{"role":"assistant","content":null,"tool_calls":null}]"#,
                "no content",
            ),
            (r#"[{"role":"tool","content":null}]"#, "no content"),
            (
                r#"[{"role":"user","content":null,"name":"a"}]"#,
                "no content",
            ),
            (r#"[{"role":"user","content":{"a":1}}]"#, "neither a string"),
            (
                r#"[{"role":"tool","content":[{"type":"image","url":"b"}]}]"#,
                r#"is of type "image""#,
            ),
        ] {
            let fault = messages(json).fault().unwrap();
            assert!(fault.contains(said), "{json}: {fault}");
        }
    }
}
