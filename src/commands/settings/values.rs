//! Parsers for values of flags that clap cannot parse by itself.

use std::path::{Path, PathBuf, is_separator};
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use kl_formats::{Encoding, Kind};
use regex::Regex;

use super::Vocabulary;
use crate::input::{GROUP_NAMES, NamedText, is_group_name};
use crate::stats::{ClusterRule, share};

/// Parses the way in which kl's own kind of file stores rows.
pub fn encoding() -> impl TypedValueParser<Value = Encoding> {
    PossibleValuesParser::new([
        PossibleValue::new("u16").help("16 bits for each logit"),
        PossibleValue::new("f32").help("32 bits for each logit: exact"),
        PossibleValue::new("hidden").help("The model's hidden states and its output head: exact"),
    ])
    .try_map(|name| name.parse::<Encoding>())
}

/// Parses the name of a format that references can be written in.
pub fn written_kind() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new([
        PossibleValue::new("kl").help("kl's own format: gzip with an index and checksums"),
        PossibleValue::new("kl.py").help("kl.py's format"),
        PossibleValue::new("llama.cpp").help("llama.cpp's base file, which llama-perplexity uses"),
    ])
    .map(|name| match &*name {
        "kl.py" => Kind::KlPy,
        "llama.cpp" => Kind::LlamaCpp,
        _ => Kind::Kl,
    })
}

/// Parses the rule by which tokens are put into clusters.
pub fn cluster() -> impl TypedValueParser<Value = ClusterRule> {
    PossibleValuesParser::new([
        PossibleValue::new("window").help("Each window, or prompt"),
        PossibleValue::new("block").help("Each block of contiguous windows"),
        PossibleValue::new("auto").help(
            "Blocks if neighbouring windows resemble each other and make at least 10; parts of fewer \
             than 6 long windows, unless those of one window resemble each other; else windows",
        ),
    ])
    .map(|name| match &*name {
        "window" => ClusterRule::Window,
        "block" => ClusterRule::Block,
        _ => ClusterRule::Auto,
    })
}

/// Parses the path of a file, and refuses `-`, which one might expect to work.
pub fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let named = Some(path).filter(|path| path.as_os_str() != "-");
        named.ok_or("only -t, --prompts, --json and --csv accept '-'; name a file")
    })
}

/// Parses the path of a model, or of a folder of models.
pub fn model() -> impl TypedValueParser<Value = PathBuf> {
    file().try_map(|path| on_this_machine(path, "; for all models of a folder, name the folder"))
}

/// Parses the path of another file or folder that is read.
pub fn input() -> impl TypedValueParser<Value = PathBuf> {
    file().try_map(|path| on_this_machine(path, ""))
}

/// Parses the path of a file that is read, or `-` for standard input.
pub fn input_or_stdin() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| on_this_machine(path, ""))
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
        let parts = given.to_str().and_then(|text| text.split_once('='));
        let parts = parts.filter(|(group, _)| !given.exists() && !group.contains(['/', '\\']));
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

/// Refuses what other programs download, and a pattern: `kl` reads the files of this machine, by
/// their names. `of_pattern`: what else to do about a pattern.
fn on_this_machine(path: PathBuf, of_pattern: &str) -> Result<PathBuf, String> {
    let text = path.to_string_lossy();
    if path.exists() {
        return Ok(path);
    }
    let download =
        |how: &str| format!("kl downloads nothing: get the file first ({how}), then give its path");
    if text.contains("hf://") {
        return Err(download("hf download REPOSITORY FILE --local-dir ."));
    }
    if text.contains("://") {
        return Err(download("curl -LO URL"));
    }
    if text.contains(['*', '?', '[']) {
        return Err(format!(
            "there is no such file; the shell replaces a pattern only where it is not quoted and a file matches{of_pattern}"
        ));
    }
    if is_repository(&path) {
        let repository = text.split(':').next().unwrap_or_default();
        let how = format!("hf download {repository} FILE --local-dir .");
        return Err(format!("there is no such file; {}", download(&how)));
    }
    Ok(path)
}

/// Returns true if a path that does not exist looks like the name of a repository on Hugging Face,
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

/// Parses the number of scored tokens to stop after, or -1 for all.
pub fn max_rows(text: &str) -> Result<Option<u64>, &'static str> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(n) if n >= 1 => Ok(u64::try_from(n).ok()),
        _ => Err("expected at least 1, or -1 for all"),
    }
}

/// Parses the `--vocab` of `kl compare`, which has no model whose padding it could leave out.
pub fn compare_vocab() -> impl TypedValueParser<Value = Vocabulary> {
    let known = [Vocabulary::Same, Vocabulary::Common];
    let names = known.iter().filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(names).try_map(|name| Vocabulary::from_str(&name, false))
}

/// Parses the `--encoding` of `kl convert`, which has no model that could give hidden states.
pub fn row_encoding(text: &str) -> Result<Encoding, &'static str> {
    match text.parse::<Encoding>() {
        Ok(encoding) if encoding.holds_states() => {
            Err("only a run of the model, with -m and -w, writes hidden states")
        }
        encoding => encoding.map_err(|_| "expected u16 or f32"),
    }
}

/// Parses the user's name for an evaluation: one that a file can have.
pub fn label(text: &str) -> Result<String, String> {
    /// Most file systems end a file's name at 255 bytes.
    const MAX_BYTES: usize = 200;
    let is_unsafe = |c: char| is_separator(c) || c.is_control();
    if text.trim().is_empty() {
        Err("a label names a file: it cannot be empty".into())
    } else if text.starts_with('.') || text.contains(is_unsafe) {
        Err("a label names a file: use no / or control character, and no dot in front".into())
    } else if text.len() > MAX_BYTES {
        Err(format!("a label has at most {MAX_BYTES} bytes"))
    } else {
        Ok(text.to_owned())
    }
}

/// Parses a share of the mean from 0.1 % to 50 %, as a fraction.
pub fn relative_width(text: &str) -> Result<f64, &'static str> {
    let in_range = share(text).filter(|share| (0.001..=0.5).contains(share));
    in_range.ok_or("expected a share of the mean from 0.1% to 50%, such as 5% or 0.05")
}

/// Parses a number that `is_right`; else says what was `expected`.
fn number<N: FromStr>(
    text: &str,
    is_right: impl FnOnce(&N) -> bool,
    expected: &'static str,
) -> Result<N, &'static str> {
    text.parse().ok().filter(is_right).ok_or(expected)
}

/// Parses a temperature.
pub fn temperature(text: &str) -> Result<f32, &'static str> {
    let is_right = |of: &f32| (0.0..f32::INFINITY).contains(of);
    number(text, is_right, "expected a number from 0 on, such as 0.7")
}

/// Parses the probability that tokens have together.
pub fn top_p(text: &str) -> Result<f32, &'static str> {
    let expected = "expected a number above 0, and at most 1, such as 0.95";
    number(text, |&of| of > 0.0 && of <= 1.0, expected)
}

/// Parses the share of the top token's probability.
pub fn min_p(text: &str) -> Result<f32, &'static str> {
    let is_right = |of: &f32| (0.0..=1.0).contains(of);
    number(
        text,
        is_right,
        "expected a number from 0 to 1, such as 0.05",
    )
}

/// Parses a number above 0.
pub fn above_0(text: &str) -> Result<f64, &'static str> {
    let is_right = |&of: &f64| of.is_finite() && of > 0.0;
    number(text, is_right, "not a number above 0")
}

/// Parses a ratio of at least 1.
pub fn near(text: &str) -> Result<f64, &'static str> {
    let is_right = |of: &f64| (1.0..f64::INFINITY).contains(of);
    number(text, is_right, "not a number of at least 1")
}

/// Parses a size in bytes: `G` and `GiB` are powers of 1024, as `ls -h` shows them, `GB` is one of 1000.
pub fn size(text: &str) -> Result<u64, &'static str> {
    const WRONG: &str = "expected a size such as 4.2G, 900M, 5.5GB or a number of bytes";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = unit.trim_start().to_ascii_lowercase();
    let (letter, base) = match unit.strip_suffix("ib").or(unit.strip_suffix('b')) {
        None => (&*unit, 1024.0),
        Some(letter) if unit.ends_with("ib") => (letter, 1024.0),
        Some(letter) => (letter, 1000.0_f64),
    };
    let power = match letter {
        "" if !unit.ends_with("ib") => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(WRONG),
    };
    let bytes = number.parse().map(|number: f64| number * base.powi(power));
    let bytes = bytes.map_err(|_| WRONG)?.floor();
    let in_range = Some(bytes).filter(|bytes| (1.0..u64::MAX as f64).contains(bytes));
    in_range.map(|bytes| bytes as u64).ok_or(WRONG)
}

/// Parses a regular expression, whose error has one line.
pub fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| {
        let error = error.to_string();
        let last = error.lines().last().unwrap_or_default();
        format!(
            "not a regular expression: {}",
            last.trim_start_matches("error: ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_people_write_them() {
        for (text, bytes) in [
            ("4509715660", 4_509_715_660),
            ("7b", 7),
            ("900M", 900 << 20),
            ("4.2G", 4_509_715_660),
            ("4.2 GiB", 4_509_715_660),
            ("5.5GB", 5_500_000_000),
            ("1.5kb", 1500),
            ("2t", 2 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "-7",
            "4.2.1G",
            "1e9",
            "G",
            "7ib",
            "7X",
            "9999999999T",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_not_on_this_machine_is_told_from_a_file_that_is_missing() {
        let answer = |text: &str| on_this_machine(text.into(), "").err().unwrap_or_default();
        for (text, what) in [
            ("https://example.org/a.gguf", "curl -LO"),
            ("code=http://example.org/a.txt?download=true", "curl -LO"),
            ("hf://org/model/a.gguf", "hf download REPOSITORY FILE"),
            ("org/model", "hf download org/model FILE"),
            ("org/Llama-3.1-8B", "hf download org/Llama-3.1-8B FILE"),
            (
                "org/Qwen2.5_GGUF:Q4_K_M",
                "hf download org/Qwen2.5_GGUF FILE",
            ),
            ("*.gguf", "not quoted"),
            ("models/q?.gguf", "not quoted"),
        ] {
            assert!(answer(text).contains(what), "{text}: {}", answer(text));
        }
        for text in [
            "a.gguf",
            "-",
            "src",
            "src/none",
            "none/a.gguf",
            "none/wiki.txt",
            "a/b/c",
            "/none/a",
            "../none",
            "./none",
            "~/none",
            "none/a b",
            "name=none/text",
        ] {
            assert_eq!(answer(text), "", "{text}");
        }
    }
}
