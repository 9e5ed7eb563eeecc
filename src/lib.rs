//! Measures how far a quantized GGUF has moved from its full-precision original: flags, dispatch and the terminal.
//!
//! [`cli`] turns flags into settings, calls a command of [`commands`], and shows what it returns. The crates below do
//! the rest; docs/DESIGN.md has the map.

pub mod cli;

pub use kl_engine as engine;
pub use kl_hub as hub;
pub use kl_measure::{commands, input, pipeline, whole_file};
pub use kl_recipe as recipe;
pub use kl_report as report;
pub use kl_stats::{score, stats};
