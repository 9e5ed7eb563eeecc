//! The speed of a model in words.

use kl_formats::{Pace, Speed};

use crate::number::{count_of, per_second, percent};

/// The part of the time that a run waits for cores from which its speed is doubtful.
const NOTABLE_WAIT: f64 = 0.05;

/// The speed of a prompt and of generation, a line each, and whether other work had the cores meanwhile.
pub fn speed_lines(speed: &Speed) -> Vec<String> {
    let line = |what: &str, pace: &Pace| {
        let [middle, lo, hi] = [pace.tokens_per_s, pace.lo, pace.hi].map(per_second);
        let n = count_of(pace.n_tokens.into(), "token");
        format!("{what} {middle} tokens/s ({lo} to {hi}), {n}")
    };
    let mut lines = vec![
        line("prompt", &speed.prompt),
        line("generation", &speed.generation),
    ];
    if was_busy(speed) {
        let share = percent(speed.waited.unwrap_or_default());
        lines.push(format!(
            "the cores were busy with other work for {share} of the time: the model is faster than this"
        ));
    }
    lines
}

/// True if other work had the cores while the model was timed.
pub fn was_busy(speed: &Speed) -> bool {
    speed.waited.is_some_and(|share| share >= NOTABLE_WAIT)
}
