//! Reads a file of prompts: plain text with one per line, or JSONL.

use anyhow::{Result, anyhow, bail};
use kl_formats::native::MAX_HEADER_BYTES_WITH_PROMPTS;
use kl_formats::{PromptContent, TextIdentity, Variables};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::source::{GROUP_NAMES, PromptPath, is_group_name};
use super::{starter, text};
use crate::report::Warning;

/// A prompt, and its line in the file, from 1.
#[derive(Debug, PartialEq)]
pub struct PromptLine {
    pub number: usize,
    pub content: PromptContent,
    /// The other keys of its JSON object, which a chat template may use.
    pub variables: Variables,
    /// The name of its group; either all prompts of a file have one, or none.
    pub group: Option<String>,
}

/// Reads the first `max` prompts of a file, or all of them, and returns with them what identifies the
/// file.
pub fn read(
    path: &PromptPath,
    max: Option<u32>,
    warnings: &mut Vec<Warning>,
) -> Result<(TextIdentity, Vec<PromptLine>)> {
    let file = match path {
        PromptPath::Starter => starter::text(),
        PromptPath::File(path) => text::read(path, warnings)?,
    };
    let lines = parse(&file.text, max)
        .map_err(|(line, what)| anyhow!("{}: line {line}: {what}", path.display()))?;
    if lines.is_empty() {
        bail!(
            "{}: holds no prompts: write one on each line",
            path.display()
        );
    }
    let bytes: usize = lines.iter().map(|line| line.content.bytes()).sum();
    if bytes > MAX_HEADER_BYTES_WITH_PROMPTS {
        bail!(
            "{}: its prompts exceed the 64 MiB that a reference can hold: split it, or use fewer with --max-windows",
            path.display()
        );
    }
    Ok((file.identity, lines))
}

/// Parses every line that is not empty. The first decides whether all are plain text or JSON. An
/// error is the number of its line, and what is wrong with it.
fn parse(text: &str, max: Option<u32>) -> Result<Vec<PromptLine>, (usize, String)> {
    // Some editors start a file with a byte order mark, which would hide a JSON object.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .peekable();
    let is_json = match lines.peek() {
        Some((index, line)) => is_json(line).map_err(|what| (index + 1, what))?,
        None => false,
    };
    let max = max.map_or(usize::MAX, |max| max as usize);
    let prompts = lines.take(max).map(|(index, line)| {
        let number = index + 1;
        let fault = |what| (number, what);
        if !is_json && is_prompt_in_json(line) {
            return Err(fault(MIXED.to_owned()));
        }
        if !is_json {
            return Ok(PromptLine {
                number,
                content: PromptContent::Text(line.to_owned()),
                variables: Variables::default(),
                group: None,
            });
        }
        Ok(PromptLine {
            number,
            content: PromptContent::from_json(line).map_err(fault)?,
            variables: Variables::from_json(line).map_err(fault)?,
            group: group(line).map_err(fault)?,
        })
    });
    let prompts: Vec<PromptLine> = prompts.collect::<Result<_, _>>()?;
    let has_group = |line: &&PromptLine| line.group.is_some();
    let without = prompts.iter().find(|line| line.group.is_none());
    match prompts.iter().find(has_group).zip(without) {
        Some((with, without)) => {
            let with = with.number;
            let what = format!("has no group, but line {with} has one: give every prompt a group");
            Err((without.number, what))
        }
        None => Ok(prompts),
    }
}

/// The fault of a prompt in JSON where others are plain.
const MIXED: &str = r#"is a prompt in JSON, but the first line is plain text: write {"prompt": "..."} on every line, without a list around them"#;

/// Returns true if a line is a prompt in JSON, perhaps as an item of a list.
fn is_prompt_in_json(line: &str) -> bool {
    let line = line.trim();
    let item = line.strip_suffix(',').unwrap_or(line);
    item.starts_with('{') && PromptContent::from_json(item).is_ok()
}

/// The group that a line's JSON object names, if it names one.
fn group(json: &str) -> Result<Option<String>, String> {
    #[derive(Deserialize)]
    struct Line {
        group: Option<String>,
    }
    let line: Line = serde_json::from_str(json).map_err(|_| "group must be a string".to_owned())?;
    match &line.group {
        Some(group) if !is_group_name(group) => Err(format!("group {group:?}: {GROUP_NAMES}")),
        _ => Ok(line.group),
    }
}

/// Decides whether a first line makes the file JSONL. A line that starts like JSON and is not valid
/// JSON is a mistake rather than a prompt.
fn is_json(line: &str) -> Result<bool, String> {
    let line = line.trim_start();
    let advice = r#"expected {"prompt": "..."} or {"messages": [...]}, also for a text that starts with a bracket"#;
    if line.starts_with('{') {
        return match serde_json::from_str::<IgnoredAny>(line) {
            Ok(_) => Ok(true),
            Err(error) => Err(format!(
                "starts like JSON but is not valid at column {}; {advice}",
                error.column()
            )),
        };
    }
    match line.starts_with('[') && serde_json::from_str::<IgnoredAny>(line).is_ok() {
        true => Err(format!("is a list, not an object; {advice}")),
        false => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, max: Option<u32>) -> Vec<(usize, String)> {
        let label = |line: PromptLine| (line.number, line.content.label());
        parse(text, max).unwrap().into_iter().map(label).collect()
    }

    #[test]
    fn each_line_is_a_prompt() {
        let lines = "\u{feff}one\r\n\n \t\n two \n{\"a\": \"x\"}";
        let expected = [(1, "one"), (4, " two "), (5, "{\"a\": \"x\"}")];
        let expected = expected.map(|(line, text)| (line, text.to_owned()));
        assert_eq!(texts(lines, None), expected);
        assert_eq!(texts(lines, Some(2)), expected[..2]);
        assert_eq!(texts("[a] b\n", None), [(1, "[a] b".to_owned())]);
        assert_eq!(texts(" \n\n", None), []);
    }

    #[test]
    fn a_prompt_in_json_after_a_plain_one_is_refused() {
        let prompt = r#"{"prompt": "a"}"#;
        for text in [
            format!("# a comment\n{prompt}"),
            format!("[\n{prompt},\n{prompt}\n]"),
        ] {
            let (line, what) = parse(&text, None).unwrap_err();
            assert_eq!((line, &*what), (2, MIXED));
        }
    }

    #[test]
    fn all_prompts_have_a_group_or_none_has() {
        let with = r#"{"prompt": "a", "group": "chat"}"#;
        let lines = parse(&format!("{with}\n{with}"), None).unwrap();
        assert_eq!(lines[1].group.as_deref(), Some("chat"));
        for (second, what) in [
            (r#"{"prompt": "a"}"#, "line 1 has one"),
            (r#"{"prompt": "a", "group": 5}"#, "must be a string"),
            (r#"{"prompt": "a", "group": ""}"#, "group"),
            (r#"{"prompt": "a", "group": "a\nb"}"#, "group"),
        ] {
            let (line, found) = parse(&format!("{with}\n{second}"), None).unwrap_err();
            assert!(found.contains(what) && !found.contains('\n'), "{found}");
            assert_eq!(line, 2);
        }
        let null = r#"{"prompt": "a", "group": null}"#;
        assert_eq!(parse(null, None).unwrap()[0].group, None);
    }

    #[test]
    fn other_keys_are_kept_for_the_template() {
        let line = r#"{"tools": [{"name": "a"}], "prompt": "a", "group": "b", "id": 7}"#;
        let lines = parse(line, None).unwrap();
        let variables: Vec<_> = lines[0].variables.iter().collect();
        assert_eq!(variables, [("tools", r#"[{"name": "a"}]"#), ("id", "7")]);
    }

    #[test]
    fn the_first_line_decides_that_all_are_json() {
        let lines = "\u{feff}\n{\"prompt\": \"a\\nb\"}\r\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}";
        let expected = [(2, "a\nb".to_owned()), (4, "c".to_owned())];
        assert_eq!(texts(lines, None), expected);
        let (line, what) = parse("{\"prompt\": \"a\"}\nplain\n", None).unwrap_err();
        assert_eq!(line, 2);
        assert!(
            what.contains(r#"expected {"prompt": "..."} or {"messages": ["#),
            "{what}"
        );
        for mistake in [
            "{\"prompt\": \"a\",}",
            "{not json",
            "{\"prompt\": \"a\"} b",
            "[{}]",
        ] {
            let (line, what) = parse(&format!("\n{mistake}\nplain\n"), None).unwrap_err();
            assert_eq!(line, 2);
            assert!(what.contains("expected {"), "{mistake}: {what}");
        }
        // Lines past the limit are not parsed.
        assert_eq!(texts("{\"prompt\": \"a\"}\nplain\n", Some(1)).len(), 1);
    }
}
