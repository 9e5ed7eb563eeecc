//! Where the time went.

use serde::Serialize;

use crate::pipeline::{DeviceTime, Timing};

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

/// The share of a run's time that it may wait for a core before `kl` says so.
const MAX_CORE_WAIT: f64 = 0.1;

/// The time that a run of `wall_s` seconds waited for a core because all were busy with other work,
/// if that is notable.
pub fn notable_core_wait(core_wait_s: Option<f64>, wall_s: f64) -> Option<f64> {
    core_wait_s.filter(|waited_s| *waited_s >= MAX_CORE_WAIT * wall_s)
}

impl TimingInfo {
    /// Describes a run that scored `rows` rows in `wall_s` seconds, `load_s` of them spent loading.
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
