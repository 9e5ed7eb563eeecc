//! How far a quantized GGUF has moved from its full-precision original.
//!
//! Data flows one way: [`cli`] -> [`windows`] -> [`engine`] -> [`pipeline`] -> [`score`] ->
//! [`stats`] -> [`report`]; the files are the business of [`kl_formats`].

pub mod chat_template;
pub mod cli;
pub mod engine;
pub mod pipeline;
pub mod report;
pub mod score;
pub mod stats;
pub mod windows;
