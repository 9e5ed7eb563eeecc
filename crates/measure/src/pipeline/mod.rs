//! Decode, read, score and write side by side, with a bounded number of buffers.
//!
//! A decode call's rows are scored or encoded in place, in llama.cpp's own output buffer, beside
//! the blocks of the reference that they belong to. Pieces are compressed and written while the
//! model decodes the next rows.

mod computed_rows;
mod evaluate;
mod file_rows;
mod in_turn;
mod kept_rows;
mod not_finite;
mod reference_rows;
mod row_source;
mod selection;
mod states;
mod stored_rows;
mod stream;
mod timing;
mod write;

use std::sync::{Arc, Mutex, PoisonError};

use kl_engine::EngineError;
use kl_system::locked;
use kl_system::threads::NoThread;

pub use evaluate::{ScoredWindow, evaluate};
pub use file_rows::FileRows;
pub use in_turn::{LogitSource, MakeSource, Sources, UseRows};
pub use kept_rows::KeptRows;
pub use not_finite::NotFinite;
pub use reference_rows::ReferenceRows;
pub use selection::{DEFAULT_SEED, Part, choose_windows, keep_until, shuffled, to_share};
pub use states::StateSource;
pub use timing::{DeviceClock, InputTime, Timing, core_wait};
pub use write::{FinishedOutput, WrittenWindow, write_reference};

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
    /// The system allows no further thread.
    #[error(transparent)]
    NoThread(#[from] NoThread),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The caller has all that it needs: an evaluation ends there without an error.
    #[error("enough")]
    Enough,
}

impl Error {
    /// The error for a file that holds something else than it states.
    fn inconsistent(contents: &str) -> Self {
        Self::Reference(format!(
            "the reference gives {contents}: it is damaged, or has changed while it was read"
        ))
    }

    fn too_few_rows() -> Self {
        Self::inconsistent("fewer rows than a window has")
    }

    /// True if a model's file has changed, so that what was computed may be of two models.
    pub fn is_of_changed_model(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Changed(_)))
    }

    /// True if another run against the same file would fail too: it is damaged, or not what it states.
    /// A disk or a network that failed may work again.
    pub fn is_of_bad_reference(&self) -> bool {
        match self {
            Self::Reference(_) => true,
            Self::Format(error) => error.is_damage(),
            _ => false,
        }
    }
}

/// A pool of values to reuse, shared between threads: mostly buffers, since fresh memory from the system
/// costs more than filling it.
pub type Pool<T> = Arc<Mutex<Vec<T>>>;

/// The value of a lock that nobody holds, whatever happened to those who did.
fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// A report of a run to its caller, who may stop it with an error.
#[derive(Debug)]
pub enum Step<T> {
    /// This many more rows have come from the model.
    Rows(usize),
    /// A window is done.
    Window(T),
}

/// The number of rows that a thread scores at once: waking a thread takes longer than scoring one
/// row of a small vocabulary.
fn rows_per_task(n_vocab: usize) -> usize {
    const LOGITS_PER_TASK: usize = 1 << 16;
    LOGITS_PER_TASK.div_ceil(n_vocab.max(1))
}

/// The number of pieces that may be under way between a file and the model: enough for every core
/// to have one while as many wait.
fn max_pieces() -> usize {
    2 * rayon::current_num_threads() + 2
}

#[cfg(test)]
mod tests;
