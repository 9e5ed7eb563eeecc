//! Reads a file of prompts: plain text with one per line, JSONL, or a list in JSON.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use kl_formats::native::MAX_HEADER_BYTES_WITH_PROMPTS;
use kl_formats::{PromptContent, TextIdentity, Variables};
use kl_report::Warning;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::faults::Faults;
use super::{GROUP_NAMES, Source, is_group_name, starter, texts};

/// A prompt of a file.
#[derive(Debug, PartialEq)]
pub struct PromptLine {
    /// Its position in the file, from 1: `line 3`, or in a list in JSON `prompt 3`.
    pub place: String,
    pub content: PromptContent,
    /// The other keys of its JSON object, which a chat template may use.
    pub variables: Variables,
    /// The name of its group; either all prompts of a file have one, or none.
    pub group: Option<String>,
}

/// Reads the prompts that are wanted of a file, and returns with them what identifies the file.
pub fn read(
    path: &Path,
    source: &Source,
    doubts: &mut Vec<Warning>,
) -> Result<(TextIdentity, Vec<PromptLine>)> {
    let shown_path = path.display();
    let file = match source.prompt_file() {
        Some(path) => texts::read(path, doubts)?,
        None => starter::prompts(),
    };
    let lines =
        parse(&file.text, source.max_windows).map_err(|fault| anyhow!("{shown_path}: {fault}"))?;
    if lines.is_empty() {
        bail!("{shown_path}: holds no prompts: write one on each line");
    }
    let bytes: usize = lines.iter().map(|line| line.content.bytes()).sum();
    if bytes > MAX_HEADER_BYTES_WITH_PROMPTS {
        bail!(
            "{shown_path}: its prompts exceed the 64 MiB that a reference can hold: split it, or use fewer with --max-windows"
        );
    }
    Ok((file.identity, lines))
}

/// Parses the first `max` prompts of a file. The first line that is not empty decides whether all are plain
/// text or JSON. An error names all prompts with a mistake, by their positions.
fn parse(text: &str, max: Option<u32>) -> Result<Vec<PromptLine>, String> {
    // Some editors start a file with a byte order mark, which would hide a JSON object.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let items = items(text)?;
    let is_list = items.is_some();
    let (unit, lines) = match items {
        Some(items) => ("prompt", items.into_iter().map(RawValue::get).collect()),
        None => ("line", text.lines().collect::<Vec<_>>()),
    };
    let lines_with_places = (1..)
        .zip(lines)
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(n, line): (usize, _)| (format!("{unit} {n}"), line));
    let max_lines = max.map_or(usize::MAX, |max| max as usize);
    let (mut prompts, mut are_json) = (Vec::new(), is_list.then_some(true));
    let (mut faults, mut n_lines) = (Faults::default(), 0);
    for (place, line) in lines_with_places.take(max_lines) {
        n_lines += 1;
        let line_is_json = match are_json {
            Some(are_json) => Ok(are_json),
            None => is_json(line),
        };
        let parsed = line_is_json.and_then(|is_json| {
            are_json = Some(is_json);
            prompt(&place, line, is_list, is_json)
        });
        match parsed {
            Ok(prompt) => prompts.push(prompt),
            Err(fault) => {
                faults.push(&place, fault);
                // What the first line is decides what the others are.
                if are_json != Some(true) {
                    break;
                }
            }
        }
    }
    if let Some(message) = faults.message(n_lines) {
        return Err(message);
    }
    let grouped = prompts.iter().find(|line| line.group.is_some());
    let ungrouped = prompts.iter().find(|line| line.group.is_none());
    if let Some((grouped, ungrouped)) = grouped.zip(ungrouped) {
        return Err(format!(
            "{}: has no group, but {} has one: give every prompt a group",
            ungrouped.place, grouped.place
        ));
    }
    Ok(prompts)
}

/// Parses a prompt: a text, or an object in JSON; in a list in JSON also a string.
fn prompt(place: &str, line: &str, is_list: bool, is_json: bool) -> Result<PromptLine, String> {
    let text = if is_list {
        serde_json::from_str(line).ok()
    } else {
        (!is_json).then(|| line.to_owned())
    };
    let place = place.to_owned();
    let Some(text) = text else {
        return Ok(PromptLine {
            place,
            content: PromptContent::from_json(line)?,
            variables: Variables::from_json(line)?,
            group: group(line)?,
        });
    };
    if !is_json && line.trim_start().starts_with('{') && PromptContent::from_json(line).is_ok() {
        return Err(MIXED.to_owned());
    }
    Ok(PromptLine {
        place,
        content: PromptContent::Text(text),
        variables: Variables::default(),
        group: None,
    })
}

/// The items of a file that is one list in JSON, or a single object that goes over several lines;
/// `None` for another file.
fn items(text: &str) -> Result<Option<Vec<&RawValue>>, String> {
    let first_line = text.trim_start().lines().next().unwrap_or_default();
    let parsed = if first_line.starts_with('[') {
        serde_json::from_str(text)
    } else if first_line.starts_with('{') && serde_json::from_str::<IgnoredAny>(first_line).is_err()
    {
        serde_json::from_str(text).map(|object| vec![object])
    } else {
        return Ok(None);
    };
    // Nothing but brackets begins JSON that was laid out over lines.
    let is_laid_out = first_line.chars().all(|c| "[{ \t\r".contains(c));
    match parsed {
        Err(error) if is_laid_out => {
            let fault = if error.is_eof() {
                ": it ends too early".to_owned()
            } else {
                format!(" at column {}", error.column())
            };
            Err(format!(
                "line {}: not valid JSON{fault}; {FORMS}",
                error.line()
            ))
        }
        parsed => Ok(parsed.ok()),
    }
}

/// The forms of prompts in JSON.
const FORMS: &str = r#"expected {"prompt": "..."} or {"messages": [...]} on each line, or one list of them: [..., ...]"#;

/// The fault of a prompt in JSON where others are plain.
const MIXED: &str = r#"is a prompt in JSON, but the first line is plain text: write {"prompt": "..."} on every line"#;

/// The group that a line's JSON object names, if it names one.
fn group(json: &str) -> Result<Option<String>, String> {
    #[derive(Deserialize)]
    struct GroupLine {
        group: Option<String>,
    }
    let line: GroupLine =
        serde_json::from_str(json).map_err(|_| "group must be a string".to_owned())?;
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
