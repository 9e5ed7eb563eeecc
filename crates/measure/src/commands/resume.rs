//! The remains of a run that was cut off, and the check that this run can continue it.

use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{Fault, NativeReader, ReadBlocks as _};
use serde::Serialize;
use serde_json::Value;

use super::differences;
use super::output::PartialFile;
use crate::input::Plan;

/// Opens what an earlier run has left in `output`; `None` if it left nothing, or not even a whole header.
///
/// # Errors
/// A file that `open` cannot read: no run of `kl` began it, or it is damaged before what can be kept.
pub fn cut_off<T>(
    output: &PartialFile,
    open: impl FnOnce(&Path) -> kl_formats::Result<T>,
) -> Result<Option<T>> {
    if !output.is_resumed {
        return Ok(None);
    }
    open(output.path())
        .map(Some)
        .or_else(|error| match error.fault {
            Fault::Truncated { .. } => Ok(None),
            Fault::NotAReference(_) | Fault::NotAMap(_) | Fault::NotASidecar(_) => bail!(
                "{}: holds nothing to resume: remove it, or start over with --force ({error})",
                output.path().display()
            ),
            Fault::Io { .. } => Err(error.into()),
            _ => bail!("{error}; --resume cannot continue it, start over with --force"),
        })
}

/// Refuses a reference whose windows have other tokens than this run's.
pub fn check_windows(begun: &NativeReader, plan: &Plan) -> Result<()> {
    for (index, planned) in plan.windows.iter().take(begun.windows().len()).enumerate() {
        if begun.window(index)? != *planned {
            bail!(
                "{}: window {} holds other tokens than this run's: start over with --force",
                begun.path().display(),
                planned.window
            );
        }
    }
    Ok(())
}

/// The number of the first of `n_windows` windows that fill whole decode calls of `n_seq`: a window's last
/// bits depend on those that are decoded beside it.
pub fn of_whole_calls(n_windows: usize, n_seq: u32) -> usize {
    n_windows - n_windows % n_seq.max(1) as usize
}

/// Refuses a file that was begun with another header than this run's. `input` is what the run
/// reads besides its model.
pub fn check_same_run(
    path: &Path,
    there: &impl Serialize,
    here: &impl Serialize,
    input: &str,
) -> Result<()> {
    let path = path.display();
    match first_difference(there, here) {
        Some(difference) if is_version(&difference) => bail!(
            "{path}: was begun by another version of kl ({difference}): finish it with that one, or start over with --force"
        ),
        Some(difference) => bail!(
            "{path}: belongs to another run ({difference}): use the same model, {input} and settings, or start over with --force"
        ),
        None => Ok(()),
    }
}

/// Returns a key in which two headers differ, with both values. Of several it prefers what the user
/// chose over what was counted.
pub fn first_difference(there: &impl Serialize, here: &impl Serialize) -> Option<String> {
    const GIVEN: [&str; 9] = [
        "writer:",
        "model.file_name",
        "model",
        "text",
        "reference",
        "generated",
        "sampling",
        "n_ctx",
        "encoding",
    ];
    let there = serde_json::to_value(there).unwrap_or_default();
    let here = serde_json::to_value(here).unwrap_or_default();
    let mut found = Vec::new();
    collect("", &there, &here, &mut found);
    found.into_iter().min_by_key(|found| {
        let rank = GIVEN.iter().position(|key| found.starts_with(key));
        (rank.unwrap_or(GIVEN.len()), found.starts_with("n_"))
    })
}

/// True if a difference is in the version of the program.
fn is_version(difference: &str) -> bool {
    difference.starts_with("writer:")
}

/// Adds the keys at or below `key` in which two values differ to those found.
fn collect(key: &str, there: &Value, here: &Value, found: &mut Vec<String>) {
    let (Value::Object(all_there), Value::Object(all_here)) = (there, here) else {
        if there != here {
            let (key, there, here) = (differences::shown_key(key), short(there), short(here));
            found.push(format!("{key}: {there} there, {here} here"));
        }
        return;
    };
    let dot = if key.is_empty() { "" } else { "." };
    let here_only = all_here
        .keys()
        .filter(|name| !all_there.contains_key(*name));
    for name in all_there.keys().chain(here_only) {
        let [there, here] = [all_there, all_here].map(|all| all.get(name).unwrap_or(&Value::Null));
        collect(&format!("{key}{dot}{name}"), there, here, found);
    }
}

/// Shows a value, cut short: prompts are long.
fn short(value: &Value) -> String {
    const MAX_CHARS: usize = 80;
    let mut text = match value {
        Value::Null => return "none".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests;
