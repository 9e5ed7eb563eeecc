//! Evaluates a model: scores each of its rows against the reference's row at the same position.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kl_formats::sidecar::TokenRecord;
use kl_formats::{Row, WindowSpec};

use super::open_window::OpenWindow;
use super::reference_rows::ReferenceRows;
use super::{Error, Step, Timing, locked};
use crate::engine::LogitSource;
use crate::score::{Kernel, RowPair, TokenScore, floor};

/// The scores of a window; `M` is what else the caller measures at each scored position.
#[derive(Debug)]
pub struct ScoredWindow<M = ()> {
    /// All tokens of the window.
    pub tokens: Vec<u32>,
    /// One for each scored position, in their order.
    pub rows: Vec<ScoredRow<M>>,
}

/// The scores of one position.
#[derive(Debug)]
pub struct ScoredRow<M = ()> {
    /// The numbers that a sidecar keeps.
    pub record: TokenRecord,
    /// What else the caller measured.
    pub measured: M,
}

/// Runs sources of one model over the windows of a reference and scores every row.
///
/// Each of the `n_sources` sources runs in its own thread, where `make` creates it. One is enough
/// if the CPU decodes. If an accelerator does, a second keeps both busy: while the rows of one are
/// scored, the other decodes. (Sources make sure that only one decodes at a time.) The results are
/// the same, in the same order. A source that cannot be created is left out if another can.
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
    n_sources: usize,
    make: impl Fn() -> Result<S, Error> + Sync,
    reference: &ReferenceRows<'_>,
    kernel: Kernel,
    measure: impl Fn(&RowPair<'_>) -> M + Sync,
    mut on_step: impl FnMut(Step<&ScoredWindow<M>>) -> Result<(), Error>,
) -> Result<Timing, Error>
where
    Error: From<S::Error>,
{
    // A stream has one window open at a time.
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
    let has_enough = AtomicBool::new(false);
    let on_step = |step: Step<&ScoredWindow<M>>| {
        let done = on_step(step);
        has_enough.fetch_or(matches!(done, Err(Error::Enough)), Ordering::Relaxed);
        done
    };
    // One source is created after the other: if memory is short, the first gets all that it needs.
    let making = Mutex::new(());
    let make = || {
        let _one = locked(&making);
        make()
    };
    let n_entries = reference.n_entries;
    let score = |pair: RowPair<'_>| {
        let eval = pair.eval.get(..n_entries).unwrap_or(pair.eval);
        let pair = RowPair {
            reference: pair.reference.first(n_entries),
            eval,
            next: pair.next.filter(|&next| (next as usize) < eval.len()),
            ..pair
        };
        (pair.next, kernel.score(&pair), measure(&pair))
    };
    let work = |steps: SyncSender<Report<M>>| {
        let started = Instant::now();
        let mut source = match make() {
            Ok(source) => source,
            Err(error) => return Ok(Err(error)),
        };
        let mut timing = Timing {
            load: started.elapsed(),
            ..Timing::default()
        };
        // If the caller has stopped, nobody listens, and the caller knows why.
        let tell = |report| match failed.load(Ordering::Relaxed) {
            false => steps.send(report).map_err(|_| Error::Interrupted),
            true => Err(Error::Interrupted),
        };
        // Sets `failed` if the work ends early, by a panic too.
        let mut early = SetOnDrop(Some(&failed));
        let mut work_on = || -> Result<(), Error> {
            while let Some((number, window)) = next_window()? {
                let on_rows = |n| tell(Report::Rows(n));
                let scored = evaluate_window(&mut source, window, score, &mut timing, on_rows)?;
                tell(Report::Window(number, scored))?;
            }
            Ok(())
        };
        match work_on() {
            // Whatever happened at a window beyond the last one that counts.
            Err(_) if has_enough.load(Ordering::Relaxed) => {}
            done => done?,
        }
        early.0 = None;
        Ok(Ok(timing))
    };
    let (reported, ended) = std::thread::scope(|scope| {
        let (steps, reports) = sync_channel(2 * n_sources);
        let workers: Vec<_> = (0..n_sources)
            .map(|_| {
                let steps = steps.clone();
                scope.spawn(|| work(steps))
            })
            .collect();
        drop(steps);
        let reported = in_order(reports, reference.max_rows, on_step);
        let ended = workers.into_iter().map(|worker| worker.join());
        (reported, ended.collect::<Vec<_>>())
    });
    match reported {
        Err(Error::Enough) => {}
        reported => reported?,
    }
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

/// Marks that a thread has failed, unless it is cleared first.
struct SetOnDrop<'f>(Option<&'f AtomicBool>);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(failed) = self.0 {
            failed.store(true, Ordering::Relaxed);
        }
    }
}

/// What a thread reports of its windows, which are numbered in the order of the reference.
enum Report<M> {
    Rows(usize),
    Window(u64, ScoredWindow<M>),
}

/// Passes reports on to the caller, windows in the order of the reference.
fn in_order<M>(
    reports: Receiver<Report<M>>,
    max_rows: u64,
    mut on_step: impl FnMut(Step<&ScoredWindow<M>>) -> Result<(), Error>,
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

/// How many rows are still wanted: the last window may bring more.
struct Limit(u64);

impl Limit {
    fn cut<M>(&mut self, scored: &mut ScoredWindow<M>) {
        let n_rows = usize::try_from(self.0).unwrap_or(usize::MAX);
        scored.rows.truncate(n_rows);
        self.0 -= scored.rows.len() as u64;
    }
}

fn evaluate_window<S: LogitSource, M: Send>(
    source: &mut S,
    mut window: OpenWindow<'_>,
    score: impl Fn(RowPair<'_>) -> (Option<u32>, TokenScore, M) + Sync,
    timing: &mut Timing,
    mut on_rows: impl FnMut(usize) -> Result<(), Error>,
) -> Result<ScoredWindow<M>, Error>
where
    Error: From<S::Error>,
{
    check_tokens(&window.spec, source.n_vocab())?;
    let spec = window.spec.clone();
    let mut scored = ScoredWindow {
        tokens: spec.tokens.clone(),
        rows: Vec::with_capacity(spec.n_rows as usize),
    };
    let started = Instant::now();
    let mut in_sink = Duration::ZERO;
    let before_rows = window.in_reading;
    // Floors are those of whole rows, before `score` cuts them.
    let (ref_is_floored, eval_is_floored) = (window.is_floored, source.is_floored());
    source.decode(&spec, |evaluated| {
        let sink_started = Instant::now();
        let first = spec.first_scored as usize + scored.rows.len();
        let rows = window.map(evaluated.len(), |i, row| {
            let eval = evaluated[i];
            score(RowPair {
                reference: row,
                eval,
                next: spec.tokens.get(first + i + 1).copied(),
                ref_floor: ref_is_floored.then(|| floor(row)).flatten(),
                eval_floor: eval_is_floored.then(|| floor(Row::F32(eval))).flatten(),
            })
        })?;
        for (i, (next, score, measured)) in rows.into_iter().enumerate() {
            let position = (first + i) as u32;
            scored.rows.push(ScoredRow {
                record: record(spec.window, position, next, &score),
                measured,
            });
        }
        in_sink += sink_started.elapsed();
        on_rows(evaluated.len())
    })?;
    timing.decode += started.elapsed().saturating_sub(in_sink);
    timing.score += in_sink.saturating_sub(window.in_reading - before_rows);
    timing.read += window.in_reading;
    Ok(scored)
}

fn check_tokens(spec: &WindowSpec, n_vocab: usize) -> Result<(), Error> {
    match spec
        .tokens
        .iter()
        .position(|&token| token as usize >= n_vocab)
    {
        None => Ok(()),
        Some(position) => Err(Error::TokenOutOfRange {
            window: spec.window,
            position,
            token: spec.tokens[position],
            n_vocab,
        }),
    }
}

/// The record of a scored position.
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
        ref_top_p: score.ref_top_p,
        eval_top_p: score.eval_top_p,
        ref_unknown_p: score.ref_unknown_p,
        group: 0,
    }
}
