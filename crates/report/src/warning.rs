//! Warnings: what is odd but not an error, each with the advice to give.

use std::fmt;

use kl_formats::RowForms;
use serde::Serialize;

use super::number::{count_of, is_or_are};
use crate::device_time::DeviceTime;

/// Something to know before you trust the numbers. It is described where it is noticed.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Warning {
    /// Its subject, for scripts: stable, unlike the message.
    kind: &'static str,
    /// The oddity, and the remedy, in one line.
    message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Warning {
    /// A warning of a kind that scripts know it by, with a message that says what is odd and what to do.
    pub fn new(kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }

    /// The warning that something is not scored or not compared: how many of what, and why.
    pub fn left_out(kind: &'static str, things: &str) -> Self {
        Self::new(kind, format!("left out: {things}"))
    }

    /// The warning that ggml does not use instructions that the CPU has.
    pub fn slow_build() -> Self {
        Self::new(
            "slow_build",
            "ggml was compiled without AVX2, which this CPU has: decoding on it takes many times as long; build kl again with RUSTFLAGS=-Ctarget-cpu=native CFLAGS=-U__AMX_INT8__ CXXFLAGS=-U__AMX_INT8__ in the environment",
        )
    }

    /// The warning for a file whose rows are stored in these forms, if it deserves one.
    pub fn of_forms(forms: RowForms) -> Option<Self> {
        let (n_exact, rows) = (forms.exact, count_of(forms.total, "row"));
        let verb = is_or_are(n_exact);
        let message = format!(
            "{n_exact} of {rows} {verb} stored exactly, at twice the size, because their u16 copies would diverge from them by more than 1e-6 nats, or because they hold NaN or +infinity; if most rows are, --encoding f32 makes a file as small"
        );
        (n_exact > 0).then(|| Self::new("exact_rows", message))
    }

    /// The warning for a run that left its device waiting, if it did so for long. `writes` is true if
    /// the run writes a reference, false if it evaluates a model.
    pub fn of_device(time: &DeviceTime, writes: bool) -> Option<Self> {
        /// Runs that keep a device for less than this many seconds are too short to judge.
        const MIN_S: f64 = 5.0;
        /// The share of its time that a device may wait before `kl` warns.
        const MAX_WAITED_SHARE: f64 = 0.1;
        let waited_s = time.waited_cpu_s + time.waited_file_s;
        if time.busy_s + waited_s < MIN_S || time.busy_share >= 1.0 - MAX_WAITED_SHARE {
            return None;
        }
        let awaited = match (writes, time.waited_file_s > time.waited_cpu_s) {
            (false, false) => "CPU to score rows: use more cores, or two contexts (--contexts 2)",
            (false, true) => {
                "reference to be read: keep it on a faster disk, or write it with --encoding hidden"
            }
            (true, false) => "CPU to encode rows: use more cores, or two contexts (--contexts 2)",
            (true, true) => {
                "reference to be written: use a faster disk, or a smaller --encoding (u16, hidden)"
            }
        };
        let busy = super::number::percent(time.busy_share);
        let message =
            format!("the device was busy only {busy} of the time: it waited for the {awaited}");
        Some(Self::new("device_waited", message))
    }

    /// True if the message names the model that it is about.
    pub fn names_model(&self) -> bool {
        ["far_apart", "identical_rows", "measured_anew"].contains(&self.kind)
    }

    /// True if it is about the reference or its text, so that the first model's is enough: those of other
    /// models would repeat it with other digits.
    pub fn is_about_reference(&self) -> bool {
        [
            "high_perplexity",
            "few_windows",
            "empty_groups",
            "unknown_probability",
            "unknown_tokens",
        ]
        .contains(&self.kind)
    }

    /// True if it is about the intervals, and so depends on their clusters.
    pub fn is_about_intervals(&self) -> bool {
        self.kind == "few_windows"
    }

    /// The warning's subject, for scripts: stable, unlike the message.
    pub fn kind(&self) -> &'static str {
        self.kind
    }
}
