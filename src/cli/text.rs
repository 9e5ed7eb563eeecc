//! The text, as a person gives it.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use kl_formats::{TextIdentity, hex};
use sha2::{Digest, Sha256};

use super::{Warning, warn};

/// llama.cpp counts a text's bytes in 31 bits.
const MAX_TEXT_BYTES: u64 = i32::MAX as u64;

/// A text and what names it; `n_tokens` is still 0.
pub fn read(path: &Path) -> Result<(String, TextIdentity)> {
    let stdin = path.as_os_str() == "-";
    let name = if stdin {
        "-".into()
    } else {
        path.file_name().unwrap_or_default().to_string_lossy()
    };
    if !stdin && fs::metadata(path).is_ok_and(|metadata| metadata.len() > MAX_TEXT_BYTES) {
        bail!(
            "{}: is longer than 2 GiB, more than llama.cpp tokenizes at once: split it",
            path.display()
        );
    }
    let bytes = if stdin {
        let mut bytes = Vec::new();
        io::stdin()
            .read_to_end(&mut bytes)
            .context("standard input: cannot be read")?;
        bytes
    } else {
        fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?
    };
    if bytes.is_empty() {
        bail!("{}: is empty: there is nothing to tokenize", path.display());
    }
    let identity = TextIdentity {
        name: name.into_owned(),
        bytes: bytes.len() as u64,
        sha256: hex(&Sha256::digest(&bytes)),
        n_tokens: 0,
    };
    let text = String::from_utf8(bytes).unwrap_or_else(|error| {
        let bytes = error.as_bytes();
        let n = bytes.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
        let first = error.utf8_error().valid_up_to();
        warn(&Warning::NotUtf8 {
            name: path.display().to_string(),
            n,
            first,
        });
        String::from_utf8_lossy(bytes).into_owned()
    });
    Ok((text, identity))
}
