//! `kl compare`: stored rows against stored rows, without a model.

mod pairs;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use kl_formats::{ModelIdentity, Reference, WindowHead};

use super::args::{ResultArgs, Vocabulary};
use super::evaluation::{Subject, evaluate};
use super::extras::Extras;
use super::heads::heads;
use super::reference::{
    check_tokenizers, describe, native_header, overlap, prompt_labels, summarize, summarize_again,
};
use super::series::{self, Turn};
use super::settings::{ResultSettings, UsageError, result_settings};
use super::sidecar::SidecarFile;
use super::{Outcome, Warning, paths, warn};
use crate::pipeline::{ReferenceRows, Stored};
use crate::report::{Lacking, ModelReport};
use pairs::{Pairs, Side, pair};

/// Stored rows against stored rows: how far each OTHER is from REF. No model is run.
#[derive(Parser, Debug)]
#[command(
    name = "kl compare",
    bin_name = "kl compare",
    max_term_width = 100,
    args_override_self = true
)]
pub struct CompareArgs {
    /// A reference of kl, kl.py or llama-perplexity, an .npz or a folder of N.safetensors: recognised
    /// by its bytes
    #[arg(value_name = "REF")]
    pub reference: PathBuf,

    /// What is compared with it, of any of these kinds; may repeat
    #[arg(value_name = "OTHER", required = true)]
    pub others: Vec<PathBuf>,

    /// Stop after N rows, and leave out windows that only REF has; -1: all
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub n_tokens: i64,

    /// Which entries of the vocabulary are compared: same (all; sizes must agree) or common (the
    /// first ones that both have, renormalised) [default: same]
    #[arg(long, value_name = "same|common", value_enum)]
    pub vocab: Option<CompareVocabulary>,

    #[command(flatten)]
    pub results: ResultArgs,

    /// Overwrite existing output files
    #[arg(long)]
    pub force: bool,

    /// No progress, and nothing else on stderr but warnings and errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// Which entries of two vocabularies are compared, where no model tells which are padding.
#[derive(clap::ValueEnum, Debug, Clone, Copy)]
pub enum CompareVocabulary {
    /// All, of vocabularies of one size
    Same,
    /// The first ones, as many as both have
    Common,
}

/// The arguments, checked.
struct Settings {
    reference: PathBuf,
    others: Vec<PathBuf>,
    max_rows: Option<u64>,
    vocabulary: Vocabulary,
    results: ResultSettings,
}

impl TryFrom<CompareArgs> for Settings {
    type Error = UsageError;

    fn try_from(args: CompareArgs) -> Result<Self, UsageError> {
        let max_rows = match args.n_tokens {
            -1 => None,
            n if n >= 1 => Some(n as u64),
            _ => {
                let what = "--n-tokens must be at least 1, or -1 for all";
                return Err(UsageError(what.to_owned()));
            }
        };
        let n = args.others.len();
        let results = result_settings(args.results, n, args.force, args.quiet)?;
        let sidecars = args
            .others
            .iter()
            .filter_map(|other| paths::sidecar_path(&results, other));
        let outputs: Vec<PathBuf> = sidecars.chain(results.json.clone()).collect();
        let mut inputs = args.others.clone();
        inputs.push(args.reference.clone());
        paths::distinct(&inputs, &outputs)?;
        Ok(Self {
            reference: args.reference,
            others: args.others,
            max_rows,
            vocabulary: match args.vocab {
                Some(CompareVocabulary::Common) => Vocabulary::Common,
                Some(CompareVocabulary::Same) | None => Vocabulary::Same,
            },
            results,
        })
    }
}

/// Compares every file with the reference.
///
/// # Errors
/// What is wrong with a file, and where the two do not go together.
pub fn run(args: CompareArgs) -> Result<Outcome> {
    let settings = Settings::try_from(args)?;
    let reference = Reference::open(&settings.reference)?;
    if let Some(stride) = overlap(&reference) {
        let n_ctx = reference.n_ctx();
        warn(&Warning::Overlap { stride, n_ctx });
    }
    let described = describe(&reference);
    let start = Start {
        heads: heads(&reference, None, settings.results.quiet)?,
        fingerprint: summarize(&reference)?.fingerprint,
    };
    let look_ahead = |path: &Path| {
        drop(SidecarFile::create(&settings.results, path)?);
        Reference::open(path)?;
        Ok(())
    };
    series::run(
        &settings.results,
        described,
        &settings.others,
        look_ahead,
        |turn| evaluate_file(&settings, &start, turn),
    )
}

/// The reference as the run began with it.
struct Start {
    heads: Vec<WindowHead>,
    fingerprint: Option<String>,
}

/// Compares one file with the reference.
fn evaluate_file(settings: &Settings, start: &Start, turn: Turn<'_, '_>) -> Result<ModelReport> {
    let started = Instant::now();
    let path = turn.path;
    let sidecar = SidecarFile::create(&settings.results, path)?;
    // Opened anew for each: a stream can only be read from its start.
    let reference = Reference::open(&settings.reference)?;
    let of_reference = summarize_again(&reference, start.fingerprint.as_deref())?;
    let other = Reference::open(path)?;
    let compared = check_vocabulary(&reference, &other, settings.vocabulary)?;
    let others = heads(&other, None, settings.results.quiet)?;
    let Pairs {
        windows,
        taken,
        places,
        other_places,
        have_tokens,
    } = pair(
        &Side::new(&reference, &start.heads),
        &Side::new(&other, &others),
        settings.max_rows,
    )?;
    let taken: HashMap<_, _> = windows.iter().map(|head| head.window).zip(taken).collect();

    let subject = Subject {
        is_reference_model: is_same_model(&reference, &other),
        identity: identity(&other),
        compared,
        backend: native_header(&other).map(|header| header.backend.clone()),
        of_reference,
        prompts: prompt_labels(&reference),
        extras: Extras::wanted(&settings.results, &[&reference, &other]),
        sidecar,
        is_resumable: false,
        text: None,
        not_available: match have_tokens {
            true => Vec::new(),
            false => vec![Lacking::without_tokens()],
        },
        started,
        loaded: started.elapsed(),
    };
    let rows = ReferenceRows::at_places(reference, places, settings.max_rows)
        .with_heads(windows)
        .cut_to(compared);
    let n_vocab = other.n_vocab();
    drop(other);
    let make = || {
        let other = Reference::open(path)?;
        let rows = ReferenceRows::at_places(other, other_places.clone(), None);
        Ok(Stored::new(rows, n_vocab, taken.clone()))
    };
    evaluate(&settings.results, subject, rows, 1, make, turn)
}

/// How many entries of the rows are compared. Refuses files whose rows do not mean the same.
fn check_vocabulary(
    reference: &Reference,
    other: &Reference,
    vocabulary: Vocabulary,
) -> Result<u32> {
    let (there, here) = (reference.n_vocab(), other.n_vocab());
    if there == here {
        check_tokenizers(reference, other)?;
        return Ok(there);
    }
    if vocabulary != Vocabulary::Common {
        bail!(
            "{}: has rows of {here}, and {} of {there}: they belong to different models; if one is the other with more entries at its end, --vocab common",
            other.path().display(),
            reference.path().display()
        );
    }
    let compared = there.min(here);
    warn(&Warning::TokenizerCut {
        compared,
        there,
        here,
    });
    Ok(compared)
}

/// What names the model of a file; of one that does not say, the file's own name.
fn identity(file: &Reference) -> ModelIdentity {
    if let Some(header) = native_header(file) {
        return header.model.clone();
    }
    let name = file.path().file_name().unwrap_or_default();
    ModelIdentity {
        file_name: name.to_string_lossy().into_owned(),
        name: None,
        architecture: None,
        size_bytes: 0,
        n_params: 0,
        file_bytes: 0,
        metadata_sha256: String::new(),
        sample_sha256: None,
    }
}

/// Whether both files name one model; a converted file names none.
fn is_same_model(reference: &Reference, other: &Reference) -> bool {
    let models = native_header(reference).zip(native_header(other));
    models.is_some_and(|(there, here)| there.model.is_same(&here.model))
}
