//! A prompt, as it was given: a text, or the messages of a chat.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One prompt of a reference.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct Prompt {
    /// What was asked.
    pub content: PromptContent,
    /// Tokens that it was decoded as, with an inserted BOS, without generated ones.
    pub n_tokens: u32,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptContent {
    /// A text.
    Text(String),
    /// A chat.
    Messages(Messages),
}

impl PromptContent {
    /// Reads a JSON object with `prompt`, a string, or `messages`, a list. Other keys are ignored.
    ///
    /// # Errors
    /// A phrase that states what is wrong with it.
    pub fn from_json(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Line {
            prompt: Option<String>,
            messages: Option<Messages>,
        }
        let line: Line = serde_json::from_str(json).map_err(|error| reason(&error))?;
        match (line.prompt, line.messages) {
            (Some(text), None) => Ok(Self::Text(text)),
            (None, Some(messages)) => match messages.fault() {
                Some(fault) => Err(fault),
                None => Ok(Self::Messages(messages)),
            },
            (Some(_), Some(_)) => Err("both prompt and messages".to_owned()),
            (None, None) => Err("neither prompt nor messages".to_owned()),
        }
    }

    /// A label for a person: its text, or that of the user's last message.
    pub fn label(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Messages(messages) => messages.label(),
        }
    }

    /// Bytes of the text, or of the messages' JSON.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Messages(messages) => messages.json().len(),
        }
    }
}

/// A list of messages: JSON, kept byte for byte.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(transparent)]
pub struct Messages(Box<RawValue>);

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        self.json() == other.json()
    }
}

impl Eq for Messages {}

/// serde's reason, without the line: there is only one.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The part of a message that is read here; a template may use more.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

impl Messages {
    /// The JSON itself.
    pub fn json(&self) -> &str {
        self.0.get()
    }

    /// What is wrong with them, if anything: there must be some, each with a `role`, and with a
    /// `content` that is a string or a list of parts.
    fn fault(&self) -> Option<String> {
        let messages = match self.messages() {
            Ok(messages) => messages,
            Err(error) => {
                let reason = reason(&error);
                return Some(format!(
                    "messages is not a list of role and content: {reason}"
                ));
            }
        };
        if messages.is_empty() {
            return Some("no message in messages".to_owned());
        }
        messages.iter().enumerate().find_map(|(i, message)| {
            let error = serde_json::from_str::<Text>(message.content.get()).err()?;
            Some(format!(
                "content of message {i} (from 0): {}",
                reason(&error)
            ))
        })
    }

    fn messages(&self) -> serde_json::Result<Vec<Message<'_>>> {
        serde_json::from_str(self.json())
    }

    /// The text of the user's last message; all of the JSON where there is none.
    fn label(&self) -> String {
        let messages = self.messages().unwrap_or_default();
        let last = messages.iter().rfind(|message| message.role == "user");
        last.and_then(|last| serde_json::from_str(last.content.get()).ok())
            .map_or_else(|| self.json().to_owned(), |Text(text)| text)
    }
}

/// The text of a message's content: a string, or a list of parts of which some have a `text`. Uses
/// no more memory than that text.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Content).map(Text)
    }
}

struct Content;

impl<'de> Visitor<'de> for Content {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of parts")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<String, A::Error> {
        let mut text = String::new();
        while let Some(Part(part)) = parts.next_element()? {
            text.push_str(&part);
        }
        Ok(text)
    }
}

/// A part's `text`; empty where it has none.
struct Part(String);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PartFields).map(Part)
    }
}

struct PartFields;

impl<'de> Visitor<'de> for PartFields {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object, a part of a content")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<String, A::Error> {
        let mut text = String::new();
        while let Some(key) = fields.next_key::<Cow<'_, str>>()? {
            match key.as_ref() {
                "text" => text = fields.next_value()?,
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(text)
    }
}

/// A prompt in JSON.
#[derive(Serialize, Deserialize)]
struct Fields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    messages: Option<Messages>,
    n_tokens: u32,
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
            n_tokens: fields.n_tokens,
        })
    }
}

impl From<Prompt> for Fields {
    fn from(prompt: Prompt) -> Self {
        let (text, messages) = match prompt.content {
            PromptContent::Text(text) => (Some(text), None),
            PromptContent::Messages(messages) => (None, Some(messages)),
        };
        Self {
            prompt: text,
            messages,
            n_tokens: prompt.n_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(json: &str) -> Messages {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_prompt_is_kept_to_the_byte() {
        for json in [
            r#"{"prompt":"a \"b\"\n","n_tokens":3}"#,
            r#"{"messages":[ {"content":1.50,  "role":"x"}, 1e400 ],"n_tokens":0}"#,
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
            (
                r#"[{"role":"system","content":"a"}]"#,
                r#"[{"role":"system","content":"a"}]"#,
            ),
            (
                r#"[{"role":"user","content":7}]"#,
                r#"[{"role":"user","content":7}]"#,
            ),
            ("7", "7"),
        ] {
            assert_eq!(PromptContent::Messages(messages(json)).label(), label);
        }
        assert_eq!(PromptContent::Text("a\nb".into()).label(), "a\nb");
    }

    #[test]
    fn an_error_states_what_is_wrong_with_a_line() {
        let text = r#"{"id":7,"prompt":"a"}"#;
        let text = PromptContent::from_json(text).unwrap();
        assert_eq!(text, PromptContent::Text("a".into()));
        let chat = r#"{"messages": [{"role":"x","content":"","more":1}] }"#;
        let chat = PromptContent::from_json(chat).unwrap();
        let json = r#"[{"role":"x","content":"","more":1}]"#;
        assert_eq!(chat, PromptContent::Messages(messages(json)));
        for (json, said) in [
            ("{", "EOF"),
            ("7", "expected struct"),
            ("{}", "neither"),
            (r#"{"prompt":7}"#, "expected a string"),
            (r#"{"prompt":"a","messages":[]}"#, "both"),
            (r#"{"messages":[]}"#, "no message"),
            (r#"{"messages":{}}"#, "not a list"),
            (r#"{"messages":[7]}"#, "not a list"),
            (
                r#"{"messages":[{"role":"user"}]}"#,
                "missing field `content`",
            ),
            (r#"{"messages":[{"content":"a"}]}"#, "missing field `role`"),
            (r#"{"messages":[{"role":1,"content":"a"}]}"#, "expected a"),
            (
                r#"{"messages":[{"role":"a","content":"a"},{"role":"user","content":7}]}"#,
                "message 1",
            ),
            (
                r#"{"messages":[{"role":"user","content":[7]}]}"#,
                "a part of a content",
            ),
            (
                r#"{"messages":[{"role":"user","content":[{"text":7}]}]}"#,
                "expected a string",
            ),
        ] {
            let reason = PromptContent::from_json(json).unwrap_err();
            assert!(reason.contains(said), "{json}: {reason}");
            assert!(!reason.contains("line"), "{json}: {reason}");
        }
    }
}
