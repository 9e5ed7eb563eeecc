//! Where the time of a run goes, and for how long the accelerator is busy that computes its rows.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kl_report::{DeviceTime, TimingInfo};

use super::locked;

/// Where the time of a run went, as seen from the thread that decodes; the mean over several
/// threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    /// Creating the model's context.
    pub load: Duration,
    /// Decoding in llama.cpp, and reporting progress to the caller.
    pub decode: Duration,
    /// Scoring rows, or encoding them.
    pub score: Duration,
    /// Reading the reference, or waiting for it; of hidden states and a second model, computing its
    /// rows too.
    pub read: Duration,
    /// Waiting for the reference to be written.
    pub write: Duration,
    /// Preparing the windows, before all of that; `None` where they came from a file.
    pub input: Option<InputTime>,
    /// Being ready to run while all cores were busy with other work, part of the times above; `None`
    /// where the system does not measure it.
    pub core_wait: Option<Duration>,
    /// Where the time of the accelerator went that computes all of the model's rows, if one does.
    pub device: Option<DeviceTime>,
    /// The number of sources that could not be created; the run continued without them.
    pub refused: usize,
}

/// How long it took to turn a text or prompts into windows.
#[derive(Debug, Clone, Copy, Default)]
pub struct InputTime {
    /// Filling in chat templates, and tokenizing.
    pub tokenize: Duration,
    /// Generating answers; `None` where the run generated none.
    pub generate: Option<Duration>,
}

impl Timing {
    /// Describes a run that scored `n_rows` rows in the time `wall`, for its result.
    pub fn info(&self, wall: Duration, n_rows: u64) -> TimingInfo {
        let (load_s, wall_s) = (self.load.as_secs_f64(), wall.as_secs_f64());
        TimingInfo {
            load_s,
            decode_s: self.decode.as_secs_f64(),
            score_s: self.score.as_secs_f64(),
            read_s: self.read.as_secs_f64(),
            write_s: self.write.as_secs_f64(),
            tokenize_s: self.input.map(|input| input.tokenize.as_secs_f64()),
            generate_s: (self.input.and_then(|input| input.generate))
                .map(|time| time.as_secs_f64()),
            core_wait_s: self.core_wait.map(|waited| waited.as_secs_f64()),
            wall_s,
            tokens_per_s: n_rows as f64 / (wall_s - load_s).max(1e-9),
            device: self.device,
        }
    }

    /// The mean over threads that worked side by side.
    pub(super) fn mean(timings: &[Timing]) -> Timing {
        let n = timings.len().max(1) as u32;
        let mean = |time: fn(&Timing) -> Duration| timings.iter().map(time).sum::<Duration>() / n;
        Timing {
            load: mean(|timing| timing.load),
            decode: mean(|timing| timing.decode),
            score: mean(|timing| timing.score),
            read: mean(|timing| timing.read),
            write: mean(|timing| timing.write),
            input: None,
            core_wait: timings
                .iter()
                .map(|timing| timing.core_wait)
                .sum::<Option<Duration>>()
                .map(|sum| sum / n),
            device: None,
            refused: 0,
        }
    }
}

/// The time since its start for which the calling thread was ready to run while no core was free
/// for it. Of all systems only Linux measures that.
pub fn core_wait() -> Option<Duration> {
    // The time that it ran and the time that it waited, in nanoseconds, and a count.
    let times = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let waited = times.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(waited))
}

/// Measures for how long at least one call was under way on a device, from the start of the first to
/// the end of the last. Calls of several threads that overlap count once; one that waits for its turn
/// counts too, since another is computing then.
#[derive(Debug, Clone, Default)]
pub struct DeviceClock(Arc<Mutex<CallsUnderWay>>);

#[derive(Debug, Default)]
struct CallsUnderWay {
    n_under_way: usize,
    /// When the first began, and when the number of calls under way last changed.
    span: Option<(Instant, Instant)>,
    busy: Duration,
}

/// A call that is under way until this is dropped.
#[derive(Debug)]
pub(super) struct DeviceCall<'c>(&'c DeviceClock);

impl DeviceClock {
    /// Notes that a call begins.
    pub(super) fn begin(&self) -> DeviceCall<'_> {
        self.change(Instant::now(), |n| n + 1);
        DeviceCall(self)
    }

    /// Where the device's time went so far; `None` before the first call. What it waited for is
    /// estimated by how long the threads that call it worked on each between their calls: `cpu` and
    /// `file`.
    pub(super) fn time(&self, cpu: Duration, file: Duration) -> Option<DeviceTime> {
        let calls = locked(&self.0);
        let (first, last) = calls.span?;
        let total = last.duration_since(first);
        let idle_s = total.saturating_sub(calls.busy).as_secs_f64();
        let share = |part: Duration, whole: Duration| {
            part.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE)
        };
        let waited_file_s = idle_s * share(file, cpu + file);
        Some(DeviceTime {
            busy_s: calls.busy.as_secs_f64(),
            waited_cpu_s: idle_s - waited_file_s,
            waited_file_s,
            busy_share: share(calls.busy, total),
        })
    }

    /// Changes the number of calls under way.
    fn change(&self, now: Instant, change_number: impl Fn(usize) -> usize) {
        let mut calls = locked(&self.0);
        // Another thread may have come first with a later time.
        let (first, last) = calls.span.unwrap_or((now, now));
        if calls.n_under_way > 0 {
            calls.busy += now.saturating_duration_since(last);
        }
        calls.span = Some((first, last.max(now)));
        calls.n_under_way = change_number(calls.n_under_way);
    }
}

impl Drop for DeviceCall<'_> {
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
        let of = |cpu, file| clock.time(ms(cpu), ms(file));
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
        assert_eq!((time.busy_s, time.busy_share), (0.45, 0.9));
        let waited = |time: DeviceTime| (time.waited_cpu_s, time.waited_file_s);
        assert!((waited(time).0 - 0.04).abs() + (waited(time).1 - 0.01).abs() < 1e-9);
        // Nothing is known of what it waited for.
        assert_eq!(waited(of(0, 0).unwrap()), (0.05, 0.0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_measures_how_long_a_thread_waits_for_a_core() {
        let spin = || {
            let started = std::time::Instant::now();
            while started.elapsed().as_millis() < 100 {}
            core_wait()
        };
        let n = 2 * std::thread::available_parallelism().unwrap().get();
        let waited = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n).map(|_| scope.spawn(spin)).collect();
            let waited = threads.into_iter().map(|thread| thread.join().unwrap());
            waited.sum::<Option<std::time::Duration>>()
        });
        // Some containers do not show it.
        assert_ne!(waited, Some(std::time::Duration::ZERO));
    }
}
