//! The time that a whole command takes, which is said once, when its first windows have been measured.

use crate::commands::Outlook;
use crate::report::number::{count_of, duration, rounded_down};

/// The windows that are measured, after the first one, which warms up.
const N_MEASURED: u64 = 2;

/// Nothing is said before this many seconds.
const EARLIEST_S: f64 = 10.0;

/// After this many seconds, one window that is done is enough.
const PATIENCE_S: f64 = 60.0;

/// Commands that take less, in seconds, are not forecast.
const LEAST_S: f64 = 60.0;

/// For commands that take longer, `-n` is suggested, for so many seconds.
const LONG_S: f64 = 3600.0;
const SHORT_S: f64 = 600.0;

/// What is known of a command's time.
#[derive(Debug, Clone, Copy)]
pub struct Forecast {
    outlook: Outlook,
    /// Windows, rows and seconds when the first window was done.
    first: Option<(u64, u64, f64)>,
}

impl Forecast {
    pub fn new(outlook: Outlook) -> Self {
        Self {
            outlook,
            first: None,
        }
    }

    /// Notes that so many windows, with so many of `n_rows` rows, are done after so many seconds. Returns what to
    /// say once enough is measured, which is empty for a short command.
    pub fn measure(
        &mut self,
        windows: u64,
        rows: u64,
        seconds: f64,
        n_rows: u64,
    ) -> Option<String> {
        let (windows_then, rows_then, then) = *self.first.get_or_insert((windows, rows, seconds));
        let (new_rows, new_s) = if windows >= windows_then + N_MEASURED {
            (rows - rows_then, seconds - then)
        } else {
            (rows, seconds)
        };
        // All windows of a decode call are done at once.
        let is_enough = new_s < seconds && seconds >= EARLIEST_S || seconds >= PATIENCE_S;
        if !is_enough || new_rows == 0 {
            return None;
        }
        let per_row = new_s / new_rows as f64;
        let left = per_row * n_rows.saturating_sub(rows) as f64;
        Some(self.line(seconds + left, per_row, n_rows))
    }

    /// States the time of a command whose first run takes `run_s` seconds, and whose rows take `per_row` each.
    fn line(&self, run_s: f64, per_row: f64, n_rows: u64) -> String {
        let of = &self.outlook;
        let total_s = run_s + per_row * of.n_rows_after as f64;
        if total_s < LEAST_S {
            return String::new();
        }
        let at_most = if of.may_end_early { "at most " } else { "" };
        let mut line = format!("this takes {at_most}about {}", rough(total_s));
        if of.n_after > 0 {
            let models = count_of(of.n_after + 1, "model");
            line += &format!(" for {models}, if the others are as fast");
        }
        let all_rows = n_rows + of.n_rows_after;
        let share = SHORT_S / (per_row * all_rows as f64);
        let n = rounded_down((of.n_limited as f64 * share) as u64);
        if total_s > LONG_S && n > 0 {
            line += &format!("; -n {n} would take {}", rough(SHORT_S));
        }
        line
    }
}

/// A time in whole minutes, above an hour in steps of five.
fn rough(seconds: f64) -> String {
    let minutes = seconds / 60.0;
    if seconds < LONG_S {
        return format!("{:.0} min", minutes.max(1.0));
    }
    duration((minutes / 5.0).round() * 300.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of windows of 100 rows, each of which takes so many seconds after a first one of 20 s.
    fn said(outlook: Outlook, n_windows: u64, each_s: f64) -> (u64, String) {
        let mut forecast = Forecast::new(outlook);
        let line = |done: u64| {
            let seconds = 20.0 + (done - 1) as f64 * each_s;
            let line = forecast.measure(done, done * 100, seconds, n_windows * 100);
            line.map(|line| (done, line))
        };
        (1..=n_windows).find_map(line).unwrap_or_default()
    }

    #[test]
    fn a_long_command_is_forecast_by_its_first_windows() {
        let alone = Outlook::default();
        // Of 2 min, and of 1 min and 40 s.
        assert_eq!(
            said(alone, 101, 1.0),
            (3, "this takes about 2 min".to_owned())
        );
        assert_eq!(
            said(alone, 101, 0.5),
            (3, "this takes about 1 min".to_owned())
        );
        assert_eq!(said(alone, 21, 1.0), (3, String::new()));
        // One window that takes minutes is enough.
        let mut slow = Forecast::new(alone);
        let line = slow.measure(1, 100, 300.0, 200).unwrap();
        assert_eq!(line, "this takes about 10 min");
        // Nothing is said before anything is done.
        assert_eq!(Forecast::new(alone).measure(1, 0, 300.0, 200), None);
    }

    #[test]
    fn several_models_take_as_long_as_the_first_each() {
        let outlook = Outlook {
            n_after: 4,
            n_rows_after: 4 * 1_200 * 100,
            n_limited: 1_200 * 100,
            may_end_early: true,
        };
        // 20 min each: 6,000 windows in 100 min, and so 600 of them in 10 min, 120 of each model.
        let line = "this takes at most about 1 h 40 min for 5 models, if the others are as fast; \
             -n 12000 would take 10 min";
        assert_eq!(said(outlook, 1_200, 1.0), (3, line.to_owned()));
        // -n is not for every command.
        let unlimited = Outlook {
            n_limited: 0,
            may_end_early: false,
            ..outlook
        };
        let line = "this takes about 1 h 40 min for 5 models, if the others are as fast";
        assert_eq!(said(unlimited, 1_200, 1.0).1, line);
    }
}
