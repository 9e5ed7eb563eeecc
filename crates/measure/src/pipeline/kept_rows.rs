//! Rows in memory: many models are evaluated against the same few windows.

use std::sync::Mutex;
use std::time::Duration;

use kl_formats::{Row, WindowSpec};
use rayon::prelude::*;

use super::in_turn::{RowSink, Sources, in_turn};
use super::row_source::{RowSource, UseRow, WindowRows, use_all};
use super::timing::{DeviceClock, Timing};
use super::{Error, Step, locked};

/// Rows of logits of some windows.
#[derive(Debug, Default)]
pub struct KeptRows {
    /// The windows whose rows are here.
    pub windows: Vec<WindowSpec>,
    /// The logits of each window's rows, n_rows x n_vocab.
    logits: Vec<Vec<f32>>,
    pub(super) n_vocab: usize,
    pub(super) is_floored: bool,
}

impl KeptRows {
    /// Takes the rows of these windows from their source: a model's contexts, or a file. `on_rows` is
    /// called with the number of new rows.
    ///
    /// # Errors
    /// Those of the source and of `on_rows`.
    pub fn keep(
        sources: Sources<'_>,
        windows: Vec<WindowSpec>,
        mut on_rows: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<(Self, Timing), Error> {
        let windows_left = Mutex::new(windows.iter());
        let mut kept = Self::default();
        let next_window = || {
            let window = locked(&windows_left).next();
            Ok(window.map(|window| CopiedWindow {
                window,
                logits: Vec::new(),
                n_vocab: 0,
                is_floored: false,
            }))
        };
        let timing = in_turn(sources, next_window, |step| match step {
            Step::Rows(n) => on_rows(n),
            Step::Window(window) => {
                kept.logits.push(window.logits);
                (kept.n_vocab, kept.is_floored) = (window.n_vocab, window.is_floored);
                Ok(())
            }
        })?;
        kept.windows = windows;
        Ok((kept, timing))
    }

    /// Bytes that the rows of a window take, each of `n_vocab` entries.
    pub fn bytes_of(window: &WindowSpec, n_vocab: u32) -> u64 {
        4 * u64::from(window.n_rows) * u64::from(n_vocab)
    }
}

impl RowSource<'_> for &KeptRows {
    fn window(&self, index: usize) -> Result<Option<WindowSpec>, Error> {
        Ok(self.windows.get(index).cloned())
    }

    fn open<'r>(
        &'r self,
        index: usize,
        _spec: &WindowSpec,
        _device: Option<&'r DeviceClock>,
    ) -> Box<dyn WindowRows + 'r> {
        Box::new(KeptWindow {
            logits: self.logits.get(index).map_or(&[][..], Vec::as_slice),
            n_vocab: self.n_vocab.max(1),
        })
    }
}

/// A window whose rows are copied as they come.
struct CopiedWindow<'w> {
    window: &'w WindowSpec,
    logits: Vec<f32>,
    n_vocab: usize,
    is_floored: bool,
}

impl RowSink for CopiedWindow<'_> {
    type Done = Self;

    fn window(&self) -> &WindowSpec {
        self.window
    }

    fn begin(&mut self, n_vocab: usize, is_floored: bool) -> Result<(), Error> {
        (self.n_vocab, self.is_floored) = (n_vocab, is_floored);
        let n_rows = self.window.n_rows as usize;
        self.logits.reserve_exact(n_rows * n_vocab);
        Ok(())
    }

    fn push(&mut self, rows: &[&[f32]]) -> Result<(), Error> {
        for row in rows {
            self.logits.extend_from_slice(row);
        }
        Ok(())
    }

    fn finish(self) -> Result<Self, Error> {
        Ok(self)
    }
}

/// The rows of a window in memory, from the one that is used next on.
struct KeptWindow<'r> {
    logits: &'r [f32],
    n_vocab: usize,
}

impl WindowRows for KeptWindow<'_> {
    fn skip(&mut self, n: usize) {
        self.logits = self.logits.get(n * self.n_vocab..).unwrap_or_default();
    }

    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error> {
        let (next_logits, later_logits) = self
            .logits
            .split_at_checked(n * self.n_vocab)
            .ok_or_else(Error::too_few_rows)?;
        self.logits = later_logits;
        let rows = next_logits.par_chunks_exact(self.n_vocab).map(Row::F32);
        use_all(rows, self.n_vocab, 0, use_row);
        Ok(Duration::ZERO)
    }
}
