//! The mean KLD of each cell, how sure it is, and numbers that are made of several.
//!
//! A window that is hard for one tensor is hard for most. So a cell of few windows counts as its share of
//! a cell with more tensors and more windows, over the windows that both have, times that one's KLD.
//!
//! Few windows do not show how much windows differ, so cells lend each other their variances: that of
//! each is drawn from a scaled inverse χ² distribution, whose scale is estimated from all cells
//! (Smyth 2004, "Linear models and empirical Bayes methods", Statistical Applications in Genetics and
//! Molecular Biology 3).

use std::collections::BTreeMap;

use kl_formats::{Cell, GgmlType};

use kl_stats::stats::probability::{normal_two_sided, student_two_sided};
use kl_stats::stats::{Confidence, Estimate};

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
    /// The index of the cell that it is a share of.
    pub share_of: Option<usize>,
    /// The relative variance of the mean, or of the share; `None` where no cell has two windows.
    pub variance: Option<f64>,
    /// The degrees of freedom that the variance has.
    pub degrees: f64,
}

impl CellMean {
    /// The means of cells.
    pub fn of_each(cells: &[Cell]) -> Vec<Self> {
        let mut means: Vec<Self> = cells.iter().map(|cell| Self::alone(cell, cells)).collect();
        let pooled = pooled(&means);
        for (mean, cell) in means.iter_mut().zip(cells) {
            if mean.has_tokens {
                mean.variance = pooled.map(|pooled| mean.moderated(pooled) / n_windows(cell));
                mean.degrees += POOLED_DEGREES;
            }
        }
        means
    }

    /// The mean of a cell, and the relative variance of one of its windows.
    fn alone(cell: &Cell, cells: &[Cell]) -> Self {
        let n = cell.klds.len();
        let Some(own) = mean_of(cell, n) else {
            return Self::default();
        };
        let whole = whole_of(cell, cells).and_then(|index| {
            let whole = &cells[index];
            let (here, all) = (mean_of(whole, n)?, mean_of(whole, whole.klds.len())?);
            (here > 0.0 && all > 0.0).then_some((index, all / here))
        });
        // What windows would have if all were as hard, or as hard as for the whole.
        let expected: Vec<f64> = match whole {
            Some((index, _)) => cells[index].klds[..n].to_vec(),
            None => cell.n_tokens.iter().copied().map(f64::from).collect(),
        };
        let (sum, of_expected): (f64, f64) = (cell.klds.iter().sum(), expected.iter().sum());
        let degrees = n as f64 - 1.0;
        let variance = (n > 1 && sum > 0.0).then(|| {
            let windows = cell.klds.iter().zip(&expected);
            let differences = windows.map(|(kld, expected)| kld / sum - expected / of_expected);
            let squares: f64 = differences.map(|difference| difference.powi(2)).sum();
            n_windows(cell) * squares * n as f64 / degrees
        });
        Self {
            has_tokens: true,
            value: own * whole.map_or(1.0, |(_, hardness)| hardness),
            share_of: whole.map(|(index, _)| index),
            degrees: variance.map_or(0.0, |_| degrees),
            variance,
        }
    }

    /// The variance of a window, with that of all cells.
    fn moderated(&self, pooled: f64) -> f64 {
        let sum = POOLED_DEGREES * pooled + self.degrees * self.variance.unwrap_or(0.0);
        sum / (POOLED_DEGREES + self.degrees)
    }
}

/// The scale of the distribution that the cells' variances are drawn from, at its greatest likelihood:
/// the harmonic mean of the moderated variances.
fn pooled(means: &[CellMean]) -> Option<f64> {
    let known = || means.iter().filter(|mean| mean.variance.is_some());
    let degrees: f64 = known().map(|mean| mean.degrees).sum();
    let sum = known().map(|mean| mean.degrees * mean.variance.unwrap_or(0.0));
    let mut pooled = (degrees > 0.0).then(|| sum.sum::<f64>() / degrees)?;
    for _ in 0..ROUNDS {
        let inverses = known().map(|mean| mean.moderated(pooled).recip());
        pooled = known().count() as f64 / inverses.sum::<f64>();
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
    let of_windows = cell.n_tokens.iter().take(n_windows).copied();
    let n_tokens: f64 = of_windows.map(f64::from).sum();
    (n_tokens > 0.0).then(|| klds / n_tokens)
}

/// The cell with the most tensors of those that hold a cell's at the same types, over more windows.
fn whole_of(part: &Cell, cells: &[Cell]) -> Option<usize> {
    let holds = |(_, cell): &(usize, &Cell)| {
        let is_in = |(name, kind)| cell.exchanged.get(name) == Some(kind);
        cell.exchanged.len() > part.exchanged.len().max(1)
            && cell.klds.len() > part.klds.len()
            && !part.exchanged.is_empty()
            && part.exchanged.iter().all(is_in)
    };
    let wholes = cells.iter().enumerate().filter(holds);
    let extent = |(_, cell): &(usize, &Cell)| (cell.exchanged.len(), cell.klds.len());
    wholes.max_by_key(extent).map(|(index, _)| index)
}

/// Something that makes a number unsure. Different doubts are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// The windows of a cell, by its index.
    Cell(usize),
    /// The KLD of a tensor, by its index, at a type that follows from another.
    Type(usize, GgmlType),
    /// The KLD of a tensor that was measured in a group, or not at all.
    Tensor(usize),
    /// The KLD of a mixture that follows from those of its tensors.
    Additivity,
}

/// A linear combination of cells' means, with what makes it unsure.
///
/// A doubt that two numbers have in common counts in their sum twice, and in their difference cancels.
#[derive(Clone, Debug, Default)]
pub struct Combination {
    pub value: f64,
    /// The nats, with their sign, by which each doubt moves the value: of a cell, for a relative error
    /// of its mean of 1; of another, its standard deviation.
    doubts: BTreeMap<Doubt, f64>,
}

impl Combination {
    /// The mean of a cell of these.
    pub fn of_cell(means: &[CellMean], index: usize) -> Self {
        let mean = &means[index];
        let cells = [Some(index), mean.share_of].into_iter().flatten();
        Self {
            value: mean.value,
            doubts: cells.map(|cell| (Doubt::Cell(cell), mean.value)).collect(),
        }
    }

    /// Adds `factor` times another.
    pub fn add(&mut self, other: &Self, factor: f64) {
        self.value += factor * other.value;
        for (doubt, nats) in &other.doubts {
            *self.doubts.entry(*doubt).or_default() += factor * nats;
        }
    }

    /// `factor` times this.
    pub fn times(&self, factor: f64) -> Self {
        let mut scaled = Self::default();
        scaled.add(self, factor);
        scaled
    }

    /// This value with one more doubt, of a `relative` standard deviation.
    pub fn doubted(mut self, doubt: Doubt, relative: f64) -> Self {
        *self.doubts.entry(doubt).or_default() += relative * self.value;
        self
    }

    /// The cells that make it unsure, with the standard deviations and signs relative to the value.
    pub fn of_windows<'c>(
        &'c self,
        means: &'c [CellMean],
    ) -> impl Iterator<Item = (usize, f64)> + 'c {
        self.doubts.iter().filter_map(|(doubt, nats)| {
            let Doubt::Cell(cell) = *doubt else {
                return None;
            };
            Some((cell, nats * means[cell].variance?.sqrt() / self.value))
        })
    }

    /// The value with its interval; without one where no cell has two windows. Its logarithm has
    /// Student's distribution by what windows differ by, with degrees of freedom after Satterthwaite,
    /// and a normal one by other doubts.
    pub fn estimate(&self, means: &[CellMean], confidence: Confidence) -> Estimate {
        if self.value <= 0.0 {
            return Estimate::within(0.0, 0.0, 0.0);
        }
        let reach = self.reach(means, confidence).unwrap_or(f64::INFINITY);
        let (lo, hi) = (self.value * (-reach).exp(), self.value * reach.exp());
        if hi.is_finite() {
            Estimate::within(self.value, lo, hi)
        } else {
            Estimate::point(self.value)
        }
    }

    /// 1, with the doubts of the ratio to another.
    pub fn relative_to(&self, other: &Self) -> Self {
        let mut ratio = self.times(1.0 / self.value);
        ratio.add(other, -1.0 / other.value);
        Self {
            value: 1.0,
            ..ratio
        }
    }

    /// The distance from the value's logarithm to the ends of its interval.
    fn reach(&self, means: &[CellMean], confidence: Confidence) -> Option<f64> {
        let (mut of_windows, mut of_degrees, mut others) = (0.0, 0.0, 0.0);
        for (&doubt, nats) in &self.doubts {
            let square = (nats / self.value).powi(2);
            match doubt {
                Doubt::Cell(cell) => {
                    let mean = &means[cell];
                    let variance = square * mean.variance?;
                    of_windows += variance;
                    of_degrees += variance.powi(2) / mean.degrees;
                }
                _ => others += square,
            }
        }
        let mut reach = 0.0;
        if of_windows > 0.0 {
            let degrees = of_windows.powi(2) / of_degrees;
            reach = student_two_sided(confidence, degrees) * of_windows.sqrt();
        }
        let doubt = normal_two_sided(confidence) * others.sqrt();
        // f64::hypot would be the only function that needs glibc 2.35: see docs/RELEASING.md.
        Some((reach.powi(2) + doubt.powi(2)).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use kl_formats::Cell;

    use super::*;

    fn cell(names: &[&str], klds: &[f64]) -> Cell {
        let kind = GgmlType::of(12).unwrap();
        Cell {
            exchanged: names.iter().map(|name| (name.to_string(), kind)).collect(),
            from: 0,
            klds: klds.to_vec(),
            n_tokens: vec![1; klds.len()],
        }
    }

    /// A cell, one with more tensors over more windows, and one that is a share of it.
    fn means() -> Vec<CellMean> {
        let whole = [1.0, 3.0, 2.0, 2.5, 1.5, 6.0, 2.0];
        let cells = [
            cell(&["a"], &[2.0, 3.0]),
            cell(&["b", "c"], &whole),
            cell(&["b"], &[0.5, 1.5, 1.0]),
        ];
        CellMean::of_each(&cells)
    }

    #[track_caller]
    fn assert_near(got: Estimate, expected: [f64; 3]) {
        let got = [got.value, got.lo.unwrap(), got.hi.unwrap()];
        for (got, expected) in got.into_iter().zip(expected) {
            assert!((got / expected - 1.0).abs() < 1e-7, "{got}, not {expected}");
        }
    }

    /// scipy: variances of a window are drawn from `s0 / f(2)`, s0 by `stats.f.logpdf` at its greatest
    /// likelihood; `exp(±hypot(t.ppf(0.975, df) * sd, norm.ppf(0.975) * doubt))`.
    #[test]
    fn intervals_are_those_of_pooled_variances() {
        let means = means();
        let (two, whole, share) = (
            Combination::of_cell(&means, 0),
            Combination::of_cell(&means, 1),
            Combination::of_cell(&means, 2),
        );
        let level = Confidence::default();
        let of = |combination: &Combination| combination.estimate(&means, level);
        assert_near(of(&two), [2.5, 1.436399194148366, 4.351158108039453]);
        let expected = [9.0 / 7.0, 0.7683938306644433, 2.1513202716117146];
        assert_near(of(&share), expected);
        let doubted = two.clone().doubted(Doubt::Additivity, 0.5);
        assert_near(of(&doubted), [2.5, 0.8109739330421641, 7.706782851274518]);
        // What the whole's windows are is the share's too, and cancels.
        let over = |a: &Combination, b: &Combination| {
            let (ratio, of) = (a.value / b.value, of(&a.relative_to(b)));
            Estimate::within(ratio, ratio * of.lo.unwrap(), ratio * of.hi.unwrap())
        };
        let expected = [18.0 / 35.0, 0.2733700749658775, 0.9675155407971461];
        assert_near(over(&share, &two), expected);
        assert_near(
            over(&whole, &share),
            [2.0, 1.5484728282652926, 2.583190306594582],
        );
        let own = over(&doubted, &doubted.times(2.0));
        assert_eq!(own, Estimate::within(0.5, 0.5, 0.5));
        let nothing = Combination::default();
        assert_eq!(of(&nothing), Estimate::within(0.0, 0.0, 0.0));
    }

    #[test]
    fn one_window_has_an_interval_by_the_other_cells_alone() {
        let one = cell(&["a"], &[3.0]);
        let estimate = |cells: &[Cell]| {
            let means = CellMean::of_each(cells);
            Combination::of_cell(&means, 0).estimate(&means, Confidence::default())
        };
        assert_eq!(estimate(std::slice::from_ref(&one)), Estimate::point(3.0));
        let with_other = estimate(&[one, cell(&["b"], &[1.0, 1.5])]);
        assert!(with_other.lo.unwrap() > 0.0 && with_other.hi.unwrap() > 3.0);
        let empty = CellMean::of_each(&[cell(&["a"], &[]), cell(&["b"], &[0.0, 0.0])]);
        assert_eq!([0, 1].map(|i| empty[i].has_tokens), [false, true]);
        assert!(empty.iter().all(|mean| mean.value == 0.0));
    }
}
