//! The spans of an answer: its reasoning, calls of tools, code, and what the user names.
//!
//! Spans are found in the answer's text by the markers around them, and are read from left to right:
//! nothing nests, so code within a thought is part of the thought. A marker belongs to its span, and a
//! token to the span of its first byte.

use std::collections::HashSet;
use std::str::FromStr;

use kl_formats::PROMPT_SPAN;

use super::source::{GROUP_NAMES, is_group_name};
use crate::engine::Vocabulary;

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
    open: String,
    /// Empty: it runs to the answer's end.
    close: String,
}

impl FromStr for SpanRule {
    type Err = String;

    /// Parses `NAME=OPEN..CLOSE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let named = text.split_once('=');
        let parts = named.and_then(|(name, markers)| Some((name, markers.split_once("..")?)));
        let Some((name, (open, close))) = parts.filter(|(_, (open, _))| !open.is_empty()) else {
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
            open: open.to_owned(),
            close: close.to_owned(),
        })
    }
}

/// Markers of reasoning in published chat templates: `OPEN..CLOSE`. A template has these markers if it
/// contains one of them, or else the text after ` if `.
const REASONING_MARKERS: [&str; 16] = [
    // Qwen, DeepSeek, GLM, Phi-4, Nemotron and most others.
    "<think>..</think>",
    // Magistral.
    "[THINK]..[/THINK]",
    // gpt-oss.
    "<|channel|>analysis..<|end|> if <|channel|>",
    // Gemma 4.
    "<|channel>thought..<channel|> if <|channel>",
    // Command A Reasoning and R7B.
    "<|START_THINKING|>..<|END_THINKING|>",
    // Seed-OSS.
    "<seed:think>..</seed:think>",
    // EXAONE Deep.
    "<thought>..</thought>",
    // Apertus.
    "<|inner_prefix|>..<|inner_suffix|>",
    // Kimi-VL.
    "◁think▷..◁/think▷",
    // Granite 3.2.
    "Here is my thought process:..Here is my response:",
    // Apriel 1.6.
    "Here are my reasoning steps:..[BEGIN FINAL RESPONSE]",
    // MiniMax M3.
    "<mm:think>..</mm:think>",
    // Kimi K3.
    "<|open|>think<|sep|>..<|close|>think<|sep|> if <|close|>",
    // Hunyuan 3.
    "<think:opensource>..</think:opensource> if :opensource",
    // Solar Open.
    "<|think|>..<|end|> if <|think|>",
    // Muse Glimmer.
    " to=self<|message|>..<|eom|> if to=self",
];

/// Markers of calls of tools, in the same form. One without an end marker runs to the answer's end.
const TOOL_CALL_MARKERS: [&str; 28] = [
    // Hermes, Qwen, GLM, Granite 4.
    "<tool_call>..</tool_call>",
    // Mistral.
    "[TOOL_CALLS]..",
    // Llama 3.1.
    "<|python_tag|>..",
    // DeepSeek V3 to V3.1, and V3.2.
    "<｜tool▁calls▁begin｜>..<｜tool▁calls▁end｜>",
    "<｜DSML｜function_calls>..</｜DSML｜function_calls> if DSML",
    // DeepSeek V4.
    "<｜DSML｜tool_calls>..</｜DSML｜tool_calls> if DSML",
    // gpt-oss, which names a tool before the channel or in it.
    " to=functions...<|call|> if <|channel|>",
    "<|channel|>commentary to=functions...<|call|> if <|channel|>",
    // Gemma 4 and FunctionGemma.
    "<|tool_call>..<tool_call|>",
    "<start_function_call>..<end_function_call>",
    // Phi-4-mini, and Granite 3, which has no end marker.
    "<|tool_call|>..<|/tool_call|>",
    // Command A and R7B.
    "<|START_ACTION|>..<|END_ACTION|>",
    // Kimi K2.
    "<|tool_calls_section_begin|>..<|tool_calls_section_end|>",
    // LFM2.
    "<|tool_call_start|>..<|tool_call_end|>",
    // MiniMax M2.
    "<minimax:tool_call>..</minimax:tool_call>",
    // Nemotron Nano 2.
    "<TOOLCALL>..</TOOLCALL>",
    // Apertus.
    "<|tools_prefix|>..<|tools_suffix|>",
    // OLMo 3.
    "<function_calls>..</function_calls>",
    // Jamba.
    "<tool_calls>..</tool_calls>",
    // Functionary 3.1, and others that are shown this form.
    "<function=..</function>",
    // MiniCPM5.
    "<function name=..</function>",
    // Seed-OSS.
    "<seed:tool_call>..</seed:tool_call>",
    // GigaChat 3 and 3.1.
    "function call<|role_sep|>..<|message_sep|> if <|role_sep|>",
    "<|function_call|>..<|message_sep|> if <|function_call|>",
    // Solar Open.
    "<|tool_calls|>..<|calls|>",
    // Kimi K3.
    "<|open|>tools<|sep|>..<|close|>tools<|sep|> if <|close|>",
    // Hunyuan 3.
    "<tool_calls:opensource>..</tool_calls:opensource> if :opensource",
    // Muse Glimmer.
    "<atem:function_calls>..</atem:function_calls>",
];

/// The spans that answers can have.
#[derive(Debug)]
pub struct Spans {
    /// The name of all before an answer, that of the answer's rest, and all others that can occur.
    pub names: Vec<String>,
    rules: Vec<SpanRule>,
}

impl Spans {
    /// The spans of answers in a chat template, given by its source, if there is one: those whose
    /// markers it has. `given` are the user's, which come before others that begin at the same byte.
    pub fn new(template: Option<&str>, given: &[SpanRule]) -> Self {
        let template = template.unwrap_or_default();
        let reasoning = known(&REASONING_MARKERS).map(|markers| (REASONING, markers));
        let tool_calls = known(&TOOL_CALL_MARKERS).map(|markers| (TOOL_CALL, markers));
        let printed = reasoning
            .chain(tool_calls)
            .filter(|(_, [open, close, sign])| {
                let has = |text: &str| !text.is_empty() && template.contains(text);
                has(sign) || sign.is_empty() && (has(open) || has(close))
            });
        let used = printed.map(|(name, [open, close, _])| SpanRule {
            name: name.to_owned(),
            open: open.to_owned(),
            close: close.to_owned(),
        });
        let mut rules: Vec<SpanRule> = used.collect();
        let mut all = vec![PROMPT_SPAN, ANSWER];
        all.extend(rules.iter().map(|rule| &*rule.name));
        all.push(CODE);
        all.extend(given.iter().map(|rule| &*rule.name));
        let mut seen = HashSet::new();
        all.retain(|name| seen.insert(*name));
        let names = all.into_iter().map(str::to_owned).collect();
        rules.splice(0..0, given.iter().cloned());
        Self { names, rules }
    }

    /// Returns the spans of a window's tokens, as runs of tokens: indices into the names, and numbers of
    /// tokens. The answer begins at token `n_prompt`; `texts` gives a token's bytes.
    pub fn of_window(
        &self,
        tokens: &[u32],
        n_prompt: u32,
        texts: &impl Vocabulary,
    ) -> Vec<(u32, u32)> {
        let (prompt, answer) = tokens.split_at(tokens.len().min(n_prompt as usize));
        let bytes = |tokens: &[u32]| -> Vec<Vec<u8>> {
            let bytes = tokens.iter().map(|&token| texts.token_bytes(token));
            bytes.map(Option::unwrap_or_default).collect()
        };
        let from = prompt.len().saturating_sub(MARKER_TOKENS);
        let before = bytes(prompt.get(from..).unwrap_or_default()).concat();
        let pieces = bytes(answer);
        let of_bytes = self.of_bytes(&before, &pieces.concat());
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
    fn of_bytes(&self, prompt: &[u8], answer: &[u8]) -> Vec<u32> {
        let mut spans = vec![ANSWER_INDEX; answer.len()];
        let prompt = prompt.trim_ascii_end();
        let open = self.longest(|rule| prompt.ends_with(rule.open.as_bytes()));
        let mut found = open.map(|rule| (&*rule.name, end(answer, 0, &rule.close)));
        let mut at = 0;
        while at < answer.len() {
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
    fn begins(&self, answer: &[u8], at: usize) -> Option<(&str, usize)> {
        let rest = answer.get(at..)?;
        if let Some(rule) = self.longest(|rule| rest.starts_with(rule.open.as_bytes())) {
            let end = end(answer, at + rule.open.len(), &rule.close);
            return Some((&rule.name, end));
        }
        // A fence is looked for to the end of the line, so not at every byte.
        if at > 0 && answer.get(at - 1) != Some(&b'\n') {
            return None;
        }
        Some((CODE, at + code_length(rest, fence(rest)?)))
    }

    /// The rule with the longest opening marker of those that fit; the first of equals.
    fn longest(&self, fits: impl Fn(&SpanRule) -> bool) -> Option<&SpanRule> {
        let fitting = self.rules.iter().rev().filter(|rule| fits(rule));
        fitting.max_by_key(|rule| rule.open.len())
    }
}

/// The opening marker of each of these rules, the closing one, and the text that a template with these
/// markers has; if that is empty, it has one of them.
fn known(rules: &'static [&'static str]) -> impl Iterator<Item = [&'static str; 3]> {
    rules.iter().filter_map(|rule| {
        let (markers, sign) = rule.split_once(" if ").unwrap_or((rule, ""));
        let (open, close) = markers.rsplit_once("..")?;
        Some([open, close, sign])
    })
}

/// The last marker of reasoning in a text.
pub struct LastMarker {
    /// True if it opens a thought, false if it closes one.
    pub is_open: bool,
    /// The markers that open and close thoughts of its kind.
    pub open: &'static str,
    pub close: &'static str,
}

/// The last known marker of reasoning in a text; the longest of those that begin at the same byte.
pub fn last_marker(text: &str) -> Option<LastMarker> {
    let markers = known(&REASONING_MARKERS).flat_map(|[open, close, _]| {
        [(open, true), (close, false)].map(|(marker, is_open)| {
            let at = text.rfind(marker)?;
            Some((
                (at, marker.len()),
                LastMarker {
                    is_open,
                    open,
                    close,
                },
            ))
        })
    });
    let last = markers.flatten().max_by_key(|(order, _)| *order);
    last.map(|(_, marker)| marker)
}

/// The reasoning with which a text begins, without its markers; `None` if it is not closed.
pub fn reasoning_of(text: &str) -> Option<&str> {
    known(&REASONING_MARKERS).find_map(|[open, close, _]| {
        let (reasoning, _) = text.trim_start().strip_prefix(open)?.split_once(close)?;
        Some(reasoning)
    })
}

/// The end of a text from an opening marker of reasoning on, if only blanks follow that.
pub fn opening_at_end(text: &str) -> Option<&str> {
    let trimmed = text.trim_end();
    let start = known(&REASONING_MARKERS).find_map(|[open, ..]| trimmed.strip_suffix(open))?;
    text.get(start.len()..)
}

/// The end of a span whose text starts at `from`: after its closing marker, or the answer's end.
fn end(answer: &[u8], from: usize, close: &str) -> usize {
    let rest = answer.get(from..).unwrap_or_default();
    let mut places = rest.windows(close.len().max(1));
    let found = places.position(|bytes| bytes == close.as_bytes());
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

/// The bytes of a block of code, from its opening line to the end of the closing one: backticks
/// alone, at least as many.
fn code_length(text: &[u8], fence: usize) -> usize {
    let mut length = 0;
    for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
        length += line.len();
        let line = line.trim_ascii();
        if number > 0 && line.len() >= fence && line.iter().all(|&byte| byte == b'`') {
            return length;
        }
        length += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests;
