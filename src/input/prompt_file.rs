//! Reads a file of prompts: plain text with one per line, JSONL, or a list in JSON.

use std::fmt;

use anyhow::{Result, anyhow, bail};
use kl_formats::native::MAX_HEADER_BYTES_WITH_PROMPTS;
use kl_formats::{PromptContent, TextIdentity, Variables};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::source::{GROUP_NAMES, PromptPath, is_group_name};
use super::{starter, text};
use crate::report::Warning;

/// A prompt of a file.
#[derive(Debug, PartialEq)]
pub struct PromptLine {
    pub place: Place,
    pub content: PromptContent,
    /// The other keys of its JSON object, which a chat template may use.
    pub variables: Variables,
    /// The name of its group; either all prompts of a file have one, or none.
    pub group: Option<String>,
}

/// The position of a prompt in its file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Line(usize),
    /// In a list in JSON.
    Item(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(n) => write!(f, "line {n}"),
            Self::Item(n) => write!(f, "prompt {n}"),
        }
    }
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
        .map_err(|(place, what)| anyhow!("{}: {place}: {what}", path.display()))?;
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

/// Parses the first `max` prompts of a file. An error is its place, and what is wrong there.
fn parse(text: &str, max: Option<u32>) -> Result<Vec<PromptLine>, (Place, String)> {
    // Some editors start a file with a byte order mark, which would hide a JSON object.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let max = max.map_or(usize::MAX, |max| max as usize);
    let prompts = match items(text)? {
        Some(items) => {
            let numbered = (1..).map(Place::Item).zip(items).take(max);
            let prompts = numbered.map(|(place, item)| in_json(place, item.get()));
            prompts.collect::<Result<Vec<_>, _>>()?
        }
        None => of_lines(text, max)?,
    };
    let with = prompts.iter().find(|line| line.group.is_some());
    let without = prompts.iter().find(|line| line.group.is_none());
    if let Some((with, without)) = with.zip(without) {
        let with = with.place;
        let what = format!("has no group, but {with} has one: give every prompt a group");
        return Err((without.place, what));
    }
    Ok(prompts)
}

/// The items of a file that is one list in JSON, or a single object that goes over several lines;
/// `None` for another file.
fn items(text: &str) -> Result<Option<Vec<&RawValue>>, (Place, String)> {
    let first = text.trim_start().lines().next().unwrap_or_default();
    let read = if first.starts_with('[') {
        serde_json::from_str(text)
    } else if first.starts_with('{') && serde_json::from_str::<IgnoredAny>(first).is_err() {
        serde_json::from_str(text).map(|object| vec![object])
    } else {
        return Ok(None);
    };
    match read {
        Ok(items) => Ok(Some(items)),
        // Nothing but brackets begins JSON that was laid out over lines.
        Err(error) if first.chars().all(|c| "[{ \t\r".contains(c)) => {
            let found = match error.is_eof() {
                true => ": it ends too early".to_owned(),
                false => format!(" at column {}", error.column()),
            };
            let what = format!("not valid JSON{found}; {FORMS}");
            Err((Place::Line(error.line()), what))
        }
        Err(_) => Ok(None),
    }
}

/// What a file of prompts may hold in JSON.
const FORMS: &str = r#"expected {"prompt": "..."} or {"messages": [...]} on each line, or one list of them: [..., ...]"#;

/// Parses every line that is not empty. The first decides whether all are plain text or JSON.
fn of_lines(text: &str, max: usize) -> Result<Vec<PromptLine>, (Place, String)> {
    let numbered = (1..).map(Place::Line).zip(text.lines());
    let mut lines = numbered
        .filter(|(_, line)| !line.trim().is_empty())
        .peekable();
    let is_json = match lines.peek() {
        Some((place, line)) => is_json(line).map_err(|what| (*place, what))?,
        None => false,
    };
    let prompts = lines.take(max).map(|(place, line)| {
        if is_json {
            return in_json(place, line);
        }
        if line.trim_start().starts_with('{') && PromptContent::from_json(line).is_ok() {
            return Err((place, MIXED.to_owned()));
        }
        Ok(plain(place, line.to_owned()))
    });
    prompts.collect()
}

/// The fault of a prompt in JSON where others are plain.
const MIXED: &str = r#"is a prompt in JSON, but the first line is plain text: write {"prompt": "..."} on every line"#;

/// A prompt that is a plain text.
fn plain(place: Place, text: String) -> PromptLine {
    PromptLine {
        place,
        content: PromptContent::Text(text),
        variables: Variables::default(),
        group: None,
    }
}

/// A prompt that is an object in JSON, or in a list also a string.
fn in_json(place: Place, json: &str) -> Result<PromptLine, (Place, String)> {
    let fault = |what| (place, what);
    if let (Place::Item(_), Ok(text)) = (place, serde_json::from_str(json)) {
        return Ok(plain(place, text));
    }
    Ok(PromptLine {
        place,
        content: PromptContent::from_json(json).map_err(fault)?,
        variables: Variables::from_json(json).map_err(fault)?,
        group: group(json).map_err(fault)?,
    })
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
    use super::Place::{Item, Line};
    use super::*;

    fn texts(text: &str, max: Option<u32>) -> Vec<(Place, String)> {
        let label = |line: PromptLine| (line.place, line.content.label());
        parse(text, max).unwrap().into_iter().map(label).collect()
    }

    #[test]
    fn each_line_is_a_prompt() {
        let lines = "\u{feff}one\r\n\n \t\n two \n{\"a\": \"x\"}";
        let expected = [
            (Line(1), "one"),
            (Line(4), " two "),
            (Line(5), "{\"a\": \"x\"}"),
        ];
        let expected = expected.map(|(place, text)| (place, text.to_owned()));
        assert_eq!(texts(lines, None), expected);
        assert_eq!(texts(lines, Some(2)), expected[..2]);
        for plain in ["[a] b", "[\"a\"] b", "[1, 2"] {
            assert_eq!(texts(plain, None), [(Line(1), plain.to_owned())]);
        }
        assert_eq!(texts(" \n\n", None), []);
    }

    #[test]
    fn a_prompt_in_json_after_a_plain_one_is_refused() {
        let prompt = r#"{"prompt": "a"}"#;
        let (place, what) = parse(&format!("# a comment\n{prompt}"), None).unwrap_err();
        assert_eq!((place, &*what), (Line(2), MIXED));
    }

    #[test]
    fn a_list_in_json_is_a_list_of_prompts() {
        let list = "\u{feff}\n[\r\n  \"a\\nb\",\n  {\n    \"prompt\": \"c\"\n  },\n  \
                    {\"messages\": [{\"role\": \"user\", \"content\": \"d\"}], \"id\": 7}\n]\n";
        let expected = [(Item(1), "a\nb"), (Item(2), "c"), (Item(3), "d")];
        let expected = expected.map(|(place, text)| (place, text.to_owned()));
        assert_eq!(texts(list, None), expected);
        assert_eq!(texts(list, Some(1)), expected[..1]);
        let variables = &parse(list, None).unwrap()[2].variables;
        assert_eq!(variables.iter().collect::<Vec<_>>(), [("id", "7")]);
        assert_eq!(texts(r#"["a"]"#, None), [(Item(1), "a".to_owned())]);
        let one = "{\n  \"prompt\": \"a\"\n}\n";
        assert_eq!(texts(one, None), [(Item(1), "a".to_owned())]);
        for (text, place, said) in [
            (r#"["a", 7]"#, Item(2), "not a JSON object; expected {"),
            (r#"[{"role": "user"}]"#, Item(1), "neither prompt nor"),
            (
                r#"["a", {"prompt": "b", "group": "c"}]"#,
                Item(1),
                "but prompt 2 has",
            ),
            (
                "[\n  \"a\",\n]\n",
                Line(3),
                "not valid JSON at column 1; expected {",
            ),
            (
                "[\n{\"prompt\": \"a\"}\n",
                Line(3),
                "JSON: it ends too early; expected",
            ),
            (
                "{\n  \"prompt\": \"a\"\n}\n{\n",
                Line(4),
                "not valid JSON at column 1",
            ),
            ("[\"a\"]\n[\"b\"]\n", Line(1), "is a list, not an object"),
        ] {
            let (found, what) = parse(text, None).unwrap_err();
            assert_eq!(found, place, "{text}: {what}");
            assert!(
                what.contains(said) && !what.contains('\n'),
                "{text}: {what}"
            );
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
            let (place, found) = parse(&format!("{with}\n{second}"), None).unwrap_err();
            assert!(found.contains(what) && !found.contains('\n'), "{found}");
            assert_eq!(place, Line(2));
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
        let expected = [(Line(2), "a\nb".to_owned()), (Line(4), "c".to_owned())];
        assert_eq!(texts(lines, None), expected);
        let (place, what) = parse("{\"prompt\": \"a\"}\nplain\n", None).unwrap_err();
        assert_eq!(place, Line(2));
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
            let (place, what) = parse(&format!("\n{mistake}\nplain\n"), None).unwrap_err();
            assert_eq!(place, Line(2));
            assert!(what.contains("expected {"), "{mistake}: {what}");
        }
        // Lines past the limit are not parsed.
        assert_eq!(texts("{\"prompt\": \"a\"}\nplain\n", Some(1)).len(), 1);
    }
}
