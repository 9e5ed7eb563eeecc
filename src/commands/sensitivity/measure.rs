//! Measuring a cell: the original with some tensors exchanged, against its own rows.

use std::ops::Range;

use kl_formats::{Cell, Mixture};

use super::windows::sources;
use crate::commands::observer::{Phase, Watch};
use crate::commands::settings::SensitivitySettings;
use crate::engine::{ContextOptions, Imatrix, Model};
use crate::pipeline::{Error, KeptRows, ReferenceRows, Step, evaluate};
use crate::stats::is_counted;

/// A loaded original, and its rows.
pub struct Bench<'b, M> {
    pub settings: &'b SensitivitySettings,
    pub model: &'b M,
    pub options: &'b ContextOptions,
    pub rows: &'b KeptRows,
    pub imatrix: Option<&'b Imatrix>,
    pub watch: &'b Watch<'b>,
}

impl<M: Model + Sync> Bench<'_, M> {
    /// Measures a mixture over some windows.
    ///
    /// # Errors
    /// Why tensors cannot be exchanged or windows not be decoded, or that the observer asks to stop.
    pub fn measure(
        &self,
        exchanged: &Mixture,
        windows: Range<usize>,
        phase: &Phase<'_>,
    ) -> Result<Cell, Error> {
        self.model.exchange(exchanged, self.imatrix)?;
        let mut cell = Cell {
            exchanged: exchanged.clone(),
            from: windows.start,
            ..Cell::default()
        };
        let sources = sources(self.model, self.options, self.settings);
        let rows = ReferenceRows::kept(self.rows, windows);
        evaluate(
            sources,
            &rows,
            |_| (),
            |step| {
                match step {
                    Step::Rows(n) => phase.rows(n),
                    Step::Window(scored) => {
                        let counted = || scored.records.iter().filter(|record| is_counted(record));
                        cell.klds.push(counted().map(|record| record.kld).sum());
                        cell.n_tokens.push(counted().count() as u32);
                    }
                }
                self.watch.check()
            },
        )?;
        Ok(cell)
    }
}
