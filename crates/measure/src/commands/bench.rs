//! An original's own rows of some windows, kept in memory. The windows are decoded again, with some of its
//! tensors exchanged or with other settings, and scored against those rows.

use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use kl_engine::{ContextOptions, Engine, Imatrix, Model, Weights, memory};
use kl_formats::{Mixture, TokenRecord, WindowSpec, n_rows};

use super::context::{check_parallel, context_sources, largest_context};
use super::devices::{connect_devices, load};
use super::observer::{Phase, Watch};
use super::settings::RunSettings;
use crate::pipeline::{Error, KeptRows, ReferenceRows, Sources, Step, evaluate};

/// The rows may take one part in this many of the free memory: contexts and a tensor need room beside them.
const MEMORY_SHARE: u64 = 2;

/// Kept rows, and the settings with which models are decoded to be scored against them.
pub struct Bench<'b> {
    pub rows: KeptRows,
    pub options: ContextOptions,
    pub run: &'b RunSettings,
    pub watch: &'b Watch<'b>,
}

impl<'b> Bench<'b> {
    /// Computes a model's rows of these windows, and keeps them in memory.
    ///
    /// # Errors
    /// Why the model cannot decode, or that the observer asks to stop.
    pub fn of_model(
        model: &dyn Model,
        windows: Vec<WindowSpec>,
        options: ContextOptions,
        run: &'b RunSettings,
        watch: &'b Watch<'b>,
    ) -> Result<Self, Error> {
        Ok(Self {
            rows: keep_rows(context_sources(model, &options, run), windows, watch)?,
            options,
            run,
            watch,
        })
    }

    /// The number of rows of these windows.
    pub fn n_rows(&self, windows: Range<usize>) -> u64 {
        n_rows(self.rows.windows.get(windows).unwrap_or_default())
    }

    /// Exchanges weights of the model, and all others for the original's.
    ///
    /// # Errors
    /// Why they cannot be exchanged, or that the observer asks to stop.
    pub fn exchange(
        &self,
        weights: &dyn Weights,
        mixture: &Mixture,
        imatrix: Option<&Imatrix>,
    ) -> Result<(), Error> {
        Ok(weights.exchange(mixture, imatrix, &|| self.watch.should_stop())?)
    }

    /// Scores a model, with its present tensors, on these windows. `on_window` gets the records of each.
    ///
    /// # Errors
    /// Why the model cannot decode, or that the observer asks to stop.
    pub fn score(
        &self,
        model: &dyn Model,
        windows: Range<usize>,
        phase: &Phase<'_>,
        on_window: &mut dyn FnMut(&[TokenRecord]),
    ) -> Result<(), Error> {
        let rows = ReferenceRows::kept(&self.rows, windows);
        let sources = context_sources(model, &self.options, self.run);
        evaluate(
            sources,
            &rows,
            |_| (),
            |step| {
                match step {
                    Step::Rows(n) => phase.rows(n),
                    Step::Window(scored) => on_window(&scored.records),
                }
                self.watch.check()
            },
        )
        .map(drop)
    }
}

/// Loads the original for windows of at most `n_ctx` tokens, if that number is known.
///
/// # Errors
/// What is wrong with the model, the devices or the settings.
pub fn load_original<'e>(
    engine: &'e dyn Engine,
    path: &Path,
    run: &RunSettings,
    n_ctx: Option<u32>,
    watch: &Watch<'_>,
) -> Result<Box<dyn Model + 'e>> {
    check_parallel(run, engine, path)?;
    connect_devices(engine, run, watch)?;
    let memory_beside = || (largest_context(run, n_ctx, [None; 2]), None);
    load(engine, path, run, memory_beside, watch)
}

/// Keeps an original's rows in memory, from a file or as it computes them.
///
/// # Errors
/// Rows that cannot be computed or read, or that the observer asks to stop.
pub fn keep_rows(
    sources: Sources<'_>,
    windows: Vec<WindowSpec>,
    watch: &Watch<'_>,
) -> Result<KeptRows, Error> {
    let (n_windows, n_rows) = (windows.len() as u64, n_rows(&windows));
    let phase = watch.begin("original", Some(n_windows), Some(n_rows));
    let (rows, _) = KeptRows::keep(sources, windows, |n| {
        phase.rows(n);
        watch.check()
    })?;
    Ok(rows)
}

/// The memory that rows may take, if it is known.
pub fn memory_for_rows() -> Option<u64> {
    memory::available().map(|free| free / MEMORY_SHARE)
}

/// The bytes that the rows of these windows take.
pub fn bytes_of_rows(windows: &[WindowSpec], n_vocab: u32) -> u64 {
    windows
        .iter()
        .map(|window| KeptRows::bytes_of(window, n_vocab))
        .sum()
}

/// Counts the first windows whose rows together take at most `bytes`.
pub fn n_that_fit(windows: &[WindowSpec], n_vocab: u32, mut bytes: u64) -> usize {
    let fits = |window: &&WindowSpec| {
        let bytes_left = bytes.checked_sub(KeptRows::bytes_of(window, n_vocab));
        bytes = bytes_left.unwrap_or_default();
        bytes_left.is_some()
    };
    windows.iter().take_while(fits).count()
}
