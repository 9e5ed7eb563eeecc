//! Checks whether the entries of two rows mean the same tokens.

use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{About, TokenizerIdentity};

use super::observer::Watch;
use super::settings::Vocabulary;
use crate::engine::Model;
use crate::report::Warning;

/// Returns how many entries of the reference's rows are compared with a model's.
///
/// # Errors
/// If the entries of the two rows do not mean the same tokens.
pub fn check_vocabulary(
    reference: &About,
    model: &impl Model,
    vocabulary: Vocabulary,
    watch: &Watch<'_>,
) -> Result<u32> {
    let facts = model.facts();
    let (there, here) = (reference.n_vocab, facts.n_vocab);
    let (path, reference_path) = (facts.path.display(), reference.path.display());
    let compared = match vocabulary {
        Vocabulary::Same => there,
        Vocabulary::Common => there.min(here),
        Vocabulary::Tokenizer => facts.n_used_vocab,
    };
    if vocabulary == Vocabulary::Same && there != here {
        bail!(
            "{path}: has a vocabulary of {here}, but {reference_path} has rows of {there}: they belong to different models; if the longer one only adds entries at its end, use --vocab common or --vocab tokenizer"
        );
    }
    if compared > there {
        bail!(
            "{path}: its tokenizer uses {compared} entries, but {reference_path} has rows of {there}: use --vocab common to compare what both have"
        );
    }
    if there != here {
        watch.warn(Warning::TokenizerCut {
            compared,
            there,
            here,
        });
        return Ok(compared);
    }
    if reference.tokenizer.is_none() || facts.tokenizer.is_none() {
        watch.warn(Warning::TokenizerUnknown);
    }
    check_tokenizers(reference, &facts.path, facts.tokenizer.as_ref())?;
    Ok(compared)
}

/// Returns how many entries of the rows of two files are compared.
///
/// # Errors
/// If the entries of their rows do not mean the same tokens.
pub fn check_vocabularies(
    reference: &About,
    other: &About,
    vocabulary: Vocabulary,
    watch: &Watch<'_>,
) -> Result<u32> {
    let (there, here) = (reference.n_vocab, other.n_vocab);
    if there == here {
        check_tokenizers(reference, &other.path, other.tokenizer.as_ref())?;
        return Ok(there);
    }
    if vocabulary != Vocabulary::Common {
        bail!(
            "{}: has rows of {here}, but {} of {there}: they belong to different models; if the longer one only adds entries at its end, use --vocab common",
            other.path.display(),
            reference.path.display()
        );
    }
    let compared = there.min(here);
    watch.warn(Warning::TokenizerCut {
        compared,
        there,
        here,
    });
    Ok(compared)
}

/// Refuses a file and a reference that record different tokenizers.
fn check_tokenizers(
    reference: &About,
    path: &Path,
    tokenizer: Option<&TokenizerIdentity>,
) -> Result<()> {
    match (&reference.tokenizer, tokenizer) {
        (Some(there), Some(here)) if there != here => bail!(
            "{}: its tokenizer ({}) differs from that of {} ({}): the same token ids mean different tokens; use files of the same model",
            path.display(),
            name(here),
            reference.path.display(),
            name(there)
        ),
        _ => Ok(()),
    }
}

/// Names a tokenizer by its kind, its size and the start of its hash.
fn name(tokenizer: &TokenizerIdentity) -> String {
    let hash = tokenizer.sha256.get(..12).unwrap_or(&tokenizer.sha256);
    format!(
        "{}, {} tokens, sha256 {hash}",
        tokenizer.model, tokenizer.n_tokens
    )
}
