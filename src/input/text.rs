//! Reads a text from a file or from standard input.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use kl_formats::{Found, TextIdentity, hex, map};
use sha2::{Digest, Sha256};

use crate::report::Warning;

/// llama.cpp counts a text's bytes in 31 bits.
const MAX_TEXT_BYTES: u64 = i32::MAX as u64;

/// A text that was read, and what identifies it; `identity.n_tokens` is not known yet.
pub struct Text {
    pub text: String,
    pub identity: TextIdentity,
}

/// Reads a text whose every character is tokenized. Warns also of what editors on Windows add.
pub fn read_to_tokenize(path: &Path, warnings: &mut Vec<Warning>) -> Result<Text> {
    let text = read(path, warnings)?;
    let name = || path.display().to_string();
    if text.text.starts_with('\u{feff}') {
        warnings.push(Warning::ByteOrderMark(name()));
    }
    match text.text.matches("\r\n").count() {
        0 => {}
        n => warnings.push(Warning::Crlf { name: name(), n }),
    }
    Ok(text)
}

/// Reads a text from a file, or from standard input for `-`. Warns of bytes that are not UTF-8, which
/// become U+FFFD.
pub fn read(path: &Path, warnings: &mut Vec<Warning>) -> Result<Text> {
    let shown = path.display();
    let (bytes, name) = match path.as_os_str() == "-" {
        true => {
            let mut bytes = Vec::new();
            let read = io::stdin().read_to_end(&mut bytes);
            read.context("standard input: cannot be read")?;
            (bytes, "-".into())
        }
        false => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            (read_file(path)?, name)
        }
    };
    if bytes.is_empty() {
        bail!("{shown}: is empty: there is nothing to tokenize");
    }
    if let Some(first) = bytes.iter().position(|&byte| byte == 0) {
        bail!("{shown}: not a text: {}", instead(path, first));
    }
    if bytes.starts_with(map::MAGIC.as_bytes()) {
        bail!("{shown}: not a text: {}", Found::Map);
    }
    let mut identity = TextIdentity::named(name);
    identity.bytes = Some(bytes.len() as u64);
    identity.sha256 = Some(hex(&Sha256::digest(&bytes)));
    let text = String::from_utf8(bytes).unwrap_or_else(|error| {
        let bytes = error.as_bytes();
        let chunks = bytes.utf8_chunks();
        warnings.push(Warning::NotUtf8 {
            name: shown.to_string(),
            n: chunks.map(|chunk| chunk.invalid().len()).sum(),
            first: error.utf8_error().valid_up_to(),
        });
        String::from_utf8_lossy(bytes).into_owned()
    });
    Ok(Text { text, identity })
}

/// Reads a file, unless it is a folder or too long.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    if path.is_dir() {
        bail!("{shown}: is a folder: name a file in it");
    }
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > MAX_TEXT_BYTES) {
        bail!("{shown}: is longer than 2 GiB, more than llama.cpp tokenizes at once: split it");
    }
    fs::read(path).with_context(|| format!("{shown}: cannot be read"))
}

/// Names what a file holds in place of a text, and says what to do; `first` is its first byte that
/// no text has.
fn instead(path: &Path, first: usize) -> String {
    let found = Found::look(path);
    match found {
        Found::Model => "it is a model; give it to -m".to_owned(),
        Found::Sidecar => format!("{found}; kl report {} shows it", path.display()),
        Found::Reference(_) | Found::Unpacked => {
            "it is a reference, which holds its own text; give it to -r".to_owned()
        }
        Found::Gzip => "it is gzip; unpack it with gunzip".to_owned(),
        Found::Packed(_) | Found::Zip => format!("{found}; unpack it"),
        Found::Parquet | Found::Pdf => format!("{found}; save what it holds as plain text"),
        _ => format!(
            "byte {first} is 0, as in UTF-16 (convert it: iconv -f UTF-16 -t UTF-8) or in a file that is no text at all"
        ),
    }
}
