//! One evaluation: rows are measured, and the numbers become a sidecar and a report.

use std::time::{Duration, Instant};

use anyhow::Result;
use kl_formats::sidecar::{SIDECAR_VERSION, TokenRecord};
use kl_formats::{ModelIdentity, ReferenceSummary, Row, SidecarHeader};

use super::extras::{Extra, Extras};
use super::progress::Progress;
use super::series::Turn;
use super::settings::ResultSettings;
use super::setup::writer;
use super::sidecar::SidecarFile;
use super::{Warning, stop, warn};
use crate::engine::LogitSource;
use crate::pipeline::{self, ReferenceRows, Step, Timing, evaluate};
use crate::report::{
    ModelInfo, ModelReport, Surroundings, TimingInfo, TokenColumns, TopToken, judge,
};
use crate::score::Kernel;
use crate::stats::{Running, Summary, Worst};

/// A reference's PPL from which on the text is doubted: base models on prose stay far below.
const DOUBTFUL_PERPLEXITY: f64 = 100.0;

/// What is evaluated, and how its numbers are to be told.
pub struct Subject<'s> {
    pub identity: ModelIdentity,
    pub is_reference_model: bool,
    /// Entries of each row that are compared.
    pub compared: u32,
    pub of_reference: ReferenceSummary,
    pub extras: Extras,
    pub sidecar: Option<SidecarFile>,
    /// The text of tokens.
    pub text: &'s dyn Fn(&[u32]) -> String,
    /// When it began to be loaded, and how long that took.
    pub started: Instant,
    pub loaded: Duration,
}

/// What comes of an evaluation, token by token.
pub struct Measured {
    records: Vec<TokenRecord>,
    /// One a record, if any were wanted.
    extra: Vec<Extra>,
    worst: Option<Worst<Surroundings>>,
    timing: Timing,
}

/// Scores all rows, shows how far it is, and stops where it is asked to. `make` makes one of
/// `n_sources` sources of the rows that are evaluated.
pub fn measure<S: LogitSource>(
    settings: &ResultSettings,
    subject: &Subject<'_>,
    rows: &ReferenceRows,
    n_sources: usize,
    make: impl Fn() -> Result<S, pipeline::Error> + Sync,
) -> Result<Measured> {
    let extras = subject.extras;
    let mut progress = Progress::new(
        &subject.identity.file_name,
        rows.n_windows,
        rows.n_rows,
        settings.quiet,
    );
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
    let timing = timing?;
    if timing.refused > 0 {
        warn(&Warning::FewerContexts);
    }
    Ok(Measured {
        records,
        extra,
        worst,
        timing,
    })
}

/// Writes the sidecar and makes the report. A sidecar that cannot be written is told to the series'
/// results, and does not lose the numbers.
pub fn report(
    settings: &ResultSettings,
    subject: Subject<'_>,
    measured: Measured,
    turn: Turn<'_, '_>,
) -> ModelReport {
    let Measured {
        records,
        extra,
        worst,
        mut timing,
    } = measured;
    let llama_perplexity = subject.extras.llama_perplexity(settings, &records, &extra);
    let logits = subject.extras.logits(settings, &records, &extra);

    let model = ModelInfo::new(turn.path, &subject.identity);
    let header = SidecarHeader {
        version: SIDECAR_VERSION,
        writer: writer(),
        model: subject.identity,
        model_path: turn.path.display().to_string(),
        reference: subject.of_reference,
        n_ctx: turn.reference.n_ctx,
        n_vocab: turn.reference.n_vocab,
        first_scored: turn.reference.first_scored.unwrap_or(0),
        n_records: records.len() as u64,
        n_vocab_compared: Some(subject.compared),
        backend: None,
    };
    let writing = Instant::now();
    let sidecar = subject.sidecar.map(|file| file.write(&header, &records));
    let sidecar = sidecar.transpose().unwrap_or_else(|error| {
        turn.results.fail(error);
        None
    });
    timing.write = writing.elapsed();
    let wall_s = subject.started.elapsed().as_secs_f64();
    let summary = Summary::from_records(&records, settings.confidence);
    warn_of_results(&summary);
    let text = subject.text;
    let max_token = summary.kld.as_ref().and_then(|kld| kld.max_at.token);
    let top = worst.map(|worst| {
        let worst = worst.into_sorted().into_iter();
        worst
            .map(|(record, around)| TopToken::new(&record, &around, text))
            .collect()
    });
    let tokens = settings
        .json_tokens
        .then(|| TokenColumns::of(&records, text));
    let mut report = ModelReport {
        model,
        is_reference_model: subject.is_reference_model,
        n_vocab_compared: subject.compared,
        max_at_text: max_token.map(|token| text(&[token])),
        sidecar: sidecar.map(|path| path.display().to_string()),
        timing: TimingInfo::new(
            &timing,
            (subject.loaded + timing.load).as_secs_f64(),
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
