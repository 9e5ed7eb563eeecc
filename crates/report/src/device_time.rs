//! For how long the accelerator was busy that computed a model's rows.

use serde::Serialize;

/// The use of an accelerator, from the start of the first decode call to the end of the last, in
/// seconds.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
#[cfg_attr(
    any(test, feature = "testing"),
    derive(schemars::JsonSchema),
    schemars(rename = "DeviceInfo")
)]
pub struct DeviceTime {
    /// A decode call was under way.
    pub busy_s: f64,
    /// It waited for the CPU, which scores or encodes rows.
    pub waited_cpu_s: f64,
    /// It waited for the reference to be read or written.
    pub waited_file_s: f64,
    /// Share of the time in which it was busy.
    pub busy_share: f64,
}
