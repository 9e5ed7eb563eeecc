//! Parsers for values of flags that clap cannot parse by itself.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use kl_formats::{Encoding, Kind};

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

/// Parses the `--encoding` of `kl convert`, which has no model that could give hidden states.
pub fn row_encoding(text: &str) -> Result<Encoding, &'static str> {
    match text {
        "u16" => Ok(Encoding::U16),
        "f32" => Ok(Encoding::F32),
        "hidden" | "hidden16" => {
            Err("only a run of the model, with -m and -w, writes hidden states")
        }
        _ => Err("expected u16 or f32"),
    }
}

/// Parses the address of a server.
pub fn server(text: &str) -> Result<String, &'static str> {
    let address = text.rsplit_once(':');
    let address = address.filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    match address {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected HOST:PORT, such as 192.168.1.2:50052, and commas between several"),
    }
}

/// Parses the name of a device.
pub fn device(text: &str) -> Result<String, &'static str> {
    match text.is_empty() {
        true => Err("expected names of devices, as --list-devices shows them"),
        false => Ok(text.to_owned()),
    }
}
