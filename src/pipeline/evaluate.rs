//! A model against a reference: every row of the reference beside the row that the model gives.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kl_formats::sidecar::TokenRecord;
use kl_formats::{Row, WindowHead};

use super::reference_rows::{ReferenceRows, Window};
use super::{Error, Step, Timing, locked};
use crate::engine::LogitSource;
use crate::score::{Kernel, TokenScore};

/// What was measured in a window.
#[derive(Debug)]
pub struct ScoredWindow<X = ()> {
    /// All tokens of the window.
    pub tokens: Vec<u32>,
    /// One a scored position, in their order.
    pub records: Vec<TokenRecord>,
    /// What a record leaves out: one a record, in their order.
    pub top_p: Vec<TopP>,
    /// What the caller asked for besides: one a record, in their order.
    pub extras: Vec<X>,
}

/// The probabilities of both models' first choices at one position, each under its own model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopP {
    /// p(`ref_top`); NaN where a row is not finite.
    pub reference: f64,
    /// q(`eval_top`); NaN where a row is not finite.
    pub evaluated: f64,
}

/// Runs sources of one model over the windows of a reference and scores every row.
///
/// Each of `n_sources` works in a thread of its own, where `make` is called. One is enough where
/// the CPU decodes. Where an accelerator does, a second keeps both busy: while the rows of one are
/// scored the other decodes, and sources see to it that one decodes at a time. The results are the
/// same, and come in the same order. A source that cannot be made is done without if another can.
///
/// `extra` is computed of each pair of rows besides its record, on the same cores: it gets the
/// reference's row, the model's and the token that follows. `|_, _, _| ()` costs nothing.
///
/// `on_step` is told of every decode call, and gets each window's scores, in the reference's order.
///
/// # Errors
/// What the model, the file or `on_step` says.
pub fn evaluate<S: LogitSource, X: Send>(
    n_sources: usize,
    make: impl Fn() -> Result<S, Error> + Sync,
    reference: &ReferenceRows,
    kernel: Kernel,
    extra: impl Fn(Row<'_>, &[f32], Option<u32>) -> X + Sync,
    on_step: impl FnMut(Step<&ScoredWindow<X>>) -> Result<(), Error>,
) -> Result<Timing, Error>
where
    Error: From<S::Error>,
{
    // A stream has one window under way, whoever reads it.
    let n_sources = if reference.can_share() { n_sources } else { 1 };
    // Windows are numbered as they are taken: one lock for both.
    let numbered = Mutex::new(0u64);
    let next_window = || {
        let mut numbered = locked(&numbered);
        let window = reference.next_window()?;
        *numbered += 1;
        Ok::<_, Error>(window.map(|window| (*numbered - 1, window)))
    };
    let failed = AtomicBool::new(false);
    // One after the other: where memory is short, the first gets all that it needs.
    let making = Mutex::new(());
    let make = || {
        let _one = locked(&making);
        make()
    };
    let n_entries = reference.n_entries;
    let score = |row: Row<'_>, evaluated: &[f32], next: Option<u32>| {
        let (row, evaluated) = (
            row.first(n_entries),
            evaluated.get(..n_entries).unwrap_or(evaluated),
        );
        let next = next.filter(|&next| (next as usize) < evaluated.len());
        let score = kernel.score(row, evaluated, next);
        (next, score, extra(row, evaluated, next))
    };
    let work = |steps: SyncSender<Report<X>>| {
        let started = Instant::now();
        let mut source = match make() {
            Ok(source) => source,
            Err(error) => return Ok(Err(error)),
        };
        let mut timing = Timing {
            load: started.elapsed(),
            ..Timing::default()
        };
        // Nobody listens where the caller has stopped, and says why.
        let tell = |report| match failed.load(Ordering::Relaxed) {
            false => steps.send(report).map_err(|_| Error::Interrupted),
            true => Err(Error::Interrupted),
        };
        // Told where the work ends early, by a panic too.
        let mut early = SetOnDrop(Some(&failed));
        while let Some((number, window)) = next_window()? {
            let on_rows = |n| tell(Report::Rows(n));
            let scored = evaluate_window(&mut source, window, score, &mut timing, on_rows)?;
            tell(Report::Window(number, scored))?;
        }
        early.0 = None;
        Ok(Ok(timing))
    };
    let (told, ended) = std::thread::scope(|scope| {
        let (steps, reports) = sync_channel(2 * n_sources);
        let workers: Vec<_> = (0..n_sources)
            .map(|_| {
                let steps = steps.clone();
                scope.spawn(|| work(steps))
            })
            .collect();
        drop(steps);
        let told = in_order(reports, reference.max_rows, on_step);
        let ended = workers.into_iter().map(|worker| worker.join());
        (told, ended.collect::<Vec<_>>())
    });
    told?;
    let (mut timings, mut refusal) = (Vec::new(), None);
    let mut interrupted = None;
    for ended in ended {
        match ended.unwrap_or(Err(Error::WorkerLost)) {
            Ok(Ok(timing)) => timings.push(timing),
            Ok(Err(error)) => refusal = refusal.or(Some(error)),
            Err(error @ Error::Interrupted) => interrupted = Some(error),
            Err(error) => return Err(error),
        }
    }
    match (interrupted, refusal) {
        (Some(error), _) => Err(error),
        (None, Some(error)) if timings.is_empty() => Err(error),
        _ => Ok(Timing {
            refused: n_sources - timings.len(),
            ..Timing::mean(&timings)
        }),
    }
}

/// Says that a thread has failed, unless it is told that all went well.
struct SetOnDrop<'f>(Option<&'f AtomicBool>);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(failed) = self.0 {
            failed.store(true, Ordering::Relaxed);
        }
    }
}

/// What a thread tells of its windows, which are numbered in the order of the reference.
enum Report<X> {
    Rows(usize),
    Window(u64, ScoredWindow<X>),
}

/// Hands on what comes, windows in their order.
fn in_order<X>(
    reports: Receiver<Report<X>>,
    max_rows: u64,
    mut on_step: impl FnMut(Step<&ScoredWindow<X>>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut limit = Limit(max_rows);
    let mut early = BTreeMap::new();
    let mut next = 0;
    for report in reports {
        match report {
            Report::Rows(n) => on_step(Step::Rows(n))?,
            Report::Window(number, scored) => drop(early.insert(number, scored)),
        }
        while let Some(mut scored) = early.remove(&next) {
            next += 1;
            limit.cut(&mut scored);
            on_step(Step::Window(&scored))?;
        }
    }
    Ok(())
}

/// Rows that are still wanted: the last window may bring more.
struct Limit(u64);

impl Limit {
    fn cut<X>(&mut self, scored: &mut ScoredWindow<X>) {
        let n_rows = usize::try_from(self.0).unwrap_or(usize::MAX);
        scored.records.truncate(n_rows);
        scored.top_p.truncate(n_rows);
        scored.extras.truncate(n_rows);
        self.0 -= scored.records.len() as u64;
    }
}

fn evaluate_window<S: LogitSource, X: Send>(
    source: &mut S,
    mut window: Window<'_>,
    score: impl Fn(Row<'_>, &[f32], Option<u32>) -> (Option<u32>, TokenScore, X) + Sync,
    timing: &mut Timing,
    mut on_rows: impl FnMut(usize) -> Result<(), Error>,
) -> Result<ScoredWindow<X>, Error>
where
    Error: From<S::Error>,
{
    check_tokens(&window.head, source.n_vocab())?;
    let head = window.head.clone();
    let n_rows = head.n_rows as usize;
    let mut scored = ScoredWindow {
        tokens: head.tokens.clone(),
        records: Vec::with_capacity(n_rows),
        top_p: Vec::with_capacity(n_rows),
        extras: Vec::with_capacity(n_rows),
    };
    let started = Instant::now();
    let mut in_sink = Duration::ZERO;
    let in_head = window.in_reading;
    source.decode(&head, |evaluated| {
        let sink_started = Instant::now();
        let first = head.first_scored as usize + scored.records.len();
        let rows = window.map(evaluated.len(), |place, row| {
            let next = head.tokens.get(first + place + 1).copied();
            score(row, evaluated[place], next)
        })?;
        for (place, (next, score, extra)) in rows.into_iter().enumerate() {
            let position = (first + place) as u32;
            scored
                .records
                .push(record(head.window, position, next, &score));
            scored.top_p.push(TopP {
                reference: score.ref_top_p,
                evaluated: score.eval_top_p,
            });
            scored.extras.push(extra);
        }
        in_sink += sink_started.elapsed();
        on_rows(evaluated.len())
    })?;
    timing.decode += started.elapsed().saturating_sub(in_sink);
    timing.score += in_sink.saturating_sub(window.in_reading - in_head);
    timing.read += window.in_reading;
    Ok(scored)
}

fn check_tokens(head: &WindowHead, n_vocab: usize) -> Result<(), Error> {
    match head
        .tokens
        .iter()
        .position(|&token| token as usize >= n_vocab)
    {
        None => Ok(()),
        Some(position) => Err(Error::TokenOutOfRange {
            window: head.window,
            position,
            token: head.tokens[position],
            n_vocab,
        }),
    }
}

pub(super) fn record(
    window: u32,
    position: u32,
    next: Option<u32>,
    score: &TokenScore,
) -> TokenRecord {
    let flag = |finite: bool, flag: u32| if finite { 0 } else { flag };
    TokenRecord {
        window,
        position,
        token: next.unwrap_or(u32::MAX),
        flags: flag(score.ref_finite, TokenRecord::REF_NOT_FINITE)
            | flag(score.eval_finite, TokenRecord::EVAL_NOT_FINITE),
        ref_top: score.ref_top,
        eval_top: score.eval_top,
        ref_top_rank: score.ref_top_rank,
        eval_top_rank: score.eval_top_rank,
        kld: score.kld,
        reverse_kld: score.reverse_kld,
        ref_nll: score.ref_nll,
        eval_nll: score.eval_nll,
        ref_entropy: score.ref_entropy,
    }
}
