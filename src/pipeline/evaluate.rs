//! Evaluates a model: scores each of its rows against the reference's row at the same position.

use std::time::Duration;

use kl_formats::sidecar::TokenRecord;
use kl_formats::{Row, WindowSpec};

use super::in_turn::{LogitSource, Progress, Sources, in_turn};
use super::reference_rows::{Origin, ReferenceRows};
use super::timing::Timing;
use super::window_rows::OpenWindow;
use super::{Error, Step};
use crate::score::{RowPair, floor, score};

/// The scores of a window; `M` is what else the caller measures at each scored position.
#[derive(Debug)]
pub struct ScoredWindow<M = ()> {
    /// All tokens of the window.
    pub tokens: Vec<u32>,
    /// The numbers that a sidecar keeps, of each scored position in their order.
    pub records: Vec<TokenRecord>,
    /// The caller's other measures, one for each record.
    pub measured: Vec<M>,
}

/// Runs sources of one model over the windows of a reference and scores every row.
///
/// `measure` is called for each pair of rows, on the core that scores it. To measure nothing else,
/// pass `|_| ()`, which costs nothing.
///
/// `on_step` is called for every decode call, and with each window's scores, in the reference's
/// order. With [`Error::Enough`] it ends the evaluation; windows that were decoded ahead are dropped.
///
/// # Errors
/// Those of the model, of the file and of `on_step`.
pub fn evaluate<S: LogitSource, M: Send>(
    sources: Sources<impl Fn() -> Result<S, Error> + Sync>,
    reference: &ReferenceRows<'_>,
    measure: impl Fn(&RowPair<'_>) -> M + Sync,
    mut on_step: impl FnMut(Step<ScoredWindow<M>>) -> Result<(), Error>,
) -> Result<Timing, Error> {
    let sources = match &reference.source.origin {
        // A stream has one window open at a time.
        Origin::Stream(_) => Sources {
            n: 1,
            n_windows: 1,
            ..sources
        },
        _ => sources,
    };
    let device = sources.device.clone();
    // The last window may bring more rows than are wanted.
    let mut wanted = reference.max_rows;
    let timing = in_turn(
        sources,
        || reference.next_window(),
        |source, windows, progress| {
            evaluate_windows(source, reference, windows, &measure, progress)
        },
        |step| match step {
            Step::Rows(n) => on_step(Step::Rows(n)),
            Step::Window(mut scored) => {
                let n_rows = usize::try_from(wanted).unwrap_or(usize::MAX);
                scored.records.truncate(n_rows);
                scored.measured.truncate(n_rows);
                wanted -= scored.records.len() as u64;
                on_step(Step::Window(scored))
            }
        },
    )?;
    Ok(Timing {
        device: device.and_then(|device| device.time(reference.waits(&timing))),
        ..timing
    })
}

fn evaluate_windows<S: LogitSource, M: Send>(
    source: &mut S,
    reference: &ReferenceRows<'_>,
    mut windows: Vec<OpenWindow<'_>>,
    measure: &(impl Fn(&RowPair<'_>) -> M + Sync),
    progress: &mut Progress<'_>,
) -> Result<Vec<ScoredWindow<M>>, Error> {
    for window in &windows {
        check_tokens(&window.spec, source.n_vocab())?;
    }
    let specs: Vec<WindowSpec> = windows.iter().map(|window| window.spec.clone()).collect();
    let mut scored: Vec<ScoredWindow<M>> = specs.iter().map(ScoredWindow::of).collect();
    let in_reading = |windows: &[OpenWindow<'_>]| -> Duration {
        windows.iter().map(|window| window.in_reading).sum()
    };
    let before_rows = in_reading(&windows);
    let (n_entries, ref_is_floored) = (reference.n_entries, reference.source.is_floored);
    let eval_is_floored = source.is_floored();
    let decoded: Vec<&WindowSpec> = specs.iter().collect();
    let in_sink = progress.decode(source, &decoded, |i, evaluated| {
        let (spec, scored) = (&specs[i], &mut scored[i]);
        let first = spec.first_scored as usize + scored.records.len();
        let scores = windows[i].map(evaluated.len(), |i, row| {
            let (whole, position) = (evaluated[i], first + i);
            let eval = whole.get(..n_entries).unwrap_or(whole);
            let next = spec.tokens.get(position + 1).copied();
            let pair = RowPair {
                reference: row.first(n_entries),
                eval,
                next: next.filter(|&next| (next as usize) < eval.len()),
                ref_floor: ref_is_floored.then(|| floor(row)).flatten(),
                eval_floor: eval_is_floored.then(|| floor(Row::F32(whole))).flatten(),
            };
            let record = TokenRecord {
                window: spec.window,
                position: position as u32,
                ..score(&pair)
            };
            (record, measure(&pair))
        })?;
        for (record, measured) in scores {
            scored.records.push(record);
            scored.measured.push(measured);
        }
        Ok(())
    })?;
    let in_reading = in_reading(&windows);
    progress.timing.score += in_sink.saturating_sub(in_reading - before_rows);
    progress.timing.read += in_reading;
    Ok(scored)
}

impl<M> ScoredWindow<M> {
    /// A window none of whose rows are scored yet.
    fn of(spec: &WindowSpec) -> Self {
        Self {
            tokens: spec.tokens.clone(),
            records: Vec::with_capacity(spec.n_rows as usize),
            measured: Vec::with_capacity(spec.n_rows as usize),
        }
    }
}

fn check_tokens(spec: &WindowSpec, n_vocab: usize) -> Result<(), Error> {
    let mut tokens = spec.tokens.iter().enumerate();
    match tokens.find(|&(_, &token)| token as usize >= n_vocab) {
        None => Ok(()),
        Some((position, token)) => Err(Error::Reference(format!(
            "window {}, position {position} of the reference holds token {token}, but the model has only {n_vocab} tokens: the reference was made with another vocabulary",
            spec.window
        ))),
    }
}
