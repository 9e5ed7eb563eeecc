//! Numbers that are made of the means of several cells, with intervals.

use std::collections::BTreeMap;

use kl_formats::{Cell, GgmlType};

use crate::stats::probability::{normal_two_sided, student_two_sided};
use crate::stats::{Confidence, Estimate};

/// The mean KLD of a cell's tokens, and the influence of each window on it.
#[derive(Clone, Debug, Default)]
pub struct CellMean {
    pub value: f64,
    /// `(x_w - m t_w) / T` of the window's sum x_w and its t_w of T tokens, times
    /// `sqrt(n / (n - 1))` of the number of windows: their squares add up to the mean's variance.
    influences: Vec<f64>,
}

impl CellMean {
    /// The mean of a cell; `None` without tokens.
    pub fn of(cell: &Cell) -> Option<Self> {
        let n_tokens: f64 = cell.n_tokens.iter().copied().map(f64::from).sum();
        if n_tokens == 0.0 {
            return None;
        }
        let value = cell.klds.iter().sum::<f64>() / n_tokens;
        let n_windows = cell.klds.len() as f64;
        let factor = match n_windows > 1.0 {
            true => (n_windows / (n_windows - 1.0)).sqrt() / n_tokens,
            false => 0.0,
        };
        let windows = cell.klds.iter().zip(&cell.n_tokens);
        let influences = windows.map(|(sum, n)| (sum - value * f64::from(*n)) * factor);
        Some(Self {
            value,
            influences: influences.collect(),
        })
    }
}

/// Something that was not measured. Different doubts are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// The KLD of a tensor, by its index, at a type that follows from another.
    Type(usize, GgmlType),
    /// The KLD of a tensor that was measured in a group, or not at all.
    Tensor(usize),
    /// The KLD of a mixture that follows from those of its tensors.
    Additivity,
}

/// A linear combination of cells' means, and of doubts.
///
/// All cells begin with the same windows, so what two cells have in common does not count twice: the
/// influences of each window are added before they are squared.
#[derive(Clone, Debug, Default)]
pub struct Combination {
    pub value: f64,
    /// The factor of each cell's mean, by its index.
    cells: BTreeMap<usize, f64>,
    /// The standard deviation by each doubt, with its sign.
    doubts: BTreeMap<Doubt, f64>,
}

impl Combination {
    /// The mean of a cell.
    pub fn of_cell(index: usize, mean: &CellMean) -> Self {
        Self {
            value: mean.value,
            cells: [(index, 1.0)].into(),
            doubts: BTreeMap::new(),
        }
    }

    /// Adds `factor` times another.
    pub fn add(&mut self, other: &Self, factor: f64) {
        self.value += factor * other.value;
        for (cell, of) in &other.cells {
            *self.cells.entry(*cell).or_default() += factor * of;
        }
        for (doubt, of) in &other.doubts {
            *self.doubts.entry(*doubt).or_default() += factor * of;
        }
    }

    /// `factor` times this.
    pub fn times(&self, factor: f64) -> Self {
        let mut scaled = Self::default();
        scaled.add(self, factor);
        scaled
    }

    /// The value, with each cell's mean times a factor of its own.
    pub fn value_with(&self, means: &[CellMean], factor: impl Fn(usize) -> f64) -> f64 {
        let cells = self.cells.iter();
        let parts = cells.map(|(&cell, of)| of * means[cell].value * factor(cell));
        parts.sum()
    }

    /// The same value with a relative standard deviation more.
    pub fn doubted(mut self, doubt: Doubt, relative: f64) -> Self {
        *self.doubts.entry(doubt).or_default() += relative * self.value;
        self
    }

    /// The value with the interval of what windows differ by and of the doubts, which have logarithms
    /// with normal distributions. There is none where a cell has fewer than two windows.
    pub fn estimate(&self, means: &[CellMean], confidence: Confidence) -> Estimate {
        let value = self.value.max(0.0);
        let Some((below, above)) = self.reach_of_windows(means, confidence) else {
            return Estimate::point(value);
        };
        let squares: f64 = self.doubts.values().map(|sd| sd * sd).sum();
        let (doubt_below, doubt_above) = match value > 0.0 {
            true => {
                let reach = normal_two_sided(confidence) * squares.sqrt() / value;
                (-value * (-reach).exp_m1(), value * reach.exp_m1())
            }
            false => (0.0, 0.0),
        };
        let (lo, hi) = (
            (value - below.hypot(doubt_below)).max(0.0),
            value + above.hypot(doubt_above),
        );
        match hi.is_finite() {
            true => Estimate::within(value, lo, hi),
            false => Estimate::point(value),
        }
    }

    /// The distances from the value to the ends of the interval of what windows differ by.
    fn reach_of_windows(&self, means: &[CellMean], confidence: Confidence) -> Option<(f64, f64)> {
        let used = self.cells.iter().filter(|(_, factor)| **factor != 0.0);
        let mut totals: Vec<f64> = Vec::new();
        for (&cell, factor) in used {
            let influences = &means[cell].influences;
            if influences.len() < 2 {
                return None;
            }
            totals.resize(totals.len().max(influences.len()), 0.0);
            for (total, influence) in totals.iter_mut().zip(influences) {
                *total += factor * influence;
            }
        }
        if totals.is_empty() {
            return Some((0.0, 0.0));
        }
        let squares: f64 = totals.iter().map(|total| total * total).sum();
        let reach = student_two_sided(confidence, totals.len() as f64 - 1.0) * squares.sqrt();
        Some((reach, reach))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Cluster, ClusteredMean};

    fn cell(klds: &[f64], n: u32) -> Cell {
        Cell {
            klds: klds.to_vec(),
            n_tokens: vec![n; klds.len()],
            ..Cell::default()
        }
    }

    const ONE: [f64; 7] = [1.0, 3.0, 2.0, 2.5, 1.5, 6.0, 2.0];
    const OTHER: [f64; 7] = [1.1, 2.9, 2.2, 2.4, 1.3, 6.6, 2.1];

    fn estimate(of: &Combination, means: &[CellMean]) -> [f64; 3] {
        let Estimate { value, lo, hi } = of.estimate(means, Confidence::default());
        [value, lo.unwrap(), hi.unwrap()]
    }

    /// The interval of a cell is that which an evaluation of its windows has, where windows differ
    /// by more than tokens do.
    #[test]
    fn a_cell_has_the_interval_of_an_evaluation() {
        let mean = CellMean::of(&cell(&ONE, 1)).unwrap();
        let clusters: Vec<Cluster> = (0..7).map(Cluster::from).collect();
        let expected = ClusteredMean::of(&clusters, &ONE, Confidence::default()).unwrap();
        let got = estimate(&Combination::of_cell(0, &mean), &[mean]);
        for (got, expected) in got.into_iter().zip([
            expected.estimate.value,
            expected.clustered.lo.unwrap(),
            expected.clustered.hi.unwrap(),
        ]) {
            assert!((got - expected).abs() < 1e-12, "{got}, not {expected}");
        }
    }

    /// The sum of two cells is as sure as the cell of the sums, the difference much surer.
    #[test]
    fn windows_in_common_do_not_count_twice() {
        let both: Vec<f64> = ONE.iter().zip(OTHER).map(|(a, b)| a + b).collect();
        let means = [&ONE[..], &OTHER, &both].map(|klds| CellMean::of(&cell(klds, 10)).unwrap());
        let of = |i: usize| Combination::of_cell(i, &means[i]);
        let mut sum = of(0);
        sum.add(&of(1), 1.0);
        let (sum, whole) = (estimate(&sum, &means), estimate(&of(2), &means));
        for (sum, whole) in sum.into_iter().zip(whole) {
            assert!((sum - whole).abs() < 1e-12, "{sum}, not {whole}");
        }
        let mut difference = of(0).times(2.0);
        difference.add(&of(1), -1.0);
        let [value, lo, hi] = estimate(&difference, &means);
        assert!(hi - lo < 0.5 * (whole[2] - whole[1]), "{value} {lo} {hi}");
    }

    #[test]
    fn doubts_of_the_same_thing_cancel() {
        let means = [&ONE[..], &OTHER].map(|klds| CellMean::of(&cell(klds, 10)).unwrap());
        let kind = GgmlType::of(12).unwrap();
        let sure = Combination::of_cell(0, &means[0]);
        let doubted = sure.clone().doubted(Doubt::Type(0, kind), 0.5);
        assert!(estimate(&doubted, &means)[2] > 1.3 * estimate(&sure, &means)[2]);
        let mut back = doubted.times(2.0);
        back.add(&doubted, -1.0);
        assert_eq!(estimate(&back, &means), estimate(&doubted, &means));
        back.add(&doubted, -1.0);
        assert_eq!(estimate(&back, &means), [0.0; 3]);
    }

    #[test]
    fn a_single_window_has_no_interval() {
        assert!(CellMean::of(&cell(&[], 1)).is_none());
        assert!(CellMean::of(&cell(&[1.0], 0)).is_none());
        let mean = CellMean::of(&cell(&[3.0], 2)).unwrap();
        let of = Combination::of_cell(0, &mean).estimate(&[mean], Confidence::default());
        assert_eq!(of, Estimate::point(1.5));
    }
}
