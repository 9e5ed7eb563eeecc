//! Runs several sources of rows in turn: while the rows of one are scored, encoded or kept, another
//! decodes.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kl_engine::Decoder;
use kl_formats::WindowSpec;
use kl_system::threads;

use super::timing::{DeviceClock, Timing, core_wait};
use super::{Error, Step, locked};

/// Gets some rows of the window with this index; they are gone when it returns.
pub type UseRows<'u> = dyn FnMut(usize, &[&[f32]]) -> Result<(), Error> + 'u;

/// A source of rows of logits, one window at a time: a model's context, or a file.
pub trait LogitSource: Send {
    /// Entries in a row.
    fn n_vocab(&self) -> usize;

    /// True if the rows are log-probabilities with a floor, as llama.cpp's base file holds them, and
    /// not raw logits.
    fn is_floored(&self) -> bool {
        false
    }

    /// Runs windows, each from its start, and hands the rows of their scored positions to `sink` with the
    /// index of their window: all of one before those of the next, in order, some at a time, possibly none.
    /// The rows are gone when `sink` returns.
    ///
    /// # Errors
    /// Why the source has no rows, or what `sink` returned.
    fn decode(&mut self, windows: &[&WindowSpec], sink: &mut UseRows<'_>) -> Result<(), Error>;
}

impl LogitSource for Box<dyn Decoder + '_> {
    fn n_vocab(&self) -> usize {
        (**self).n_vocab()
    }

    fn decode(&mut self, windows: &[&WindowSpec], sink: &mut UseRows<'_>) -> Result<(), Error> {
        let mut next = 0;
        while let Some(window) = windows.get(next) {
            let n = self.n_together(&windows[next..]).max(1);
            if n == 1 {
                let mut next_call = Some(0);
                while let Some(start) = next_call {
                    let outputs = self.decode_call(window, start, true)?;
                    sink(next, &outputs.rows)?;
                    next_call = outputs.next;
                }
            } else {
                let windows_together = &windows[next..next + n];
                let rows = self.decode_together(windows_together)?;
                let mut rows_left = rows.as_slice();
                for (i, window) in (next..).zip(windows_together) {
                    let (own_rows, later_rows) = rows_left.split_at(window.n_rows as usize);
                    sink(i, own_rows)?;
                    rows_left = later_rows;
                }
            }
            next += n;
        }
        Ok(())
    }
}

/// Creates a source.
pub type MakeSource<'s> = Box<dyn Fn() -> Result<Box<dyn LogitSource + 's>, Error> + Sync + 's>;

/// The sources of a model's rows: `n` of them, each in a thread of its own, where `make` creates
/// it.
///
/// One is enough if the CPU decodes. If an accelerator does, a second keeps both busy: while the rows
/// of one are scored or encoded, the other decodes. (Contexts of one model take turns in
/// [`Decoder::decode_call`].) The results are the same, in the same order. A source that cannot be created is left out if
/// another can.
pub struct Sources<'s> {
    /// The number of sources.
    pub n: usize,
    /// Creates one.
    pub make: MakeSource<'s>,
    /// Measures how busy the accelerator is that computes all of their rows, if one does.
    pub device: Option<DeviceClock>,
    /// Windows that each takes at once, for a source that decodes several in a call.
    pub n_windows: usize,
}

impl<'s> Sources<'s> {
    /// One source that is there already, whose rows the CPU computes.
    pub fn ready(source: impl LogitSource + 's) -> Self {
        let source: Box<dyn LogitSource + 's> = Box::new(source);
        let source = Mutex::new(Some(source));
        Self {
            n: 1,
            make: Box::new(move || locked(&source).take().ok_or(Error::WorkerLost)),
            device: None,
            n_windows: 1,
        }
    }
}

/// The use of a window's rows: they are scored, written, or kept.
pub(super) trait RowSink {
    /// The result of a window.
    type Done: Send;

    fn window(&self) -> &WindowSpec;

    /// Gets ready for rows of `n_vocab` entries, which may be log-probabilities with a floor.
    ///
    /// # Errors
    /// Rows that cannot be used.
    fn begin(&mut self, _n_vocab: usize, _is_floored: bool) -> Result<(), Error> {
        Ok(())
    }

    /// Uses the next rows, which are gone when this returns.
    fn push(&mut self, rows: &[&[f32]]) -> Result<(), Error>;

    /// The time for which a file has kept it waiting.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    fn finish(self) -> Result<Self::Done, Error>;
}

/// Runs several sources over windows: each thread asks `next` for some, one thread at a time.
///
/// `on_step` is called for every decode call, and with what each window gave, in the order in which
/// `next` gave them. With [`Error::Enough`] it ends the run; windows that were done ahead are dropped.
/// The time for which sinks have waited is noted as reading.
///
/// # Errors
/// Those of the sources, if none can be created, of the sinks and of the other functions.
pub(super) fn in_turn<K: RowSink>(
    sources: Sources<'_>,
    next: impl Fn() -> Result<Option<K>, Error> + Sync,
    on_step: impl FnMut(Step<K::Done>) -> Result<(), Error>,
) -> Result<Timing, Error> {
    let (n, n_windows) = (sources.n, sources.n_windows.max(1));
    // One lock for taking windows and numbering them, so that numbers follow `next`.
    let n_taken = Mutex::new(0u64);
    let next_windows = || {
        let mut n_taken = locked(&n_taken);
        let sinks: Vec<K> = std::iter::from_fn(|| next().transpose())
            .take(n_windows)
            .collect::<Result<_, _>>()?;
        let first = *n_taken;
        *n_taken += sinks.len() as u64;
        Ok((first, sinks))
    };
    // One source is created after the other: if memory is short, the first gets all that it needs.
    let make = Mutex::new(&sources.make);
    let run = |reports: SyncSender<_>| {
        let started = Instant::now();
        let make = locked(&make);
        let mut source = make()?;
        drop(make);
        let (device, load) = (sources.device.as_ref(), started.elapsed());
        let mut timing = Timing {
            load,
            ..Timing::default()
        };
        // The caller waits for all windows in order, so it must hear of a panic, which is printed.
        let work_on_all = || work(&mut *source, &next_windows, device, &reports, &mut timing);
        let result = catch_unwind(AssertUnwindSafe(work_on_all)).unwrap_or(Err(Error::WorkerLost));
        if let Err(error) = result {
            let _ = reports.send(Err(error));
        }
        timing.core_wait = core_wait();
        Ok::<_, Error>(timing)
    };
    let run = &run;
    let (reported, results) = std::thread::scope(|scope| {
        let (sender, reports) = sync_channel(2 * n);
        let mut workers = Vec::new();
        for sender in std::iter::repeat_n(sender, n) {
            match threads::spawn_scoped(scope, None, move || run(sender)) {
                Ok(worker) => workers.push(worker),
                Err(cause) if workers.is_empty() => return Err(cause),
                // The others do its work.
                Err(_) => break,
            }
        }
        // On an error, the receiver is dropped, and the others stop at their next report.
        let reported = pass_in_order(reports, on_step);
        let results: Result<Vec<_>, _> = workers.into_iter().map(|worker| worker.join()).collect();
        Ok((reported, results))
    })?;
    if !matches!(reported, Err(Error::Enough)) {
        reported?;
    }
    let (worked, mut refused): (Vec<_>, Vec<_>) = results
        .map_err(|_| Error::WorkerLost)?
        .into_iter()
        .partition(Result::is_ok);
    if worked.is_empty() && !refused.is_empty() {
        return refused.swap_remove(0);
    }
    let timings: Vec<Timing> = worked.into_iter().flatten().collect();
    Ok(Timing {
        refused: refused.len(),
        ..Timing::mean(&timings)
    })
}

/// A report of a thread on its windows, which are numbered in their order.
type WorkerReport<T> = Step<(u64, T)>;

/// Runs a thread's source over the windows that `next` gives, and notes where its time goes.
fn work<K: RowSink>(
    source: &mut dyn LogitSource,
    next: &impl Fn() -> Result<(u64, Vec<K>), Error>,
    device: Option<&DeviceClock>,
    reports: &SyncSender<Result<WorkerReport<K::Done>, Error>>,
    timing: &mut Timing,
) -> Result<(), Error> {
    let waited = |sinks: &[K]| sinks.iter().map(K::waited).sum::<Duration>();
    loop {
        let (first, mut sinks) = next()?;
        if sinks.is_empty() {
            return Ok(());
        }
        let windows: Vec<WindowSpec> = sinks.iter().map(|sink| sink.window().clone()).collect();
        for sink in &mut sinks {
            sink.begin(source.n_vocab(), source.is_floored())?;
        }
        let (started, mut sink_time) = (Instant::now(), Duration::ZERO);
        let waited_before = waited(&sinks);
        let mut call = device.map(DeviceClock::begin);
        source.decode(&windows.iter().collect::<Vec<_>>(), &mut |i, rows| {
            // The device idles while rows are used.
            call = None;
            let push_started = Instant::now();
            sinks[i].push(rows)?;
            sink_time += push_started.elapsed();
            tell(reports, Step::Rows(rows.len()))?;
            call = device.map(DeviceClock::begin);
            Ok(())
        })?;
        drop(call);
        timing.decode += started.elapsed().saturating_sub(sink_time);
        timing.score += sink_time.saturating_sub(waited(&sinks) - waited_before);
        timing.read += waited(&sinks);
        for (number, sink) in (first..).zip(sinks) {
            tell(reports, Step::Window((number, sink.finish()?)))?;
        }
    }
}

/// Sends a report. If the caller has stopped, nobody listens, and the caller knows why.
fn tell<T>(
    reports: &SyncSender<Result<WorkerReport<T>, Error>>,
    report: WorkerReport<T>,
) -> Result<(), Error> {
    reports.send(Ok(report)).map_err(|_| Error::Interrupted)
}

/// Passes reports on to the caller, those on windows in their order.
fn pass_in_order<T>(
    reports: Receiver<Result<WorkerReport<T>, Error>>,
    mut on_step: impl FnMut(Step<T>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut early_windows, mut next) = (BTreeMap::new(), 0);
    for report in reports {
        match report? {
            Step::Rows(n) => on_step(Step::Rows(n))?,
            Step::Window((number, window)) => _ = early_windows.insert(number, window),
        }
        while let Some(window) = early_windows.remove(&next) {
            next += 1;
            on_step(Step::Window(window))?;
        }
    }
    Ok(())
}
