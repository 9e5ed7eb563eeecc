//! What a file that is not a GGUF holds instead, and what to do: the files that people have where
//! they expect a model.

use std::path::Path;

use kl_formats::{Found, npz};

/// Names what a file holds, and says what to do. The file's first bytes are not those of a GGUF.
pub(super) fn in_words(path: &Path) -> String {
    let found = Found::look(path);
    let what = match found {
        Found::Gzip => "it is gzip".to_owned(),
        Found::Zip => "it is a zip file, as PyTorch's models are".to_owned(),
        Found::SafetensorsFile => "it is a safetensors file".to_owned(),
        Found::Json => "it is JSON, perhaps an error message saved by a download".to_owned(),
        Found::Unpacked => "it is a reference that was unpacked".to_owned(),
        Found::Unknown => "its first bytes are not GGUF".to_owned(),
        _ => found.to_string(),
    };
    let path = path.display();
    let advice = match found {
        Found::Sidecar => &format!("kl report {path} shows it"),
        Found::Reference(kind) if kind == npz::KIND => "kl compare compares it with another",
        Found::Reference(_) | Found::Unpacked => "give it to -r, and a model to -m",
        Found::Gzip => "unpack it with gunzip",
        Found::Packed(_) => "unpack it",
        Found::Zip | Found::SafetensorsFile => "make a GGUF with llama.cpp's convert_hf_to_gguf.py",
        Found::OldModel => "convert the original model again, or download it as GGUF",
        Found::LfsPointer => "run 'git lfs pull' there",
        Found::WebPage => "download the model again",
        Found::Imatrix => "give the model that it was computed with",
        Found::Text => "give a model in GGUF format (a text goes to -t)",
        _ => "give a model in GGUF format",
    };
    format!("{what}; {advice}")
}
