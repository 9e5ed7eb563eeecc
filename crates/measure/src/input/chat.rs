//! A conversation in a chat template: the text before each answer, and the answers that are given.

mod given_answer;

use std::rc::Rc;

use kl_formats::{Messages, Role, Variables};
use serde_json::Value;

use super::chat_template::{ChatTemplate, Message, TemplateError, TemplateValues};
use super::spans::markers::{opening_at_end, reasoning_of};
use given_answer::{Renderings, without_part_of_mark};

/// An answer that a conversation gives, as the chat template writes it.
#[derive(Debug)]
pub struct GivenAnswer {
    /// The text that a model gets before it answers.
    pub prompt: String,
    /// The answer.
    pub text: String,
    /// What the template writes after what it marks as the answer.
    pub rest: String,
    /// True if it calls a tool.
    pub has_calls: bool,
}

/// Why a given answer cannot be scored.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("the chat template refuses it")]
    Refused(#[from] TemplateError),
    #[error(
        "the chat template makes nothing of message {0}: leave it out, or use another template with --chat-template-file"
    )]
    Nothing(usize),
    #[error(
        "cannot tell where the answer in message {0} begins: what the chat template makes of the conversation does not follow the prompt that a server would send; leave it out, or use another template with --chat-template-file"
    )]
    Unknown(usize),
}

/// The content of a message that no conversation has.
const PROBE: &str = "kl-probe-of-answers";
/// Another one, which begins otherwise.
const OTHER_PROBE: &str = "Other probe of answers";

/// The messages of a prompt, and the template that makes a text of them; in a conversation, also the places
/// where a model is to answer.
#[derive(Clone)]
pub struct Chat {
    template: Rc<ChatTemplate>,
    messages: Vec<Message>,
    values: TemplateValues,
    /// The number of given messages before each answer of the model.
    pub ends: Vec<usize>,
    /// The prompts to answer that were made so far.
    n_asked: usize,
}

impl Chat {
    /// The messages of a prompt, with the variables that come with it.
    ///
    /// # Errors
    /// A value that cannot be read.
    pub fn new(
        template: &Rc<ChatTemplate>,
        messages: &Messages,
        variables: &Variables,
    ) -> Result<Self, TemplateError> {
        Ok(Self {
            template: template.clone(),
            messages: template.messages(messages.json())?,
            values: template.values(variables)?,
            ends: Vec::new(),
            n_asked: 0,
        })
    }

    /// The text of the first `n` messages, up to where the model answers them.
    ///
    /// # Errors
    /// Why the template refuses them.
    pub fn prompt(&self, n: usize) -> Result<String, TemplateError> {
        self.render(self.messages.get(..n).unwrap_or_default(), true)
    }

    /// The answer that the conversation gives in the message at `index`, as the template writes it.
    ///
    /// # Errors
    /// Why the template refuses the messages, or that the answer cannot be told apart.
    pub fn answer(&self, index: usize) -> Result<GivenAnswer, AnswerError> {
        let before = self.messages.get(..index).unwrap_or_default();
        let with_answer = self.messages.get(..=index).unwrap_or_default();
        let prompt = self.render(before, true)?;
        let (whole, marked) = self
            .template
            .render_marked(with_answer, &self.values, false)?;
        let fields = |message: Option<&Message>| message.map(fields_of).unwrap_or_default();
        let message = fields(with_answer.last());
        let names = ["reasoning_content", "thinking", "reasoning"];
        let reasoning = names.iter().find_map(|name| message.get(name)?.as_str());
        let texts = |key: &str| message.get(key).map(texts_of).unwrap_or_default();
        let mut renderings = Renderings {
            prompt: &prompt,
            whole: &whole,
            marked: &marked,
            probed: None,
            texts_before: &texts_of(&fields(before.last())),
            texts_of_answer: &texts("content"),
            reasoning: reasoning.unwrap_or_default(),
        };
        let probed;
        let mut start = renderings.start_after_prompt();
        if start.is_none() {
            let begins_alike = |text: &String| text.trim_start().starts_with('k');
            let probe = if renderings.texts_of_answer.iter().any(begins_alike) {
                OTHER_PROBE
            } else {
                PROBE
            };
            let messages = [before, &[assistant_message(probe)]].concat();
            probed = self.render(&messages, false).ok();
            renderings.probed = probed.as_deref();
            start = renderings.start_after_header();
        }
        let start = start.ok_or(AnswerError::Unknown(index + 1))?;
        let end = marked
            .iter()
            .map(|range| range.end)
            .max()
            .filter(|&end| end > start.at);
        let (before_end, rest) = whole.split_at(end.unwrap_or(whole.len()));
        let text = before_end.get(start.at..).unwrap_or_default();
        if text.is_empty() {
            return Err(AnswerError::Nothing(index + 1));
        }
        Ok(GivenAnswer {
            prompt: start.prompt,
            text: text.to_owned(),
            rest: rest.to_owned(),
            has_calls: !texts("tool_calls").is_empty(),
        })
    }

    /// The next prompt that the model is to answer, where the last one was answered with this text; `None`
    /// after the last.
    pub fn next(&mut self, answer: &str) -> Option<Result<String, TemplateError>> {
        let end = *self.ends.get(self.n_asked)?;
        if let Some(n_before) = self.n_asked.checked_sub(1) {
            let answer_index = self.ends.get(n_before)? + n_before;
            let prompt = self.prompt(answer_index).unwrap_or_default();
            let opening = opening_at_end(&prompt).unwrap_or_default();
            self.insert(answer_index, opening, answer);
        }
        let prompt = self.prompt(end + self.n_asked);
        self.n_asked += 1;
        Some(prompt)
    }

    /// Inserts what the model has answered as the message at `index`. `opening` is the end of the
    /// prompt that began the answer, such as `<think>`.
    fn insert(&mut self, index: usize, opening: &str, answer: &str) {
        let index = index.min(self.messages.len());
        let text = format!("{opening}{answer}");
        let message = if self.template.has_channels {
            message_of_channels(answer)
        } else {
            let reasoning = reasoning_of(&text);
            [reasoning, reasoning.map(str::trim), None]
                .into_iter()
                .find_map(|reasoning| self.message_of(index, answer, reasoning))
                .unwrap_or_else(|| assistant_message(&text))
        };
        self.messages.insert(index, message);
    }

    /// The message at `index` that the template turns into this answer again, if there is one. A
    /// template may write a content between marks of its own, such as `<|START_RESPONSE|>`, and want
    /// reasoning apart.
    fn message_of(&self, index: usize, answer: &str, reasoning: Option<&str>) -> Option<Message> {
        let message = |content: &str| {
            let fields = [("role", "assistant"), ("content", content)].into_iter();
            let reasoning = reasoning.map(|text| ("reasoning_content", text));
            Message::from_fields(fields.chain(reasoning))
        };
        let rendered = |message: Message| {
            let mut chat = self.clone();
            chat.messages.truncate(index);
            chat.messages.push(message);
            chat.answer(index).ok()
        };
        let probed = rendered(message(PROBE))?;
        let (before, after) = probed.text.split_once(PROBE)?;
        // A thought that the prompt opened is a part of the answer, unless the template drops it.
        let prompt = self.prompt(index).ok()?;
        let opened_thought = prompt.strip_prefix(&probed.prompt)?;
        let text = format!("{opened_thought}{answer}");
        let n_possible = if before.trim().is_empty() { 1 } else { 2 };
        let (text, content) = [&*text, answer]
            .into_iter()
            .take(n_possible)
            .find_map(|text| Some((text, text.strip_prefix(before)?)))?;
        let content = without_begun(content, after);
        let rendered_again = rendered(message(content))?.text;
        rendered_again
            .starts_with(text.trim_end())
            .then(|| message(content))
    }

    fn render(&self, messages: &[Message], asks: bool) -> Result<String, TemplateError> {
        self.template.render(messages, &self.values, asks)
    }
}

/// The texts that a template writes after an answer: before what the user says next, and before another
/// answer.
pub fn texts_after_an_answer(template: &ChatTemplate) -> Vec<String> {
    let user_message = Message::from_fields([("role", "user"), ("content", "kl")]);
    let messages = [user_message.clone(), assistant_message(PROBE), user_message];
    let values = template.values(&Variables::default()).unwrap_or_default();
    let text_after_probe = |n_messages, asks| {
        let text = template
            .render(messages.get(..n_messages)?, &values, asks)
            .ok()?;
        let (_, after) = text.rsplit_once(PROBE)?;
        Some(after.to_owned())
    };
    [text_after_probe(3, false), text_after_probe(2, true)]
        .into_iter()
        .flatten()
        .collect()
}

/// For each answer that the model is to give, the number of messages before it. The model answers a message of
/// the user or of tools that has no given answer, after any that follow from the system or another role. If
/// all messages are of the system, it answers once, at the end.
pub fn unanswered(roles: &[Role]) -> Vec<usize> {
    let mut ends = Vec::new();
    for (index, role) in roles.iter().enumerate() {
        let next = (index + 1..)
            .zip(roles.iter().skip(index + 1))
            .find(|(_, role)| !matches!(role, Role::System | Role::Other));
        let is_asked = match (role, next) {
            // The results of several calls are answered together.
            (Role::System | Role::Assistant | Role::Other, _)
            | (_, Some((_, Role::Assistant)))
            | (Role::Tool, Some((_, Role::Tool))) => false,
            _ => true,
        };
        if is_asked {
            ends.push(next.map_or(roles.len(), |(next, _)| next));
        }
    }
    if roles.iter().all(|role| *role == Role::System) {
        ends.push(roles.len());
    }
    ends
}

/// The indices of the assistant's messages that follow another message.
pub fn answered(roles: &[Role]) -> Vec<usize> {
    (1..roles.len())
        .filter(|&index| roles.get(index) == Some(&Role::Assistant))
        .collect()
}

/// A text without the marks at its end with which `after` begins.
fn without_begun<'a>(text: &'a str, after: &str) -> &'a str {
    (0..=after.len())
        .rev()
        .filter(|&n| after.is_char_boundary(n) && without_part_of_mark(after, n) == n)
        .find_map(|n| text.strip_suffix(after.get(..n)?))
        .unwrap_or(text)
}

/// A message as a value.
fn fields_of(message: &Message) -> Value {
    serde_json::from_str(message.json().get()).unwrap_or_default()
}

/// The texts in a value that are not blank: in a message those of its content, its reasoning and its calls
/// of tools.
fn texts_of(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(texts_of).collect(),
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !["role", "type"].contains(&key.as_str()))
            .flat_map(|(_, value)| texts_of(value))
            .collect(),
        _ => Vec::new(),
    }
}

fn assistant_message(text: &str) -> Message {
    Message::from_fields([("role", "assistant"), ("content", text)])
}

/// The message of an answer in channels, as gpt-oss gives them: its template refuses the markers, and
/// wants the reasoning apart from what was said last.
fn message_of_channels(answer: &str) -> Message {
    let message_after = |header: &str| {
        let (_, text) = answer.split_once(header)?;
        Some(text.split_once("<|end|>").map_or(text, |(text, _)| text))
    };
    let thinking = message_after("<|channel|>analysis<|message|>");
    let last_message = answer.rsplit("<|message|>").next().unwrap_or(answer);
    // An answer may have ended within its reasoning.
    let ended_in_reasoning = thinking == Some(last_message);
    let content = if ended_in_reasoning { "" } else { last_message };
    let fields = [("role", "assistant"), ("content", content)];
    let thinking_field = thinking.map(|text| ("thinking", text));
    Message::from_fields(fields.into_iter().chain(thinking_field))
}

#[cfg(test)]
mod tests;
