//! The lines of a text report.

use std::fmt::Write as _;

use crate::report::number::{interval, kld, kld_end, quantile_name};
use crate::stats::{ClusteredMean, Estimate, QuantileEstimate, TokenLocation};

/// The width of the column of names.
const NAME_WIDTH: usize = 34;

/// Titles, and below them lines of a name and a value.
pub struct Sheet(String);

impl Sheet {
    /// A sheet without lines.
    pub fn new() -> Self {
        Self(String::new())
    }

    /// The text so far.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Begins a section, after an empty line unless it is the first.
    pub fn title(&mut self, title: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(title);
        self.0.push('\n');
    }

    /// Adds lines that are laid out already.
    pub fn block(&mut self, lines: &str) {
        self.0.push_str(lines);
    }

    /// A line of words.
    pub fn line(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.0, "  {name:<NAME_WIDTH$} {text}");
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

    /// A value and its interval, if it has one.
    pub fn estimate(&mut self, name: &str, estimate: &Estimate, show: impl Fn(f64) -> String) {
        let interval = match estimate.interval() {
            Some((lo, hi)) => interval(lo, hi, &show),
            None => String::new(),
        };
        self.value_and(name, &show(estimate.value), &interval);
    }

    /// A value and its standard error, if it has one.
    pub fn uncertain(
        &mut self,
        name: &str,
        value: f64,
        se: Option<f64>,
        show: impl Fn(f64) -> String,
    ) {
        let se = se.map(|se| format!("± {}", show(se)));
        self.value_and(name, &show(value), &se.unwrap_or_default());
    }

    /// The mean of a divergence, with both of its intervals.
    pub fn mean(&mut self, mean: &ClusteredMean) {
        self.estimate("mean", &mean.estimate, kld_end);
        if let (Some(lo), Some(hi)) = (mean.clustered.lo, mean.clustered.hi) {
            self.value_and("  clustered by window", "", &interval(lo, hi, kld_end));
        }
    }

    /// The quantiles of a divergence, a line each.
    pub fn quantiles(&mut self, quantiles: &[QuantileEstimate]) {
        for quantile in quantiles {
            self.estimate(&quantile_name(quantile.p), &quantile.estimate, kld_end);
        }
    }

    /// The maximum of a divergence and where it is; `before`: the text of the token after it.
    pub fn maximum(&mut self, max: f64, at: &TokenLocation, before: Option<&str>) {
        let before = before.map(|text| format!(", before {text:?}"));
        let location = format!(
            "window {}, position {}{}",
            at.window,
            at.position,
            before.unwrap_or_default()
        );
        self.value_and("maximum", &kld(max), &location);
    }
}
