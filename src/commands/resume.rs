//! The remains of a run that was cut off, and the check that this run can continue it.

use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{Error, Fault, NativeReader, ReadBlocks as _, TokenRecord, native};
use serde::Serialize;
use serde_json::{Map, Value};

use super::output::PartialFile;
use crate::input::Plan;
use crate::report::number::count;

/// Opens the reference that an earlier run began in `output`, if there is one to continue.
///
/// # Errors
/// A file that no run of `kl` began, or that cannot be read.
pub fn cut_off(output: &PartialFile) -> Result<Option<NativeReader>> {
    if !output.is_resumed() {
        return Ok(None);
    }
    let error = match NativeReader::open_cut_off(output.path()) {
        Ok(begun) => return Ok(Some(begun)),
        Err(error) => error,
    };
    match error.fault {
        // Not even its header is whole.
        Fault::Truncated { .. } => Ok(None),
        Fault::NotAReference(_) => bail!(nothing_to_resume(output, &error)),
        // Of what comes before the windows: a damaged window only ends what is whole.
        Fault::Corrupt { .. } => {
            bail!("{error}; --resume cannot continue it, start over with --force")
        }
        _ => Err(error.into()),
    }
}

/// Refuses a reference whose windows have other tokens than this run's.
pub fn check_windows(begun: &NativeReader, plan: &Plan) -> Result<()> {
    let n_whole = begun.windows().len();
    for (index, planned) in plan.windows.iter().take(n_whole).enumerate() {
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

/// Keeps only whole decode calls of up to `n_seq` windows, unless all `n_windows` are there: each
/// window is decoded beside the same others again, on which its last bits depend.
pub fn keep_whole_calls(begun: &mut NativeReader, n_windows: usize, n_seq: u32) {
    let n_whole = begun.windows().len();
    if n_whole < n_windows {
        begun.keep_first(n_whole - n_whole % n_seq.max(1) as usize);
    }
}

/// The same for the records of an evaluation, of which the last window may be cut.
pub fn keep_whole_call_records(records: &mut Vec<TokenRecord>, n_seq: u32) {
    if n_seq <= 1 {
        return;
    }
    let windows = records.chunk_by(|one, next| one.window == next.window);
    let lengths: Vec<usize> = windows.map(<[TokenRecord]>::len).collect();
    let n_whole = lengths.len().saturating_sub(1);
    let n_kept = n_whole - n_whole % n_seq as usize;
    records.truncate(lengths.iter().take(n_kept).sum());
}

/// The message for a partial file that no run of kl began.
pub fn nothing_to_resume(output: &PartialFile, error: &Error) -> String {
    let path = output.path().display();
    format!("{path}: holds nothing to resume: remove it, or start over with --force ({error})")
}

/// Refuses a file that was begun with another header than this run's. `input` is what the run
/// reads besides its model.
pub fn check_same_run(
    path: &Path,
    there: &impl Serialize,
    here: &impl Serialize,
    input: &str,
) -> Result<()> {
    match first_difference(there, here) {
        Some(difference) if is_version(&difference) => bail!(
            "{}: was begun by another version of kl ({difference}): finish it with that one, or start over with --force",
            path.display()
        ),
        Some(difference) => bail!(
            "{}: belongs to another run ({difference}): use the same model, {input} and settings, or start over with --force",
            path.display()
        ),
        None => Ok(()),
    }
}

/// Keeps a reference that was cut off if one of its windows is whole, and returns the end of an
/// error message about it; else removes it.
pub fn keep(output: PartialFile, n_windows: usize) -> String {
    match native::count_windows(output.path()) {
        Ok(n) if n > 0 => format!(
            "; {} keeps {} of {} windows: --resume continues it",
            output.path().display(),
            count(n as u64),
            count(n_windows as u64)
        ),
        _ => {
            output.discard();
            String::new()
        }
    }
}

/// Returns a key in which two headers differ, with both values. Of several it prefers what the user
/// chose over what was counted.
pub fn first_difference(there: &impl Serialize, here: &impl Serialize) -> Option<String> {
    let there = serde_json::to_value(there).unwrap_or_default();
    let here = serde_json::to_value(here).unwrap_or_default();
    let mut found = Vec::new();
    differences("", &there, &here, &mut found);
    found.into_iter().min_by_key(|found| {
        let given = [
            "model",
            "text",
            "reference",
            "generated",
            "sampling",
            "n_ctx",
            "encoding",
        ];
        let rank = given.iter().position(|key| found.starts_with(key));
        let rank = rank.unwrap_or(given.len());
        (!is_version(found), rank, found.starts_with("n_"))
    })
}

/// What people call some keys of headers.
const NAMES: [(&str, &str); 9] = [
    ("backend.devices", "the devices"),
    ("backend.flash_attn", "flash attention"),
    ("backend.llama_cpp", "llama.cpp"),
    ("backend.n_batch", "the batch"),
    ("backend.n_gpu_layers", "the number of offloaded layers"),
    ("backend.n_seq", "-np"),
    ("backend.n_ubatch", "the physical batch"),
    ("backend.type_k", "the type of cached keys"),
    ("backend.type_v", "the type of cached values"),
];

/// Returns true if a difference is in the version of the program.
fn is_version(difference: &str) -> bool {
    difference.starts_with("writer:")
}

fn differences(key: &str, there: &Value, here: &Value, found: &mut Vec<String>) {
    let (Value::Object(all_there), Value::Object(all_here)) = (there, here) else {
        if there != here {
            let (there, here) = (short(there), short(here));
            let known = NAMES.iter().find(|(known, _)| *known == key);
            let key = known.map_or(key, |(_, name)| name);
            found.push(format!("{key}: {there} there, {here} here"));
        }
        return;
    };
    let only_here = all_here
        .keys()
        .filter(|name| !all_there.contains_key(*name));
    for name in all_there.keys().chain(only_here) {
        let of = |all: &Map<String, Value>| all.get(name).cloned().unwrap_or_default();
        let dot = if key.is_empty() { "" } else { "." };
        let key = format!("{key}{dot}{name}");
        differences(&key, &of(all_there), &of(all_here), found);
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
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let header = json!({"n_ctx": 64, "text": {"sha256": "aa", "name": "t"}, "seed": null});
        assert_eq!(first_difference(&header, &header), None);
        let mut other = header.clone();
        other["text"]["sha256"] = json!("bb");
        assert_eq!(
            first_difference(&header, &other).unwrap(),
            "text.sha256: aa there, bb here"
        );
        other["n_ctx"] = json!(65);
        assert!(
            first_difference(&header, &other)
                .unwrap()
                .starts_with("text")
        );
        other["writer"] = json!("kl 0.2.0");
        let difference = first_difference(&header, &other).unwrap();
        assert!(is_version(&difference), "{difference}");
        let (long, longer) = (json!({"a": "é".repeat(90)}), json!({"a": "é".repeat(91)}));
        let begins = format!("{}...", "é".repeat(80));
        assert_eq!(
            first_difference(&long, &longer).unwrap(),
            format!("a: {begins} there, {begins} here")
        );
        let more = json!({"n_ctx": 64, "text": header["text"], "seed": null, "stride": 3});
        assert_eq!(
            first_difference(&header, &more).unwrap(),
            "stride: none there, 3 here"
        );
    }
}
