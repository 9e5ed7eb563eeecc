//! Where the time went.

use serde::Serialize;

use crate::pipeline::{DeviceTime, Timing};
use crate::report::warning::Warning;

/// Where the decoding thread's time went, in seconds; the parts but `core_wait_s` and `device` add up to
/// about `wall_s`.
#[derive(Serialize, Debug, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TimingInfo {
    /// Loading the model and creating its context.
    pub load_s: f64,
    /// Decoding in llama.cpp.
    pub decode_s: f64,
    /// Scoring.
    pub score_s: f64,
    /// Waiting for the reference.
    pub read_s: f64,
    /// Writing the sidecar.
    pub write_s: f64,
    /// Waiting for a core because all were busy with other work, part of the times above; `None` where the
    /// system does not measure it.
    pub core_wait_s: Option<f64>,
    /// From before loading until after the last token.
    pub wall_s: f64,
    /// Scored tokens per second, not counting the time to load.
    pub tokens_per_s: f64,
    /// The use of the accelerator that computed all layers; `None` without one.
    pub device: Option<DeviceTime>,
}

impl Warning {
    /// The warning that a run which left its device waiting deserves, if any: a run that writes a
    /// reference, or one that evaluates a model.
    #[must_use]
    pub fn of_device(time: &DeviceTime, writes: bool) -> Option<Self> {
        /// Runs that keep a device for less than this many seconds are too short to judge.
        const MIN_S: f64 = 5.0;
        /// The share of its time that a device may wait without a word.
        const MAX_WAITED: f64 = 0.1;
        let waited = time.waited_cpu_s + time.waited_file_s;
        let busy_share = time.busy_share;
        let has_waited = time.busy_s + waited >= MIN_S && busy_share < 1.0 - MAX_WAITED;
        let wait = match (writes, time.waited_file_s > time.waited_cpu_s) {
            (false, false) => {
                "for the CPU to score rows: use more cores, or two contexts (--contexts 2)"
            }
            (false, true) => {
                "for the reference to be read: keep it on a faster disk, or write it with --encoding hidden"
            }
            (true, false) => {
                "for the CPU to encode rows: use more cores, or two contexts (--contexts 2)"
            }
            (true, true) => {
                "for the reference to be written: use a faster disk, or a smaller --encoding (u16, hidden)"
            }
        };
        has_waited.then_some(Self::DeviceWaited { busy_share, wait })
    }
}

/// The part of a run's time in which it may wait for a core without a word.
const MAX_CORE_WAIT: f64 = 0.1;

/// The time that a run of `wall_s` seconds waited for a core because other programs had them, if
/// that is notable.
#[must_use]
pub fn notable_core_wait(core_wait_s: Option<f64>, wall_s: f64) -> Option<f64> {
    core_wait_s.filter(|waited_s| *waited_s >= MAX_CORE_WAIT * wall_s)
}

impl TimingInfo {
    /// Describes a run that scored `rows` rows in `wall_s` seconds, `load_s` of them spent loading.
    #[must_use]
    pub fn new(timing: &Timing, load_s: f64, wall_s: f64, rows: u64) -> Self {
        Self {
            load_s,
            decode_s: timing.decode.as_secs_f64(),
            score_s: timing.score.as_secs_f64(),
            read_s: timing.read.as_secs_f64(),
            write_s: timing.write.as_secs_f64(),
            core_wait_s: timing.core_wait.map(|waited| waited.as_secs_f64()),
            wall_s,
            tokens_per_s: rows as f64 / (wall_s - load_s).max(1e-9),
            device: timing.device,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::notable_core_wait;

    #[test]
    fn a_tenth_of_the_time_is_notable() {
        assert_eq!(notable_core_wait(Some(10.0), 100.0), Some(10.0));
        assert_eq!(notable_core_wait(Some(9.9), 100.0), None);
        assert_eq!(notable_core_wait(None, 100.0), None);
    }
}
