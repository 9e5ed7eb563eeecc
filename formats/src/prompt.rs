//! A prompt as it was given: a text, or the messages of a chat.

mod messages;

use std::fmt;
use std::iter::{repeat, repeat_n};

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use messages::{Messages, Role};

/// One prompt of a reference.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct Prompt {
    /// The text, or the messages.
    pub content: PromptContent,
    /// What the chat template got beside the messages: of a conversation with several answers, the
    /// first one's prompt has them.
    pub variables: Variables,
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
        serde_json::from_str::<IgnoredAny>(json)
            .map_err(|error| unlike(&messages::invalid(&error)))?;
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

/// A prompt in JSON.
#[derive(Serialize, Deserialize)]
struct Fields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    messages: Option<Messages>,
    #[serde(default, skip_serializing_if = "Variables::is_empty")]
    variables: Variables,
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
            variables: fields.variables,
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
            variables: prompt.variables,
            n_tokens: prompt.n_tokens,
            continues: prompt.continues,
            spans: prompt.spans,
        }
    }
}

/// Keys of a prompt's JSON object that are not variables.
const NOT_VARIABLES: [&str; 3] = ["prompt", "messages", "group"];

/// Variables that are lists in transformers, and the form of each, for errors.
const LISTS: [(&str, &str); 2] = [
    ("tools", r#"[{"type": "function", "function": {...}}]"#),
    ("documents", r#"[{"title": "...", "text": "..."}]"#),
];

/// Variables for a chat template, such as `tools`: names with values in JSON, which are kept byte for
/// byte.
#[derive(Clone, Debug, Default)]
pub struct Variables(Vec<(String, Box<RawValue>)>);

impl Variables {
    /// Reads the keys of a prompt's JSON object, all but `prompt`, `messages` and `group`. Of a key that
    /// comes twice the last value counts, as in Python.
    ///
    /// # Errors
    /// If `json` is not a JSON object, or if `tools` or `documents` is neither a list nor null.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let mut all: Self = serde_json::from_str(json)
            .map_err(|error| format!("not a JSON object: {}", messages::invalid(&error)))?;
        all.0
            .retain(|(name, _)| !NOT_VARIABLES.contains(&name.as_str()));
        for (name, form) in LISTS {
            let mut values = all.iter().filter(|(other, _)| *other == name);
            if values.any(|(_, value)| !value.starts_with('[') && value != "null") {
                return Err(format!("{name} is not a list; expected {form}"));
            }
        }
        Ok(all)
    }

    /// Keeps the variables that `is_wanted` wants, by their names.
    pub fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.0.retain(|(name, _)| is_wanted(name));
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

impl PartialEq for Variables {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Variables {}

impl Serialize for Variables {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Variables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Pairs)
    }
}

/// Reads an object's pairs in their order.
struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Variables;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Variables, A::Error> {
        let mut variables = Vec::<(String, Box<RawValue>)>::new();
        while let Some((name, value)) = pairs.next_entry::<String, Box<RawValue>>()? {
            match variables.iter_mut().find(|(other, _)| *other == name) {
                Some((_, earlier)) => *earlier = value,
                None => variables.push((name, value)),
            }
        }
        Ok(Variables(variables))
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

#[cfg(test)]
mod variables_tests {
    use super::*;

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
