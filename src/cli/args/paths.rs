//! Parsers for paths.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use regex::Regex;

use crate::cli::names::HUB;
use crate::input::{GROUP_NAMES, NamedText, is_group_name};

/// Parses the path of a file that is written.
pub fn file() -> impl TypedValueParser<Value = PathBuf> {
    named().try_map(|path| {
        let here = Some(path).filter(|path| !path.to_string_lossy().starts_with(HUB));
        here.ok_or("hf: names what is read; name a file on this machine")
    })
}

/// Parses a path. One that begins with `-` gets `./` before it, so that a command that `kl` suggests, or another
/// program, does not take it for a flag.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| {
        let is_like_a_flag = path.as_os_str().as_encoded_bytes().starts_with(b"-");
        if is_like_a_flag && path.as_os_str() != "-" {
            Path::new(".").join(path)
        } else {
            path
        }
    })
}

/// Parses the path of a file, and refuses `-`, which one might expect to work.
fn named() -> impl TypedValueParser<Value = PathBuf> {
    path().try_map(|path| {
        let named = Some(path).filter(|path| path.as_os_str() != "-");
        named.ok_or("only -t, --prompts, --json and --csv accept '-'; name a file")
    })
}

/// Parses the path of a model, or of a folder of models.
pub fn model() -> impl TypedValueParser<Value = PathBuf> {
    named().try_map(|path| on_this_machine(path, "; for all models of a folder, name the folder"))
}

/// Parses the path of another file or folder that is read.
pub fn input() -> impl TypedValueParser<Value = PathBuf> {
    named().try_map(|path| on_this_machine(path, ""))
}

/// Parses the path of a file that is read, or `-` for standard input.
pub fn input_or_stdin() -> impl TypedValueParser<Value = PathBuf> {
    path().try_map(|path| on_this_machine(path, ""))
}

/// Parses the path of a text. A number in its place is llama.cpp's `-t`.
pub fn text() -> impl TypedValueParser<Value = PathBuf> {
    input_or_stdin().try_map(|path| {
        let number = path.to_str().filter(|text| text.parse::<u32>().is_ok());
        match number.filter(|_| !path.exists()) {
            Some(n) => Err(format!(
                "there is no such file; -t is the text: did you mean --threads {n}?"
            )),
            None => Ok(path),
        }
    })
}

/// Parses a text, and its group where it is given as `NAME=PATH`. What exists as a file, or has a folder
/// before its `=`, is a path.
pub fn named_text() -> impl TypedValueParser<Value = NamedText> {
    text().try_map(|given| {
        let split = given.to_str().and_then(|text| text.split_once('='));
        let parts = split.filter(|(group, _)| !given.exists() && !group.contains(['/', '\\']));
        let (group, path) = match parts {
            None => (None, given),
            Some((group, path)) if path.is_empty() || !is_group_name(group) => {
                return Err(format!(
                    "expected PATH or NAME=PATH; for NAME {GROUP_NAMES}"
                ));
            }
            Some((group, path)) => (Some(group.to_owned()), path.into()),
        };
        Ok(NamedText { group, path })
    })
}

/// Refuses what is not on this machine and has no name on a hub, and a pattern. `of_pattern`: what else to
/// do about a pattern.
fn on_this_machine(path: PathBuf, of_pattern: &str) -> Result<PathBuf, String> {
    let text = path.to_string_lossy();
    let by_name = text.strip_prefix(HUB);
    if path.exists() || by_name.is_some_and(|name| name.contains('/') && !name.starts_with('/')) {
        return Ok(path);
    }
    Err(if by_name.is_some() || text.contains("hf://") {
        "a name on Hugging Face is hf:USER/REPO[:QUANT] or hf:USER/REPO/FILE".to_owned()
    } else if text.contains("://") {
        "get the file first (curl -LO URL), then give its path".to_owned()
    } else if text.contains(['*', '?', '[']) {
        format!(
            "there is no such file; the shell replaces a pattern only where it is not quoted and a file matches{of_pattern}"
        )
    } else if is_repository(&path) {
        format!("there is no such file; on Hugging Face it is {HUB}{text}")
    } else {
        return Ok(path);
    })
}

/// True if a path that does not exist looks like the name of a repository on Hugging Face,
/// as in `org/model` or llama.cpp's `org/model:Q4_K_M`. A file's ending is a word; that of `3.1-8B` is
/// not.
fn is_repository(path: &Path) -> bool {
    let (Some(text), Some(owner)) = (path.to_str(), path.parent()) else {
        return false;
    };
    let is_match = |pattern| Regex::new(pattern).is_ok_and(|regex| regex.is_match(text));
    is_match(r"^[[:alnum:]][[:alnum:]._-]*/[[:alnum:]][[:alnum:]._:-]*$")
        && !is_match(r"\.[[:alpha:]]+$")
        && !owner.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_on_this_machine_is_told_from_a_file_that_is_missing() {
        let answer = |text: &str| on_this_machine(text.into(), "").err().unwrap_or_default();
        for (text, what) in [
            ("https://example.org/a.gguf", "curl -LO"),
            ("code=http://example.org/a.txt?download=true", "curl -LO"),
            ("hf://org/model/a.gguf", "hf:USER/REPO/FILE"),
            ("hf:a.gguf", "hf:USER/REPO/FILE"),
            ("org/model", "it is hf:org/model"),
            ("org/Llama-3.1-8B", "it is hf:org/Llama-3.1-8B"),
            (
                "org/Qwen2.5_GGUF:Q4_K_M",
                "it is hf:org/Qwen2.5_GGUF:Q4_K_M",
            ),
            ("*.gguf", "not quoted"),
            ("models/q?.gguf", "not quoted"),
        ] {
            assert!(answer(text).contains(what), "{text}: {}", answer(text));
        }
        let paths = "a.gguf|hf:org/model/a.gguf|-|src|src/none|none/a.gguf|none/wiki.txt|a/b/c|/none/a|\
                     ../none|./none|~/none|none/a b|name=none/text";
        for text in paths.split('|') {
            assert_eq!(answer(text), "", "{text}");
        }
    }
}
