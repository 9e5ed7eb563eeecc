//! Measures the cells of a map: the original with some tensors exchanged, against its own rows.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Result, bail};
use kl_formats::{Cell, GgmlType, Mixture, TokenRecord};

use super::original::{Original, Tensor};
use super::plan::{self, Piece, Unit};
use super::store::Store;
use crate::commands::context::context_sources;
use crate::commands::observer::{Phase, Watch};
use crate::commands::settings::SensitivitySettings;
use crate::engine::{ContextOptions, Imatrix, Model};
use crate::pipeline::{Error, KeptRows, ReferenceRows, Step, evaluate};
use crate::report::Warning;
use crate::stats::usable_kld;

/// The rows of a tensor of which weight errors are taken. On the fixtures' model and on one of random
/// weights, the ratios of their errors at two types are 1 % off those of four times as many rows.
const ROWS_FOR_ERRORS: usize = 64;

/// The mean KLD, in nats, from which a reference's rows are another model's: those that another
/// backend has computed are nearer.
const OTHER_MODEL: f64 = 1e-3;

/// A loaded original with its rows, and the map that grows.
pub struct Measurement<'r, M> {
    pub settings: &'r SensitivitySettings,
    pub model: &'r M,
    pub options: &'r ContextOptions,
    pub rows: &'r KeptRows,
    pub imatrix: Option<&'r Imatrix>,
    pub original: &'r Original,
    pub store: Store,
    pub watch: &'r Watch<'r>,
}

impl<M: Model + Sync> Measurement<'_, M> {
    /// Measures all cells of this run's part that the map lacks.
    ///
    /// # Errors
    /// Why a cell cannot be measured, or that the observer asks to stop.
    pub fn measure_all(&mut self) -> Result<()> {
        let tensors = &self.original.tensors;
        let n_windows = self.rows.windows().len();
        let n_units = plan::units(tensors).len();
        let pieces = plan::pieces(self.original, self.settings, n_windows, self.n_together());
        let watch = self.watch;
        let phase = &watch.begin_steps("measuring", "step", pieces.len() as u64 + 3);
        self.control(phase)?;
        phase.window(None);
        let whole = self.up_to(&plan::at_measured_types(tensors), n_windows, phase)?;
        phase.window(None);
        for piece in &pieces {
            match piece {
                Piece::Unit(unit) => self.unit(unit, &whole, n_units, phase)?,
                Piece::Fixed(mixture, n) => _ = self.up_to(mixture, *n, phase)?,
                Piece::Check(tensor, kind) => {
                    self.errors(tensor)?;
                    let mixture = Mixture::from([(tensor.name.clone(), *kind)]);
                    self.until_enough(&mixture, &whole, n_units, phase)?;
                }
            }
            phase.window(None);
        }
        self.control(phase)?;
        phase.window(None);
        Ok(())
    }

    /// Windows of a decode call.
    fn n_together(&self) -> usize {
        self.options.n_seq.max(1) as usize
    }

    /// Measures a tensor, or a group and where it matters each of its tensors.
    fn unit(
        &mut self,
        unit: &Unit<'_>,
        whole: &Cell,
        n_units: usize,
        phase: &Phase<'_>,
    ) -> Result<()> {
        for tensor in &unit.tensors {
            self.errors(tensor)?;
        }
        let cell = self.until_enough(&unit.mixture(), whole, n_units, phase)?;
        if unit.tensors.len() > 1 && plan::is_split(&cell, whole, n_units) {
            for tensor in &unit.tensors {
                let single = Unit::single(tensor).mixture();
                self.until_enough(&single, whole, n_units, phase)?;
            }
        }
        Ok(())
    }

    /// Takes a tensor's weight errors at all types that a recipe may give it, and at the measured one.
    fn errors(&mut self, tensor: &Tensor) -> Result<()> {
        self.watch.check()?;
        let mut kinds = tensor.types.clone();
        kinds.extend(Some(tensor.measured_type).filter(|kind| !tensor.types.contains(kind)));
        if self.store.map().errors.contains_key(&tensor.name) {
            return Ok(());
        }
        let (model, imatrix) = (self.model, self.imatrix);
        let errors = model.weight_errors(&tensor.name, &kinds, imatrix, ROWS_FOR_ERRORS)?;
        let errors: BTreeMap<GgmlType, f64> = kinds.into_iter().zip(errors).collect();
        self.store.push_errors(&tensor.name, &errors)
    }

    /// Measures a cell until its share of the whole is known well enough.
    fn until_enough(
        &mut self,
        mixture: &Mixture,
        whole: &Cell,
        n_units: usize,
        phase: &Phase<'_>,
    ) -> Result<Cell> {
        let is_enough = |cell: &Cell| plan::is_enough(cell, whole, n_units);
        self.rounds(mixture, self.rows.windows().len(), is_enough, phase)
    }

    /// Measures a cell over the first `n` windows.
    fn up_to(&mut self, mixture: &Mixture, n: usize, phase: &Phase<'_>) -> Result<Cell> {
        self.rounds(mixture, n, |_| false, phase)
    }

    /// Measures a cell, round by round, over at most the first `n` windows. What is in the map already
    /// is not measured again.
    fn rounds(
        &mut self,
        mixture: &Mixture,
        n: usize,
        is_enough: impl Fn(&Cell) -> bool,
        phase: &Phase<'_>,
    ) -> Result<Cell> {
        let mut cell = Cell {
            exchanged: mixture.clone(),
            ..Cell::default()
        };
        for round in plan::rounds(n, self.n_together()) {
            let known = self.store.cell(mixture);
            let known = known.filter(|known| known.klds.len() >= round.end);
            if let Some(known) = known {
                cell.klds
                    .extend(known.klds.get(round.clone()).unwrap_or_default());
                cell.n_tokens
                    .extend(known.n_tokens.get(round).unwrap_or_default());
            } else {
                let measured = self.measure(mixture, round, phase)?;
                self.store.push_cell(&measured)?;
                cell.klds.extend(measured.klds);
                cell.n_tokens.extend(measured.n_tokens);
            }
            if is_enough(&cell) {
                break;
            }
        }
        Ok(cell)
    }

    /// Checks that the original has its own rows, with nothing exchanged: at first over more windows, and
    /// later that all of it is restored.
    fn control(&mut self, phase: &Phase<'_>) -> Result<()> {
        let nothing = Mixture::new();
        if self.store.cell(&nothing).is_some() {
            let first = plan::rounds(self.rows.windows().len(), self.n_together()).next();
            let control = self.measure(&nothing, first.unwrap_or_default(), phase)?;
            return self.check_control(&control);
        }
        let n = plan::windows_together(self.rows.windows().len(), self.n_together());
        let control = self.measure(&nothing, 0..n, phase)?;
        self.check_control(&control)?;
        self.store.push_cell(&control)
    }

    fn check_control(&self, control: &Cell) -> Result<()> {
        let settings = self.settings;
        let n: u32 = control.n_tokens.iter().sum();
        let mean = control.klds.iter().sum::<f64>() / f64::from(n.max(1));
        let is_zero = control.klds.iter().all(|kld| *kld == 0.0);
        match &settings.read_path {
            _ if is_zero => Ok(()),
            None => bail!(
                "{}: its results move from call to call: against its own rows it has a mean KLD of {mean:.2e}, not 0: use other devices (-dev none), or one context (--contexts 1)",
                settings.model.display()
            ),
            Some(path) if mean >= OTHER_MODEL => bail!(
                "{}: does not hold the rows of {}, which has a mean KLD of {mean:.2e} against it: give the reference that this model wrote, or -t TEXT",
                path.display(),
                settings.model.display()
            ),
            Some(path) => {
                let message = format!(
                    "{}: the original has a mean KLD of {mean:.1e} nats against it: it was written on another device or by another llama.cpp, and no tensor costs less than that here; with -t TEXT the original computes its own rows",
                    path.display()
                );
                self.watch.warn(Warning::new("not_own_rows", message));
                Ok(())
            }
        }
    }

    /// Measures a mixture over some windows.
    ///
    /// # Errors
    /// Why tensors cannot be exchanged or windows not be decoded, or that the observer asks to stop.
    fn measure(
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
    let klds = records.iter().map(usable_kld).filter(|kld| !kld.is_nan());
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
