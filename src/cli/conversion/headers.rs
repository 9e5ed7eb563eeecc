//! Headers of converted files: what the other kind says, and empty or 0 where it says nothing.

use std::path::Path;

use kl_formats::native::FORMAT_VERSION;
use kl_formats::{
    BackendIdentity, Encoding, Header, KlPyHeader, ModelIdentity, Reference, TextIdentity,
    WindowHead, rows_per_piece,
};

use super::super::reference::holds_log_probabilities;
use super::{begin_alike, longest};
use crate::cli::setup::writer;
use crate::windows::n_rows;

/// A native file's, in the reference's own encoding.
pub fn native(reference: &Reference, windows: &[WindowHead]) -> Header {
    let (model, text, flash_attn) = match reference {
        Reference::Native(reader) => return reader.header().clone(),
        // kl.py leaves flash attention off.
        Reference::KlPy(reader) => {
            let header = reader.header();
            (header.model.as_deref(), header.text_path.as_deref(), "off")
        }
        Reference::Npz(reader) => (reader.model(), None, ""),
        Reference::LlamaCpp(_) | Reference::Safetensors(_) => (None, None, ""),
    };
    let n_vocab = reference.n_vocab();
    let encoding = Encoding::F32;
    Header {
        format_version: FORMAT_VERSION,
        writer: format!("{}, from a file of {}", writer(), reference.kind()),
        model: ModelIdentity {
            file_name: model.map(file_name).unwrap_or_default(),
            name: None,
            architecture: None,
            size_bytes: 0,
            n_params: 0,
            file_bytes: 0,
            metadata_sha256: String::new(),
            sample_sha256: None,
        },
        tokenizer: None,
        n_ctx: longest(windows).max(1),
        n_vocab,
        add_bos: windows.len() > 1 && begin_alike(windows),
        first_scored: windows.first().map_or(0, |head| head.first_scored),
        n_windows: windows.len() as u32,
        n_rows: n_rows(windows),
        encoding,
        rows_per_piece: rows_per_piece(encoding, n_vocab),
        text: TextIdentity {
            name: text.map(file_name).unwrap_or_default(),
            bytes: 0,
            sha256: String::new(),
            n_tokens: 0,
        },
        backend: BackendIdentity {
            llama_cpp: String::new(),
            devices: Vec::new(),
            n_gpu_layers: 0,
            n_batch: 0,
            n_ubatch: 0,
            threads: 0,
            flash_attn: flash_attn.to_owned(),
            type_k: String::new(),
            type_v: String::new(),
        },
        seed: None,
        stride: None,
        log_probabilities: holds_log_probabilities(reference),
        prompts: None,
        chat_template: None,
        generated: None,
    }
}

/// kl.py's.
pub fn kl_py(reference: &Reference, windows: &[WindowHead]) -> KlPyHeader {
    let from = match reference {
        Reference::Native(reader) => Some(reader.header()),
        _ => None,
    };
    let n_batch = from.map(|header| header.backend.n_batch);
    KlPyHeader {
        n_ctx: reference.n_ctx(),
        n_vocab: reference.n_vocab(),
        n_windows: Some(windows.len() as u32),
        model: from.map(|header| header.model.file_name.clone()),
        text_path: from.map(|header| header.text.name.clone()),
        others: n_batch
            .map(|n| ("n_batch".to_owned(), n.to_string()))
            .into_iter()
            .collect(),
    }
}

/// The last part of a path.
pub fn file_name(path: &(impl AsRef<Path> + ?Sized)) -> String {
    let name = path.as_ref().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
