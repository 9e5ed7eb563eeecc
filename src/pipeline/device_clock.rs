//! The time for which the accelerator is busy that computes a run's rows.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::locked;

/// Measures for how long at least one call was under way on a device, from the start of the first to
/// the end of the last. Calls of several threads that overlap count once; one that waits for its turn
/// counts too, since another is computing then.
#[derive(Debug, Clone, Default)]
pub struct DeviceClock(Arc<Mutex<Calls>>);

#[derive(Debug, Default)]
struct Calls {
    n_under_way: usize,
    /// When the first began, and when the number of calls under way last changed.
    span: Option<(Instant, Instant)>,
    busy: Duration,
}

/// Where the time of a device went, from the start of its first call to the end of its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceTime {
    /// Computing.
    pub busy: Duration,
    /// Waiting for the CPU, which scores or encodes rows.
    pub waited_cpu: Duration,
    /// Waiting for the reference to be read or written.
    pub waited_file: Duration,
}

/// A call that is under way until this is dropped.
#[derive(Debug)]
pub(super) struct Call<'c>(&'c DeviceClock);

impl DeviceClock {
    /// Notes that a call begins.
    pub(super) fn begin(&self) -> Call<'_> {
        self.change(Instant::now(), |n| n + 1);
        Call(self)
    }

    /// Where the device's time went so far; `None` before the first call. What it waited for is
    /// estimated by how long the threads that call it worked on each between their calls: `cpu` and
    /// `file`.
    pub(super) fn time(&self, (cpu, file): (Duration, Duration)) -> Option<DeviceTime> {
        let calls = locked(&self.0);
        let (first, last) = calls.span?;
        let idle = last.duration_since(first).saturating_sub(calls.busy);
        let of_file = file.as_secs_f64() / (cpu + file).as_secs_f64().max(f64::MIN_POSITIVE);
        let waited_file = idle.mul_f64(of_file);
        Some(DeviceTime {
            busy: calls.busy,
            waited_cpu: idle.saturating_sub(waited_file),
            waited_file,
        })
    }

    fn change(&self, now: Instant, of_number: impl Fn(usize) -> usize) {
        let mut calls = locked(&self.0);
        // Another thread may have come first with a later time.
        let (first, last) = calls.span.unwrap_or((now, now));
        if calls.n_under_way > 0 {
            calls.busy += now.saturating_duration_since(last);
        }
        calls.span = Some((first, last.max(now)));
        calls.n_under_way = of_number(calls.n_under_way);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.change(Instant::now(), |n| n.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_overlap_count_once() {
        let clock = DeviceClock::default();
        let ms = Duration::from_millis;
        let of = |cpu, file| clock.time((ms(cpu), ms(file)));
        assert_eq!(of(1, 1), None);
        let start = Instant::now();
        let begin = |at| clock.change(start + ms(at), |n| n + 1);
        let end = |at| clock.change(start + ms(at), |n| n - 1);
        // 100 to 400, with another in the middle that goes on to 450; a pause; 500 to 600.
        begin(100);
        begin(200);
        end(400);
        end(450);
        begin(500);
        end(600);
        let time = of(40, 10).unwrap();
        assert_eq!(time.busy, ms(350 + 100));
        assert_eq!((time.waited_cpu, time.waited_file), (ms(40), ms(10)));
        // Nothing is known of what it waited for.
        let time = of(0, 0).unwrap();
        assert_eq!((time.waited_cpu, time.waited_file), (ms(50), ms(0)));
    }

    #[test]
    fn a_call_lasts_until_it_is_dropped() {
        let clock = DeviceClock::default();
        let (one, two) = (clock.begin(), clock.begin());
        drop(one);
        assert_eq!(locked(&clock.0).n_under_way, 1);
        drop(two);
        assert_eq!(locked(&clock.0).n_under_way, 0);
    }
}
