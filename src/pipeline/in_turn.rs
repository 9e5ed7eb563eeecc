//! Several sources of one model's rows, used in turn: while the rows of one are scored or encoded,
//! another decodes.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kl_formats::WindowSpec;

use super::timing::{DeviceClock, Timing, core_wait};
use super::{Error, Step, locked};
use crate::engine::Decoder;

/// A source of rows of logits, one window at a time: a model's context, or a file.
pub trait LogitSource {
    /// Entries in a row.
    fn n_vocab(&self) -> usize;

    /// Returns true if the rows are log-probabilities with a floor, as llama.cpp's base file holds
    /// them, and not raw logits.
    fn is_floored(&self) -> bool {
        false
    }

    /// Runs one window from its start and hands the rows of its scored positions to `sink`, in order:
    /// some at a time, possibly none. The rows are gone when `sink` returns.
    ///
    /// # Errors
    /// Why the source has no rows, or what `sink` returned.
    fn decode(
        &mut self,
        window: &WindowSpec,
        sink: impl FnMut(&[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error>;

    /// Runs several windows as [`decode`](Self::decode) runs one, in fewer calls if the source can:
    /// `sink` is given the index of the window that the rows belong to, and all rows of one before
    /// those of the next.
    ///
    /// # Errors
    /// Those of [`decode`](Self::decode).
    fn decode_all(
        &mut self,
        windows: &[&WindowSpec],
        mut sink: impl FnMut(usize, &[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (i, window) in windows.iter().enumerate() {
            self.decode(window, |rows| sink(i, rows))?;
        }
        Ok(())
    }
}

impl<D: Decoder> LogitSource for D {
    fn n_vocab(&self) -> usize {
        Decoder::n_vocab(self)
    }

    fn decode(
        &mut self,
        window: &WindowSpec,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut start = Some(0);
        while let Some(at) = start {
            let outputs = self.decode_call(window, at, true)?;
            sink(&outputs.rows)?;
            start = outputs.next;
        }
        Ok(())
    }

    fn decode_all(
        &mut self,
        windows: &[&WindowSpec],
        mut sink: impl FnMut(usize, &[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut next = 0;
        while let Some(window) = windows.get(next) {
            let n = self.n_together(&windows[next..]).max(1);
            if n == 1 {
                self.decode(window, |rows| sink(next, rows))?;
            } else {
                let together = &windows[next..next + n];
                let rows = self.decode_together(together)?;
                let mut rows = rows.as_slice();
                for (i, window) in (next..).zip(together) {
                    let (own, others) = rows.split_at(window.n_rows as usize);
                    sink(i, own)?;
                    rows = others;
                }
            }
            next += n;
        }
        Ok(())
    }
}

/// The sources of a model's rows: `n` of them, each in a thread of its own, where `make` creates
/// it.
///
/// One is enough if the CPU decodes. If an accelerator does, a second keeps both busy: while the rows
/// of one are scored or encoded, the other decodes. (Sources make sure that only one decodes at a
/// time.) The results are the same, in the same order. A source that cannot be created is left out if
/// another can.
#[derive(Debug)]
pub struct Sources<F> {
    /// The number of sources.
    pub n: usize,
    /// Creates one.
    pub make: F,
    /// Measures how busy the accelerator is that computes all of their rows, if one does.
    pub device: Option<DeviceClock>,
    /// Windows that each takes at once, for a source that decodes several in a call.
    pub n_windows: usize,
}

impl<S: Send> Sources<fn() -> S> {
    /// One source that is there already, whose rows the CPU computes.
    pub fn ready(source: S) -> Sources<impl Fn() -> Result<S, Error> + Sync> {
        let source = Mutex::new(Some(source));
        Sources {
            n: 1,
            make: move || locked(&source).take().ok_or(Error::WorkerLost),
            device: None,
            n_windows: 1,
        }
    }
}

/// Does jobs with several sources: each thread asks `next` for some, one thread at a time, and `work`
/// does them.
///
/// `on_step` is called for every decode call, and with each job's result, in the order in which `next`
/// gave them. With [`Error::Enough`] it ends the run; jobs that were done ahead are dropped.
///
/// # Errors
/// Those of `make`, if no source can be created, and of the other functions.
pub(super) fn in_turn<S, J, T: Send>(
    sources: Sources<impl Fn() -> Result<S, Error> + Sync>,
    next: impl Fn() -> Result<Option<J>, Error> + Sync,
    work: impl Fn(&mut S, Vec<J>, &mut Progress<'_>) -> Result<Vec<T>, Error> + Sync,
    on_step: impl FnMut(Step<T>) -> Result<(), Error>,
) -> Result<Timing, Error> {
    let Sources {
        n,
        make,
        device,
        n_windows,
    } = sources;
    let n_windows = n_windows.max(1);
    // Jobs are numbered as they are taken: one lock for both.
    let numbered = Mutex::new(0u64);
    let next_jobs = || {
        let mut numbered = locked(&numbered);
        let mut jobs = Vec::new();
        while jobs.len() < n_windows
            && let Some(job) = next()?
        {
            jobs.push(job);
        }
        let first = *numbered;
        *numbered += jobs.len() as u64;
        Ok::<_, Error>((first, jobs))
    };
    // One source is created after the other: if memory is short, the first gets all that it needs.
    let making = Mutex::new(());
    let make = || {
        let _one = locked(&making);
        make()
    };
    let run = |reports: SyncSender<Result<Report<T>, Error>>| {
        let started = Instant::now();
        let mut source = make()?;
        // If the caller has stopped, nobody listens, and the caller knows why.
        let tell = |report| reports.send(report).map_err(|_| Error::Interrupted);
        let mut progress = Progress {
            timing: Timing {
                load: started.elapsed(),
                ..Timing::default()
            },
            device: device.as_ref(),
            on_rows: &|n| tell(Ok(Step::Rows(n))),
        };
        let mut work_on = || -> Result<(), Error> {
            loop {
                let (first, jobs) = next_jobs()?;
                if jobs.is_empty() {
                    return Ok(());
                }
                let done = work(&mut source, jobs, &mut progress)?;
                for (number, done) in (first..).zip(done) {
                    tell(Ok(Step::Window((number, done))))?;
                }
            }
        };
        if let Err(error) = work_on() {
            let _ = tell(Err(error));
        }
        progress.timing.core_wait = core_wait();
        Ok(progress.timing)
    };
    let (reported, ended) = std::thread::scope(|scope| {
        let (sender, reports) = sync_channel(2 * n);
        let workers: Vec<_> = (0..n)
            .map(|_| {
                let sender = sender.clone();
                scope.spawn(|| run(sender))
            })
            .collect();
        drop(sender);
        // The others stop once nobody receives their reports.
        let reported = in_order(reports, on_step);
        let ended = workers.into_iter().map(|worker| worker.join());
        (reported, ended.collect::<Vec<_>>())
    });
    match reported {
        Err(Error::Enough) => {}
        reported => reported?,
    }
    let (mut timings, mut refusal) = (Vec::new(), None);
    for ended in ended {
        match ended.map_err(|_| Error::WorkerLost)? {
            Ok(timing) => timings.push(timing),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    match refusal {
        Some(error) if timings.is_empty() => Err(error),
        _ => Ok(Timing {
            refused: n - timings.len(),
            ..Timing::mean(&timings)
        }),
    }
}

/// The notes of a thread as it works.
pub(super) struct Progress<'p> {
    /// Where its time went.
    pub(super) timing: Timing,
    /// Measures the device that computes its source's rows.
    device: Option<&'p DeviceClock>,
    /// Reports that this many more rows have come from the model.
    on_rows: &'p dyn Fn(usize) -> Result<(), Error>,
}

impl Progress<'_> {
    /// Runs windows as [`LogitSource::decode_all`] does, and returns the part of the time that `sink`
    /// took; the rest is noted as decoding.
    pub(super) fn decode(
        &mut self,
        source: &mut impl LogitSource,
        windows: &[&WindowSpec],
        mut sink: impl FnMut(usize, &[&[f32]]) -> Result<(), Error>,
    ) -> Result<Duration, Error> {
        let (started, mut in_sink) = (Instant::now(), Duration::ZERO);
        let mut call = self.device.map(DeviceClock::begin);
        source.decode_all(windows, |i, rows| {
            call = None;
            let sink_started = Instant::now();
            sink(i, rows)?;
            in_sink += sink_started.elapsed();
            (self.on_rows)(rows.len())?;
            call = self.device.map(DeviceClock::begin);
            Ok(())
        })?;
        drop(call);
        self.timing.decode += started.elapsed().saturating_sub(in_sink);
        Ok(in_sink)
    }
}

/// A report of a thread on its jobs, which are numbered in their order.
type Report<T> = Step<(u64, T)>;

/// Passes reports on to the caller, results in the order of the jobs.
fn in_order<T>(
    reports: Receiver<Result<Report<T>, Error>>,
    mut on_step: impl FnMut(Step<T>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut early = BTreeMap::new();
    let mut next = 0;
    for report in reports {
        match report? {
            Step::Rows(n) => on_step(Step::Rows(n))?,
            Step::Window((number, done)) => drop(early.insert(number, done)),
        }
        while let Some(done) = early.remove(&next) {
            next += 1;
            on_step(Step::Window(done))?;
        }
    }
    Ok(())
}
