//! A prompt as it was given: a text, or the messages of a chat.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One prompt of a reference.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct Prompt {
    /// The text, or the messages.
    pub content: PromptContent,
    /// The number of tokens it was decoded as: with an inserted BOS, without those of the answer.
    pub n_tokens: u32,
    /// True if it continues the conversation of the prompt before it: the content is what follows
    /// that one's answer.
    pub continues: bool,
    /// The spans of the window's tokens, from its first on: runs of tokens of one span, each an index
    /// into [`crate::Prompts::spans`] and a number of tokens. Empty without spans; tokens after the
    /// last run are of span 0.
    pub spans: Vec<(u32, u32)>,
}

impl Prompt {
    /// A prompt that begins a conversation, without spans.
    pub fn new(content: PromptContent, n_tokens: u32) -> Self {
        Self {
            content,
            n_tokens,
            continues: false,
            spans: Vec::new(),
        }
    }

    /// The span of the window's token at `index`.
    pub fn span_of(&self, index: u32) -> u32 {
        let mut end = 0_u32;
        let run = self.spans.iter().find(|(_, n_tokens)| {
            end = end.saturating_add(*n_tokens);
            index < end
        });
        run.map_or(0, |(span, _)| *span)
    }
}

/// The content of a prompt.
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
        struct Line<'a> {
            #[serde(borrow)]
            prompt: Option<&'a RawValue>,
            #[serde(borrow)]
            messages: Option<&'a RawValue>,
        }
        let unlike = |what: &str| {
            format!(r#"{what}; expected {{"prompt": "..."}} or {{"messages": [...]}}"#)
        };
        serde_json::from_str::<IgnoredAny>(json).map_err(|error| unlike(&invalid(&error)))?;
        // An array would do for serde.
        if !json.trim_start().starts_with('{') {
            return Err(unlike("not a JSON object"));
        }
        let line: Line<'_> =
            serde_json::from_str(json).map_err(|_| unlike("prompt or messages comes twice"))?;
        match (line.prompt, line.messages) {
            (Some(prompt), None) => serde_json::from_str(prompt.get())
                .map(Self::Text)
                .map_err(|_| unlike("prompt is not a string")),
            (None, Some(messages)) => {
                let messages = Messages(messages.to_owned());
                match messages.fault() {
                    Some(fault) => Err(fault),
                    None => Ok(Self::Messages(messages)),
                }
            }
            (Some(_), Some(_)) => Err(unlike("both prompt and messages")),
            (None, None) => Err(unlike("neither prompt nor messages")),
        }
    }

    /// A label to show: its text, or that of the user's last message.
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

/// The form of messages, for errors.
const MESSAGES: &str = r#"[{"role": "...", "content": "..."}]"#;

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

/// Where a line stops being JSON.
fn invalid(error: &serde_json::Error) -> String {
    match error.is_eof() {
        true => "not valid JSON: it ends too early".to_owned(),
        false => format!("not valid JSON at column {}", error.column()),
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

    /// Finds a fault in the list: it must have messages, each with a `role` and a `content`, which is
    /// a string or a list of parts, all of them texts.
    fn fault(&self) -> Option<String> {
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
    fn label(&self) -> String {
        let messages: Vec<Message<'_>> = serde_json::from_str(self.json()).unwrap_or_default();
        let is_users = |role: &RawValue| serde_json::from_str(role.get()).ok() == Some("user");
        let last = messages
            .iter()
            .rfind(|message| message.role.is_some_and(is_users));
        last.and_then(|last| text_of(last.content?))
            .unwrap_or_else(|| self.json().to_owned())
    }
}

/// Finds a fault in a message.
fn message_fault(message: &RawValue) -> Option<String> {
    let unlike = |what: &str| Some(format!("{what}; expected {MESSAGES}"));
    let fields = match serde_json::from_str::<Message<'_>>(message.get()) {
        Ok(fields) if message.get().starts_with('{') => fields,
        _ => return unlike("not an object with one role and one content"),
    };
    let is_string = |value: &RawValue| value.get().starts_with('"');
    let (role, content) = match (fields.role, fields.content) {
        (None, _) => return unlike("no role"),
        (_, None) => return unlike("no content"),
        (Some(role), Some(content)) => (role, content),
    };
    if !is_string(role) {
        return unlike("role is not a string");
    }
    if is_string(content) {
        return None;
    }
    let Ok(parts) = serde_json::from_str::<Vec<&RawValue>>(content.get()) else {
        return unlike("content is neither a string nor a list of parts");
    };
    (1..).zip(parts).find_map(|(number, part)| {
        let fault = part_fault(part)?;
        Some(format!("part {number} of its content {fault}"))
    })
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

/// A prompt in JSON.
#[derive(Serialize, Deserialize)]
struct Fields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    messages: Option<Messages>,
    n_tokens: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    continues: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
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
            n_tokens: fields.n_tokens,
            continues: fields.continues,
            spans: fields.spans,
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
            continues: prompt.continues,
            spans: prompt.spans,
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
        let spans = [0, 2, 3, 4, 5, u32::MAX].map(|index| prompt.span_of(index));
        assert_eq!(spans, [0, 0, 2, 1, 1, 0]);
        assert_eq!(Prompt::new(prompt.content, 3).span_of(2), 0);
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
        let part = r#"{"type":"text","text":"a","cache_control":null}"#;
        let parts = format!(r#"{{"messages":[{{"role":"user","content":[{part},{part}]}}]}}"#);
        assert!(PromptContent::from_json(&parts).is_ok());
        for (json, said) in [
            ("{", "it ends too early"),
            (r#"{"prompt": a}"#, "not valid JSON at column 12"),
            (r#"{"prompt":"a"} b"#, "not valid JSON at column 16"),
            ("plain", "not valid JSON at column 1"),
            ("7", "not a JSON object"),
            (r#"["a", null]"#, "not a JSON object"),
            ("{}", "neither"),
            (r#"{"prompt":null}"#, "neither"),
            (r#"{"prompt":7}"#, "prompt is not a string"),
            (r#"{"prompt":"a","prompt":"b"}"#, "twice"),
            (r#"{"prompt":"a","messages":[]}"#, "both"),
            (r#"{"messages":[]}"#, "no message"),
            (r#"{"messages":{}}"#, "messages is not a list"),
            (r#"{"messages":[7]}"#, "message 1: not an object"),
            (r#"{"messages":[["user","a"]]}"#, "message 1: not an object"),
            (r#"{"messages":[{"role":"user"}]}"#, "message 1: no content"),
            (r#"{"messages":[{"content":"a"}]}"#, "message 1: no role"),
            (
                r#"{"messages":[{"role":1,"content":"a"}]}"#,
                "role is not a string",
            ),
            (
                r#"{"messages":[{"role":"a","content":"a"},{"role":"user","content":7}]}"#,
                "message 2: content is neither",
            ),
            (
                r#"{"messages":[{"role":"user","content":null}]}"#,
                "message 1: no content",
            ),
            (
                r#"{"messages":[{"role":"user","content":[7]}]}"#,
                r#"part 1 of its content is not a part; expected {"type": "text""#,
            ),
            (
                r#"{"messages":[{"role":"user","content":[{"text":"a"}]}]}"#,
                "no type",
            ),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"text","text":7}]}]}"#,
                "no text",
            ),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"b"}}]}]}"#,
                r#"message 1: part 2 of its content is of type "image_url", but only texts"#,
            ),
        ] {
            let reason = PromptContent::from_json(json).unwrap_err();
            assert!(reason.contains(said), "{json}: {reason}");
            for word in ["line", "ident", "struct", "field"] {
                assert!(!reason.contains(word), "{json}: {reason}");
            }
        }
    }
}
