//! Progress on stderr: a bar on a terminal, plain lines at intervals elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::pace::Pace;
use crate::report::number;

/// The time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// The time between two drawings of a bar, so that its clock runs even while nothing happens.
const TICK: Duration = Duration::from_millis(500);

/// The progress of one run over its windows and rows.
pub struct Progress {
    label: String,
    /// The name of what is counted as windows.
    unit: String,
    started: Instant,
    n_windows: Option<u64>,
    n_rows: Option<u64>,
    windows: u64,
    rows: u64,
    mean_kld: Option<f64>,
    pace: Pace,
    /// The bar on a terminal.
    bar: Option<ProgressBar>,
    /// When the last plain line was printed.
    last_line: Instant,
}

impl Progress {
    /// `n_windows`, `n_rows`: how many there will be, if known.
    pub fn new(label: &str, unit: &str, n_windows: Option<u64>, n_rows: Option<u64>) -> Self {
        let started = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        Self {
            label: number::printable(label),
            unit: unit.to_owned(),
            started,
            n_windows,
            n_rows,
            windows: 0,
            rows: 0,
            mean_kld: None,
            pace: Pace::default(),
            bar: is_terminal.then(|| bar(&number::printable(label), n_rows.or(n_windows))),
            last_line: started,
        }
    }

    /// Counts `n` more rows as done.
    pub fn rows(&mut self, n: usize) {
        self.rows += n as u64;
        let rows = self.rows as f64;
        if self.rows_per_window().is_some_and(|all| rows <= all) {
            self.pace.push(rows, self.started.elapsed().as_secs_f64());
        }
        if let Some(bar) = &self.bar {
            bar.set_message(self.message() + &self.time_left());
            bar.set_position(self.done().0);
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            say!("{}: {}{}", self.label, self.message(), self.time_left());
            self.last_line = Instant::now();
        }
    }

    /// Counts one more window as done; `mean_kld` is the mean over all rows so far, in an
    /// evaluation.
    pub fn window(&mut self, mean_kld: Option<f64>) {
        self.windows += 1;
        self.mean_kld = mean_kld;
    }

    /// Removes the bar.
    pub fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Windows done, speed, and what the result looks like so far.
    fn message(&self) -> String {
        let of = self.n_windows.map(|n| format!("/{n}")).unwrap_or_default();
        let rate = self.rows as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
        let mean = self.mean_kld.map(number::kld);
        let mean = mean.map(|mean| format!(", mean KLD {mean}"));
        let mean = mean.unwrap_or_default();
        format!(
            "{} {}{of}, {rate:.0} tokens/s{mean}",
            self.unit, self.windows
        )
    }

    /// How much is done, of how much: rows, or windows where only their number is known.
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

    fn time_left(&self) -> String {
        match self.done() {
            (done, Some(n)) if done > 0 => {
                let per_window = self.rows_per_window();
                let share = per_window.and_then(|of| self.pace.left(done as f64, n as f64, of));
                let even = n.saturating_sub(done) as f64 / done as f64;
                let share = share.unwrap_or(even);
                let left = self.started.elapsed().as_secs_f64() * share;
                format!(", {} left", number::duration(left))
            }
            _ => String::new(),
        }
    }
}

fn bar(label: &str, n: Option<u64>) -> ProgressBar {
    let (bar, template) = match n {
        Some(n) => (ProgressBar::new(n), "{prefix} {wide_bar} {msg}"),
        None => (ProgressBar::new_spinner(), "{prefix} {spinner} {msg}"),
    };
    // The templates are constants; a bad one would fall back to indicatif's own style.
    let style = ProgressStyle::with_template(template);
    bar.enable_steady_tick(TICK);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(label.to_owned())
}
