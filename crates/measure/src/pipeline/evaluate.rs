//! Evaluates a model: scores each of its rows against the reference's row at the same position.

use std::time::Duration;

use kl_formats::sidecar::TokenRecord;
use kl_formats::{Row, WindowSpec};
use kl_stats::score::{RowPair, floor, score};

use super::in_turn::{RowSink, Sources, in_turn};
use super::reference_rows::{OpenWindow, ReferenceRows};
use super::timing::Timing;
use super::{Error, Step};

/// The scores of a window; `M` holds the caller's own measures of a position.
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
pub fn evaluate<M: Send>(
    sources: Sources<'_>,
    reference: &ReferenceRows<'_>,
    measure: impl Fn(&RowPair<'_>) -> M + Sync,
    mut on_step: impl FnMut(Step<ScoredWindow<M>>) -> Result<(), Error>,
) -> Result<Timing, Error> {
    // A stream has one window open at a time.
    let max_windows = if reference.is_stream() { 1 } else { usize::MAX };
    let sources = Sources {
        n: sources.n.min(max_windows),
        n_windows: sources.n_windows.min(max_windows),
        ..sources
    };
    let device = sources.device.clone();
    let next_scoring = || {
        let window = reference.next_window()?;
        Ok(window.map(|window| Scoring {
            reference,
            measure: &measure,
            is_floored: false,
            scored: ScoredWindow {
                tokens: window.spec.tokens.clone(),
                records: Vec::with_capacity(window.spec.n_rows as usize),
                measured: Vec::with_capacity(window.spec.n_rows as usize),
            },
            window,
        }))
    };
    // The last window may bring more rows than are wanted.
    let mut n_rows_left = reference.max_rows;
    let timing = in_turn(sources, next_scoring, |step| match step {
        Step::Rows(n) => on_step(Step::Rows(n)),
        Step::Window(mut scored) => {
            let n_rows = usize::try_from(n_rows_left).unwrap_or(usize::MAX);
            scored.records.truncate(n_rows);
            scored.measured.truncate(n_rows);
            n_rows_left -= scored.records.len() as u64;
            on_step(Step::Window(scored))
        }
    })?;
    let (cpu_time, file_time) = reference.waits(&timing);
    Ok(Timing {
        device: device.and_then(|device| device.time(cpu_time, file_time)),
        ..timing
    })
}

/// A window of the reference, whose rows are compared with the model's.
struct Scoring<'r, 'h, M, F> {
    reference: &'r ReferenceRows<'h>,
    window: OpenWindow<'r>,
    measure: &'r F,
    /// True if the evaluated rows are log-probabilities with a floor.
    is_floored: bool,
    scored: ScoredWindow<M>,
}

impl<M: Send, F: Fn(&RowPair<'_>) -> M + Sync> RowSink for Scoring<'_, '_, M, F> {
    type Done = ScoredWindow<M>;

    fn window(&self) -> &WindowSpec {
        &self.window.spec
    }

    fn begin(&mut self, n_vocab: usize, is_floored: bool) -> Result<(), Error> {
        self.is_floored = is_floored;
        let WindowSpec { window, tokens, .. } = &self.window.spec;
        let unknown_token = tokens
            .iter()
            .enumerate()
            .find(|&(_, &token)| token as usize >= n_vocab);
        match unknown_token {
            Some((position, token)) => Err(Error::Reference(format!(
                "window {window}, position {position} of the reference holds token {token}, but the model has only {n_vocab} tokens: the reference was made with another vocabulary"
            ))),
            None => Ok(()),
        }
    }

    fn push(&mut self, rows: &[&[f32]]) -> Result<(), Error> {
        let (n_entries, measure) = (self.reference.n_entries, self.measure);
        let (ref_is_floored, eval_is_floored) = (self.reference.is_floored, self.is_floored);
        let first = self.window.spec.first_scored as usize + self.scored.records.len();
        let (window, tokens) = (self.window.spec.window, &self.scored.tokens);
        let scores = self.window.map(rows.len(), |i, row| {
            let (whole_row, position) = (rows[i], first + i);
            let eval = whole_row.get(..n_entries).unwrap_or(whole_row);
            let next = tokens.get(position + 1).copied();
            let pair = RowPair {
                reference: row.first(n_entries),
                eval,
                next: next.filter(|&next| (next as usize) < eval.len()),
                ref_floor: ref_is_floored.then(|| floor(row)).flatten(),
                eval_floor: eval_is_floored
                    .then(|| floor(Row::F32(whole_row)))
                    .flatten(),
            };
            let record = TokenRecord {
                window,
                position: position as u32,
                ..score(&pair)
            };
            (record, measure(&pair))
        })?;
        for (record, measured) in scores {
            self.scored.records.push(record);
            self.scored.measured.push(measured);
        }
        Ok(())
    }

    fn waited(&self) -> Duration {
        self.window.reading_time
    }

    fn finish(self) -> Result<ScoredWindow<M>, Error> {
        Ok(self.scored)
    }
}
