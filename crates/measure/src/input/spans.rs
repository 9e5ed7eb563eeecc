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
        let named = text.split_once('=');
        let parts = named.and_then(|(name, markers)| Some((name, markers.parse().ok()?)));
        let Some((name, markers)) = parts else {
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
    /// `given` are the user's, which come before others that begin at the same byte.
    pub fn new(
        template: Option<&str>,
        is_token: impl Fn(&str) -> bool,
        offers_tools: bool,
        given: &[SpanRule],
    ) -> Self {
        let template = template.unwrap_or_default();
        let mut rules = Vec::new();
        for (name, known) in [
            (REASONING, &markers::REASONING[..]),
            (TOOL_CALL, &markers::TOOL_CALLS),
        ] {
            let used = known
                .iter()
                .filter(|known| known.are_in(template, &is_token));
            rules.extend(used.map(|known| SpanRule {
                name: name.to_owned(),
                markers: known.markers.clone(),
            }));
        }
        let mut all = vec![PROMPT_SPAN, ANSWER];
        all.extend(rules.iter().map(|rule| &*rule.name));
        all.extend(offers_tools.then_some(TOOL_CALL));
        all.push(CODE);
        all.extend(given.iter().map(|rule| &*rule.name));
        let mut seen = HashSet::new();
        all.retain(|name| seen.insert(*name));
        let names = all.into_iter().map(str::to_owned).collect();
        rules.splice(0..0, given.iter().cloned());
        Self { names, rules }
    }

    /// True if one of these runs is the call of a tool.
    pub fn has_tool_call(&self, runs: &[(u32, u32)]) -> bool {
        let name = |span: u32| self.names.get(span as usize);
        runs.iter()
            .any(|(span, _)| name(*span).is_some_and(|name| name == TOOL_CALL))
    }

    /// Returns the spans of a window's tokens, as runs of tokens: indices into the names, and numbers of
    /// tokens. The answer begins at token `n_prompt`; `tools` are offered in its prompt; `bytes_of` gives
    /// a token's bytes, and `ends` is true for a token that ends an answer.
    pub fn of_window(
        &self,
        tokens: &[u32],
        n_prompt: u32,
        tools: &OfferedTools,
        bytes_of: &dyn Fn(u32) -> Vec<u8>,
        ends: &dyn Fn(u32) -> bool,
    ) -> Vec<(u32, u32)> {
        let (prompt, answer) = tokens.split_at(tokens.len().min(n_prompt as usize));
        let bytes = |tokens: &[u32]| -> Vec<Vec<u8>> {
            tokens.iter().map(|&token| bytes_of(token)).collect()
        };
        let from = prompt.len().saturating_sub(MARKER_TOKENS);
        let before = bytes(prompt.get(from..).unwrap_or_default()).concat();
        let pieces = bytes(answer);
        let all = pieces.concat();
        // The token that ends the answer does not belong to its last line.
        let end = answer.last().filter(|token| ends(**token));
        let n_end = end.and(pieces.last()).map_or(0, Vec::len);
        let answer = Answer {
            bytes: &all,
            n_text: all.len() - n_end,
            tools,
        };
        let of_bytes = self.of_bytes(&before, &answer);
        let mut runs = vec![(0, prompt.len() as u32)];
        let (mut start, mut span) = (0, ANSWER_INDEX);
        for piece in pieces {
            // At the end, a token without bytes is of the same span as the one before it.
            span = of_bytes.get(start).copied().unwrap_or(span);
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
    fn of_bytes(&self, prompt: &[u8], answer: &Answer<'_>) -> Vec<u32> {
        let bytes = answer.bytes;
        let mut spans = vec![ANSWER_INDEX; bytes.len()];
        let prompt = prompt.trim_ascii_end();
        let open = self.longest(|rule| prompt.ends_with(rule.markers.open.as_bytes()));
        let opened = open.map(|rule| (&*rule.name, end(bytes, 0, &rule.markers)));
        let called = || Some((TOOL_CALL, answer.tools.named_call(prompt, bytes)?));
        let mut found = opened.or_else(called);
        let mut at = 0;
        while at < bytes.len() {
            if let Some((name, end)) = found.take().or_else(|| self.begins(answer, at)) {
                let index = self.names.iter().position(|other| other == name);
                let span = index.map_or(ANSWER_INDEX, |index| index as u32);
                let inside = spans.iter_mut().take(end).skip(at);
                inside.for_each(|of_byte| *of_byte = span);
                at = end.max(at + 1);
            } else {
                at += 1;
            }
        }
        spans
    }

    /// The name of the span that begins at this byte of an answer, and where it ends.
    fn begins(&self, answer: &Answer<'_>, at: usize) -> Option<(&str, usize)> {
        let &Answer {
            bytes,
            n_text,
            tools,
        } = answer;
        let (before, rest) = bytes.split_at_checked(at)?;
        if let Some(rule) = self.longest(|rule| rest.starts_with(rule.markers.open.as_bytes())) {
            let end = end(bytes, at + rule.markers.open.len(), &rule.markers);
            return Some((&rule.name, end));
        }
        if let Some(length) = tools.named_call(before, rest) {
            return Some((TOOL_CALL, at + length));
        }
        // A fence is looked for to the end of the line, so not at every byte; JSON likewise.
        if before.last().is_some_and(|last| *last != b'\n') {
            return None;
        }
        let text = bytes.get(at..n_text)?;
        if let Some(length) = tools.json_calls(text) {
            return Some((TOOL_CALL, at + length));
        }
        let block = code(text, fence(text)?);
        let content = block.content.trim_ascii_end();
        let is_call = tools.json_calls(content) == Some(content.len());
        let name = if is_call { TOOL_CALL } else { CODE };
        Some((name, at + block.length))
    }

    /// The rule with the longest opening marker of those that fit; the first of equals.
    fn longest(&self, fits: impl Fn(&SpanRule) -> bool) -> Option<&SpanRule> {
        let fitting = self.rules.iter().rev().filter(|rule| fits(rule));
        fitting.max_by_key(|rule| rule.markers.open.len())
    }
}

/// The end of a span whose text starts at `from`: after its closing marker, or the answer's end.
fn end(answer: &[u8], from: usize, markers: &Markers) -> usize {
    let Some(close) = &markers.close else {
        return answer.len();
    };
    let rest = answer.get(from..).unwrap_or_default();
    let mut pieces = rest.windows(close.len());
    let found = pieces.position(|bytes| bytes == close.as_bytes());
    found.map_or(answer.len(), |found| from + found + close.len())
}

/// The number of backticks that open a block of code on the first line of `text`.
fn fence(text: &[u8]) -> Option<usize> {
    let first = text.split(|&byte| byte == b'\n').next()?;
    let line = first.trim_ascii_start();
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

/// The block of code with which a text begins. Backticks alone close it, at least as many as `fence`.
fn code(text: &[u8], fence: usize) -> Block<'_> {
    let (mut start, mut first) = (0, 0);
    for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let end = start + line.len();
        let line = line.trim_ascii();
        if number > 0 && line.len() >= fence && line.iter().all(|&byte| byte == b'`') {
            let content = text.get(first..start).unwrap_or_default();
            return Block {
                content,
                length: end,
            };
        }
        start = end + 1;
        if number == 0 {
            first = start;
        }
    }
    Block {
        content: text.get(first..).unwrap_or_default(),
        length: text.len(),
    }
}

#[cfg(test)]
mod tests;
