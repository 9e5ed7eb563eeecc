//! A conversation in a chat template: the text before each answer, and the answers that are given.

use std::borrow::Cow;
use std::rc::Rc;

use kl_formats::{Messages, Role, Variables};

use super::chat_template::{ChatTemplate, Message, TemplateError, TemplateValues};
use super::spans::{opening_at_end, opening_in, reasoning_of};

/// The content of a message that no conversation has.
const PROBE: &str = "kl-probe-of-answers";

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

    /// The text before the message at `index`, and what the template makes of that message, up to the
    /// end of its turn. The two are told apart by rendering the messages with and without that one.
    ///
    /// # Errors
    /// Why the template refuses the messages.
    pub fn answer(&self, index: usize) -> Result<(String, String), TemplateError> {
        let before = self.messages.get(..index).unwrap_or_default();
        let up_to = self.messages.get(..=index).unwrap_or_default();
        let prompt = self.render(before, true)?;
        let whole = self.render(up_to, false)?;
        if let Some(answer) = whole.strip_prefix(&prompt) {
            return Ok((prompt.clone(), answer.to_owned()));
        }
        let history = self.render(before, false).unwrap_or_default();
        let mut messages = before.to_vec();
        messages.push(of_assistant(PROBE));
        let probed = self.render(&messages, false);
        let apart = Apart {
            probed: &probed.unwrap_or_else(|_| whole.clone()),
            asks: prompt.strip_prefix(&history).unwrap_or_default(),
            prompt: &prompt,
            whole: &whole,
            history: &history,
            last: before.last(),
        };
        let (prompt, answer) = (apart.at_the_parting())
            .or_else(|| apart.after_the_header())
            .unwrap_or_else(|| apart.at_the_probe());
        Ok((prompt.into_owned(), answer.to_owned()))
    }

    /// The next prompt that the model is to answer, where the last one was answered with this text; `None`
    /// after the last.
    pub fn next(&mut self, answer: &str) -> Option<Result<String, TemplateError>> {
        let end = *self.ends.get(self.n_asked)?;
        if let Some(n_before) = self.n_asked.checked_sub(1) {
            let asked = self.ends.get(n_before)? + n_before;
            let prompt = self.prompt(asked).unwrap_or_default();
            self.insert(asked, opening_at_end(&prompt).unwrap_or_default(), answer);
        }
        let prompt = self.prompt(end + self.n_asked);
        self.n_asked += 1;
        Some(prompt)
    }

    /// Inserts what the model has answered as the message at `index`. `opened` is the end of the
    /// prompt that began the answer, such as `<think>`.
    fn insert(&mut self, index: usize, opened: &str, answer: &str) {
        let index = index.min(self.messages.len());
        let text = format!("{opened}{answer}");
        let message = if self.template.has_channels {
            of_channels(answer)
        } else {
            let reasoning = reasoning_of(&text);
            let mut reasonings = [reasoning, reasoning.map(str::trim), None].into_iter();
            let found = reasonings.find_map(|of| self.message_of(index, answer, of));
            found.unwrap_or_else(|| of_assistant(&text))
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
        let (prompt, probed) = rendered(message(PROBE))?;
        let (before, after) = probed.split_once(PROBE)?;
        // A thought that the prompt opened is a part of the answer, unless the template drops it.
        let opened = self.prompt(index).ok()?;
        let text = format!("{}{answer}", opened.strip_prefix(&prompt)?);
        let both = [&*text, answer].into_iter();
        let mut texts = both.take(if before.trim().is_empty() { 1 } else { 2 });
        let (text, rest) = texts.find_map(|text| Some((text, text.strip_prefix(before)?)))?;
        let content = without_begun(rest, after);
        let (_, again) = rendered(message(content))?;
        again.starts_with(text.trim_end()).then(|| message(content))
    }

    fn render(&self, messages: &[Message], asks: bool) -> Result<String, TemplateError> {
        self.template.render(messages, &self.values, asks)
    }
}

/// The renderings of a conversation whose prompt is not the start of the whole. Each method is a way to
/// tell the text before the answer from the answer.
struct Apart<'t> {
    /// The messages before the answer, and what asks for it.
    prompt: &'t str,
    /// The messages before the answer, and the answer.
    whole: &'t str,
    /// The messages before the answer alone.
    history: &'t str,
    /// The messages before the answer, and another answer.
    probed: &'t str,
    /// The end of the prompt that asks for the answer; empty if the prompt does not begin with the
    /// history.
    asks: &'t str,
    /// The message before the answer.
    last: Option<&'t Message>,
}

impl<'t> Apart<'t> {
    /// The end of the prompt that asks for the answer, without a thought that it opens.
    fn header(&self) -> &'t str {
        let header = opening_in(self.asks).and_then(|at| self.asks.get(..at));
        header.unwrap_or(self.asks)
    }

    /// The answer begins where the prompt and the whole part. The prompt may end with the mark that
    /// opens a thought, which a template leaves out before an answer without one.
    fn at_the_parting(&self) -> Option<(Cow<'t, str>, &'t str)> {
        let with_whole = common_bytes(self.prompt, self.whole);
        let shared = with_whole.min(common_bytes(self.prompt, self.probed));
        let n_history = self.history.len();
        let start = match shared.checked_sub(n_history) {
            // A mark that the answer shares by chance with its first characters is not shared.
            Some(n) if !self.asks.is_empty() => {
                n_history + without_part_of_mark(self.asks, n).min(self.header().len())
            }
            // A template that always asks may open a thought, too.
            _ => {
                let start = without_part_of_mark(self.prompt, shared);
                let (_, rest) = self.prompt.split_at(start);
                if opening_in(rest) != Some(0) || has_content_of(rest, self.last) {
                    return None;
                }
                start
            }
        };
        let (prompt, answer) = self.whole.split_at(start);
        Some((prompt.into(), answer))
    }

    /// The answer begins after the prompt's own header, where the template writes the messages before
    /// an answer in another way once they are answered.
    fn after_the_header(&self) -> Option<(Cow<'t, str>, &'t str)> {
        let header = self.header();
        let (shared, _) = self.whole.split_at(common_bytes(self.probed, self.whole));
        let (_, begun) = shared.rsplit_once(header).filter(|_| !header.is_empty())?;
        if has_content_of(begun, self.last) {
            return None;
        }
        let (_, answer) = self.whole.split_at(shared.len() - begun.len());
        let opened = self.asks.get(header.len()..).unwrap_or_default();
        Some(match answer.strip_prefix(opened) {
            Some(answer) => (self.prompt.into(), answer),
            None => (format!("{}{header}", self.history).into(), answer),
        })
    }

    /// The answer begins where another answer would differ, and the text before it is the prompt.
    fn at_the_probe(&self) -> (Cow<'t, str>, &'t str) {
        let (shared, _) = self.whole.split_at(common_bytes(self.probed, self.whole));
        // Blanks that the prompt does not end with are the model's own.
        let start = if self.prompt.ends_with(char::is_whitespace) {
            shared.len()
        } else {
            shared.trim_end().len()
        };
        let (_, answer) = self.whole.split_at(without_part_of_mark(self.whole, start));
        (self.prompt.into(), answer)
    }
}

/// For each answer that the model is to give, the number of messages before it. The model answers a message of
/// the user or of tools that has no given answer, after any that follow from the system or another role. If
/// all messages are of the system, it answers once, at the end.
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

/// True if a text may have the content of this message in it.
fn has_content_of(text: &str, message: Option<&Message>) -> bool {
    message.is_none_or(|message| text.contains(message.content().unwrap_or_default().trim()))
}

fn of_assistant(text: &str) -> Message {
    Message::from_fields([("role", "assistant"), ("content", text)])
}

/// The message of an answer in channels, as gpt-oss gives them: its template refuses the markers, and
/// wants the reasoning apart from what was said last.
fn of_channels(answer: &str) -> Message {
    let message = |from: &str| {
        let (_, text) = answer.split_once(from)?;
        Some(text.split_once("<|end|>").map_or(text, |(text, _)| text))
    };
    let thinking = message("<|channel|>analysis<|message|>");
    let last = answer.rsplit("<|message|>").next().unwrap_or(answer);
    // An answer may have ended within its reasoning.
    let is_within = thinking == Some(last);
    let fields = [
        ("role", "assistant"),
        ("content", if is_within { "" } else { last }),
    ];
    let thought = thinking.map(|text| ("thinking", text));
    Message::from_fields(fields.into_iter().chain(thought))
}

#[cfg(test)]
mod tests;
