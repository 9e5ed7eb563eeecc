//! Reads a file of prompts: plain text with one per line, JSONL, or a list in JSON.

use std::fmt;

use anyhow::{Result, anyhow, bail};
use kl_formats::native::MAX_HEADER_BYTES_WITH_PROMPTS;
use kl_formats::{Messages, PromptContent, TextIdentity, Variables};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::source::{GROUP_NAMES, PromptSource, is_group_name};
use super::texts::{self, Doubt, Text};

/// The name and version in references of the prompts that come with `kl`: other prompts need another
/// version.
const STARTER_NAME: &str = "starter-1";
const STARTER_PROMPTS: &str = include_str!("../../prompts/starter.jsonl");

/// A prompt of a file.
#[derive(Debug, PartialEq)]
pub struct PromptLine {
    pub place: PromptPlace,
    pub content: PromptContent,
    /// The other keys of its JSON object, which a chat template may use.
    pub variables: Variables,
    /// The name of its group; either all prompts of a file have one, or none.
    pub group: Option<String>,
}

impl PromptLine {
    /// The prompt's messages; a text is a message of the user.
    pub fn messages(&self) -> Messages {
        match &self.content {
            PromptContent::Messages(messages) => messages.clone(),
            PromptContent::Text(text) => Messages::of_user(text),
        }
    }
}

/// The position of a prompt in its file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptPlace {
    Line(usize),
    /// In a list in JSON.
    Item(usize),
}

impl fmt::Display for PromptPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(n) => write!(f, "line {n}"),
            Self::Item(n) => write!(f, "prompt {n}"),
        }
    }
}

/// Reads the prompts that are wanted of a file, and returns with them what identifies the file.
pub fn read(
    source: &PromptSource,
    doubts: &mut Vec<Doubt>,
) -> Result<(TextIdentity, Vec<PromptLine>)> {
    let shown = source.path.display();
    let file = match source.file() {
        Some(path) => texts::read(path, doubts)?,
        None => Text {
            text: STARTER_PROMPTS.to_owned(),
            identity: texts::identity_of(STARTER_NAME, STARTER_PROMPTS.as_bytes()),
        },
    };
    let lines = parse(&file.text, source.max_prompts);
    let lines = lines.map_err(|(place, what)| anyhow!("{shown}: {place}: {what}"))?;
    if lines.is_empty() {
        bail!("{shown}: holds no prompts: write one on each line");
    }
    let bytes: usize = lines.iter().map(|line| line.content.bytes()).sum();
    if bytes > MAX_HEADER_BYTES_WITH_PROMPTS {
        bail!(
            "{shown}: its prompts exceed the 64 MiB that a reference can hold: split it, or use fewer with --max-windows"
        );
    }
    Ok((file.identity, lines))
}

/// A mistake in a file of prompts: its place, and what is wrong there.
type Fault = (PromptPlace, String);

/// Parses the first `max` prompts of a file. The first line that is not empty decides whether all are plain
/// text or JSON.
fn parse(text: &str, max: Option<u32>) -> Result<Vec<PromptLine>, Fault> {
    // Some editors start a file with a byte order mark, which would hide a JSON object.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (lines, are_json): (Vec<(PromptPlace, &str)>, bool) = if let Some(items) = items(text)? {
        let items = items.into_iter().map(RawValue::get);
        ((1..).map(PromptPlace::Item).zip(items).collect(), true)
    } else {
        let lines = (1..).map(PromptPlace::Line).zip(text.lines());
        let lines: Vec<_> = lines.filter(|(_, line)| !line.trim().is_empty()).collect();
        let first = lines.first();
        let are_json = first.map(|(place, line)| is_json(line).map_err(|what| (*place, what)));
        (lines, are_json.transpose()?.unwrap_or(false))
    };
    let wanted = lines
        .into_iter()
        .take(max.map_or(usize::MAX, |max| max as usize));
    let prompts = wanted.map(|(place, line)| prompt(place, line, are_json));
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
    let with = prompts.iter().find(|line| line.group.is_some());
    let without = prompts.iter().find(|line| line.group.is_none());
    if let Some((with, without)) = with.zip(without) {
        let with = with.place;
        let what = format!("has no group, but {with} has one: give every prompt a group");
        return Err((without.place, what));
    }
    Ok(prompts)
}

/// Parses a prompt: a text, or an object in JSON; in a list in JSON also a string.
fn prompt(place: PromptPlace, line: &str, is_json: bool) -> Result<PromptLine, Fault> {
    let fault = |what| (place, what);
    let text = match place {
        PromptPlace::Item(_) => serde_json::from_str(line).ok(),
        PromptPlace::Line(_) => Some(line.to_owned()).filter(|_| !is_json),
    };
    if let Some(text) = text {
        if !is_json && line.trim_start().starts_with('{') && PromptContent::from_json(line).is_ok()
        {
            return Err(fault(MIXED.to_owned()));
        }
        return Ok(PromptLine {
            place,
            content: PromptContent::Text(text),
            variables: Variables::default(),
            group: None,
        });
    }
    Ok(PromptLine {
        place,
        content: PromptContent::from_json(line).map_err(fault)?,
        variables: Variables::from_json(line).map_err(fault)?,
        group: group(line).map_err(fault)?,
    })
}

/// The items of a file that is one list in JSON, or a single object that goes over several lines;
/// `None` for another file.
fn items(text: &str) -> Result<Option<Vec<&RawValue>>, Fault> {
    let first = text.trim_start().lines().next().unwrap_or_default();
    let read = if first.starts_with('[') {
        serde_json::from_str(text)
    } else if first.starts_with('{') && serde_json::from_str::<IgnoredAny>(first).is_err() {
        serde_json::from_str(text).map(|object| vec![object])
    } else {
        return Ok(None);
    };
    // Nothing but brackets begins JSON that was laid out over lines.
    let is_laid_out = first.chars().all(|c| "[{ \t\r".contains(c));
    match read {
        Err(error) if is_laid_out => {
            let found = if error.is_eof() {
                ": it ends too early".to_owned()
            } else {
                format!(" at column {}", error.column())
            };
            let what = format!("not valid JSON{found}; {FORMS}");
            Err((PromptPlace::Line(error.line()), what))
        }
        read => Ok(read.ok()),
    }
}

/// The forms of prompts in JSON.
const FORMS: &str = r#"expected {"prompt": "..."} or {"messages": [...]} on each line, or one list of them: [..., ...]"#;

/// The fault of a prompt in JSON where others are plain.
const MIXED: &str = r#"is a prompt in JSON, but the first line is plain text: write {"prompt": "..."} on every line"#;

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
    let error = serde_json::from_str::<IgnoredAny>(line).err();
    match (line.chars().next(), error) {
        (Some('{'), None) => Ok(true),
        (Some('{'), Some(error)) => {
            let column = error.column();
            Err(format!(
                "starts like JSON but is not valid at column {column}; {advice}"
            ))
        }
        (Some('['), None) => Err(format!("is a list, not an object; {advice}")),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests;
