//! The speed of a model in words, and in the tables of models.

use kl_formats::{Pace, Speed};

use crate::number::{count_of, per_second, percent};
use crate::table::Table;

/// The part of the time that a run waits for cores from which its speed is doubtful.
const NOTABLE_WAIT: f64 = 0.05;

/// The range of a model's runs, over their median, from which something else must have used its devices, or their clocks
/// have changed.
const NOTABLE_RANGE: f64 = 0.2;

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
    } else if is_uneven(speed) {
        lines.push(
            "the runs differ much: other work used the machine or its devices meanwhile".to_owned(),
        );
    }
    lines
}

impl<R> Table<R> {
    /// Adds the columns of the speeds of a prompt and of generation, if a row has one.
    pub fn speeds(self, speed: impl Fn(&R) -> Option<Speed>) -> Self {
        let has_speed = self.rows().iter().any(|row| speed(row).is_some());
        let prompt = |row: &R| Some(speed(row)?.prompt.tokens_per_s);
        let generation = |row: &R| Some(speed(row)?.generation.tokens_per_s);
        self.number("prompt\nt/s", prompt, per_second)
            .shown_if(has_speed)
            .number("gen.\nt/s", generation, per_second)
            .shown_if(has_speed)
    }
}

/// True if the runs of one kind differ more than those of a device that does nothing else.
pub fn is_uneven(speed: &Speed) -> bool {
    let range = |pace: &Pace| (pace.hi - pace.lo) / pace.tokens_per_s;
    let paces = [speed.prompt, speed.generation];
    paces.iter().any(|pace| range(pace) >= NOTABLE_RANGE)
}

/// True if other work had the cores while the model was timed.
pub fn was_busy(speed: &Speed) -> bool {
    speed.waited.is_some_and(|share| share >= NOTABLE_WAIT)
}
