//! The mean KLD of each cell, and how sure it is.
//!
//! What makes a window hard is common to most tensors. So a cell of few windows counts as its share of
//! a cell with more tensors and more windows, over the windows that both have, times that one's KLD.
//!
//! Few windows do not show how much windows differ, so cells lend each other their variances: that of
//! each is drawn from a scaled inverse χ² distribution, whose scale is estimated from all cells
//! (Smyth 2004, "Linear models and empirical Bayes methods", Statistical Applications in Genetics and
//! Molecular Biology 3).

use kl_formats::Cell;

/// The degrees of freedom that the variance of all cells has in that of each. Of 12 maps of the
/// fixtures' model, 92 % of the intervals of cells with 2 or 4 windows then hold the mean of the
/// others; 88 % with 4 degrees, and 92 % with 1, where intervals are far wider (docs/RECIPES.md).
const POOLED_DEGREES: f64 = 2.0;

/// The rounds after which the pooled variance has long converged.
const ROUNDS: usize = 100;

/// The mean KLD of a cell.
#[derive(Clone, Debug, Default)]
pub struct CellMean {
    /// False for a cell without tokens, whose value is 0.
    pub has_tokens: bool,
    /// In nats.
    pub value: f64,
    /// The index of the cell of which it is a share.
    pub share_of: Option<usize>,
    /// The relative variance of the mean, or of the share; `None` where no cell has two windows.
    pub variance: Option<f64>,
    /// The degrees of freedom that the variance has.
    pub degrees: f64,
}

/// How much a cell's windows differ.
#[derive(Default)]
struct Spread {
    /// The relative variance of a window.
    variance: f64,
    degrees: f64,
}

impl CellMean {
    /// The means of cells.
    pub fn of_each(cells: &[Cell]) -> Vec<Self> {
        let read: Vec<_> = cells.iter().map(|cell| read(cell, cells)).collect();
        let spreads = read
            .iter()
            .flatten()
            .filter_map(|(_, spread)| spread.as_ref());
        let pooled = pooled(&spreads.collect::<Vec<_>>());
        let means = read.into_iter().zip(cells).map(|(read, cell)| {
            let Some((mean, spread)) = read else {
                return Self::default();
            };
            let spread = spread.unwrap_or_default();
            let variance = pooled.map(|pooled| spread.moderated(pooled) / n_windows(cell));
            Self {
                variance,
                degrees: POOLED_DEGREES + spread.degrees,
                ..mean
            }
        });
        means.collect()
    }
}

impl Spread {
    /// The variance, with that of all cells.
    fn moderated(&self, pooled: f64) -> f64 {
        let sum = POOLED_DEGREES * pooled + self.degrees * self.variance;
        sum / (POOLED_DEGREES + self.degrees)
    }
}

/// The scale of the distribution that the cells' variances are drawn from, at its greatest likelihood:
/// the harmonic mean of the moderated variances.
fn pooled(spreads: &[&Spread]) -> Option<f64> {
    let degrees: f64 = spreads.iter().map(|of| of.degrees).sum();
    let sum: f64 = spreads.iter().map(|of| of.degrees * of.variance).sum();
    let mut pooled = (degrees > 0.0).then(|| sum / degrees)?;
    for _ in 0..ROUNDS {
        let inverses = spreads.iter().map(|of| of.moderated(pooled).recip());
        pooled = spreads.len() as f64 / inverses.sum::<f64>();
    }
    Some(pooled)
}

/// The number of equal windows that would tell as much.
fn n_windows(cell: &Cell) -> f64 {
    let n = || cell.n_tokens.iter().copied().map(f64::from);
    n().sum::<f64>().powi(2) / n().map(|n| n * n).sum::<f64>()
}

/// The mean KLD of a cell's first windows.
pub fn mean_of(cell: &Cell, n_windows: usize) -> Option<f64> {
    let klds: f64 = cell.klds.iter().take(n_windows).sum();
    let n_tokens = cell.n_tokens.iter().take(n_windows).copied();
    let n_tokens: f64 = n_tokens.map(f64::from).sum();
    (n_tokens > 0.0).then(|| klds / n_tokens)
}

/// The mean of a cell, and how much its windows differ where there are two.
fn read(cell: &Cell, cells: &[Cell]) -> Option<(CellMean, Option<Spread>)> {
    let n = cell.klds.len();
    let own = mean_of(cell, n)?;
    let whole = whole_of(cell, cells).and_then(|index| {
        let whole = &cells[index];
        let (here, all) = (mean_of(whole, n)?, mean_of(whole, whole.klds.len())?);
        (here > 0.0 && all > 0.0).then_some((index, all / here))
    });
    let value = own * whole.map_or(1.0, |(_, hardness)| hardness);
    let mean = CellMean {
        has_tokens: true,
        value,
        share_of: whole.map(|(index, _)| index),
        ..CellMean::default()
    };
    // What windows would have if all were as hard, or as hard as for the whole.
    let expected: Vec<f64> = match whole {
        Some((index, _)) => cells[index].klds[..n].to_vec(),
        None => cell.n_tokens.iter().copied().map(f64::from).collect(),
    };
    let (sum, of_expected): (f64, f64) = (cell.klds.iter().sum(), expected.iter().sum());
    let spread = (n > 1 && sum > 0.0).then(|| {
        let differences = cell.klds.iter().zip(&expected);
        let differences = differences.map(|(kld, expected)| kld / sum - expected / of_expected);
        let squares: f64 = differences.map(|difference| difference.powi(2)).sum();
        let degrees = n as f64 - 1.0;
        Spread {
            variance: n_windows(cell) * squares * n as f64 / degrees,
            degrees,
        }
    });
    Some((mean, spread))
}

/// The cell with the most tensors of those that hold a cell's at the same types, over more windows.
fn whole_of(of: &Cell, cells: &[Cell]) -> Option<usize> {
    let holds = |(_, cell): &(usize, &Cell)| {
        let is_in = |(name, kind)| cell.exchanged.get(name) == Some(kind);
        cell.exchanged.len() > of.exchanged.len().max(1)
            && cell.klds.len() > of.klds.len()
            && !of.exchanged.is_empty()
            && of.exchanged.iter().all(is_in)
    };
    let wholes = cells.iter().enumerate().filter(holds);
    let extent = |(_, cell): &(usize, &Cell)| (cell.exchanged.len(), cell.klds.len());
    wholes.max_by_key(extent).map(|(index, _)| index)
}
