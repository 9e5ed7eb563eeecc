//! Applies a model's chat template, which turns messages into the text that the model was trained
//! to answer.
//!
//! Templates are Jinja, written for Python's jinja2 as Hugging Face's transformers configures it:
//! blocks are trimmed, undefined values are empty, and values print as in Python (`python`). A
//! template comes with a model from anywhere, so its steps and its output are limited.

mod messages;
mod python;

use std::collections::BTreeMap;
use std::io;

use kl_formats::{Variables, hex};
pub use messages::with_reasoning;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use sha2::{Digest, Sha256};

/// The most steps that a template may take for one prompt, about a second's worth. Published
/// templates take a few hundred per message.
const FUEL: u64 = 10_000_000;

/// The template's name in error messages.
const NAME: &str = "chat template";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// SHA-256 (hex) of the template's source.
    pub sha256: String,
    pub source: String,
    /// The values that it gets besides messages, unless a prompt has variables of these names.
    defaults: TemplateValues,
    takes_parts_only: bool,
    /// True if the arguments of a tool call are an object to it, not a string of JSON.
    takes_objects: bool,
    /// True if answers are in channels, as gpt-oss gives them.
    pub has_channels: bool,
}

/// The values of a template's variables, by their names.
pub type TemplateValues = BTreeMap<String, Value>;

/// Why a template cannot be compiled, or applied to these messages: one line, with the line number
/// in the template.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        // The reason why printing failed is more useful than the fact that it did.
        let cause = std::error::Error::source(&error).filter(|cause| cause.is::<io::Error>());
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
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        environment.set_syntax(syntax.trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(python::print);
        environment.add_filter("tojson", python::to_json);
        environment.add_filter("string", python::to_string);
        environment.add_filter("length", python::length);
        environment.add_filter("count", python::length);
        environment.add_filter("indent", python::indent);
        environment.add_test("sequence", python::is_sequence);
        environment.add_test("iterable", python::is_iterable);
        let refuse = |message: String| Err::<Value, _>(python::invalid(message));
        environment.add_function("raise_exception", refuse);
        environment.add_function("strftime_now", python::strftime_now);
        // jinja2 normalises line ends as well.
        let lines = source.replace("\r\n", "\n");
        environment.add_template_owned(NAME, without_generation_blocks(&lines))?;
        let defaults = [
            ("bos_token", Value::from(bos)),
            ("eos_token", Value::from(eos)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ];
        let mut template = Self {
            sha256: hex(&Sha256::digest(source)),
            source: source.to_owned(),
            environment,
            defaults: defaults
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            takes_parts_only: false,
            takes_objects: true,
            has_channels: source.contains("<|channel|>"),
        };
        let render = |messages, values: &TemplateValues| {
            let text = template.render_as_they_are(messages, values, true);
            text.ok()
        };
        let variables = serde_json::from_str(messages::PROBED_VARIABLES);
        let values = template.values(&variables.unwrap_or_default())?;
        let called = Value::from(template.messages(messages::PROBED_MESSAGES)?);
        let takes_objects =
            render(called, &values).is_some_and(|text| messages::are_objects_in(&text));
        template.takes_parts_only =
            messages::takes_parts_only(|messages| render(messages, &template.defaults));
        template.takes_objects = takes_objects;
        Ok(template)
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
    /// A value that cannot be read, such as a number too large for a double, with its name.
    pub fn values(&self, variables: &Variables) -> Result<TemplateValues, TemplateError> {
        let mut values = self.defaults.clone();
        for (name, json) in variables.iter() {
            let parsed = serde_json::from_str(json);
            let value = parsed
                .map_err(|error| TemplateError(format!("{name:?} cannot be read: {error}")))?;
            values.insert(name.to_owned(), value);
        }
        Ok(values)
    }

    /// The messages of a JSON list, each as a value for [`Self::render`]. Keys keep their order,
    /// reasoning has the names that templates use, and the arguments of tool calls have the form that
    /// this template takes.
    ///
    /// # Errors
    /// If it is not a list in JSON, or if arguments are a string that is not JSON.
    pub fn messages(&self, json: &str) -> Result<Vec<Value>, TemplateError> {
        let parsed: Vec<Value> =
            serde_json::from_str(json).map_err(|error| TemplateError(error.to_string()))?;
        let messages = parsed.into_iter().map(with_reasoning);
        messages
            .map(|message| messages::with_arguments(message, self.takes_objects))
            .collect()
    }

    /// Renders messages, each a value of its own, with other values. A template that expects strings gets
    /// the texts of parts joined, and one that expects parts gets strings as parts. `asks`: the text ends
    /// where the model's answer begins.
    ///
    /// # Errors
    /// If the template refuses the messages, fails or exceeds its limits.
    pub fn render(
        &self,
        messages: &[Value],
        values: &TemplateValues,
        asks: bool,
    ) -> Result<String, TemplateError> {
        let given = messages.iter().cloned().collect();
        let messages = if self.takes_parts_only {
            messages::with_parts(&given)
        } else {
            given
        };
        let render = |messages| self.render_as_they_are(messages, values, asks);
        render(messages::with_texts(messages, |messages| {
            render(messages).ok()
        }))
    }

    fn render_as_they_are(
        &self,
        messages: Value,
        values: &TemplateValues,
        asks: bool,
    ) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME)?;
        let mut values = values.clone();
        values.insert("messages".to_owned(), messages);
        values.insert(ASKS.to_owned(), asks.into());
        let mut text = RenderedText(Vec::new());
        template.render_captured_to(Value::from(values), &mut text)?;
        String::from_utf8(text.0).map_err(|error| TemplateError(error.to_string()))
    }
}

/// The variable by which transformers asks for the model's answer.
const ASKS: &str = "add_generation_prompt";

/// A template's output, up to [`MAX_BYTES`].
struct RenderedText(Vec<u8>);

/// The most bytes in a prompt's text.
const MAX_BYTES: usize = 64 << 20;

impl io::Write for RenderedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_BYTES {
            return Err(io::Error::other("the prompt is longer than 64 MiB"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces `{% generation %}`, by which transformers marks the assistant's words for training, by
/// plain blocks.
fn without_generation_blocks(source: &str) -> String {
    let mut source = source.to_owned();
    for (tag, plain) in [("generation", "if true"), ("endgeneration", "endif")] {
        for (open, close) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
            let [tag, plain] = [tag, plain].map(|name| format!("{open} {name} {close}"));
            source = source.replace(&tag, &plain);
        }
    }
    source
}

#[cfg(test)]
mod tests;
