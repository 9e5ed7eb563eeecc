//! A file of prompts, as a person gives it: one a line, or JSONL.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use kl_formats::native::MAX_HEADER_BYTES_WITH_PROMPTS;
use kl_formats::{PromptContent, TextIdentity};
use serde::de::IgnoredAny;

use crate::cli::text;

/// A prompt, and the line of its file, from 1.
#[derive(Debug, PartialEq)]
pub struct Given {
    pub line: usize,
    pub content: PromptContent,
}

/// The first `max` prompts of a file, all without one, and what names it; `n_tokens` is still 0.
pub fn read(path: &Path, max: Option<u32>) -> Result<(Vec<Given>, TextIdentity)> {
    let (text, identity) = text::read(path)?;
    let prompts = parse(&text, max)
        .map_err(|(line, what)| anyhow!("{}: line {line}: {what}", path.display()))?;
    if prompts.is_empty() {
        bail!("{}: holds no prompt: give one in each line", path.display());
    }
    let bytes: usize = prompts.iter().map(|given| given.content.bytes()).sum();
    if bytes > MAX_HEADER_BYTES_WITH_PROMPTS {
        bail!(
            "{}: its prompts take more than the 64 MiB that a reference has for them: split it, or take fewer with --max-windows",
            path.display()
        );
    }
    Ok((prompts, identity))
}

/// Every line that is not empty. The first one tells what they are.
fn parse(text: &str, max: Option<u32>) -> Result<Vec<Given>, (usize, String)> {
    // Left by editors; a JSON object would not be seen behind it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .peekable();
    let is_json = match lines.peek() {
        Some((place, line)) => is_json(line).map_err(|what| (place + 1, what))?,
        None => false,
    };
    let max = max.map_or(usize::MAX, |max| max as usize);
    let prompts = lines.take(max).map(|(place, line)| {
        let line_number = place + 1;
        let content = match is_json {
            false => Ok(PromptContent::Text(line.to_owned())),
            true => PromptContent::from_json(line).map_err(|what| {
                let what = format!("expected a JSON object with prompt or messages: {what}");
                (line_number, what)
            }),
        };
        content.map(|content| Given {
            line: line_number,
            content,
        })
    });
    prompts.collect()
}

/// Whether a first line is JSONL's. One that begins so and is none is a slip rather than a prompt.
fn is_json(line: &str) -> Result<bool, String> {
    let line = line.trim_start();
    let advice = "a prompt that begins with a bracket is given as {\"prompt\": \"...\"}";
    if line.starts_with('{') {
        return match serde_json::from_str::<IgnoredAny>(line) {
            Ok(_) => Ok(true),
            Err(error) => Err(format!("begins as JSON and is none: {error}; {advice}")),
        };
    }
    match line.starts_with('[') && serde_json::from_str::<IgnoredAny>(line).is_ok() {
        true => Err(format!("a list, where an object is expected; {advice}")),
        false => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, max: Option<u32>) -> Vec<(usize, String)> {
        let label = |given: Given| (given.line, given.content.label());
        parse(text, max).unwrap().into_iter().map(label).collect()
    }

    #[test]
    fn a_line_is_a_prompt() {
        let lines = "\u{feff}one\r\n\n \t\n two \n{\"prompt\": \"x\"}";
        let expected = [(1, "one"), (4, " two "), (5, "{\"prompt\": \"x\"}")];
        let expected = expected.map(|(line, text)| (line, text.to_owned()));
        assert_eq!(texts(lines, None), expected);
        assert_eq!(texts(lines, Some(2)), expected[..2]);
        assert_eq!(texts("[a] b\n", None), [(1, "[a] b".to_owned())]);
        assert_eq!(texts(" \n\n", None), []);
    }

    #[test]
    fn the_first_line_tells_that_all_are_json() {
        let lines = "\u{feff}\n{\"prompt\": \"a\\nb\"}\r\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}";
        let expected = [(2, "a\nb".to_owned()), (4, "c".to_owned())];
        assert_eq!(texts(lines, None), expected);
        let (line, what) = parse("{\"prompt\": \"a\"}\nplain\n", None).unwrap_err();
        assert_eq!(line, 2);
        assert!(what.contains("prompt or messages"), "{what}");
        for slip in [
            "{\"prompt\": \"a\",}",
            "{not json",
            "{\"prompt\": \"a\"} b",
            "[{}]",
        ] {
            let (line, what) = parse(&format!("\n{slip}\nplain\n"), None).unwrap_err();
            assert_eq!(line, 2);
            assert!(what.contains("is given as"), "{slip}: {what}");
        }
        // What is not taken is not looked at.
        assert_eq!(texts("{\"prompt\": \"a\"}\nplain\n", Some(1)).len(), 1);
    }
}
