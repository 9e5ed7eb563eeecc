//! Measures how far a quantized GGUF has moved from its full-precision original.
//!
//! Data flows one way: [`cli`] -> [`commands`] -> [`input`] -> [`engine`] -> [`pipeline`] ->
//! [`score`] -> [`stats`] -> [`recipe`] -> [`report`]. [`kl_formats`] reads and writes the files, and
//! [`kl_stats`] has the numbers: [`score`], [`stats`] and [`recipe`].

pub mod cli;
pub mod commands;
pub mod input;
pub mod pipeline;
pub mod report;
mod whole_file;

pub use kl_engine as engine;
pub use kl_hub as hub;
pub use kl_stats::{recipe, score, stats};

#[cfg(test)]
#[path = "../formats/src/testing/sparse.rs"]
mod sparse;
