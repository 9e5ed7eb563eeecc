//! Two sources in turn, on a fake device that computes one call at a time.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::*;

/// A device that counts the calls that have begun.
#[derive(Default)]
struct Device {
    turn: Mutex<()>,
    n_begun: Mutex<usize>,
    has_begun: Condvar,
}

impl Device {
    /// Waits until the device has begun this many calls; `false` if it does not.
    fn wait_for(&self, n: usize) -> bool {
        let patience = Duration::from_secs(20);
        let begun = locked(&self.n_begun);
        let waited = self
            .has_begun
            .wait_timeout_while(begun, patience, |begun| *begun < n);
        !waited.unwrap().1.timed_out()
    }

    fn begin(&self) {
        *locked(&self.n_begun) += 1;
        self.has_begun.notify_all();
    }

    fn source(&self, seed: u64) -> OnDevice<'_> {
        OnDevice {
            device: self,
            source: fake(seed, 4),
            kept_until: 0,
        }
    }
}

/// A source whose calls the device computes.
struct OnDevice<'d> {
    device: &'d Device,
    source: Box<dyn Decoder>,
    kept_until: usize,
}

impl OnDevice<'_> {
    /// Keeps using each call's rows until the device has begun this many calls.
    fn kept_until(self, n: usize) -> Self {
        Self {
            kept_until: n,
            ..self
        }
    }
}

impl LogitSource for OnDevice<'_> {
    fn n_vocab(&self) -> usize {
        self.source.n_vocab()
    }

    fn decode(&mut self, windows: &[&WindowSpec], sink: &mut UseRows<'_>) -> Result<(), Error> {
        let (device, kept_until) = (self.device, self.kept_until);
        self.source.decode(windows, &mut |i, rows| {
            let turn = locked(&device.turn);
            device.begin();
            drop(turn);
            sink(i, rows)?;
            assert!(device.wait_for(kept_until), "the device waits");
            Ok(())
        })
    }
}

#[test]
fn a_call_begins_before_the_rows_of_the_last_are_scored() {
    let file = native(&plan(ScoreFrom::All), 4, 4);
    let rows = open(&file);
    let device = Device::default();
    let clock = DeviceClock::default();
    // Scoring a row of the first call ends only once the device has begun another.
    let overlaps = |_: &RowPair<'_>| device.wait_for(2);
    let mut n_rows = 0;
    let sources = Sources {
        device: Some(clock),
        n_windows: 1,
        ..sources(2, || Ok(device.source(2)))
    };
    let timing = evaluate(sources, &rows, overlaps, |step| {
        if let Step::Window(window) = step {
            assert!(window.measured.iter().all(|overlaps| *overlaps));
            n_rows += window.records.len();
        }
        Ok(())
    });
    assert_eq!(n_rows, 107);
    assert!(timing.unwrap().device.is_some());
}

#[test]
fn a_call_begins_before_the_rows_of_the_last_are_written() {
    let plan = plan(ScoreFrom::All);
    let device = Device::default();
    let sources = Sources {
        device: Some(DeviceClock::default()),
        n_windows: 1,
        ..sources(2, || Ok(device.source(1).kept_until(2)))
    };
    let writer = native_writer(Vec::new(), &plan, Encoding::U16, 4);
    let written = write_reference(sources, &plan.windows, writer, |_| Ok(())).unwrap();
    assert!(written.timing.device.is_some());
    assert_eq!(written.output, written_by(1, &plan));
}

/// The file that so many sources write.
fn written_by(n: usize, plan: &Plan) -> Vec<u8> {
    let sources = sources(n, || Ok(fake(1, 4)));
    let writer = native_writer(Vec::new(), plan, Encoding::U16, 4);
    let mut windows = Vec::new();
    let on_step = |step: Step<WrittenWindow<'_>>| {
        if let Step::Window((window, not_finite)) = step {
            assert_eq!((not_finite.n_rows, not_finite.n), (window.n_rows.into(), 0));
            windows.push(window.window);
        }
        Ok(())
    };
    let written = write_reference(sources, &plan.windows, writer, on_step).unwrap();
    assert!(windows.is_sorted() && windows.len() == plan.windows.len());
    assert_eq!(written.forms.total, plan.n_rows());
    written.output
}

#[test]
fn several_sources_write_the_file_of_one() {
    let plan = plan(ScoreFrom::All);
    let one = written_by(1, &plan);
    for n in [2, 3, 9] {
        assert!(written_by(n, &plan) == one, "{n} sources");
    }
}

#[test]
fn whoever_fails_the_cause_is_returned() {
    let plan = plan(ScoreFrom::All);
    for n in [1, 2, 5] {
        // The disk, while sources wait for it.
        let writer = native_writer(FullDisk(3000), &plan, Encoding::F32, 4);
        let fakes = sources(n, || Ok(fake(1, 4)));
        let written = write_reference(fakes, &plan.windows, writer, |_| Ok(()));
        let error = written.err().unwrap();
        assert!(error.to_string().contains("no space left"), "{n}: {error}");
        // A source, while others continue.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, "a model").unwrap();
        let engine = FakeEngine {
            n_vocab: N_VOCAB as u32,
            fails_at: Some(3),
            ..FakeEngine::default()
        };
        let model = engine.load(&path, &Default::default()).unwrap();
        let make = || Ok(model.decoder(&options())?);
        let writer = native_writer(Vec::new(), &plan, Encoding::U16, 4);
        let written = write_reference(sources(n, make), &plan.windows, writer, |_| Ok(()));
        let error = written.err().unwrap();
        assert!(error.to_string().contains("a fake failure"), "{n}: {error}");
    }
}

/// A source that panics, if it is the first; another waits until that one is gone.
struct Panicking<'d> {
    device: &'d Device,
    is_first: bool,
    source: Box<dyn Decoder>,
}

impl LogitSource for Panicking<'_> {
    fn n_vocab(&self) -> usize {
        self.source.n_vocab()
    }

    fn decode(&mut self, windows: &[&WindowSpec], sink: &mut UseRows<'_>) -> Result<(), Error> {
        assert!(!self.is_first, "a fake panic");
        self.source.decode(windows, &mut |i, rows| {
            assert!(self.device.wait_for(1), "the first did not panic");
            sink(i, rows)
        })
    }
}

impl Drop for Panicking<'_> {
    fn drop(&mut self) {
        if self.is_first {
            self.device.begin();
        }
    }
}

#[test]
fn a_panic_ends_the_run_at_once() {
    let file = native(&plan(ScoreFrom::All), 4, 4);
    let (device, n_made, n_scored) = (Device::default(), AtomicUsize::new(0), AtomicUsize::new(0));
    let make = || {
        Ok(Panicking {
            device: &device,
            is_first: n_made.fetch_add(1, Relaxed) == 0,
            source: fake(1, 4),
        })
    };
    let count = |_: &RowPair<'_>| n_scored.fetch_add(1, Relaxed);
    let sources = Sources {
        n_windows: 1,
        ..sources(2, make)
    };
    let ran = evaluate(sources, &open(&file), count, |_| Ok(()));
    assert!(matches!(ran, Err(Error::WorkerLost)));
    assert!(
        n_scored.into_inner() < 107 / 2,
        "the other went on to the end"
    );
}

fn options() -> ContextOptions {
    ContextOptions {
        n_ctx: N_CTX,
        calls: kl_formats::Calls::new(4, 4),
        threads: 1,
        ..ContextOptions::default()
    }
}
