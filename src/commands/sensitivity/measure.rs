//! Measuring a cell: the original with some tensors exchanged, against its own rows.

use std::ops::Range;

use kl_formats::{Cell, Mixture, TokenRecord};

use crate::commands::context::context_sources;
use crate::commands::observer::{Phase, Watch};
use crate::commands::settings::SensitivitySettings;
use crate::engine::{ContextOptions, Imatrix, Model};
use crate::pipeline::{Error, KeptRows, ReferenceRows, Step, evaluate};
use crate::stats::is_counted;

/// A loaded original, and its rows.
pub struct Meter<'b, M> {
    pub settings: &'b SensitivitySettings,
    pub model: &'b M,
    pub options: &'b ContextOptions,
    pub rows: &'b KeptRows,
    pub imatrix: Option<&'b Imatrix>,
    pub watch: &'b Watch<'b>,
}

impl<M: Model + Sync> Meter<'_, M> {
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
        let sources = context_sources(self.model, self.options, &self.settings.run);
        let rows = ReferenceRows::kept(self.rows, windows);
        evaluate(
            sources,
            &rows,
            |_| (),
            |step| {
                match step {
                    Step::Rows(n) => phase.rows(n),
                    Step::Window(scored) => {
                        let (kld, n_tokens) = sum(&scored.records);
                        cell.klds.push(kld);
                        cell.n_tokens.push(n_tokens);
                    }
                }
                self.watch.check()
            },
        )?;
        Ok(cell)
    }
}

/// The sum of the KLDs of a window's tokens, and their number: of those with a finite one.
fn sum(records: &[TokenRecord]) -> (f64, u32) {
    let counted = records.iter().filter(|record| is_counted(record));
    let klds = counted
        .map(|record| record.kld)
        .filter(|kld| kld.is_finite());
    klds.fold((0.0, 0), |(sum, n), kld| (sum + kld, n + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_klds_are_counted() {
        let of = |kld: f64| TokenRecord {
            kld,
            ..TokenRecord::default()
        };
        let records = [0.25, f64::INFINITY, 0.5, f64::NAN].map(of);
        assert_eq!(sum(&records), (0.75, 2));
        assert_eq!(sum(&records[1..2]), (0.0, 0));
    }
}
