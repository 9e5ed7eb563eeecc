//! The checks that each line after the header must pass, reading and writing.

use std::collections::BTreeMap;

use super::{Cell, ErrorsLine, MapHeader, MapTensor, Mixture, SensitivityMap};
use crate::numbers::GgmlType;
use crate::sidecar::{MOST_NATS, ROUNDING};

/// A map that grows line by line.
#[derive(Debug)]
pub(super) struct Builder {
    pub map: SensitivityMap,
    /// The index of each tensor, by its name.
    tensors: BTreeMap<String, usize>,
    /// The index of each cell, by what it exchanges.
    cells: BTreeMap<Mixture, usize>,
}

impl Builder {
    pub fn new(header: MapHeader) -> Self {
        let names = header.tensors.iter().map(|tensor| tensor.name.clone());
        Self {
            tensors: names.zip(0..).collect(),
            cells: BTreeMap::new(),
            map: SensitivityMap {
                header,
                errors: BTreeMap::new(),
                cells: Vec::new(),
                is_cut_off: true,
            },
        }
    }

    /// Adds the weight errors of a tensor.
    pub fn add_errors(&mut self, line: ErrorsLine) -> Result<(), String> {
        let ErrorsLine { tensor, errors } = line;
        let known = self.map.errors.get(&tensor);
        for (&kind, error) in &errors {
            self.check_type(&tensor, kind)?;
            let of = || format!("the weight error of {} at {kind}", tensor.escape_debug());
            if !error.is_finite() || *error < 0.0 {
                return Err(format!("{} is {error:?}", of()));
            }
            if known.is_some_and(|known| known.contains_key(&kind)) {
                return Err(format!("{} is stated twice", of()));
            }
        }
        if errors.is_empty() {
            return Err(format!("no weight errors of {}", tensor.escape_debug()));
        }
        self.map.errors.entry(tensor).or_default().extend(errors);
        Ok(())
    }

    /// Adds a cell, or continues one.
    pub fn add_cell(&mut self, cell: Cell) -> Result<(), String> {
        for (tensor, kind) in &cell.exchanged {
            self.check_type(tensor, *kind)?;
        }
        self.check_sums(&cell)?;
        let index = self.cells.get(&cell.exchanged).copied();
        let known = index.and_then(|index| self.map.cells.get_mut(index));
        let n_known = known.as_ref().map_or(0, |known| known.klds.len());
        if cell.from != n_known {
            return Err(format!(
                "{} starts at window {}, and {n_known} are there",
                described(&cell.exchanged),
                cell.from
            ));
        }
        match known {
            Some(known) => {
                known.klds.extend(cell.klds);
                known.n_tokens.extend(cell.n_tokens);
            }
            None => {
                let index = self.map.cells.len();
                self.cells.insert(cell.exchanged.clone(), index);
                self.map.cells.push(cell);
            }
        }
        Ok(())
    }

    /// Checks that a tensor may have a type.
    fn check_type(&self, tensor: &str, kind: GgmlType) -> Result<(), String> {
        let index = self.tensors.get(tensor);
        let known = index.and_then(|&index| self.map.header.tensors.get(index));
        let name = tensor.escape_debug();
        match known {
            None => Err(format!("no tensor {name} in the header")),
            Some(MapTensor {
                is_quantizable: false,
                ..
            }) => Err(format!("tensor {name} is never quantized")),
            Some(known) if !kind.is_for_weights || !known.has_rows_of(kind) => {
                Err(format!("tensor {name} cannot be {kind}"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Checks the numbers of each window.
    fn check_sums(&self, cell: &Cell) -> Result<(), String> {
        let n = cell.klds.len();
        if n == 0 || cell.n_tokens.len() != n {
            let (what, n_counts) = (described(&cell.exchanged), cell.n_tokens.len());
            return Err(format!("{what} has {n} sums and {n_counts} counts"));
        }
        let windows = self.map.header.windows.get(cell.from..).unwrap_or_default();
        if n > windows.len() {
            return Err(format!(
                "{} has more windows than the header",
                described(&cell.exchanged)
            ));
        }
        let sums = windows.iter().zip(&cell.klds).zip(&cell.n_tokens);
        for ((window, &kld), &n_tokens) in sums {
            let most = f64::from(n_tokens);
            let possible = -ROUNDING * most..=MOST_NATS * most;
            if n_tokens > window.n_rows || !possible.contains(&kld) {
                return Err(format!(
                    "{} has {n_tokens} tokens with a KLD of {kld:?} in window {}, which has {} rows",
                    described(&cell.exchanged),
                    window.window,
                    window.n_rows
                ));
            }
        }
        Ok(())
    }
}

/// Names the cell that exchanges these tensors.
fn described(exchanged: &Mixture) -> String {
    let Some((tensor, kind)) = exchanged.first_key_value() else {
        return "the cell without an exchanged tensor".to_owned();
    };
    let tensor = tensor.escape_debug();
    match exchanged.len() {
        1 => format!("the cell of {tensor} at {kind}"),
        n => format!("the cell of {tensor} at {kind} and {} more", n - 1),
    }
}
