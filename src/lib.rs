//! Measures how far a quantized GGUF has moved from its full-precision original.
//!
//! Data flows one way: [`cli`] -> [`commands`] -> [`input`] -> [`engine`] -> [`pipeline`] ->
//! [`score`] -> [`stats`] -> [`report`]. [`kl_formats`] reads and writes the files.

pub mod cli;
pub mod commands;
pub mod engine;
pub mod input;
pub mod pipeline;
pub mod report;
pub mod score;
pub mod stats;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a panic: what this program's locks protect is still valid then.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "../formats/src/testing/sparse.rs"]
mod sparse;
