//! What a renderer is given, each as JSON: the bytes of the prompts' file, so that no number changes on
//! the way.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The values of a template's variables, as JSON, by their names.
pub type TemplateValues = BTreeMap<String, Box<RawValue>>;

/// A message of a conversation: an object in JSON, with `role` and others of the keys that OpenAI's API
/// has.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Message(Box<RawValue>);

impl Message {
    /// The message of these fields, all of them strings.
    pub fn from_fields<'f>(fields: impl IntoIterator<Item = (&'f str, &'f str)>) -> Self {
        let fields = fields.into_iter().map(|(name, text)| {
            let [name, text] = [name, text].map(json_of);
            format!("{name}: {text}")
        });
        let fields: Vec<String> = fields.collect();
        let object = RawValue::from_string(format!("{{{}}}", fields.join(", ")));
        Self(object.unwrap_or_else(|_| RawValue::NULL.to_owned()))
    }

    /// The object in JSON.
    pub fn json(&self) -> &RawValue {
        &self.0
    }
}

/// A text in JSON.
pub(super) fn json_of(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// A template, and the values that it gets unless a prompt has its own.
#[derive(Serialize, Deserialize)]
pub(super) struct TemplateSource<'t> {
    pub source: Cow<'t, str>,
    pub defaults: TemplateValues,
}

/// The messages that a template is to render.
#[derive(Serialize, Deserialize)]
pub(super) struct Conversation<'c> {
    pub messages: Cow<'c, [Message]>,
    pub values: Cow<'c, TemplateValues>,
    /// True if the text is to end where the model's answer begins.
    pub asks: bool,
}
