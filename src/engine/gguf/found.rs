//! What a file that is not a GGUF holds instead, and what to do: the files that people have where
//! they expect a model.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes that are looked at.
const START_BYTES: u64 = 512;

/// Names what a file holds, and says what to do. The file's first bytes are not those of a GGUF.
pub(super) fn in_words(path: &Path) -> &'static str {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(START_BYTES).read_to_end(&mut start));
    match read {
        Ok(_) => found(&start),
        Err(_) => UNKNOWN,
    }
}

const UNKNOWN: &str = "its first bytes are not GGUF; give a model in GGUF format";

/// The same of a file that starts with these bytes.
fn found(start: &[u8]) -> &'static str {
    let text = String::from_utf8_lossy(start).trim_start().to_lowercase();
    // An entry's name follows its length, and in front of both is the number of entries.
    let is_imatrix = start
        .get(8..)
        .is_some_and(|name| name.starts_with(b"blk.") || name.starts_with(b"output.weight"));
    if text.starts_with("version https://git-lfs") {
        "it is a pointer of Git LFS, which stands for the model; run 'git lfs pull' there"
    } else if text.starts_with("<!doctype") || text.starts_with("<html") {
        "it is a web page, perhaps an error page saved by a download; download the model again"
    } else if start.starts_with(&[0x1f, 0x8b]) {
        "it is gzip; give a packed model to gunzip, and a reference to -r"
    } else if start.get(8) == Some(&b'{') {
        "it is a safetensors file; make a GGUF with llama.cpp's convert_hf_to_gguf.py"
    } else if start.starts_with(b"PK\x03\x04") {
        "it is a zip file, as PyTorch's models are; make a GGUF with llama.cpp's convert_hf_to_gguf.py"
    } else if is_imatrix {
        "it is an importance matrix, which is for making quants; give the model"
    } else if start.starts_with(b"_logits_") {
        "it is a base file of llama-perplexity; give it to -r, and a model to -m"
    } else if text.starts_with('{') || text.starts_with('[') {
        "it is JSON, perhaps an error message saved by a download; give a model in GGUF format"
    } else if !text.is_empty() && !text.contains(['\u{fffd}', '\0']) {
        "it is a text; give a model in GGUF format (a text goes to -t)"
    } else {
        UNKNOWN
    }
}

#[cfg(test)]
mod tests {
    use super::found;

    #[test]
    fn what_is_no_gguf_is_named() {
        for (start, what) in [
            (
                &b"version https://git-lfs.github.com/spec/v1\noid"[..],
                "Git LFS",
            ),
            (b"<!DOCTYPE html>\n<html>", "web page"),
            (b"\n  <html lang=\"en\">", "web page"),
            (b"\x1f\x8b\x08\x00", "gzip"),
            (b"\x40\0\0\0\0\0\0\0{\"a\":", "safetensors"),
            (b"PK\x03\x04\0\0", "PyTorch"),
            (
                b"\x03\0\0\0\x13\0\0\0blk.0.attn_q.weight",
                "importance matrix",
            ),
            (b"_logits_\0\0", "base file"),
            (b"{\"error\":\"Invalid username\"}", "JSON"),
            (b"Entry not found", "a text"),
            (b"\x07\x07\x07\x00\xff\xff", "first bytes"),
            (b"", "first bytes"),
        ] {
            assert!(found(start).contains(what), "{what}: {}", found(start));
        }
    }
}
