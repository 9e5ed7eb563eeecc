//! Applies a model's chat template, which turns messages into the text that the model was trained
//! to answer.
//!
//! Templates are Jinja, written for Python's jinja2 as Hugging Face's transformers configures it. A
//! template comes with a model from anywhere, so it is rendered in a process of its own (`contained`).

mod contained;
mod generation_tags;
mod messages;
mod python;
mod renderer;
mod request;
mod source;
mod values;

use std::borrow::Cow;
use std::ops::Range;

use kl_formats::{Variables, hex};
use minijinja::Error;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use contained::ContainedTemplate;
pub use contained::{COMMAND, contain_templates, serve};
use renderer::Renderer;
use request::{Conversation, TemplateSource};
pub use request::{Message, TemplateValues};

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    rendering: Rendering,
    /// SHA-256 (hex) of the template's source.
    pub sha256: String,
    pub source: String,
    /// The values that it gets besides messages, unless a prompt has variables of these names.
    defaults: TemplateValues,
    /// True if answers are in channels, as gpt-oss gives them.
    pub has_channels: bool,
}

/// Where a template is rendered.
#[derive(Debug)]
enum Rendering {
    /// In a process of its own, as in the program.
    Contained(ContainedTemplate),
    /// In this process, as in tests of this library, which have no program.
    Here(Box<Renderer>),
}

/// Why a template cannot be compiled, or applied to these messages: one line, with the line number
/// in the template.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        // The reason why printing failed is more useful than the fact that it did.
        let cause = std::error::Error::source(&error).filter(|cause| cause.is::<std::io::Error>());
        let what = cause.map_or_else(|| error.to_string(), ToString::to_string);
        Self(what.replace('\n', " "))
    }
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the model's tokens; empty if it has
    /// none.
    ///
    /// # Errors
    /// If the source is not valid Jinja.
    pub fn new(source: &str, bos: String, eos: String) -> Result<Self, TemplateError> {
        let texts = [("bos_token", bos), ("eos_token", eos)];
        let texts = texts.map(|(name, text)| (name, request::json_of(&text)));
        let missing = ["tools", "documents"].map(|name| (name, RawValue::NULL.to_owned()));
        let defaults: TemplateValues = texts
            .into_iter()
            .chain(missing)
            .map(|(name, json)| (name.to_owned(), json))
            .collect();
        let template = TemplateSource {
            source: source.into(),
            defaults: defaults.clone(),
        };
        let rendering = match ContainedTemplate::start(&template)? {
            Some(contained) => Rendering::Contained(contained),
            None => Rendering::Here(Renderer::new(&template)?.into()),
        };
        Ok(Self {
            rendering,
            sha256: hex(&Sha256::digest(source)),
            source: source.to_owned(),
            defaults,
            has_channels: source.contains("<|channel|>"),
        })
    }

    /// The reason why the template was stopped while it rendered, and what to do; `None` where it was not.
    /// Nothing else is rendered then.
    pub fn stopped(&self) -> Option<String> {
        match &self.rendering {
            Rendering::Contained(contained) => contained.stopped(),
            Rendering::Here(_) => None,
        }
    }

    /// True if the template's source names this variable; false for the one that `kl` itself sets.
    pub fn names(&self, variable: &str) -> bool {
        let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
        let parts: Vec<&str> = self.source.split(variable).collect();
        let mut around = parts.windows(2).filter_map(|pair| pair.split_first());
        variable != ASKS
            && around.any(|(before, after)| {
                let is_inside = before.ends_with(|c| is_of_name(c) || c == '.');
                !is_inside && !after.iter().any(|text| text.starts_with(is_of_name))
            })
    }

    /// The values that a template gets besides messages: variables that come with a prompt, and without
    /// those the texts of special tokens, as in transformers.
    ///
    /// # Errors
    /// A value that is not JSON, with its name.
    pub fn values(&self, variables: &Variables) -> Result<TemplateValues, TemplateError> {
        let mut values = self.defaults.clone();
        for (name, json) in variables.iter() {
            let value = RawValue::from_string(json.to_owned())
                .map_err(|error| TemplateError(format!("{name:?} cannot be read: {error}")))?;
            values.insert(name.to_owned(), value);
        }
        Ok(values)
    }

    /// The messages of a JSON list.
    ///
    /// # Errors
    /// If it is not a list in JSON.
    pub fn messages(&self, json: &str) -> Result<Vec<Message>, TemplateError> {
        serde_json::from_str(json).map_err(|error| TemplateError(error.to_string()))
    }

    /// Renders messages with other values. A template that expects strings gets the texts of parts
    /// joined, and one that expects parts gets strings as parts. Reasoning has the names that templates
    /// use, and the arguments of tool calls have the form that this template takes. `asks`: the text
    /// ends where the model's answer begins.
    ///
    /// # Errors
    /// If the template refuses the messages, fails or exceeds its limits.
    pub fn render(
        &self,
        messages: &[Message],
        values: &TemplateValues,
        asks: bool,
    ) -> Result<String, TemplateError> {
        Ok(self.render_marked(messages, values, asks)?.0)
    }

    /// Renders messages as [`Self::render`] does, and returns with the text the ranges of bytes that the
    /// template marks as the assistant's words, by `{% generation %}`; none if it has no such tags.
    ///
    /// # Errors
    /// Those of [`Self::render`].
    pub fn render_marked(
        &self,
        messages: &[Message],
        values: &TemplateValues,
        asks: bool,
    ) -> Result<(String, Vec<Range<usize>>), TemplateError> {
        let conversation = Conversation {
            messages: messages.into(),
            values: Cow::Borrowed(values),
            asks,
        };
        let marked = match &self.rendering {
            Rendering::Contained(contained) => contained.render(&conversation),
            Rendering::Here(renderer) => renderer.render(&conversation),
        }?;
        Ok(generation_tags::without_marks(marked))
    }
}

/// The variable by which transformers asks for the model's answer.
const ASKS: &str = "add_generation_prompt";

#[cfg(test)]
mod tests;
