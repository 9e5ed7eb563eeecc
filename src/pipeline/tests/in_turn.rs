//! Two sources in turn, on a fake device that computes one call at a time.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::engine::EngineError;

/// A device that counts the calls that have begun.
#[derive(Default)]
pub(super) struct Device {
    turn: Mutex<()>,
    n_begun: Mutex<usize>,
    has_begun: Condvar,
}

impl Device {
    /// Waits until the device has begun this many calls; `false` if it does not.
    pub(super) fn wait_for(&self, n: usize) -> bool {
        let patience = Duration::from_secs(20);
        let begun = locked(&self.n_begun);
        let waited = self
            .has_begun
            .wait_timeout_while(begun, patience, |begun| *begun < n);
        !waited.unwrap().1.timed_out()
    }

    pub(super) fn source(&self, seed: u64) -> OnDevice<'_> {
        OnDevice {
            device: self,
            source: fake(seed, 4),
        }
    }
}

/// A source whose calls the device computes.
pub(super) struct OnDevice<'d> {
    device: &'d Device,
    source: Fake,
}

impl LogitSource for OnDevice<'_> {
    type Error = EngineError;

    fn n_vocab(&self) -> usize {
        self.source.n_vocab
    }

    fn decode<E: From<EngineError>>(
        &mut self,
        window: &WindowSpec,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        let device = self.device;
        self.source.decode(window, |rows| {
            let turn = locked(&device.turn);
            *locked(&device.n_begun) += 1;
            device.has_begun.notify_all();
            drop(turn);
            sink(rows)
        })
    }
}

#[test]
fn a_call_begins_before_the_rows_of_the_last_are_scored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r");
    write_native(&path, &plan(ScoreFrom::All), Encoding::F32, 4, 4);
    let device = Device::default();
    let clock = DeviceClock::default();
    let rows = ReferenceRows::new(open(&path), None);
    // Scoring a row of the first call ends only once the device has begun another.
    let overlaps = |_: &RowPair<'_>| device.wait_for(2);
    let mut n_rows = 0;
    let sources = Sources {
        n: 2,
        make: || Ok(device.source(2)),
        device: Some(clock),
    };
    let timing = evaluate(sources, &rows, Kernel::Portable, overlaps, |step| {
        if let Step::Window(window) = step {
            assert!(window.rows.iter().all(|row| row.measured));
            n_rows += window.rows.len();
        }
        Ok(())
    });
    assert_eq!(n_rows, 107);
    assert!(timing.unwrap().device.is_some());
}
