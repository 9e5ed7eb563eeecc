//! Checks of a reference before its rows are used: its file, its windows, and whether its rows and a
//! model's have the same tokens for entries.

use std::io::Read;
use std::path::Path;

use anyhow::{Result, bail};
use kl_engine::{EngineError, Head, ModelFacts};
use kl_formats::{About, Reference, ReferenceSummary, States, TokenizerIdentity, WindowSpec};
use kl_report::Warning;
use kl_report::number::kld;

use super::observer::{Event, Watch};
use super::settings::ComparedVocabulary;
use crate::pipeline::{self, ReferenceRows};

/// The KLD, in nats, from which a row that was computed on another backend than its writer's is
/// doubtful. The kernels of backends round differently, up to products in half precision, which
/// moves a row by 1e-7 to 1e-4; what is measured of a quant is rarely below 1e-3.
const DOUBTFUL_KLD: f64 = 1e-3;

/// Refuses a folder, for a command that needs a reference of one file.
///
/// # Errors
/// If it is a folder.
pub fn refuse_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!(
            "{}: is a folder: name one reference of kl, kl.py or llama-perplexity, which is a file \
             (kl compare takes folders of logits)",
            path.display()
        );
    }
    Ok(())
}

/// Opens a run's reference again, and checks that it is the one that sidecars record.
///
/// # Errors
/// If the file cannot be read, or no longer has the same fingerprint.
pub fn open_again(path: &Path, summary: &ReferenceSummary) -> Result<Reference> {
    let reference = Reference::open(path)?;
    if reference.fingerprint()? != summary.fingerprint {
        bail!(
            "{}: was replaced while models were evaluated against it: run again",
            path.display()
        );
    }
    Ok(reference)
}

/// Warns if windows overlap and score the tokens they share more than once.
pub fn warn_of_overlap(reference: &Reference, watch: &Watch<'_>) {
    let n_ctx = reference.about().n_ctx;
    let (Some(stride), Some(windows)) = (reference.about().stride, reference.windows()) else {
        return;
    };
    let first_new = n_ctx.saturating_sub(stride);
    let scores_again = windows
        .iter()
        .any(|window| window.window > 0 && window.first_scored < first_new);
    if scores_again {
        let message = format!(
            "windows overlap, one every {stride} of {n_ctx} tokens: tokens they share are counted more than once, and intervals are narrower than they should be"
        );
        watch.warn(Warning::new("overlapping_windows", message));
    }
}

/// Reads all windows of a reference with their tokens, in the order of the file.
///
/// # Errors
/// If the file is damaged, or the observer asks to stop.
pub fn read_windows(reference: &Reference, watch: &Watch<'_>) -> Result<Vec<WindowSpec>> {
    if reference.windows().is_none() {
        let path = reference.about().path.display();
        let text = format!("{path} for its windows");
        watch.event(&Event::Plan("reading", &text));
    }
    let mut windows = Vec::new();
    for window in reference.read_windows()? {
        windows.push(window?);
        watch.check()?;
    }
    Ok(windows)
}

/// Opens the rows of a reference. Where it holds hidden states, `load_head` prepares its head.
///
/// # Errors
/// Those of `load_head` and of the file, and rows that are not those of the model that wrote it.
pub fn open_rows<'h>(
    reference: Reference,
    load_head: impl FnOnce(&States, &mut dyn Read) -> Result<Box<dyn Head + 'h>, EngineError>,
    watch: &'h Watch<'_>,
) -> Result<ReferenceRows<'h>, pipeline::Error> {
    let path = reference.path().display().to_string();
    let rows = ReferenceRows::open(reference, load_head)?;
    let rows = rows.stop_when(Box::new(|| watch.should_stop()));
    if let Some(computed) = &rows.rows_here
        && computed.error.max_kld >= DOUBTFUL_KLD
    {
        let [mean, max] = [computed.error.mean_kld, computed.error.max_kld].map(kld);
        let message = format!(
            "{path}: the rows computed from its hidden states on {} differ from those of the model that wrote it by a mean KLD of {mean}, and up to {max}, more than the rounding of another backend explains: evaluate where it was written, or write it with --encoding u16",
            computed.device
        );
        watch.warn(Warning::new("rows_moved", message));
    }
    Ok(rows)
}

/// The entries of the rows that are compared with a reference's.
pub struct EvaluatedEntries<'e> {
    /// The model or the file that they are of.
    pub path: &'e Path,
    pub n_vocab: u32,
    pub tokenizer: Option<&'e TokenizerIdentity>,
    /// Of a model, the number of entries that its tokenizer uses.
    pub n_used: Option<u32>,
}

impl<'e> EvaluatedEntries<'e> {
    /// The entries of a model's rows.
    pub fn from_model(facts: &'e ModelFacts) -> Self {
        Self {
            path: &facts.path,
            n_vocab: facts.n_vocab,
            tokenizer: facts.tokenizer.as_ref(),
            n_used: Some(facts.n_used_vocab),
        }
    }
}

/// Returns how many entries of the reference's rows are compared with these.
///
/// # Errors
/// If the entries of the two rows do not mean the same tokens.
pub fn check_vocabulary(
    reference: &About,
    entries: &EvaluatedEntries<'_>,
    vocabulary: ComparedVocabulary,
    watch: &Watch<'_>,
) -> Result<u32> {
    let (n_reference, n_evaluated) = (reference.n_vocab, entries.n_vocab);
    let (path, reference_path) = (entries.path.display(), reference.path.display());
    let compared = match (vocabulary, entries.n_used) {
        (ComparedVocabulary::Common, _) => n_reference.min(n_evaluated),
        (ComparedVocabulary::Tokenizer, Some(n_used)) if n_used > n_reference => bail!(
            "{path}: its tokenizer uses {n_used} entries, but {reference_path} has rows of {n_reference}: use --vocab common to compare what both have"
        ),
        (ComparedVocabulary::Tokenizer, Some(n_used)) => n_used,
        _ if n_reference == n_evaluated => n_reference,
        (_, n_used) => {
            let tokenizer = n_used.map_or("", |_| " or --vocab tokenizer");
            bail!(
                "{path}: has rows of {n_evaluated}, but {reference_path} has rows of {n_reference}: they belong to different models; if the longer one only adds entries at its end, use --vocab common{tokenizer}"
            )
        }
    };
    if n_reference != n_evaluated {
        let message = format!(
            "only the first {compared} entries are compared, of {n_reference} in the reference's rows and {n_evaluated} in the model's: kl cannot check that they are the same tokens"
        );
        watch.warn(Warning::new("vocabulary_cut", message));
        return Ok(compared);
    }
    match (&reference.tokenizer, entries.tokenizer) {
        (Some(reference_tokenizer), Some(tokenizer)) if reference_tokenizer != tokenizer => bail!(
            "{path}: its tokenizer ({}) differs from that of {reference_path} ({}): the same token ids mean different tokens; use files of the same model",
            tokenizer_name(tokenizer),
            tokenizer_name(reference_tokenizer)
        ),
        (None, _) | (_, None) if entries.n_used.is_some() => {
            watch.warn(Warning::new(
                "tokenizer_unknown",
                "the reference does not identify its tokenizer (only kl's own files do): only the size of the vocabulary was compared",
            ));
        }
        _ => {}
    }
    Ok(compared)
}

/// Names a tokenizer by its kind, its size and the start of its hash.
fn tokenizer_name(tokenizer: &TokenizerIdentity) -> String {
    let hash = tokenizer.sha256.get(..12).unwrap_or(&tokenizer.sha256);
    format!(
        "{}, {} tokens, sha256 {hash}",
        tokenizer.model, tokenizer.n_tokens
    )
}
