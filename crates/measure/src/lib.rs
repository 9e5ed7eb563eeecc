//! What `kl` measures: from settings to a result.
//!
//! [`input`] makes windows of texts and prompts, [`pipeline`] decodes, reads, scores and writes them side by side, and
//! [`commands`] are what a person asks for: writing a reference, evaluating, comparing, checking, converting, reporting.
//! Each command takes checked settings and an observer, and returns a value. It prints nothing: the program above shows
//! what is returned and observed. Settings ([`commands::settings`]) are structs that the command line fills in.
//!
//! Begin with [`commands::evaluate`].
//!
//! No input may make it panic: clippy denies what could, and each exception states why it cannot.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

pub mod commands;
pub mod input;
#[allow(
    clippy::indexing_slicing,
    reason = "its indices are of windows and rows that it has counted itself"
)]
pub mod pipeline;
pub mod whole_file;

#[cfg(test)]
#[path = "../../../formats/src/testing/sparse.rs"]
mod sparse;
