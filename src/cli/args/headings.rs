//! The headings of the help, in the order of `kl --help`.

pub const INPUT: &str = "Input";
pub const REFERENCE: &str = "Reference";
pub const EVALUATION: &str = "Evaluation";
pub const RESULTS: &str = "Results";
pub const MODEL: &str = "Model and devices";
pub const DECODING: &str = "Decoding";
pub const GENERAL: &str = "General";

/// Those of `kl recipe --help` alone.
pub const GOAL: &str = "Goal";
pub const CHECK: &str = "Check";
pub const WRITE: &str = "Quantized file";
