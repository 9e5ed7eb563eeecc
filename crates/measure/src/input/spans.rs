//! The spans of an answer: its reasoning, calls of tools, code, and what the user names.
//!
//! Spans are found in the answer's text by the markers around them, and are read from left to right:
//! nothing nests, so code within a thought is part of the thought. A marker belongs to its span, and a
//! token to the span of its first byte.

pub mod markers;
mod offered_tools;

use std::collections::HashSet;
use std::str::FromStr;

use kl_formats::PROMPT_SPAN;

use super::source::{GROUP_NAMES, is_group_name};
use markers::Markers;
pub use offered_tools::OfferedTools;

/// The span of an answer's tokens that are in no other.
const ANSWER: &str = "answer";
const REASONING: &str = "reasoning";
const TOOL_CALL: &str = "tool call";
/// Blocks between lines of three backticks or more.
const CODE: &str = "code";

/// The most tokens of an opening marker with which a prompt ends, and of the blanks after it.
const MARKER_TOKENS: usize = 64;

/// The index of [`ANSWER`] among the names.
const ANSWER_INDEX: u32 = 1;

/// A span that begins and ends with markers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanRule {
    name: String,
    markers: Markers,
}

impl FromStr for SpanRule {
    type Err = String;

    /// Parses `NAME=OPEN..CLOSE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let name_and_markers = text
            .split_once('=')
            .and_then(|(name, markers)| Some((name, markers.parse().ok()?)));
        let Some((name, markers)) = name_and_markers else {
            return Err("expected NAME=OPEN..CLOSE, such as 'think=<think>..</think>'".to_owned());
        };
        if !is_group_name(name) {
            return Err(format!("for NAME {GROUP_NAMES}"));
        }
        if [PROMPT_SPAN, ANSWER].contains(&name) {
            return Err(format!(
                "{name:?} is a span of every answer: use another NAME"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            markers,
        })
    }
}

/// An answer in which spans are looked for.
struct Answer<'a> {
    bytes: &'a [u8],
    /// The bytes before the token that ends it.
    n_text: usize,
    /// The tools that its prompt offers.
    tools: &'a OfferedTools,
}

/// The spans that answers can have.
#[derive(Debug)]
pub struct Spans {
    /// The name of all before an answer, that of the answer's rest, and all others that can occur.
    pub names: Vec<String>,
    rules: Vec<SpanRule>,
}

impl Spans {
    /// The spans of answers in a chat template, given by its source, if there is one: those whose
    /// markers it has, or the vocabulary as tokens. `offers_tools`: whether a prompt shows tools to the model.
    /// `user_rules` come before others that begin at the same byte.
    pub fn new(
        template: Option<&str>,
        is_token: impl Fn(&str) -> bool,
        offers_tools: bool,
        user_rules: &[SpanRule],
    ) -> Self {
        let template = template.unwrap_or_default();
        let mut rules = Vec::new();
        for (name, known_markers) in [
            (REASONING, &markers::REASONING[..]),
            (TOOL_CALL, &markers::TOOL_CALLS),
        ] {
            let used_markers = known_markers
                .iter()
                .filter(|known| known.are_in(template, &is_token));
            rules.extend(used_markers.map(|known| SpanRule {
                name: name.to_owned(),
                markers: known.markers.clone(),
            }));
        }
        let mut names = vec![PROMPT_SPAN, ANSWER];
        names.extend(rules.iter().map(|rule| &*rule.name));
        names.extend(offers_tools.then_some(TOOL_CALL));
        names.push(CODE);
        names.extend(user_rules.iter().map(|rule| &*rule.name));
        let mut seen_names = HashSet::new();
        names.retain(|name| seen_names.insert(*name));
        let names = names.into_iter().map(str::to_owned).collect();
        rules.splice(0..0, user_rules.iter().cloned());
        Self { names, rules }
    }

    /// True if one of these runs is the call of a tool.
    pub fn has_tool_call(&self, runs: &[(u32, u32)]) -> bool {
        let name = |span: u32| self.names.get(span as usize);
        runs.iter()
            .any(|(span, _)| name(*span).is_some_and(|name| name == TOOL_CALL))
    }

    /// Returns the spans of a window's tokens, as runs of tokens: indices into the names, and numbers of
    /// tokens. The answer begins at token `n_prompt`; `tools` are offered in its prompt; `bytes_of_token` gives
    /// a token's bytes, and `ends_answer` is true for a token that ends an answer.
    pub fn of_window(
        &self,
        tokens: &[u32],
        n_prompt: u32,
        tools: &OfferedTools,
        bytes_of_token: &dyn Fn(u32) -> Vec<u8>,
        ends_answer: &dyn Fn(u32) -> bool,
    ) -> Vec<(u32, u32)> {
        let (prompt, answer) = tokens.split_at(tokens.len().min(n_prompt as usize));
        let bytes = |tokens: &[u32]| -> Vec<Vec<u8>> {
            tokens.iter().map(|&token| bytes_of_token(token)).collect()
        };
        let prompt_end = prompt.len().saturating_sub(MARKER_TOKENS);
        let prompt_end = bytes(prompt.get(prompt_end..).unwrap_or_default()).concat();
        let pieces = bytes(answer);
        let answer_bytes = pieces.concat();
        // The token that ends the answer does not belong to its last line.
        let end_token = answer.last().filter(|token| ends_answer(**token));
        let n_end_bytes = end_token.and(pieces.last()).map_or(0, Vec::len);
        let answer = Answer {
            bytes: &answer_bytes,
            n_text: answer_bytes.len() - n_end_bytes,
            tools,
        };
        let span_of_bytes = self.spans_of_bytes(&prompt_end, &answer);
        let mut runs = vec![(0, prompt.len() as u32)];
        let (mut start, mut span) = (0, ANSWER_INDEX);
        for piece in pieces {
            // At the end, a token without bytes is of the same span as the one before it.
            span = span_of_bytes.get(start).copied().unwrap_or(span);
            match runs.last_mut() {
                Some((last, n)) if *last == span => *n += 1,
                _ => runs.push((span, 1)),
            }
            start += piece.len();
        }
        runs
    }

    /// The span of each byte of an answer. If the prompt ends with an opening marker, as with a template
    /// that makes the model think, the answer starts within that span.
    fn spans_of_bytes(&self, prompt: &[u8], answer: &Answer<'_>) -> Vec<u32> {
        let bytes = answer.bytes;
        let mut spans = vec![ANSWER_INDEX; bytes.len()];
        let prompt = prompt.trim_ascii_end();
        let open_rule = self.longest_rule(|rule| prompt.ends_with(rule.markers.open.as_bytes()));
        let open_span = open_rule.map(|rule| (&*rule.name, span_end(bytes, 0, &rule.markers)));
        let open_call = || Some((TOOL_CALL, answer.tools.named_call(prompt, bytes)?));
        let mut first_span = open_span.or_else(open_call);
        let mut position = 0;
        while position < bytes.len() {
            let span_here = first_span.take().or_else(|| self.span_at(answer, position));
            if let Some((name, end)) = span_here {
                let index = self.names.iter().position(|other| other == name);
                let span = index.map_or(ANSWER_INDEX, |index| index as u32);
                for span_of_byte in spans.iter_mut().take(end).skip(position) {
                    *span_of_byte = span;
                }
                position = end.max(position + 1);
            } else {
                position += 1;
            }
        }
        spans
    }

    /// The name of the span that begins at this byte of an answer, and where it ends.
    fn span_at(&self, answer: &Answer<'_>, position: usize) -> Option<(&str, usize)> {
        let &Answer {
            bytes,
            n_text,
            tools,
        } = answer;
        let (before, after) = bytes.split_at_checked(position)?;
        if let Some(rule) =
            self.longest_rule(|rule| after.starts_with(rule.markers.open.as_bytes()))
        {
            let text_start = position + rule.markers.open.len();
            return Some((&rule.name, span_end(bytes, text_start, &rule.markers)));
        }
        if let Some(length) = tools.named_call(before, after) {
            return Some((TOOL_CALL, position + length));
        }
        // A fence is looked for to the end of the line, so not at every byte; JSON likewise.
        if before.last().is_some_and(|last| *last != b'\n') {
            return None;
        }
        let text = bytes.get(position..n_text)?;
        if let Some(length) = tools.json_calls(text) {
            return Some((TOOL_CALL, position + length));
        }
        let block = code_block(text, fence_length(text)?);
        let content = block.content.trim_ascii_end();
        let is_call = tools.json_calls(content) == Some(content.len());
        let name = if is_call { TOOL_CALL } else { CODE };
        Some((name, position + block.length))
    }

    /// The rule with the longest opening marker of those that fit; the first of equals.
    fn longest_rule(&self, fits: impl Fn(&SpanRule) -> bool) -> Option<&SpanRule> {
        self.rules
            .iter()
            .rev()
            .filter(|rule| fits(rule))
            .max_by_key(|rule| rule.markers.open.len())
    }
}

/// The end of a span whose text starts at `text_start`: after its closing marker, or the answer's end.
fn span_end(answer: &[u8], text_start: usize, markers: &Markers) -> usize {
    let Some(close) = &markers.close else {
        return answer.len();
    };
    let text = answer.get(text_start..).unwrap_or_default();
    let text_length = text
        .windows(close.len())
        .position(|bytes| bytes == close.as_bytes());
    text_length.map_or(answer.len(), |text_length| {
        text_start + text_length + close.len()
    })
}

/// The number of backticks that open a block of code on the first line of `text`.
fn fence_length(text: &[u8]) -> Option<usize> {
    let first_line = text.split(|&byte| byte == b'\n').next()?;
    let line = first_line.trim_ascii_start();
    let n = line.iter().take_while(|&&byte| byte == b'`').count();
    let is_fence = n >= 3 && !line.iter().skip(n).any(|&byte| byte == b'`');
    is_fence.then_some(n)
}

/// A block of code, from its opening line to the end of the closing one.
struct Block<'a> {
    /// The lines between.
    content: &'a [u8],
    length: usize,
}

/// The block of code with which a text begins. Backticks alone close it, at least `fence_length`.
fn code_block(text: &[u8], fence_length: usize) -> Block<'_> {
    let (mut start, mut content_start) = (0, 0);
    for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let end = start + line.len();
        let line = line.trim_ascii();
        if number > 0 && line.len() >= fence_length && line.iter().all(|&byte| byte == b'`') {
            return Block {
                content: text.get(content_start..start).unwrap_or_default(),
                length: end,
            };
        }
        start = end + 1;
        if number == 0 {
            content_start = start;
        }
    }
    Block {
        content: text.get(content_start..).unwrap_or_default(),
        length: text.len(),
    }
}

#[cfg(test)]
mod tests;
