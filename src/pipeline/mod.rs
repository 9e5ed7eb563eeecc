//! Decode, read, score and write side by side, with a bounded number of buffers.
//!
//! A decode call's rows are scored or encoded in place, in llama.cpp's own output buffer, beside the
//! blocks of the reference that they belong to. Writing runs behind the model, a piece at a time.

mod convert;
mod decoded;
mod evaluate;
mod in_place;
mod ordered;
mod reference_rows;
mod spare;
mod stored;
mod stream;
mod write;
mod write_behind;

pub use convert::convert_reference;
pub use evaluate::{ScoredWindow, TopP, evaluate};
pub use reference_rows::{ReferenceRows, choose_windows, is_shuffled};
pub use stored::Stored;
pub use write::{Target, write_reference};

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::EngineError;

/// Why a run stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's side.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The file's side.
    #[error(transparent)]
    Format(#[from] kl_formats::Error),
    /// A reference made with another vocabulary, as one of its tokens shows.
    #[error(
        "window {window}, position {position} of the reference holds token {token}, and the model has {n_vocab}: it was made with another vocabulary"
    )]
    TokenOutOfRange {
        /// The window, in text order.
        window: u32,
        /// Place in the window.
        position: usize,
        /// The token's id.
        token: u32,
        /// Entries of the model's vocabulary.
        n_vocab: usize,
    },
    /// A file whose windows hold other numbers of rows than they say.
    #[error("the reference gives {found}: it is damaged, or has changed while it was read")]
    Inconsistent {
        /// What came.
        found: String,
    },
    /// A worker thread panicked: a defect of this program.
    #[error("internal error: a worker stopped before its work was done")]
    WorkerLost,
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// What a run tells its caller, who may stop it by an error.
#[derive(Debug)]
pub enum Step<T> {
    /// So many rows of the current window have come from the model.
    Rows(usize),
    /// The current window is done.
    Window(T),
}

/// Where the time of a run went, as seen from the thread that decodes; the mean of several.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    /// Making the model's context.
    pub load: Duration,
    /// In llama.cpp, and in telling the caller of progress.
    pub decode: Duration,
    /// Scoring rows, or encoding them.
    pub score: Duration,
    /// Reading the reference, or waiting for it.
    pub read: Duration,
    /// Waiting for the reference to be written.
    pub write: Duration,
    /// Sources that could not be made and were done without.
    pub refused: usize,
}

impl Timing {
    /// Of threads that worked side by side.
    fn mean(timings: &[Timing]) -> Timing {
        let n = timings.len().max(1) as u32;
        let mean = |of: fn(&Timing) -> Duration| timings.iter().map(of).sum::<Duration>() / n;
        Timing {
            load: mean(|timing| timing.load),
            decode: mean(|timing| timing.decode),
            score: mean(|timing| timing.score),
            read: mean(|timing| timing.read),
            write: mean(|timing| timing.write),
            refused: 0,
        }
    }
}

/// What the pipeline's locks keep is as good after a panic as before.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rows that a thread takes at once: one of a small vocabulary is scored faster than a thread is
/// woken.
fn rows_per_task(n_vocab: usize) -> usize {
    const LOGITS_PER_TASK: usize = 1 << 16;
    LOGITS_PER_TASK.div_ceil(n_vocab.max(1))
}

/// Pieces under way behind the model, or ahead of it where a reference is a stream: enough for every core to have one while as many wait.
fn depth() -> usize {
    2 * rayon::current_num_threads() + 2
}

#[cfg(test)]
mod tests;
