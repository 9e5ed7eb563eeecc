//! Progress on stderr: a bar on a terminal, plain lines at intervals elsewhere.

mod forecast;
mod generating;

use std::io::{IsTerminal as _, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use kl_system::threads;

use crate::commands::Outlook;
use crate::report::number::{bytes, duration, kld, per_second, printable};
use forecast::Forecast;

/// The time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// The time between two drawings of a bar, so that its clock runs even while nothing happens.
const TICK: Duration = Duration::from_millis(500);

/// The line that shows a piece of work. A bar is removed with it.
struct ProgressLine {
    label: String,
    /// The bar on a terminal.
    bar: Option<ProgressBar>,
    started: Instant,
    /// When the last plain line was printed.
    last: Instant,
}

impl ProgressLine {
    /// The line of work of `n` steps, if their number is known.
    fn new(label: &str, n: Option<u64>) -> Self {
        let (label, started) = (printable(label), Instant::now());
        Self {
            bar: stderr().is_terminal().then(|| bar(&label, n)),
            label,
            started,
            last: started,
        }
    }

    /// Shows how far the work is.
    fn show(&mut self, message: String, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_message(message);
            bar.set_position(position);
        } else if self.last.elapsed() >= LINE_INTERVAL {
            say!("{}: {message}", self.label);
            self.last = Instant::now();
        }
    }

    /// Says something that stays, above the bar.
    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say!("kl: {line}")),
            None => say!("kl: {line}"),
        }
    }

    /// The time so far; above 0.
    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64().max(1e-9)
    }
}

/// A bar of `n` steps; a spinner if their number is not known.
fn bar(label: &str, n: Option<u64>) -> ProgressBar {
    let (bar, template) = match n {
        Some(n) => (ProgressBar::new(n), "{prefix} {wide_bar} {msg}"),
        None => (ProgressBar::new_spinner(), "{prefix} {spinner} {msg}"),
    };
    // The templates are constants; a bad one would fall back to indicatif's own style.
    let style = ProgressStyle::with_template(template);
    // Its thread would panic where the system allows none.
    if threads::allowed(1) > 0 {
        bar.enable_steady_tick(TICK);
    }
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(label.to_owned())
        .with_finish(ProgressFinish::AndClear)
}

/// The progress of a file that is loaded or written while nothing else is done.
pub struct FileProgress {
    line: ProgressLine,
    /// Bytes that were there when this began, and bytes of the whole file.
    n_bytes_before: u64,
    n_bytes_in_all: u64,
}

impl FileProgress {
    /// `n_bytes_before` bytes are there, of `n_bytes_in_all`.
    pub fn new(label: &str, n_bytes_before: u64, n_bytes_in_all: u64) -> Self {
        let line = ProgressLine::new(label, Some(n_bytes_in_all));
        Self {
            line,
            n_bytes_before,
            n_bytes_in_all,
        }
    }

    /// Shows that `n_bytes` bytes are there.
    pub fn update(&mut self, n_bytes: u64) {
        let per_s = n_bytes.saturating_sub(self.n_bytes_before) as f64 / self.line.seconds();
        let mut message = format!("{} of {}", bytes(n_bytes), bytes(self.n_bytes_in_all));
        if per_s > 0.0 {
            let left = duration(self.n_bytes_in_all.saturating_sub(n_bytes) as f64 / per_s);
            message += &format!(", {}/s, {left} left", bytes(per_s as u64));
        }
        self.line.show(message, n_bytes);
    }
}

/// The progress of one run over its windows and rows.
pub struct Progress {
    line: ProgressLine,
    n_windows: Option<u64>,
    n_rows: Option<u64>,
    windows: u64,
    rows: u64,
    mean_kld: Option<f64>,
    pace: Pace,
    /// What is not said yet of the time that the command takes.
    forecast: Option<Forecast>,
}

impl Progress {
    /// `n_windows`, `n_rows`: how many there will be, if known. `outlook`: set if the time that the command takes
    /// is to be said.
    pub fn new(
        label: &str,
        n_windows: Option<u64>,
        n_rows: Option<u64>,
        outlook: Option<Outlook>,
    ) -> Self {
        Self {
            line: ProgressLine::new(label, n_rows.or(n_windows)),
            n_windows,
            n_rows,
            windows: 0,
            rows: 0,
            mean_kld: None,
            pace: Pace::default(),
            forecast: outlook.map(Forecast::new),
        }
    }

    /// Counts `n` more rows as done.
    pub fn rows(&mut self, n: usize) {
        self.rows += n as u64;
        let rows = self.rows as f64;
        if self.rows_per_window().is_some_and(|all| rows <= all) {
            self.pace.measured.push((rows, self.line.seconds()));
        }
        let (done, all) = self.done();
        let left = all.map_or_else(String::new, |all| self.time_left(done as f64, all as f64));
        let message = self.message() + &left;
        self.line.show(message, done);
    }

    /// Notes that so many windows and rows are left.
    pub fn left(&mut self, n_windows: u64, n_rows: u64) {
        self.n_windows = Some(self.windows + n_windows);
        self.n_rows = Some(self.rows + n_rows);
        if let Some(bar) = &self.line.bar {
            bar.set_length(self.rows + n_rows);
        }
    }

    /// Counts one more window as done; `mean_kld` is the mean over all rows so far, in an
    /// evaluation.
    pub fn window(&mut self, mean_kld: Option<f64>) {
        self.windows += 1;
        self.mean_kld = mean_kld;
        let Some((forecast, n_rows)) = self.forecast.as_mut().zip(self.n_rows) else {
            return;
        };
        let seconds = self.line.seconds();
        if let Some(line) = forecast.measure(self.windows, self.rows, seconds, n_rows) {
            self.forecast = None;
            if !line.is_empty() {
                self.line.say(&line);
            }
        }
    }

    /// Windows done, speed, and what the result looks like so far.
    fn message(&self) -> String {
        let windows = match self.n_windows {
            Some(n) => Some(format!("{}/{n}", self.windows)),
            // What is timed has no windows.
            None => (self.windows > 0 || self.rows == 0).then(|| self.windows.to_string()),
        };
        let rate = (self.rows > 0).then(|| {
            let rate = self.rows as f64 / self.line.seconds();
            format!("{} tokens/s", per_second(rate))
        });
        let mean = self.mean_kld.map(|mean| format!("mean KLD {}", kld(mean)));
        let parts = [windows, rate, mean];
        Vec::from_iter(parts.into_iter().flatten()).join(", ")
    }

    /// The amount that is done and the whole: in rows, or in windows where only their number is known.
    fn done(&self) -> (u64, Option<u64>) {
        match (self.n_rows, self.n_windows) {
            (None, Some(n)) => (self.windows, Some(n)),
            (n_rows, _) => (self.rows, n_rows),
        }
    }

    /// Rows of a window, in the mean; `None` unless all are counted.
    fn rows_per_window(&self) -> Option<f64> {
        let (rows, windows) = self.n_rows.zip(self.n_windows)?;
        Some(rows as f64 / windows as f64)
    }

    fn time_left(&self, done: f64, all: f64) -> String {
        if done == 0.0 {
            return String::new();
        }
        let per_window = self.rows_per_window();
        let learned = per_window.and_then(|of| self.pace.left(done, all, of));
        let share = learned.unwrap_or(((all - done) / done).max(0.0));
        format!(", {} left", duration(self.line.seconds() * share))
    }
}

/// The time that the rows of a window take, learned from the first one.
///
/// Each row attends to all before it in its window, so in a long window each takes longer than the one
/// before: up to row x, `a x + b x²` seconds. Both follow from the time up to now and that up to half of it.
#[derive(Default)]
struct Pace {
    /// Rows of the first window, and the seconds after which they were done.
    measured: Vec<(f64, f64)>,
}

impl Pace {
    /// The seconds that the first `rows` rows of a window take by themselves; not finite before the
    /// first measurement.
    fn window(&self, rows: f64) -> f64 {
        let Some(&(x, seconds)) = self.measured.last() else {
            return f64::NAN;
        };
        let mean = seconds / x;
        let mut earlier = self.measured.iter().rev();
        // Neither part may be below 0.
        let point = earlier.find(|(half, _)| 2.0 * half <= x);
        let curve = point.map_or(0.0, |(half, t)| (mean - t / half) / (x - half));
        let square = curve.clamp(0.0, mean / x);
        (mean - square * x) * rows + square * rows * rows
    }

    /// The time left as a multiple of the time that the rows so far have taken, of windows of
    /// `per_window` rows; `None` before the first measurement.
    fn left(&self, done: f64, all: f64, per_window: f64) -> Option<f64> {
        let seconds = |rows: f64| {
            let windows = (rows / per_window).floor();
            windows * self.window(per_window) + self.window(rows - windows * per_window)
        };
        let share = (seconds(all) - seconds(done)) / seconds(done);
        share.is_finite().then_some(share.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pace of a run whose rows took `seconds` up to a row, measured up to `done`.
    fn pace(done: u32, seconds: impl Fn(f64) -> f64) -> Pace {
        let mut pace = Pace::default();
        for x in (64..=done).step_by(64).map(f64::from) {
            pace.measured.push((x, seconds(x)));
        }
        pace
    }

    #[test]
    fn a_long_window_takes_longer_the_longer_it_gets() {
        let seconds = |x: f64| 1e-3 * x + 1e-7 * x * x;
        let left = |done: u32, windows: f64| {
            let all = windows * 131_072.0;
            pace(done, seconds)
                .left(done.into(), all, 131_072.0)
                .unwrap()
                * seconds(done.into())
        };
        let whole = seconds(131_072.0);
        for done in [4096, 65_536, 131_072] {
            let expected = whole - seconds(done.into());
            assert!((left(done, 1.0) - expected).abs() < 1e-3 * whole, "{done}");
            assert!(
                (left(done, 3.0) - expected - 2.0 * whole).abs() < 1e-3 * whole,
                "{done}"
            );
        }
    }

    #[test]
    fn short_windows_take_a_time_in_proportion_to_their_rows() {
        let even = pace(511, |x| 0.01 * x);
        let left = even.left(511.0, 5110.0, 511.0).unwrap();
        assert!((left - 9.0).abs() < 1e-9, "{left}");
        // One measurement, as of windows that are one call.
        let mut one = Pace::default();
        one.measured.push((511.0, 2.0));
        let left = one.left(1022.0, 2044.0, 511.0).unwrap();
        assert!((left - 1.0).abs() < 1e-9, "{left}");
        assert_eq!(Pace::default().left(0.0, 100.0, 10.0), None);
    }
}
