//! Renders a template with minijinja, set up as transformers sets up jinja2: blocks are trimmed, undefined
//! values are empty, and values print as in Python (`python`).

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Template, Value};

use super::messages::Variables;
use super::request::{Conversation, TemplateSource};
use super::{ASKS, TemplateError, messages, python, source, values};

/// The most steps that a template may take for one prompt, about a second's worth. Published
/// templates take a few hundred per message.
const FUEL: u64 = 10_000_000;

/// The template's name in error messages.
const NAME: &str = "chat template";

/// A compiled template.
#[derive(Debug)]
pub(super) struct Renderer {
    environment: Environment<'static>,
    takes_parts_only: bool,
    /// True if the arguments of a tool call are an object to it, not a string of JSON.
    takes_objects: bool,
}

impl Renderer {
    /// Compiles a template, and finds out what it takes.
    ///
    /// # Errors
    /// If the source is not valid Jinja.
    pub fn new(template: &TemplateSource<'_>) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        environment.set_syntax(syntax.trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_fuel(Some(FUEL));
        python::add_to(&mut environment);
        environment.add_template_owned(NAME, source::for_minijinja(&template.source))?;
        refuse_arguments(&environment.get_template(NAME)?)?;
        let mut renderer = Self {
            environment,
            takes_parts_only: false,
            takes_objects: true,
        };
        let defaults = variables(&template.defaults)?;
        let (called, with_tools) = messages::probed(&defaults)?;
        let called = renderer.render_as_they_are(called, &with_tools, true);
        let takes_objects = called.is_ok_and(|text| messages::are_objects_in(&text));
        renderer.takes_parts_only = messages::takes_parts_only(|messages| {
            renderer.render_as_they_are(messages, &defaults, true).ok()
        });
        renderer.takes_objects = takes_objects;
        Ok(renderer)
    }

    /// The text that the template makes of a conversation.
    ///
    /// # Errors
    /// If the template refuses the messages, fails or exceeds its limits.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        let values = variables(&conversation.values)?;
        let given = conversation.messages.iter();
        let given = given.map(|message| messages::of_json(message.json(), self.takes_objects));
        let given: Value = given.collect::<Result<_, _>>()?;
        let messages = if self.takes_parts_only {
            messages::with_parts(&given)
        } else {
            given
        };
        let render = |messages| self.render_as_they_are(messages, &values, conversation.asks);
        render(messages::with_texts(messages, |messages| {
            render(messages).ok()
        }))
    }

    fn render_as_they_are(
        &self,
        messages: Value,
        values: &Variables,
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

/// The variables by which jinja2's macros get more arguments than they name; minijinja would leave them
/// empty.
const ARGUMENTS: [&str; 2] = ["varargs", "kwargs"];

/// Refuses a template that uses [`ARGUMENTS`].
fn refuse_arguments(template: &Template<'_, '_>) -> Result<(), TemplateError> {
    let variables = template.undeclared_variables(false);
    let used = ARGUMENTS.into_iter().find(|name| variables.contains(*name));
    used.map_or(Ok(()), |name| {
        let what =
            format!("it uses {name}, the other arguments of a macro, which kl does not support");
        Err(TemplateError(what))
    })
}

/// The values of variables in JSON.
fn variables(json: &super::TemplateValues) -> Result<Variables, TemplateError> {
    let variables = json.iter().map(|(name, json)| {
        let value = values::of_json(json)
            .map_err(|error| TemplateError(format!("{name:?} cannot be read: {error}")))?;
        Ok((name.clone(), value))
    });
    variables.collect()
}

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
