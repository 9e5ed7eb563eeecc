//! Numbers that are made of the means of several cells, with intervals.

use std::collections::BTreeMap;

use kl_formats::GgmlType;

use super::cells::CellMean;
use crate::stats::probability::{normal_two_sided, student_two_sided};
use crate::stats::{Confidence, Estimate};

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
    /// The mean of a cell.
    pub fn of_cell(index: usize, mean: &CellMean) -> Self {
        let cells = [Some(index), mean.share_of].into_iter().flatten();
        Self {
            value: mean.value,
            doubts: cells.map(|cell| (Doubt::Cell(cell), mean.value)).collect(),
        }
    }

    /// Adds `factor` times another.
    pub fn add(&mut self, other: &Self, factor: f64) {
        self.value += factor * other.value;
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

    /// The same value with a relative standard deviation more.
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
        match self.value > 0.0 {
            true => within_factor(self.value, self.reach(means, confidence)),
            false => Estimate::within(0.0, 0.0, 0.0),
        }
    }

    /// This over another, with its interval; `None` where one of them is 0.
    pub fn over(
        &self,
        other: &Self,
        means: &[CellMean],
        confidence: Confidence,
    ) -> Option<Estimate> {
        let is_defined = self.value > 0.0 && other.value > 0.0;
        is_defined.then(|| {
            let reach = self.relative_to(other).reach(means, confidence);
            within_factor(self.value / other.value, reach)
        })
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
        let t = match of_windows > 0.0 {
            true => student_two_sided(confidence, of_windows.powi(2) / of_degrees),
            false => 0.0,
        };
        Some((t * of_windows.sqrt()).hypot(normal_two_sided(confidence) * others.sqrt()))
    }
}

/// A value whose logarithm's interval reaches so far to both sides.
fn within_factor(value: f64, reach: Option<f64>) -> Estimate {
    let ends = reach.map(|reach| (value * (-reach).exp(), value * reach.exp()));
    match ends.filter(|(_, hi)| hi.is_finite()) {
        Some((lo, hi)) => Estimate::within(value, lo, hi),
        None => Estimate::point(value),
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
            Combination::of_cell(0, &means[0]),
            Combination::of_cell(1, &means[1]),
            Combination::of_cell(2, &means[2]),
        );
        let level = Confidence::default();
        let of = |combination: &Combination| combination.estimate(&means, level);
        assert_near(of(&two), [2.5, 1.436399194148366, 4.351158108039453]);
        let expected = [9.0 / 7.0, 0.7683938306644433, 2.1513202716117146];
        assert_near(of(&share), expected);
        let doubted = two.clone().doubted(Doubt::Additivity, 0.5);
        assert_near(of(&doubted), [2.5, 0.8109739330421641, 7.706782851274518]);
        // What the whole's windows are is the share's too, and cancels.
        let over = |a: &Combination, b| a.over(b, &means, level).unwrap();
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
        assert_eq!(two.over(&nothing, &means, level), None);
    }

    #[test]
    fn one_window_has_an_interval_by_the_other_cells_alone() {
        let one = cell(&["a"], &[3.0]);
        let estimate = |cells: &[Cell]| {
            let means = CellMean::of_each(cells);
            Combination::of_cell(0, &means[0]).estimate(&means, Confidence::default())
        };
        assert_eq!(estimate(std::slice::from_ref(&one)), Estimate::point(3.0));
        let with_other = estimate(&[one, cell(&["b"], &[1.0, 1.5])]);
        assert!(with_other.lo.unwrap() > 0.0 && with_other.hi.unwrap() > 3.0);
        let empty = CellMean::of_each(&[cell(&["a"], &[]), cell(&["b"], &[0.0, 0.0])]);
        assert_eq!([0, 1].map(|i| empty[i].has_tokens), [false, true]);
        assert!(empty.iter().all(|mean| mean.value == 0.0));
    }
}
