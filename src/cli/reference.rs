//! What a reference says of itself, and whether a model fits it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result, bail};
use kl_formats::{Encoding, Header, Reference, ReferenceSummary, TokenizerIdentity, hex};
use sha2::{Digest, Sha256};

use super::args::Vocabulary;
use super::setup::Precedent;
use super::{Warning, warn};
use crate::engine::{FlashAttention, Model};
use crate::report::{ModelInfo, PromptsInfo, ReferenceInfo};

/// The native header, where there is one: the peers' files say little.
pub fn native_header(reference: &Reference) -> Option<&Header> {
    match reference {
        Reference::Native(reader) => Some(reader.header()),
        _ => None,
    }
}

/// Whether its rows are log-probabilities, from which logits cannot be had.
pub fn holds_log_probabilities(reference: &Reference) -> bool {
    match reference {
        Reference::Native(reader) => reader.header().log_probabilities,
        Reference::KlPy(_) => false,
        Reference::LlamaCpp(_) => true,
        Reference::Safetensors(reader) => reader.log_probabilities(),
        Reference::Npz(reader) => reader.log_probabilities(),
    }
}

/// For the report. What a file that was converted does not know of its origin is left out.
pub fn describe(reference: &Reference) -> ReferenceInfo {
    let header = native_header(reference);
    let (encoding, first_scored) = match reference {
        Reference::Native(reader) => {
            let header = reader.header();
            (header.encoding.to_string(), Some(header.first_scored))
        }
        Reference::KlPy(_) => (Encoding::F32.to_string(), None),
        Reference::LlamaCpp(reader) => {
            let first_scored = reader.header().first_scored();
            (Encoding::U16.to_string(), Some(first_scored))
        }
        Reference::Safetensors(reader) => (reader.float().to_string(), Some(0)),
        Reference::Npz(reader) => (reader.float().to_string(), Some(0)),
    };
    ReferenceInfo {
        path: reference.path().display().to_string(),
        kind: reference.kind().to_string(),
        n_ctx: reference.n_ctx(),
        n_vocab: reference.n_vocab(),
        encoding,
        model: header
            .map(|header| &header.model)
            .filter(|model| !model.file_name.is_empty())
            .map(|model| ModelInfo::new(Path::new(&model.file_name), model)),
        first_scored,
        n_windows: reference.n_windows(),
        text: header
            .map(|header| header.text.clone())
            .filter(|text| !text.sha256.is_empty()),
        backend: header
            .map(|header| header.backend.clone())
            .filter(|backend| !backend.llama_cpp.is_empty()),
        seed: header.and_then(|header| header.seed),
        stride: header.and_then(|header| header.stride),
        prompts: header.and_then(PromptsInfo::of),
        log_probabilities: holds_log_probabilities(reference),
    }
}

/// What its prompts are known by, if its windows are such.
pub fn prompt_labels(reference: &Reference) -> Option<Vec<String>> {
    let prompts = native_header(reference)?.prompts.as_ref()?;
    Some(
        prompts
            .iter()
            .map(|prompt| prompt.content.label())
            .collect(),
    )
}

/// The stride of windows that overlap and score what they share more than once.
pub fn overlap(reference: &Reference) -> Option<u32> {
    let Reference::Native(reader) = reference else {
        return None;
    };
    let stride = reader.header().stride?;
    let first_new = reader.header().n_ctx.saturating_sub(stride);
    let mut windows = reader.windows().iter().filter(|window| window.window > 0);
    windows
        .any(|window| window.first_scored < first_new)
        .then_some(stride)
}

/// Tokens of its longest window, as far as it tells: what a context has to hold.
pub fn longest_window(reference: &Reference) -> u32 {
    let longest = match reference {
        Reference::Native(reader) => reader.windows().iter().map(|window| window.n_tokens).max(),
        _ => None,
    };
    longest.unwrap_or_else(|| reference.n_ctx())
}

/// How its rows were computed. kl.py leaves flash attention off, llama-cpp-python's default.
pub fn precedent(reference: &Reference) -> Precedent {
    match reference {
        Reference::Native(reader) => {
            let backend = &reader.header().backend;
            Precedent {
                n_batch: Some(backend.n_batch).filter(|&n| n > 0),
                n_ubatch: Some(backend.n_ubatch).filter(|&n| n > 0),
                flash_attn: backend.flash_attn.parse().ok(),
            }
        }
        Reference::KlPy(_) => Precedent {
            flash_attn: Some(FlashAttention::Off),
            ..Precedent::default()
        },
        _ => Precedent::default(),
    }
}

/// For a sidecar.
///
/// # Errors
/// A file that cannot be read.
pub fn summarize(reference: &Reference) -> Result<ReferenceSummary> {
    let header = native_header(reference);
    Ok(ReferenceSummary {
        file_name: reference
            .path()
            .file_name()
            .map(|name| name.to_string_lossy().into_owned()),
        kind: Some(reference.kind().to_string()),
        model: header.map(|header| header.model.clone()),
        text: header.map(|header| header.text.clone()),
        fingerprint: match reference {
            // A folder: no one file tells it from another.
            Reference::Safetensors(_) => None,
            _ => Some(fingerprint(reference.path())?),
        },
    })
}

/// [`summarize`] of a reference that has to be the one that the run began with.
///
/// # Errors
/// A file that cannot be read, or is another.
pub fn summarize_again(
    reference: &Reference,
    fingerprint: Option<&str>,
) -> Result<ReferenceSummary> {
    let summary = summarize(reference)?;
    if summary.fingerprint.as_deref() != fingerprint {
        bail!(
            "{}: was replaced while models were evaluated against it",
            reference.path().display()
        );
    }
    Ok(summary)
}

/// SHA-256 of a file's length, its first 64 KiB and its last: in kl's own files headers, index and
/// the checksums of the last rows, which tell any two apart.
fn fingerprint(path: &Path) -> Result<String> {
    const PART: u64 = 64 << 10;
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut bytes = length.to_le_bytes().to_vec();
        (&mut file).take(PART).read_to_end(&mut bytes)?;
        file.seek(SeekFrom::Start(length.saturating_sub(PART)))?;
        file.take(PART).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(hex(&Sha256::digest(&bytes)))
    };
    read().with_context(|| format!("{}: cannot be read", path.display()))
}

/// How many entries of the rows are compared. Refuses a model whose rows do not mean what the
/// reference's rows mean.
pub fn check_vocabulary(
    reference: &Reference,
    path: &Path,
    model: &Model<'_>,
    vocabulary: Vocabulary,
) -> Result<u32> {
    let (there, here) = (reference.n_vocab(), model.n_vocab());
    let compared = match vocabulary {
        Vocabulary::Same => there,
        Vocabulary::Common => there.min(here),
        Vocabulary::Tokenizer => model.n_used_vocab(),
    };
    if vocabulary == Vocabulary::Same && there != here {
        bail!(
            "{}: has a vocabulary of {here}, and {} has rows of {there}: they belong to different models; if one is the other with more entries at its end, --vocab common or --vocab tokenizer",
            path.display(),
            reference.path().display(),
        );
    }
    if compared > there {
        bail!(
            "{}: its tokenizer uses {compared} entries, and {} has rows of {there}: --vocab common compares what both have",
            path.display(),
            reference.path().display(),
        );
    }
    if there == here {
        check_tokenizer(reference, path, model)?;
    } else {
        warn(&Warning::TokenizerCut {
            compared,
            there,
            here,
        });
    }
    Ok(compared)
}

fn check_tokenizer(reference: &Reference, path: &Path, model: &Model<'_>) -> Result<()> {
    let there = native_header(reference).and_then(|header| header.tokenizer.as_ref());
    if there.is_none() || model.tokenizer().is_none() {
        warn(&Warning::TokenizerUnknown);
    }
    same_tokenizer(reference, there, path, model.tokenizer())
}

/// Refuses two files that name two tokenizers.
pub fn check_tokenizers(reference: &Reference, other: &Reference) -> Result<()> {
    let here = native_header(other).and_then(|header| header.tokenizer.as_ref());
    let there = native_header(reference).and_then(|header| header.tokenizer.as_ref());
    same_tokenizer(reference, there, other.path(), here)
}

fn same_tokenizer(
    reference: &Reference,
    there: Option<&TokenizerIdentity>,
    path: &Path,
    here: Option<&TokenizerIdentity>,
) -> Result<()> {
    match (there, here) {
        (Some(there), Some(here)) if there != here => bail!(
            "{}: its tokenizer ({}) is another than the one {} was written with ({}): the same ids mean other tokens",
            path.display(),
            name(here),
            reference.path().display(),
            name(there)
        ),
        _ => Ok(()),
    }
}

/// Kind, size and the start of the hash: enough to tell two apart.
fn name(tokenizer: &TokenizerIdentity) -> String {
    let hash = tokenizer.sha256.get(..12).unwrap_or(&tokenizer.sha256);
    format!(
        "{}, {} tokens, sha256 {hash}",
        tokenizer.model, tokenizer.n_tokens
    )
}
