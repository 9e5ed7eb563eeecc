//! One evaluation: rows are measured, and the numbers become a sidecar and a report.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kl_formats::sidecar::SIDECAR_VERSION;
use kl_formats::{BackendIdentity, ModelIdentity, ReferenceSummary, Row, SidecarHeader};

use super::extras::{Extra, Extras};
use super::progress::Progress;
use super::series::Turn;
use super::settings::ResultSettings;
use super::setup::writer;
use super::sidecar::SidecarFile;
use super::token_log::TokenLog;
use super::{Warning, stop, warn};
use crate::engine::LogitSource;
use crate::pipeline::{self, Error, ReferenceRows, Step, Timing};
use crate::report::{
    Interrupted, Lacking, ModelInfo, ModelReport, PromptReport, Surroundings, TimingInfo,
    TokenColumns, TopToken, judge,
};
use crate::score::Kernel;
use crate::stats::{PromptStats, Running, Summary, Worst};

/// A reference's PPL from which on the text is doubted: base models on prose stay far below.
const DOUBTFUL_PERPLEXITY: f64 = 100.0;

/// The text of tokens.
pub type TextOf<'t> = dyn Fn(&[u32]) -> String + 't;

/// What is evaluated, and how its numbers are to be told.
pub struct Subject<'s> {
    pub identity: ModelIdentity,
    pub is_reference_model: bool,
    /// Entries of each row that are compared.
    pub compared: u32,
    /// How its rows are computed, if they are.
    pub backend: Option<BackendIdentity>,
    pub of_reference: ReferenceSummary,
    /// What its prompts are known by, if the reference is of such.
    pub prompts: Option<Vec<String>>,
    pub extras: Extras,
    pub sidecar: Option<SidecarFile>,
    /// Whether a run that is cut off can be gone on with.
    pub is_resumable: bool,
    /// The text of tokens, if it is known.
    pub text: Option<&'s TextOf<'s>>,
    /// What the rows cannot tell.
    pub not_available: Vec<Lacking>,
    /// When it began to be loaded, and how long that took.
    pub started: Instant,
    pub loaded: Duration,
}

/// What comes of an evaluation besides records.
struct Measured {
    /// One a record, if any were wanted.
    extra: Vec<Extra>,
    worst: Option<Worst<Surroundings>>,
    /// `None` where there was nothing to do, or not all was done.
    timing: Option<Timing>,
    is_interrupted: bool,
}

/// Scores all rows that an earlier run has not scored, and makes sidecar and report. `make` makes
/// one of `n_sources` sources of the rows that are evaluated.
///
/// A sidecar that cannot be written is told to the series' results, and does not lose the numbers.
/// A run that is interrupted reports on what it has.
pub fn evaluate<S: LogitSource>(
    settings: &ResultSettings,
    mut subject: Subject<'_>,
    mut rows: ReferenceRows,
    n_sources: usize,
    make: impl Fn() -> Result<S, Error> + Sync,
    turn: Turn<'_, '_>,
) -> Result<ModelReport>
where
    Error: From<S::Error>,
{
    let header = sidecar_header(&subject, &turn, &rows);
    let wanted = rows.n_windows;
    let needs_more = settings.top_k.is_some() || subject.extras.any();
    let at_once = subject.is_resumable && rows.is_counted();
    let sidecar = subject.sidecar.take();
    let mut log = TokenLog::open(sidecar, &header, needs_more, at_once, &mut rows)?;
    let measured = match measure(settings, &subject, &rows, &mut log, n_sources, make) {
        Ok(measured) => measured,
        // What the model could not do may be done another time; a bad reference stays bad.
        Err(error @ (Error::Engine(_) | Error::Interrupted)) => match log.keep() {
            Some(kept) => bail!("{error}; {kept}"),
            None => return Err(error.into()),
        },
        Err(error) => {
            log.discard();
            return Err(error.into());
        }
    };
    let mut sidecar = None;
    if measured.is_interrupted {
        if let Some(kept) = log.keep() {
            say!("kl: {kept}");
        }
    } else {
        match log.finish(&header) {
            Ok(path) => sidecar = path,
            Err(error) => turn.results.fail(error),
        }
    }
    let report = report(settings, &subject, measured, &log, wanted, &turn);
    Ok(ModelReport {
        sidecar: sidecar.map(|path| path.display().to_string()),
        ..report
    })
}

fn sidecar_header(
    subject: &Subject<'_>,
    turn: &Turn<'_, '_>,
    rows: &ReferenceRows,
) -> SidecarHeader {
    SidecarHeader {
        version: SIDECAR_VERSION,
        writer: writer(),
        model: subject.identity.clone(),
        model_path: turn.path.display().to_string(),
        reference: subject.of_reference.clone(),
        n_ctx: turn.reference.n_ctx,
        n_vocab: turn.reference.n_vocab,
        first_scored: turn.reference.first_scored.unwrap_or(0),
        n_records: rows.n_scored().unwrap_or(0),
        n_vocab_compared: Some(subject.compared),
        backend: subject.backend.clone(),
    }
}

/// Scores rows, shows how far it is, and stops where it is asked to.
fn measure<S: LogitSource>(
    settings: &ResultSettings,
    subject: &Subject<'_>,
    rows: &ReferenceRows,
    log: &mut TokenLog,
    n_sources: usize,
    make: impl Fn() -> Result<S, Error> + Sync,
) -> Result<Measured, Error>
where
    Error: From<S::Error>,
{
    let extras = subject.extras;
    let mut measured = Measured {
        extra: Vec::new(),
        worst: settings.top_k.map(|n| Worst::new(n as usize)),
        timing: None,
        is_interrupted: false,
    };
    if log.is_whole {
        return Ok(measured);
    }
    let mut progress = Progress::new(
        &subject.identity.file_name,
        rows.n_windows,
        rows.n_rows,
        settings.quiet,
    );
    let mut mean = Running::default();
    let counted = log.records.iter().filter(|record| !record.is_excluded());
    counted.for_each(|record| mean.push(record.kld));
    let of_rows = |row: Row<'_>, evaluated: &[f32], next| extras.of(row, evaluated, next);
    let kernel = Kernel::detect();
    let timing = pipeline::evaluate(n_sources, make, rows, kernel, of_rows, |step| {
        match step {
            Step::Rows(n) => progress.rows(n),
            Step::Window(window) => {
                for (record, &top_p) in window.records.iter().zip(&window.top_p) {
                    if !record.is_excluded() {
                        mean.push(record.kld);
                    }
                    if let Some(worst) = &mut measured.worst {
                        let around = || Surroundings::new(window, record.position, top_p);
                        worst.push(record, around);
                    }
                }
                log.push(&window.records);
                if extras.any() {
                    measured.extra.extend_from_slice(&window.extras);
                }
                progress.window(mean.mean());
            }
        }
        stop::check()
    });
    progress.finish();
    match timing {
        Ok(timing) => {
            if timing.refused > 0 {
                warn(&Warning::FewerContexts);
            }
            measured.timing = Some(timing);
        }
        Err(Error::Interrupted) if !log.records.is_empty() => measured.is_interrupted = true,
        Err(error) => return Err(error),
    }
    Ok(measured)
}

/// `wanted`: how many windows there are, where that is known.
fn report(
    settings: &ResultSettings,
    subject: &Subject<'_>,
    measured: Measured,
    log: &TokenLog,
    wanted: Option<u64>,
    turn: &Turn<'_, '_>,
) -> ModelReport {
    let (records, extra) = (&log.records, &measured.extra);
    let summary = Summary::from_records(records, settings.confidence);
    warn_of_results(&summary);
    let text = |tokens: &[u32]| match subject.text {
        Some(text) => text(tokens),
        None => tokens.iter().map(|token| format!("<{token}>")).collect(),
    };
    let timing = measured.timing.map(|timing| {
        let timing = Timing {
            write: log.in_writing,
            ..timing
        };
        let load_s = (subject.loaded + timing.load).as_secs_f64();
        let wall_s = subject.started.elapsed().as_secs_f64();
        let n_rows = (records.len() - log.n_resumed) as u64;
        TimingInfo::new(&timing, load_s, wall_s, n_rows)
    });
    let max_token = summary.kld.as_ref().and_then(|kld| kld.max_at.token);
    let mut report = ModelReport {
        model: ModelInfo::new(turn.path, &subject.identity),
        is_reference_model: subject.is_reference_model,
        n_vocab_compared: subject.compared,
        max_at_text: max_token.and_then(|token| Some(subject.text?(&[token]))),
        sidecar: None,
        interrupted: measured.is_interrupted.then_some(Interrupted {
            n_windows: summary.n_windows,
            of: wanted,
        }),
        n_resumed: log.n_resumed as u64,
        timing,
        summary,
        llama_perplexity: subject.extras.llama_perplexity(settings, records, extra),
        logits: subject.extras.logits(settings, records, extra),
        not_available: subject.not_available.clone(),
        conditions: Vec::new(),
        prompts: None,
        top: None,
        tokens: None,
    };
    // Conditions are about the numbers above.
    report.conditions = judge(&settings.conditions, &report);
    report.prompts = subject.prompts.as_ref().map(|labels| {
        let metrics = subject.extras.logit_metrics(extra);
        PromptReport::of_each(labels, PromptStats::of_each(records, metrics.as_deref()))
    });
    report.top = measured.worst.map(|worst| {
        let worst = worst.into_sorted().into_iter();
        worst
            .map(|(record, around)| TopToken::new(&record, &around, text))
            .collect()
    });
    report.tokens = settings
        .json_tokens
        .then(|| TokenColumns::of(records, text));
    report
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
