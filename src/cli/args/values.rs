//! Parsers for values of flags that clap cannot parse by itself.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use kl_formats::Kind;

use crate::commands::settings::Vocabulary;

/// Parses the name of a format that references can be written in.
pub fn written_kind() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new([
        PossibleValue::new("kl").help("kl's own format: gzip with an index and checksums"),
        PossibleValue::new("kl.py").help("kl.py's format"),
        PossibleValue::new("llama.cpp").help("llama.cpp's base file, which llama-perplexity uses"),
    ])
    .try_map(|name| name.parse::<Kind>())
}

/// Parses the path of a file, and refuses `-`, which one might expect to work.
pub fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.as_os_str() == "-" {
        true => Err("only -t, --prompts-file, --json and --csv accept '-'; name a file"),
        false => Ok(path),
    })
}

/// Parses the number of scored tokens to stop after, or -1 for all.
pub fn n_tokens(text: &str) -> Result<i64, &'static str> {
    match text.parse() {
        Ok(n) if n == -1 || n >= 1 => Ok(n),
        _ => Err("expected at least 1, or -1 for all"),
    }
}

/// Parses the `--vocab` of `kl compare`, which has no model whose padding it could leave out.
pub fn compare_vocab(text: &str) -> Result<Vocabulary, &'static str> {
    match text.parse() {
        Ok(Vocabulary::Tokenizer) | Err(_) => Err("expected same or common"),
        Ok(vocabulary) => Ok(vocabulary),
    }
}
