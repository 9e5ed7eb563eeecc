//! A conversation in a chat template: the text before each answer, and the answers that are given.

use kl_formats::{Messages, PromptContent, Role, Variables};
use minijinja::Value;

use super::chat_template::{self, ChatTemplate, Given, TemplateError, Turn};
use super::spans::{opening_in, reasoning_of};

/// The content of a message that no conversation has.
const PROBE: &str = "kl-probe-of-answers";

/// The messages of a prompt, and the template that makes a text of them. Clones share what is known of
/// the variables that were used.
#[derive(Clone)]
pub struct Chat<'t> {
    template: &'t ChatTemplate,
    messages: Vec<Value>,
    given: Given,
}

impl<'t> Chat<'t> {
    /// The messages of a prompt, with the variables that come with it; a text is a message of the user.
    ///
    /// # Errors
    /// A value that cannot be read.
    pub fn new(
        template: &'t ChatTemplate,
        content: &PromptContent,
        variables: &Variables,
    ) -> Result<Self, TemplateError> {
        let messages = match content {
            PromptContent::Messages(messages) => template.messages(messages.json()),
            PromptContent::Text(text) => template.messages(Messages::of_user(text).json()),
        };
        Ok(Self {
            template,
            messages: messages?,
            given: Given::new(variables)?,
        })
    }

    /// Returns true if the template has looked up this variable.
    pub fn is_used(&self, variable: &str) -> bool {
        self.given.is_used(variable)
    }

    /// The text of the first `n` messages, up to where the model answers them.
    ///
    /// # Errors
    /// Why the template refuses them.
    pub fn prompt(&self, n: usize) -> Result<String, TemplateError> {
        self.render(self.messages.get(..n).unwrap_or_default(), Turn::ToAnswer)
    }

    /// The text before the message at `index`, and what the template makes of that message, up to the
    /// end of its turn.
    ///
    /// The two are told apart by rendering the messages with and without that one. A prompt may end
    /// otherwise than the text that the answer is in: with the mark that opens a thought, which a
    /// template leaves out before an answer without one. The answer then begins where they part. Or the
    /// template writes the messages before an answer in another way once they are answered: the answer
    /// then begins after the same header as in the prompt.
    ///
    /// # Errors
    /// Why the template refuses the messages.
    pub fn answer(&self, index: usize) -> Result<(String, String), TemplateError> {
        let before = self.messages.get(..index).unwrap_or_default();
        let up_to = self.messages.get(..=index).unwrap_or_default();
        let prompt = self.render(before, Turn::ToAnswer)?;
        let whole = self.render(up_to, Turn::Ended)?;
        if let Some(answer) = whole.strip_prefix(&prompt) {
            return Ok((prompt.clone(), answer.to_owned()));
        }
        let history = self.render(before, Turn::Ended).unwrap_or_default();
        // The part of the prompt that asks for the answer, and that part without an opened thought.
        let asks = prompt.strip_prefix(&history).unwrap_or_default();
        let header = opening_in(asks).and_then(|at| asks.get(..at));
        let header = header.unwrap_or(asks);
        let mut probed = before.to_vec();
        probed.push(of_assistant(PROBE));
        let probed = self.render(&probed, Turn::Ended);
        let probed = probed.unwrap_or_else(|_| whole.clone());

        let shared = common_bytes(&prompt, &whole).min(common_bytes(&prompt, &probed));
        let start = match shared.checked_sub(history.len()) {
            // A mark that the answer shares by chance with its first characters is not shared.
            Some(n) if !asks.is_empty() => {
                Some(history.len() + without_part_of_mark(asks, n).min(header.len()))
            }
            // A template that always asks may open a thought, too.
            _ => Some(without_part_of_mark(&prompt, shared)).filter(|&start| {
                let (_, rest) = prompt.split_at(start);
                opening_in(rest) == Some(0) && !has_content_of(rest, before.last())
            }),
        };
        if let Some(start) = start {
            let (prompt, answer) = whole.split_at(start);
            return Ok((prompt.to_owned(), answer.to_owned()));
        }
        let (shared, _) = whole.split_at(common_bytes(&probed, &whole));
        if let Some((_, begun)) = shared.rsplit_once(header).filter(|_| !header.is_empty())
            && !has_content_of(begun, before.last())
        {
            let (_, answer) = whole.split_at(shared.len() - begun.len());
            let opened = asks.get(header.len()..).unwrap_or_default();
            return Ok(match answer.strip_prefix(opened) {
                Some(answer) => (prompt.clone(), answer.to_owned()),
                None => (format!("{history}{header}"), answer.to_owned()),
            });
        }
        // Blanks that the prompt does not end with are the model's own.
        let start = match prompt.ends_with(char::is_whitespace) {
            true => shared.len(),
            false => shared.trim_end().len(),
        };
        let (_, answer) = whole.split_at(without_part_of_mark(&whole, start));
        Ok((prompt, answer.to_owned()))
    }

    /// Inserts what the model has answered as the message at `index`. `opened` is the end of the
    /// prompt that began the answer, such as `<think>`.
    pub fn insert(&mut self, index: usize, opened: &str, answer: &str) {
        let index = index.min(self.messages.len());
        let text = format!("{opened}{answer}");
        let message = match self.template.has_channels {
            true => of_channels(answer),
            false => {
                let reasoning = reasoning_of(&text);
                let mut reasonings = [reasoning, reasoning.map(str::trim), None].into_iter();
                let found = reasonings.find_map(|of| self.message_of(index, answer, of));
                found.unwrap_or_else(|| of_assistant(&text))
            }
        };
        self.messages.insert(index, message);
    }

    /// The message at `index` of which the template makes this answer again, if there is one. A
    /// template may write a content between marks of its own, such as `<|START_RESPONSE|>`, and want
    /// reasoning apart.
    fn message_of(&self, index: usize, answer: &str, reasoning: Option<&str>) -> Option<Value> {
        let message = |content: &str| {
            let fields = [("role", "assistant"), ("content", content)].into_iter();
            let reasoning = reasoning.map(|text| ("reasoning_content", text));
            chat_template::with_reasoning(Value::from_pairs(fields.chain(reasoning)))
        };
        let rendered = |message: Value| {
            let mut chat = self.clone();
            chat.messages.truncate(index);
            chat.messages.push(message);
            chat.answer(index).ok()
        };
        let (prompt, probed) = rendered(message(PROBE))?;
        let (before, after) = probed.split_once(PROBE)?;
        // A thought that the prompt opened is a part of the answer, unless the template drops it.
        let opened = self.prompt(index).ok()?;
        let text = format!("{}{answer}", opened.strip_prefix(&prompt)?);
        let texts = [&*text, answer].into_iter();
        let mut texts = texts.take(if before.trim().is_empty() { 1 } else { 2 });
        let (text, content) = texts.find_map(|text| Some((text, text.strip_prefix(before)?)))?;
        let content = without_begun(content, after);
        let (_, again) = rendered(message(content))?;
        again.starts_with(text.trim_end()).then(|| message(content))
    }

    fn render(&self, messages: &[Value], turn: Turn) -> Result<String, TemplateError> {
        self.template.render(messages, &self.given, turn)
    }
}

/// The numbers of messages after each of which the model is to answer: those that end with one of the
/// user or of tools, and perhaps of the system or another role, where no given answer follows. If all
/// messages are of the system, the end of the conversation is the only one.
pub fn unanswered(roles: &[Role]) -> Vec<usize> {
    let mut ends = Vec::new();
    for (index, role) in roles.iter().enumerate() {
        let mut after = (index + 1..).zip(roles.iter().skip(index + 1));
        let next = after.find(|(_, role)| !matches!(role, Role::System | Role::Other));
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
    let only_systems = roles.iter().all(|role| *role == Role::System);
    match only_systems {
        true => vec![roles.len()],
        false => ends,
    }
}

/// The indices of the assistant's messages that follow another message.
pub fn answered(roles: &[Role]) -> Vec<usize> {
    let given = roles.iter().enumerate().skip(1);
    let given = given.filter(|(_, role)| **role == Role::Assistant);
    given.map(|(index, _)| index).collect()
}

/// The number of bytes with which both texts begin, in whole characters.
fn common_bytes(one: &str, other: &str) -> usize {
    let pairs = one.chars().zip(other.chars());
    let alike = pairs.take_while(|(a, b)| a == b);
    alike.map(|(c, _)| c.len_utf8()).sum()
}

/// The position `at` of a text, or that of the mark that it is inside of, such as `<think>` or `[INST]`.
fn without_part_of_mark(text: &str, at: usize) -> usize {
    let (before, _) = text.split_at(at);
    let open = before.rfind(['<', '[']);
    let is_mark = |begun: &str| !begun.contains(|c: char| "]>".contains(c) || c.is_whitespace());
    open.filter(|&open| before.get(open..).is_some_and(is_mark))
        .unwrap_or(at)
}

/// A text without the marks at its end with which `after` begins.
fn without_begun<'a>(text: &'a str, after: &str) -> &'a str {
    let ends = (0..=after.len())
        .filter(|&n| after.is_char_boundary(n) && without_part_of_mark(after, n) == n);
    let mut found = ends
        .rev()
        .filter_map(|n| text.strip_suffix(after.get(..n)?));
    found.next().unwrap_or(text)
}

/// Returns true if a text may have the content of this message in it.
fn has_content_of(text: &str, message: Option<&Value>) -> bool {
    let content = message.and_then(|message| message.get_attr("content").ok());
    content.is_none_or(|content| text.contains(content.as_str().unwrap_or_default().trim()))
}

fn of_assistant(text: &str) -> Value {
    Value::from_pairs([("role", "assistant"), ("content", text)])
}

/// The message of an answer in channels, as gpt-oss gives them: its template refuses the markers, and
/// wants the reasoning apart from what was said last.
fn of_channels(answer: &str) -> Value {
    let message = |from: &str| {
        let (_, text) = answer.split_once(from)?;
        let (text, _) = text.split_once("<|end|>").unwrap_or((text, ""));
        Some(text.to_owned())
    };
    let thinking = message("<|channel|>analysis<|message|>");
    let last = answer.rsplit("<|message|>").next().unwrap_or(answer);
    // An answer may have ended within its reasoning.
    let last = if thinking.as_deref() == Some(last) {
        ""
    } else {
        last
    };
    let pairs = [
        ("role", "assistant".to_owned()),
        ("content", last.to_owned()),
    ];
    let thinking = thinking.map(|text| ("thinking", text));
    Value::from_pairs(pairs.into_iter().chain(thinking))
}

#[cfg(test)]
mod tests;
