//! The progress of a file that is loaded, on stderr: a bar on a terminal, plain lines at intervals elsewhere.

use std::time::Instant;

use indicatif::ProgressBar;

use super::progress::{LINE_INTERVAL, bar, is_terminal};
use crate::report::number::{bytes, duration, printable};

/// A file that is loaded while nothing else is done.
pub struct Loading {
    label: String,
    started: Instant,
    /// Bytes that were there when this began, and all of them.
    first: u64,
    of: u64,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Loading {
    /// `first` bytes `of` all are there.
    pub fn new(label: &str, first: u64, of: u64) -> Self {
        let started = Instant::now();
        Self {
            label: format!("loading {}", printable(label)),
            started,
            first,
            of,
            bar: is_terminal().then(|| bar(&printable(label), Some(of))),
            last_line: started,
        }
    }

    /// Shows that so many bytes are there.
    pub fn update(&mut self, n_bytes: u64) {
        let seconds = self.started.elapsed().as_secs_f64();
        let per_s = n_bytes.saturating_sub(self.first) as f64 / seconds.max(1e-9);
        let mut message = format!("{} of {}", bytes(n_bytes), bytes(self.of));
        if per_s > 0.0 {
            let left = duration(self.of.saturating_sub(n_bytes) as f64 / per_s);
            message += &format!(", {}/s, {left} left", bytes(per_s as u64));
        }
        if let Some(bar) = &self.bar {
            bar.set_message(message);
            bar.set_position(n_bytes);
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            say!("{}: {message}", self.label);
            self.last_line = Instant::now();
        }
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
