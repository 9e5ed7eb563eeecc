//! The lines of a text report.

use std::fmt::Write as _;

use crate::report::number::{ends, kld, quantile_name};
use crate::stats::{ClusteredInterval, ClusteredMean, Estimate, QuantileEstimate, TokenLocation};

/// The width of the column of names.
const NAME_WIDTH: usize = 34;

/// Titles, and below them lines of a name and a value.
pub struct Sheet {
    text: String,
    has_intervals: bool,
    /// What a window is called.
    pub unit: &'static str,
}

impl Sheet {
    /// A sheet without lines. Values come without their intervals unless it has them.
    pub fn new(has_intervals: bool, unit: &'static str) -> Self {
        Self {
            text: String::new(),
            has_intervals,
            unit,
        }
    }

    /// The text so far.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Begins a section, after an empty line unless it is the first.
    pub fn title(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(title);
        self.text.push('\n');
    }

    /// Adds lines that are laid out already.
    pub fn block(&mut self, lines: &str) {
        self.text.push_str(lines);
    }

    /// A line of words.
    pub fn line(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.text, "  {name:<NAME_WIDTH$} {text}");
    }

    /// A line with a value, in the column of values.
    pub fn value(&mut self, name: &str, value: &str) {
        self.value_and(name, value, "");
    }

    /// A line with a value, and what follows it.
    pub fn value_and(&mut self, name: &str, value: &str, rest: &str) {
        let gap = if rest.is_empty() { "" } else { "  " };
        self.line(name, &format!("{value:>12}{gap}{rest}"));
    }

    /// A value and its interval, or the one end that it has.
    pub fn estimate(&mut self, name: &str, estimate: &Estimate, show: impl Fn(f64) -> String) {
        let ends = match self.has_intervals {
            true => ends(estimate.lo, estimate.hi, &show),
            false => String::new(),
        };
        self.value_and(name, &show(estimate.value), &ends);
    }

    /// A value and its clustered interval.
    pub fn clustered(
        &mut self,
        name: &str,
        value: f64,
        interval: &ClusteredInterval,
        show: impl Fn(f64) -> String,
    ) {
        let (lo, hi) = (interval.lo, interval.hi);
        self.estimate(name, &Estimate { value, lo, hi }, show);
    }

    /// The mean of a divergence.
    pub fn mean(&mut self, name: &str, mean: &ClusteredMean) {
        self.clustered(name, mean.estimate.value, &mean.clustered, kld);
    }

    /// The quantiles of a divergence, a line each.
    pub fn quantiles(&mut self, quantiles: &[QuantileEstimate]) {
        for quantile in quantiles {
            self.estimate(&quantile_name(quantile.p), &quantile.estimate, kld);
        }
    }

    /// The maximum of a divergence and where it is; `before`: the text of the token after it.
    pub fn maximum(&mut self, max: f64, at: &TokenLocation, before: Option<&str>) {
        let before = before.map(|text| format!(", before {text:?}"));
        let location = format!(
            "{} {}, position {}{}",
            self.unit,
            at.window,
            at.position,
            before.unwrap_or_default()
        );
        self.value_and("maximum", &kld(max), &location);
    }
}
