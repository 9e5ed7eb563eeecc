//! Decode, read, score and write side by side, with a bounded number of buffers.
//!
//! A decode call's rows are scored or encoded in place, in llama.cpp's own output buffer, beside
//! the blocks of the reference that they belong to. Pieces are compressed and written while the
//! model decodes the next rows.

mod computed;
mod device_clock;
mod evaluate;
mod file_rows;
mod in_turn;
mod kept_rows;
mod open_window;
mod parallel_writer;
mod reference_rows;
mod selection;
mod source;
mod states;
mod stream;
mod write;

pub use device_clock::{DeviceClock, DeviceTime};
pub use evaluate::{ScoredWindow, evaluate};
pub use file_rows::FileRows;
pub use in_turn::{LogitSource, Sources};
pub use kept_rows::KeptRows;
pub use reference_rows::ReferenceRows;
pub use selection::{DEFAULT_SEED, Part, choose_windows, shuffled, to_share};
pub use source::RowsHere;
pub use states::StateSource;
pub use write::{Written, write_reference};

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::engine::EngineError;
use crate::lock::locked;

/// Why a run stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model could not be loaded or run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file could not be read or written.
    #[error(transparent)]
    Format(#[from] kl_formats::Error),
    /// A reference that cannot be used: what is wrong, and what to do.
    #[error("{0}")]
    Reference(String),
    /// A row that cannot be computed from its hidden state.
    #[error(
        "window {window}, position {position}: the row computed from the hidden state is not the model's own ({kld:.2e} nats off)"
    )]
    RowMoved {
        /// The window, in text order.
        window: u32,
        /// The position in the window.
        position: usize,
        /// The KL divergence of the computed row from the model's own, in nats.
        kld: f64,
    },
    /// A worker thread panicked: a defect of this program.
    #[error("internal error: a worker stopped before its work was done")]
    WorkerLost,
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The caller has all that it needs: an evaluation ends there without an error.
    #[error("enough")]
    Enough,
}

impl Error {
    /// The error for a file that holds something else than it states.
    fn inconsistent(found: &str) -> Self {
        Self::Reference(format!(
            "the reference gives {found}: it is damaged, or has changed while it was read"
        ))
    }

    fn too_few_rows() -> Self {
        Self::inconsistent("fewer rows than a window has")
    }
}

/// Things to use again, shared between threads: memory above all, since a block of rows is a megabyte,
/// and fresh memory from the system costs more than filling it.
#[derive(Debug)]
pub struct Pool<T>(Arc<Mutex<Vec<T>>>);

impl<T> Pool<T> {
    /// Takes a thing out of the pool, unless it is empty.
    pub fn take(&self) -> Option<T> {
        locked(&self.0).pop()
    }

    /// Puts a thing into the pool.
    pub fn give(&self, thing: T) {
        locked(&self.0).push(thing);
    }
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A report of a run to its caller, who may stop it with an error.
#[derive(Debug)]
pub enum Step<T> {
    /// This many more rows have come from the model.
    Rows(usize),
    /// A window is done.
    Window(T),
}

/// Where the time of a run went, as seen from the thread that decodes; the mean over several
/// threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    /// Creating the model's context.
    pub load: Duration,
    /// Decoding in llama.cpp, and reporting progress to the caller.
    pub decode: Duration,
    /// Scoring rows, or encoding them.
    pub score: Duration,
    /// Reading the reference, or waiting for it; of hidden states and a second model, computing its
    /// rows too.
    pub read: Duration,
    /// Waiting for the reference to be written.
    pub write: Duration,
    /// Being ready to run while all cores were busy with other work, part of the times above; `None`
    /// where the system does not measure it.
    pub core_wait: Option<Duration>,
    /// Where the time of the accelerator went that computes all of the model's rows, if one does.
    pub device: Option<DeviceTime>,
    /// The number of sources that could not be created; the run continued without them.
    pub refused: usize,
}

impl Timing {
    /// The mean over threads that worked side by side.
    fn mean(timings: &[Timing]) -> Timing {
        let n = timings.len().max(1) as u32;
        let mean = |of: fn(&Timing) -> Duration| timings.iter().map(of).sum::<Duration>() / n;
        Timing {
            load: mean(|timing| timing.load),
            decode: mean(|timing| timing.decode),
            score: mean(|timing| timing.score),
            read: mean(|timing| timing.read),
            write: mean(|timing| timing.write),
            core_wait: timings
                .iter()
                .map(|timing| timing.core_wait)
                .sum::<Option<Duration>>()
                .map(|all| all / n),
            device: None,
            refused: 0,
        }
    }
}

/// The number of rows that a thread scores at once: waking a thread takes longer than scoring one
/// row of a small vocabulary.
fn rows_per_task(n_vocab: usize) -> usize {
    const LOGITS_PER_TASK: usize = 1 << 16;
    LOGITS_PER_TASK.div_ceil(n_vocab.max(1))
}

/// The number of pieces that may be under way between a file and the model: enough for every core
/// to have one while as many wait.
fn depth() -> usize {
    2 * rayon::current_num_threads() + 2
}

#[cfg(test)]
mod tests;
