//! An original's own rows of some windows, kept in memory: the same windows are decoded again, with some of
//! its tensors exchanged, and scored against them.

use std::ops::Range;

use kl_formats::{TokenRecord, WindowSpec, n_rows};

use super::context::context_sources;
use super::observer::{Phase, Watch};
use super::settings::RunSettings;
use crate::engine::{ContextOptions, Model, memory};
use crate::pipeline::{Error, KeptRows, LogitSource, ReferenceRows, Sources, Step, evaluate};

/// The rows may take this share of the memory that is free: contexts and a tensor lie beside them.
const MEMORY_SHARE: u64 = 2;

/// Kept rows, and how models are decoded beside them.
pub struct Bench<'b> {
    pub rows: KeptRows,
    pub options: ContextOptions,
    pub run: &'b RunSettings,
    pub watch: &'b Watch<'b>,
}

impl Bench<'_> {
    /// The rows of these windows.
    pub fn n_rows(&self, windows: Range<usize>) -> u64 {
        n_rows(self.rows.windows.get(windows).unwrap_or_default())
    }

    /// Scores a model on these windows, as it is now. `on_window` gets the records of each.
    ///
    /// # Errors
    /// Why the model cannot decode, or that the observer asks to stop.
    pub fn score<M: Model + Sync>(
        &self,
        model: &M,
        windows: Range<usize>,
        phase: Option<&Phase<'_>>,
        mut on_window: impl FnMut(&[TokenRecord]),
    ) -> Result<(), Error> {
        let rows = ReferenceRows::kept(&self.rows, windows);
        let sources = context_sources(model, &self.options, self.run);
        let scored = evaluate(
            sources,
            &rows,
            |_| (),
            |step| {
                match step {
                    Step::Rows(n) => phase.iter().for_each(|phase| phase.rows(n)),
                    Step::Window(scored) => on_window(&scored.records),
                }
                self.watch.check()
            },
        );
        scored.map(drop)
    }
}

/// Takes an original's rows into memory, from a file or as it computes them.
///
/// # Errors
/// Rows that cannot be computed or read, or that the observer asks to stop.
pub fn keep_rows<S: LogitSource>(
    sources: Sources<impl Fn() -> Result<S, Error> + Sync>,
    windows: Vec<WindowSpec>,
    watch: &Watch<'_>,
) -> Result<KeptRows, Error> {
    let phase = watch.begin(
        "original",
        Some(windows.len() as u64),
        Some(n_rows(&windows)),
    );
    let kept = KeptRows::keep(sources, windows, |n| {
        phase.rows(n);
        watch.check()
    });
    Ok(kept?.0)
}

/// The memory that rows may take, if it is known.
pub fn memory_for_rows() -> Option<u64> {
    memory::available().map(|free| free / MEMORY_SHARE)
}
