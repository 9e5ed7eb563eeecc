//! Read mode: a reference and models -> what each of them lost.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use kl_formats::sidecar::{SIDECAR_VERSION, TokenRecord};
use kl_formats::{Reference, Row, SidecarHeader};

use super::extras::{Extra, Extras};
use super::progress::Progress;
use super::reference::{
    check_vocabulary, describe, longest_window, native_header, overlap, precedent, summarize,
};
use super::results::Results;
use super::settings::ReadSettings;
use super::setup::{
    backend_identity, context_options, start_backend, warn_long_window, warn_of_differences, writer,
};
use super::sidecar::SidecarFile;
use super::{Outcome, Warning, one_line, stop, warn};
use crate::engine::{Backend, LogitSource, Model, inspect};
use crate::pipeline::{self, ReferenceRows, Step, Timing, evaluate};
use crate::report::{
    Failure, ModelInfo, ModelReport, ReferenceInfo, Report, Surroundings, TimingInfo, TokenColumns,
    TopToken, judge,
};
use crate::score::Kernel;
use crate::stats::{Running, Summary, Worst};

/// A reference's PPL from which on the text is doubted: base models on prose stay far below.
const DOUBTFUL_PERPLEXITY: f64 = 100.0;

/// Evaluates every model. What is done stays done: results are written after each, and a model
/// that cannot be evaluated does not keep the others from it.
pub fn run(settings: &ReadSettings) -> Result<Outcome> {
    let reference = {
        let file = Reference::open(&settings.reference)?;
        if let Some(n_ctx) = settings.n_ctx {
            check_n_ctx(n_ctx, &file)?;
        }
        if let Some(stride) = overlap(&file) {
            let n_ctx = file.n_ctx();
            warn(&Warning::Overlap { stride, n_ctx });
        }
        describe(&file)
    };
    let mut results = Results::new(settings)?;
    let mut report = Report {
        kl_version: env!("CARGO_PKG_VERSION"),
        reference,
        complete: false,
        models: Vec::new(),
        failed: Vec::new(),
    };
    let several = settings.models.len() > 1;
    let mut usable = Vec::new();
    for path in &settings.models {
        // A single one is loaded at once, which looks at the same things.
        let looked = if several {
            look_ahead(settings, path)
        } else {
            Ok(())
        };
        match looked {
            Ok(()) => usable.push(path),
            Err(error) => fail(&mut report, path, &error, several),
        }
    }
    report.complete = usable.is_empty();
    results.write(&report);
    let backend = start_backend(&settings.run)?;
    let mut usable = usable.into_iter().peekable();
    while let Some(path) = usable.next() {
        if stop::asked() {
            break;
        }
        let is_last = usable.peek().is_none();
        match evaluate_model(
            settings,
            &backend,
            path,
            is_last,
            &report.reference,
            &mut results,
        ) {
            Ok(model) => {
                results.show(&model, &report.reference);
                tell_conditions(&model, settings.run.quiet);
                if model.summary.n_tokens == 0 {
                    let error = anyhow!("{}: no token could be scored", path.display());
                    fail(&mut report, path, &error, several);
                }
                report.models.push(model);
            }
            Err(_) if stop::asked() => break,
            Err(error) => fail(&mut report, path, &error, several),
        }
        report.complete = is_last;
        results.write(&report);
    }
    results.finish(&report)?;
    stop::check()?;
    match report.failed.as_slice() {
        [] if report.models.iter().any(fails) => Ok(Outcome::ConditionFailed),
        [] => Ok(Outcome::Done),
        [only] if !several => bail!("{}", only.error),
        failed => bail!(
            "{} of {} models could not be evaluated",
            failed.len(),
            settings.models.len()
        ),
    }
}

/// What can be seen to be wrong with a model before hours are spent on those before it.
fn look_ahead(settings: &ReadSettings, path: &Path) -> Result<()> {
    drop(SidecarFile::create(settings, path)?);
    inspect(path)?;
    Ok(())
}

/// Says what became of each condition; of those that did not fail nothing with `-q`.
fn tell_conditions(model: &ModelReport, quiet: bool) {
    let verdicts = model.conditions.iter();
    for verdict in verdicts.filter(|verdict| verdict.failed || !quiet) {
        say!("kl: {}: {verdict}", model.model.path);
    }
}

/// Whether a condition failed.
fn fails(model: &ModelReport) -> bool {
    model.conditions.iter().any(|verdict| verdict.failed)
}

/// Notes that a model could not be evaluated, and says so where others go on.
fn fail(report: &mut Report, path: &Path, error: &anyhow::Error, say_so: bool) {
    let error = one_line(error);
    if say_so {
        say!("kl: {error}");
    }
    report.failed.push(Failure {
        path: path.display().to_string(),
        error,
    });
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

/// Runs one model over the reference. A sidecar that cannot be written is told to `results`, and
/// does not lose the numbers.
fn evaluate_model(
    settings: &ReadSettings,
    backend: &Backend,
    path: &Path,
    is_last: bool,
    reference: &ReferenceInfo,
    results: &mut Results<'_>,
) -> Result<ModelReport> {
    let run = &settings.run;
    let sidecar = SidecarFile::create(settings, path)?;
    // Opened anew for each model: a kl.py file can only be read from its start.
    let file = Reference::open(&settings.reference)?;

    let started = Instant::now();
    let model = Model::load(backend, path, &run.model)?;
    let compared = check_vocabulary(&file, path, &model, settings.vocabulary)?;
    let longest = longest_window(&file);
    if !matches!(file, Reference::KlPy(_)) {
        warn_long_window(longest, &model);
    }
    let options = context_options(run, longest, model.n_vocab(), precedent(&file));
    if let Some(there) = &reference.backend {
        warn_of_differences(&backend_identity(backend, run, &options), there);
    }
    let loaded = started.elapsed();

    let identity = model.identity();
    let is_reference_model = native_header(&file)
        .is_some_and(|header| header.model.metadata_sha256 == identity.metadata_sha256);
    let of_reference = summarize(&file);
    let extras = Extras::wanted(settings, &file);
    let rows = ReferenceRows::new(file, model.bos(), run.max_rows).cut_to(compared);
    let n_contexts = match settings.contexts {
        Some(n) => n as usize,
        None if model.is_offloaded() => 2,
        None => 1,
    };
    let make = || Ok(model.decoder(&options)?);
    let Measured {
        records,
        extra,
        worst,
        mut timing,
    } = measure(
        settings,
        &identity.file_name,
        &rows,
        extras,
        n_contexts,
        make,
    )?;
    if timing.refused > 0 {
        warn(&Warning::FewerContexts);
    }
    let llama_perplexity = extras.llama_perplexity(settings, &records, &extra);
    let logits = extras.logits(settings, &records, &extra);

    let sidecar_header = SidecarHeader {
        version: SIDECAR_VERSION,
        writer: writer(),
        model: identity.clone(),
        model_path: path.display().to_string(),
        reference: of_reference,
        n_ctx: reference.n_ctx,
        n_vocab: reference.n_vocab,
        first_scored: reference.first_scored.unwrap_or(0),
        n_records: records.len() as u64,
    };
    let writing = Instant::now();
    let sidecar = match sidecar
        .map(|file| file.write(&sidecar_header, &records))
        .transpose()
    {
        Ok(path) => path,
        Err(error) => {
            results.fail(error);
            None
        }
    };
    timing.write = writing.elapsed();
    let wall_s = started.elapsed().as_secs_f64();
    let summary = Summary::from_records(&records, settings.confidence);
    warn_of_results(&summary);
    let max_token = summary.kld.as_ref().and_then(|kld| kld.max_at.token);
    let max_at_text = max_token.map(|token| model.piece(token));
    let text = |tokens: &[u32]| model.text(tokens);
    let top = worst.map(|worst| {
        let worst = worst.into_sorted().into_iter();
        worst
            .map(|(record, around)| TopToken::new(&record, &around, text))
            .collect()
    });
    let tokens = settings
        .json_tokens
        .then(|| TokenColumns::of(&records, text));
    if is_last {
        model.drop_last();
    }
    let mut report = ModelReport {
        model: ModelInfo::new(path, &identity),
        is_reference_model,
        n_vocab_compared: compared,
        max_at_text,
        sidecar: sidecar.map(|path| path.display().to_string()),
        timing: TimingInfo::new(
            &timing,
            (loaded + timing.load).as_secs_f64(),
            wall_s,
            records.len() as u64,
        ),
        summary,
        llama_perplexity,
        logits,
        conditions: Vec::new(),
        top: None,
        tokens: None,
    };
    report.conditions = judge(&settings.conditions, &report);
    (report.top, report.tokens) = (top, tokens);
    Ok(report)
}

/// What comes of an evaluation, token by token.
struct Measured {
    records: Vec<TokenRecord>,
    /// One a record, if any were wanted.
    extra: Vec<Extra>,
    worst: Option<Worst<Surroundings>>,
    timing: Timing,
}

/// Scores all rows, shows how far it is, and stops where it is asked to.
fn measure<S: LogitSource>(
    settings: &ReadSettings,
    name: &str,
    rows: &ReferenceRows,
    extras: Extras,
    n_sources: usize,
    make: impl Fn() -> Result<S, pipeline::Error> + Sync,
) -> Result<Measured> {
    let mut progress = Progress::new(name, rows.n_windows, rows.n_rows, settings.run.quiet);
    let mut records = Vec::new();
    let mut extra = Vec::new();
    let mut worst = settings.top_k.map(|n| Worst::new(n as usize));
    let mut mean = Running::default();
    let of_rows = |row: Row<'_>, evaluated: &[f32], next| extras.of(row, evaluated, next);
    let timing = evaluate(n_sources, make, rows, Kernel::detect(), of_rows, |step| {
        match step {
            Step::Rows(n) => progress.rows(n),
            Step::Window(window) => {
                for (record, &top_p) in window.records.iter().zip(&window.top_p) {
                    if !record.is_excluded() {
                        mean.push(record.kld);
                    }
                    if let Some(worst) = &mut worst {
                        let around = || Surroundings::new(window, record.position, top_p);
                        worst.push(record, around);
                    }
                }
                records.extend_from_slice(&window.records);
                if extras.any() {
                    extra.extend_from_slice(&window.extras);
                }
                progress.window(mean.mean());
            }
        }
        stop::check()
    });
    progress.finish();
    Ok(Measured {
        records,
        extra,
        worst,
        timing: timing?,
    })
}

fn warn_of_results(summary: &Summary) {
    if summary.n_excluded > 0 {
        warn(&Warning::Excluded(summary.n_excluded));
    }
    if summary.n_windows == 1 {
        warn(&Warning::FewWindows(summary.n_windows));
    }
    if let Some(perplexity) = &summary.perplexity
        && perplexity.reference >= DOUBTFUL_PERPLEXITY
    {
        warn(&Warning::HighPerplexity(perplexity.reference));
    }
}
