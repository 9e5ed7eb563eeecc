//! The progress of a model that answers prompts.

use super::Progress;
use crate::input::Generated;
use crate::report::number::{duration, per_second};

impl Progress {
    /// Shows what has been generated so far. Answers may end early, so the time left is the most that it
    /// can be.
    pub fn generated(&mut self, so_far: Generated) {
        let of = self.n_windows.map_or_else(String::new, |n| format!("/{n}"));
        let message = format!("{}{of}{}", so_far.n_answers, described(&so_far));
        self.line.show(message, so_far.n_answers);
    }
}

/// The tokens, their pace, and the time left.
fn described(so_far: &Generated) -> String {
    if so_far.n_tokens == 0 {
        return String::new();
    }
    let rate = so_far.n_tokens as f64 / so_far.time.as_secs_f64();
    let mut text = format!(", {} tokens/s generated", per_second(rate));
    if let Some(left) = so_far.most_left {
        text += &format!(", at most {} left", duration(left.as_secs_f64()));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn slow_generation_has_a_decimal() {
        let mut so_far = Generated::default();
        assert_eq!(described(&so_far), "");
        (so_far.n_tokens, so_far.time) = (13, Duration::from_secs(10));
        assert_eq!(described(&so_far), ", 1.3 tokens/s generated");
        so_far.most_left = Some(Duration::from_secs(90));
        so_far.n_tokens = 1300;
        let expected = ", 130 tokens/s generated, at most 1 min 30 s left";
        assert_eq!(described(&so_far), expected);
    }
}
