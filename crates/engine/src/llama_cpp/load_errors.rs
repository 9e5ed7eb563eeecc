//! Advice on llama.cpp's reasons for not loading a model.

use super::Gguf;
use super::log::advice_on_log;
use crate::LLAMA_CPP_VERSION;

/// Tensors of the parts for images and sounds, by the starts of their names. llama.cpp has them in a file of
/// their own.
const OF_OTHER_PARTS: [&str; 4] = ["v.", "a.", "mm.", "vision_"];

/// The system's words for a limit on open files (`EMFILE`).
const TOO_MANY_FILES: &str = "Too many open files";

/// States what to do about a reason for which llama.cpp does not load the model with this header; `None` where
/// the reason says it all.
pub(super) fn advice(reason: &str, header: &Gguf) -> Option<String> {
    let says = |words: &[&str]| words.iter().any(|words| reason.contains(words));
    let is_of_file = says(&["error loading model"]);
    let other_part = || {
        let mut tensors = header.tensors.iter().map(|tensor| &*tensor.name);
        tensors.find(|name| OF_OTHER_PARTS.iter().any(|start| name.starts_with(start)))
    };
    let version = format!("this kl has the llama.cpp of {LLAMA_CPP_VERSION} (kl doctor shows it)");
    if says(&[TOO_MANY_FILES]) {
        let n_files = header.files.len() as u64;
        let limit = n_files.saturating_add(OTHER_FILES).next_multiple_of(1024);
        return Some(format!(
            "the model has {n_files} files, more than this process may open: allow more with 'ulimit -n {limit}' (a hard limit is the administrator's), or join them with llama-gguf-split --merge"
        ));
    }
    if let Some(tensor) = other_part().filter(|_| is_of_file) {
        return Some(format!(
            "it holds the part for images or sounds too ({tensor}), as Ollama's files do: use a GGUF made for llama.cpp, whose mmproj is a file of its own"
        ));
    }
    if says(&["model architecture"]) {
        return Some(format!(
            "{version}: use a newer kl if the architecture is newer, or the program that the file was made for"
        ));
    }
    if says(&["unknown pre-tokenizer", "unknown tokenizer"]) {
        return Some(format!(
            "{version}: use a newer kl if the tokenizer is newer, or convert the original again"
        ));
    }
    if says(&["wrong number of tensors"]) {
        return Some(format!(
            "the file has tensors that its architecture does not have here, so it was made for another llama.cpp or another program; {version}: use a newer kl, or a file that llama.cpp's converter has made"
        ));
    }
    if says(&[
        "missing tensor",
        "not found",
        "wrong shape",
        "has wrong type",
        "wrong array length",
    ]) {
        return Some(format!(
            "download or convert it again; a whole file was made for another llama.cpp or another program; {version}"
        ));
    }
    advice_on_log(reason)
        .map(str::to_owned)
        .or_else(|| is_of_file.then(|| "download or convert it again".to_owned()))
}

/// Files that a process has open besides those of a model, with room.
const OTHER_FILES: u64 = 256;
