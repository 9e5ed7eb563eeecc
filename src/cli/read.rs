//! Read mode: a reference and models -> what each of them lost.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use kl_formats::Reference;

use super::evaluation::{Subject, evaluate};
use super::extras::Extras;
use super::reference::{
    check_vocabulary, describe, longest_window, native_header, overlap, precedent, prompt_labels,
    summarize, summarize_again,
};
use super::series::{self, Turn};
use super::settings::ReadSettings;
use super::setup::{
    backend_identity, context_options, start_backend, warn_long_window, warn_of_differences,
};
use super::sidecar::SidecarFile;
use super::{Outcome, Warning, warn};
use crate::engine::{Backend, Model, inspect};
use crate::pipeline::ReferenceRows;
use crate::report::ModelReport;

/// Evaluates every model.
pub fn run(settings: &ReadSettings) -> Result<Outcome> {
    let (reference, fingerprint) = {
        let file = Reference::open(&settings.reference)?;
        if file.is_foreign() {
            bail!(
                "{}: holds rows of kind {}, which no model is run against: kl compare evaluates stored rows of two files",
                settings.reference.display(),
                file.kind()
            );
        }
        if let Some(n_ctx) = settings.n_ctx {
            check_n_ctx(n_ctx, &file)?;
        }
        if let Some(stride) = overlap(&file) {
            let n_ctx = file.n_ctx();
            warn(&Warning::Overlap { stride, n_ctx });
        }
        (describe(&file), summarize(&file)?.fingerprint)
    };
    let backend = start_backend(&settings.run)?;
    let look_ahead = |path: &Path| {
        drop(SidecarFile::create(&settings.results, path)?);
        inspect(path)?;
        Ok(())
    };
    series::run(
        &settings.results,
        reference,
        &settings.models,
        look_ahead,
        |turn| evaluate_model(settings, &backend, fingerprint.as_deref(), turn),
    )
}

/// A window's size that was asked for has to be the reference's. A kl.py file holds the context's,
/// which llama.cpp pads.
fn check_n_ctx(n_ctx: u32, reference: &Reference) -> Result<()> {
    /// What llama.cpp pads a context to.
    const PADDING: u32 = 256;
    let padded = matches!(reference, Reference::KlPy(_))
        && n_ctx.checked_next_multiple_of(PADDING) == Some(reference.n_ctx());
    if n_ctx != reference.n_ctx() && !padded {
        bail!(
            "--n-ctx {n_ctx} was asked for and {} has windows of {}: leave it out",
            reference.path().display(),
            reference.n_ctx()
        );
    }
    Ok(())
}

/// Runs one model over the reference, which has to be the one that the run began with.
fn evaluate_model(
    settings: &ReadSettings,
    backend: &Backend,
    fingerprint: Option<&str>,
    turn: Turn<'_, '_>,
) -> Result<ModelReport> {
    let (run, path) = (&settings.run, turn.path);
    let sidecar = SidecarFile::create(&settings.results, path)?;
    // Opened anew for each model: a kl.py file can only be read from its start.
    let file = Reference::open(&settings.reference)?;
    let of_reference = summarize_again(&file, fingerprint)?;

    let started = Instant::now();
    let model = Model::load(backend, path, &run.model)?;
    let compared = check_vocabulary(&file, path, &model, settings.vocabulary)?;
    let longest = longest_window(&file);
    if !matches!(file, Reference::KlPy(_)) {
        warn_long_window(longest, &model);
    }
    let options = context_options(run, longest, model.n_vocab(), precedent(&file));
    let here = backend_identity(backend, run, &options);
    if let Some(there) = &turn.reference.backend {
        warn_of_differences(&here, there);
    }

    let identity = model.identity();
    let subject = Subject {
        is_reference_model: native_header(&file)
            .is_some_and(|header| header.model.is_same(&identity)),
        identity,
        compared,
        backend: Some(here),
        of_reference,
        prompts: prompt_labels(&file),
        extras: Extras::wanted(&settings.results, &[&file]),
        sidecar,
        is_resumable: true,
        text: Some(&|tokens| model.text(tokens)),
        not_available: Vec::new(),
        started,
        loaded: started.elapsed(),
    };
    let rows = ReferenceRows::new(file, model.bos(), run.max_rows).cut_to(compared);
    let n_contexts = match settings.contexts {
        Some(n) => n as usize,
        None if model.is_offloaded() => 2,
        None => 1,
    };
    let make = || Ok(model.decoder(&options)?);
    let is_last = turn.is_last;
    let report = evaluate(&settings.results, subject, rows, n_contexts, make, turn)?;
    if is_last {
        model.drop_last();
    }
    Ok(report)
}
