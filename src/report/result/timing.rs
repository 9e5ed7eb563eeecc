//! Where the time went.

use serde::Serialize;

use crate::pipeline::Timing;

/// Where the decoding thread's time went, in seconds; the parts add up to about `wall_s`.
#[derive(Serialize, Debug, Clone, Copy)]
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
    /// From before loading until after the last token.
    pub wall_s: f64,
    /// Scored tokens per second, not counting the time to load.
    pub tokens_per_s: f64,
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
            wall_s,
            tokens_per_s: rows as f64 / (wall_s - load_s).max(1e-9),
        }
    }
}
