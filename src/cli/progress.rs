//! Progress on stderr: a bar on a terminal, plain lines at intervals elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::report::number;

/// How often a plain line is printed.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Progress over the windows of one model.
pub struct Progress {
    label: String,
    started: Instant,
    n_windows: Option<u64>,
    windows: u64,
    tokens: u64,
    display: Display,
}

enum Display {
    Bar(ProgressBar),
    Lines { last: Instant },
    Nothing,
}

impl Progress {
    /// `n_windows`: how many will come, where that is known.
    pub fn new(label: &str, n_windows: Option<u64>, quiet: bool) -> Self {
        let started = Instant::now();
        let display = if quiet {
            Display::Nothing
        } else if std::io::stderr().is_terminal() {
            Display::Bar(bar(label, n_windows))
        } else {
            Display::Lines { last: started }
        };
        Self {
            label: label.to_owned(),
            started,
            n_windows,
            windows: 0,
            tokens: 0,
            display,
        }
    }

    /// A window of `tokens` tokens is done; `mean_kld` of all rows so far, in read mode.
    pub fn window(&mut self, tokens: usize, mean_kld: Option<f64>) {
        self.windows += 1;
        self.tokens += tokens as u64;
        match &mut self.display {
            Display::Nothing => {}
            Display::Bar(bar) => {
                bar.set_message(message(self.tokens, self.started.elapsed(), mean_kld));
                bar.inc(1);
            }
            Display::Lines { last } => {
                if last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    eprintln!("{}", self.line(mean_kld));
                }
            }
        }
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Display::Bar(bar) = &self.display {
            bar.finish_and_clear();
        }
    }

    fn line(&self, mean_kld: Option<f64>) -> String {
        let elapsed = self.started.elapsed();
        let message = message(self.tokens, elapsed, mean_kld);
        let (of, left) = match self.n_windows {
            Some(n) => {
                let left = elapsed.as_secs_f64() / self.windows as f64
                    * n.saturating_sub(self.windows) as f64;
                (
                    format!("/{n}"),
                    format!(", {} left", number::duration(left)),
                )
            }
            None => Default::default(),
        };
        format!(
            "{}: window {}{of}, {message}{left}",
            self.label, self.windows
        )
    }
}

fn message(tokens: u64, elapsed: Duration, mean_kld: Option<f64>) -> String {
    let rate = tokens as f64 / elapsed.as_secs_f64().max(1e-9);
    match mean_kld {
        Some(mean) => format!("{rate:.0} tokens/s, mean KLD {}", number::kld(mean)),
        None => format!("{rate:.0} tokens/s"),
    }
}

fn bar(label: &str, n_windows: Option<u64>) -> ProgressBar {
    let (bar, template) = match n_windows {
        Some(n) => (
            ProgressBar::new(n),
            "{prefix} {wide_bar} window {pos}/{len}, {msg}, {eta} left",
        ),
        None => (
            ProgressBar::new_spinner(),
            "{prefix} {spinner} window {pos}, {msg}",
        ),
    };
    // The templates are constants: a bad one shows indicatif's own style.
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(label.to_owned())
}
