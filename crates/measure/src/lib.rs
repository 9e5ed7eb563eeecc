//! What `kl` measures: from settings to a result.
//!
//! [`input`] makes windows of texts and prompts, [`pipeline`] decodes, reads, scores and writes them side by side, and
//! [`commands`] are what a person asks for: writing a reference, evaluating, comparing, checking, converting, reporting.
//! Each command takes checked settings and an observer, and returns a value. It prints nothing, and knows neither the
//! command line nor how a result looks: `kl_report` shows it.
//!
//! Begin with [`commands::evaluate`].

pub mod commands;
pub mod input;
pub mod pipeline;
pub mod whole_file;

#[cfg(test)]
#[path = "../../../formats/src/testing/sparse.rs"]
mod sparse;
