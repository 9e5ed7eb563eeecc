//! Measures the cells of a map: the original with some tensors exchanged, against its own rows.

use std::fs::File;
use std::ops::Range;

use anyhow::{Result, bail};
use kl_engine::{Imatrix, Model, Weights};
use kl_formats::{Cell, MapWriter, Mixture, SensitivityMap, TokenRecord};
use kl_measure::commands::bench::Bench;
use kl_measure::commands::context::{check_files, is_of_changed_model};
use kl_measure::commands::merge::write_in_order;
use kl_measure::commands::observer::{Outlook, Phase};
use kl_measure::commands::output::{PartialFile, with_kept};
use kl_measure::pipeline::Error;
use kl_report::Warning;
use kl_report::number::{count, count_of, percent};
use kl_stats::stats::usable_kld;

use super::original::{MeasuredTensor, Original};
use super::plan::{self, WorkItem};
use crate::settings::{MapInput, SensitivitySettings};

/// The number of a tensor's rows that weight errors are computed from. On the fixtures' model and on one of
/// random weights, the ratios of the errors at two types differ by 1 % from those of four times as many rows.
const ROWS_FOR_ERRORS: usize = 64;

/// The rows of a reference are another model's if their mean KLD, in nats, is at least this: rows that another
/// backend computed are nearer.
const OTHER_MODEL: f64 = 1e-3;

/// A loaded original with its rows, and the map that grows.
pub struct Measurement<'r> {
    pub settings: &'r SensitivitySettings,
    pub model: &'r dyn Model,
    pub weights: &'r dyn Weights,
    pub bench: Bench<'r>,
    pub imatrix: Option<&'r Imatrix>,
    pub original: &'r Original,
    pub file: PartialFile,
    pub writer: MapWriter<File>,
}

impl Measurement<'_> {
    /// Measures all cells of this run's part that the map lacks, sorts the lines as in any map of these cells,
    /// and gives the file its name.
    ///
    /// # Errors
    /// Why a cell cannot be measured, or that the observer asks to stop. The cells measured before are kept.
    pub fn run(mut self) -> Result<SensitivityMap> {
        let measured = self.measure_all();
        let held = self.writer.map();
        if let Err(error) = measured {
            if is_of_changed_model(&error) {
                self.file.discard();
                return Err(error);
            }
            let n = held.cells.len() as u64;
            return Err(with_kept(error, self.file.keep(n, &count_of(n, "cell"))));
        }
        let mut bytes = Vec::new();
        let map = write_in_order(held.header.clone(), &[held], &mut bytes, self.file.path())?;
        self.file.replace(&bytes)?;
        self.file.commit()?;
        Ok(map)
    }

    fn measure_all(&mut self) -> Result<()> {
        let (original, n_windows) = (self.original, self.bench.rows.windows.len());
        let n_units = plan::units(&original.tensors, self.settings.max_singles).len();
        let pieces = &*plan::pieces(original, self.settings, n_windows, self.n_together());
        let watch = self.bench.watch;
        let phase = &watch.begin_run("measuring", Some(0), Some(0), Outlook::default());
        let all = &plan::at_measured_types(&original.tensors);
        let none = Cell::default();
        self.expect(pieces, self.cell(all).unwrap_or(&none), n_units, phase);
        self.control(phase)?;
        let whole = self.rounds(all, n_windows, |_| false, phase)?;
        let is_enough = |cell: &Cell| plan::is_enough(cell, &whole, n_units);
        let is_split = |cell: &Cell| plan::is_split(cell, &whole, n_units);
        for piece in pieces {
            self.expect(pieces, &whole, n_units, phase);
            for tensor in &piece.tensors {
                self.errors(tensor)?;
            }
            if let Some(n) = piece.n_windows {
                self.rounds(&piece.mixture, n, |_| false, phase)?;
            } else {
                let is_group = piece.tensors.len() > 1;
                // What a group's tensors cost, they show by themselves.
                let is_done = |cell: &Cell| is_enough(cell) || is_group && is_split(cell);
                let cell = self.rounds(&piece.mixture, n_windows, is_done, phase)?;
                let is_split = is_group && is_split(&cell);
                for tensor in piece.tensors.iter().filter(|_| is_split) {
                    self.expect(pieces, &whole, n_units, phase);
                    let single = &plan::at_measured_types([*tensor]);
                    self.rounds(single, n_windows, is_enough, phase)?;
                }
            }
        }
        self.control(phase)?;
        Ok(check_files(self.model, watch)?)
    }

    /// Reports the windows and rows that are still to be decoded, so far as can be known.
    fn expect(&self, pieces: &[WorkItem<'_>], whole: &Cell, n_units: usize, phase: &Phase<'_>) {
        let cells = &self.writer.map().cells;
        let windows = &self.bench.rows.windows;
        let n_windows = windows.len();
        let left = plan::windows_left(pieces, cells, whole, n_windows, n_units);
        let n_known = self
            .cell(&Mixture::new())
            .map_or(0, |control| control.klds.len());
        let of_first_control = plan::windows_together(n_windows, self.n_together());
        let of_last_control = plan::rounds(n_windows, self.n_together()).next();
        let n_left = left
            + n_windows.saturating_sub(whole.klds.len()) as u64
            + of_first_control.saturating_sub(n_known) as u64
            + of_last_control.map_or(0, |windows| windows.len() as u64);
        let n_rows = self.bench.n_rows(0..n_windows);
        phase.expect(n_left, n_rows * n_left / n_windows.max(1) as u64);
    }

    /// The cell of these exchanged tensors, with the windows measured so far.
    fn cell(&self, exchanged: &Mixture) -> Option<&Cell> {
        let mut cells = self.writer.map().cells.iter();
        cells.find(|cell| cell.exchanged == *exchanged)
    }

    /// Windows of a decode call.
    fn n_together(&self) -> usize {
        self.bench.options.n_seq.max(1) as usize
    }

    /// Computes a tensor's weight errors at all types that a recipe may give it, and at the measured one.
    fn errors(&mut self, tensor: &MeasuredTensor) -> Result<()> {
        self.bench.watch.check()?;
        let (name, writer) = (&tensor.name, &mut self.writer);
        if writer.map().errors.contains_key(name) {
            return Ok(());
        }
        let mut kinds = tensor.types.clone();
        if !kinds.contains(&tensor.measured_type) {
            kinds.push(tensor.measured_type);
        }
        let (weights, n_rows) = (self.weights, ROWS_FOR_ERRORS);
        let errors = weights.errors(name, &kinds, self.imatrix, n_rows)?;
        Ok(writer.write_errors(name, &kinds.into_iter().zip(errors).collect())?)
    }

    /// Measures a cell, round by round, over at most the first `n` windows. Windows that the map holds already
    /// are not measured again.
    fn rounds(
        &mut self,
        mixture: &Mixture,
        n: usize,
        is_enough: impl Fn(&Cell) -> bool,
        phase: &Phase<'_>,
    ) -> Result<Cell> {
        let mut cell = Cell::default();
        for round in plan::rounds(n, self.n_together()) {
            let end = round.end;
            // A map of fewer windows may hold a part of the round.
            let n_known = self.cell(mixture).map_or(0, |known| known.klds.len());
            if n_known < end {
                let measured = self.measure(mixture, round.start.max(n_known)..end, phase)?;
                self.writer.write_cell(&measured)?;
            }
            if let Some(known) = self.cell(mixture) {
                cell.clone_from(known);
                cell.klds.truncate(end);
                cell.n_tokens.truncate(end);
            }
            if is_enough(&cell) {
                break;
            }
        }
        Ok(cell)
    }

    /// Checks that the original, with nothing exchanged, has its own rows. The first check is over more
    /// windows; the later one shows that all tensors are restored.
    fn control(&mut self, phase: &Phase<'_>) -> Result<()> {
        let nothing = Mixture::new();
        let (n_windows, n_together) = (self.bench.rows.windows.len(), self.n_together());
        let n_known = self.cell(&nothing).map_or(0, |known| known.klds.len());
        let n_first = plan::windows_together(n_windows, n_together);
        let is_first = n_known < n_first;
        let windows = if is_first {
            n_known..n_first
        } else {
            let mut rounds = plan::rounds(n_windows, n_together);
            rounds.next().unwrap_or_default()
        };
        let control = self.measure(&nothing, windows, phase)?;
        if is_first {
            self.check_rows(&control)?;
        }
        self.check_control(&control)?;
        if is_first {
            self.writer.write_cell(&control)?;
        }
        Ok(())
    }

    /// Refuses an original none of whose rows is finite, and warns of one some of whose rows are not: the control
    /// counts all that are.
    fn check_rows(&self, control: &Cell) -> Result<()> {
        let model = self.settings.model.display();
        let windows = self.bench.rows.windows.iter().skip(control.from);
        let windows = windows.take(control.n_tokens.len());
        let n_rows: u64 = windows.map(|window| u64::from(window.n_rows)).sum();
        let n_finite: u64 = control.n_tokens.iter().copied().map(u64::from).sum();
        let n = n_rows.saturating_sub(n_finite);
        const ADVICE: &str =
            "kl info --verify finds weights that are not finite, and -dev none computes on the CPU";
        if n_finite == 0 {
            bail!(
                "{model}: none of the original's {} is finite, so nothing can be measured against them: {ADVICE}",
                count_of(n_rows, "row")
            );
        }
        if n > 0 {
            let share = percent(n as f64 / n_rows as f64);
            let message = format!(
                "{model}: not finite: {} of the original's {} ({share}): every cell leaves them out; {ADVICE}",
                count(n),
                count_of(n_rows, "row")
            );
            self.bench
                .watch
                .warn(Warning::new("rows_not_finite", message));
        }
        Ok(())
    }

    fn check_control(&self, control: &Cell) -> Result<()> {
        let n: u32 = control.n_tokens.iter().sum();
        let mean = control.klds.iter().sum::<f64>() / f64::from(n.max(1));
        if control.klds.iter().all(|kld| *kld == 0.0) {
            return Ok(());
        }
        let model = self.settings.model.display();
        let MapInput::Reference(path) = &self.settings.input else {
            bail!(
                "{model}: its results move from call to call: against its own rows it has a mean KLD of {mean:.2e}, not 0: use other devices (-dev none), or one context (--contexts 1)"
            );
        };
        let path = path.display();
        if mean >= OTHER_MODEL {
            bail!(
                "{path}: does not hold the rows of {model}, which has a mean KLD of {mean:.2e} against it: give the reference that this model wrote, or -t TEXT"
            );
        }
        let message = format!(
            "{path}: the original has a mean KLD of {mean:.1e} nats against it: it was written on another device or by another llama.cpp, and no tensor costs less than that here; with -t TEXT the original computes its own rows"
        );
        self.bench.watch.warn(Warning::new("not_own_rows", message));
        Ok(())
    }

    /// Measures a mixture over some windows.
    ///
    /// # Errors
    /// Why tensors cannot be exchanged or windows cannot be decoded, or that the observer asks to stop.
    fn measure(
        &self,
        exchanged: &Mixture,
        windows: Range<usize>,
        phase: &Phase<'_>,
    ) -> Result<Cell, Error> {
        self.bench.exchange(self.weights, exchanged, self.imatrix)?;
        let mut cell = Cell {
            exchanged: exchanged.clone(),
            from: windows.start,
            ..Cell::default()
        };
        self.bench
            .score(self.model, windows, phase, &mut |records| {
                phase.window(None);
                let (kld, n_tokens) = sum(records);
                cell.klds.push(kld);
                cell.n_tokens.push(n_tokens);
            })?;
        Ok(cell)
    }
}

/// The sum of the finite KLDs of a window's tokens, and the number of these tokens.
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
