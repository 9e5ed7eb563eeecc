//! The sums that all statistics are built on, and the mean of independent samples, with its interval; the one that
//! is printed is in `spread`.

use std::ops::AddAssign;

use serde::Serialize;

use super::estimate::{Confidence, Estimate};
use super::probability::{normal_two_sided, student_two_sided};

/// Up to this many samples, scipy's `mvsdist` uses Student's t; above it, the normal distribution.
const STUDENT_UP_TO: usize = 1000;

/// A sum that keeps the low-order bits that plain addition drops (Neumaier 1974).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    total: f64,
    lost: f64,
}

impl Sum {
    /// Adds one term.
    pub fn add(&mut self, x: f64) {
        let total = self.total + x;
        self.lost += if self.total.abs() >= x.abs() {
            (self.total - total) + x
        } else {
            (x - total) + self.total
        };
        self.total = total;
    }

    /// The sum so far.
    pub fn value(&self) -> f64 {
        self.total + self.lost
    }
}

impl FromIterator<f64> for Sum {
    fn from_iter<I: IntoIterator<Item = f64>>(terms: I) -> Self {
        let mut sum = Self::default();
        terms.into_iter().for_each(|x| sum.add(x));
        sum
    }
}

/// The mean and the maximum of a number over tokens.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct MeanMax {
    /// The mean.
    pub mean: f64,
    /// The largest value.
    pub max: f64,
}

/// The mean and the maximum of the values so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MeanMaxSoFar {
    n: u64,
    sum: Sum,
    max: f64,
}

impl MeanMaxSoFar {
    /// Adds a value, if it is finite.
    pub fn push(&mut self, x: f64) {
        if x.is_finite() {
            self.max = if self.n == 0 { x } else { self.max.max(x) };
            self.n += 1;
            self.sum.add(x);
        }
    }

    /// Both; `None` without values.
    pub fn value(&self) -> Option<MeanMax> {
        (self.n > 0).then(|| MeanMax {
            mean: self.sum.value() / self.n as f64,
            max: self.max,
        })
    }
}

impl FromIterator<f64> for MeanMaxSoFar {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut so_far = Self::default();
        values.into_iter().for_each(|x| so_far.push(x));
        so_far
    }
}

/// The number of some tokens, and totals over them: of the first three powers of a value, or of a value of
/// each of two models.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub n: f64,
    pub sums: [f64; 3],
}

impl Totals {
    /// The powers of one value that counts `weight` times.
    pub fn of_powers(x: f64, weight: f64) -> Self {
        Self {
            n: weight,
            sums: [weight * x, weight * x * x, weight * x.powi(3)],
        }
    }

    /// The sum of the values.
    pub fn sum(&self) -> f64 {
        self.sums[0]
    }

    /// The mean of the values.
    pub fn mean(&self) -> f64 {
        self.sum() / self.n
    }

    /// The totals of the values less `mean`.
    pub fn about(self, mean: f64) -> Self {
        let Self {
            n,
            sums: [sum, squares, cubes],
        } = self;
        let squares_about = squares - 2.0 * mean * sum + n * mean * mean;
        // Not NaN.max(0.0), which is 0.
        let is_negative = squares_about < 0.0;
        Self {
            n,
            sums: [
                sum - n * mean,
                if is_negative { 0.0 } else { squares_about },
                cubes - 3.0 * mean * squares + 3.0 * mean * mean * sum - n * mean.powi(3),
            ],
        }
    }
}

impl FromIterator<f64> for Totals {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        values
            .into_iter()
            .map(|x| Self::of_powers(x, 1.0))
            .collect()
    }
}

impl FromIterator<Self> for Totals {
    fn from_iter<I: IntoIterator<Item = Self>>(parts: I) -> Self {
        let (mut n, mut totals) = (0.0, [Sum::default(); 3]);
        for part in parts {
            n += part.n;
            for (sum, x) in totals.iter_mut().zip(part.sums) {
                sum.add(x);
            }
        }
        let sums = totals.map(|sum| sum.value());
        Self { n, sums }
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Self) {
        self.n += more.n;
        for (sum, x) in self.sums.iter_mut().zip(more.sums) {
            *sum += x;
        }
    }
}

/// The first two moments of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// The number of samples.
    pub n: usize,
    /// Their mean.
    pub mean: f64,
    /// Their population variance, `Σ(x − mean)² / n`.
    pub variance: f64,
}

impl Moments {
    /// Computes them in two passes over the finite samples; `None` without any.
    pub fn from_samples(samples: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let finite = || samples.clone().filter(|x| x.is_finite());
        let n = finite().count();
        let mean_of = |terms: Sum| terms.value() / n as f64;
        let mean = mean_of(finite().collect());
        let variance = mean_of(finite().map(|x| (x - mean).powi(2)).collect());
        (n > 0).then_some(Self { n, mean, variance })
    }

    /// The standard error of the mean of independent samples, `std / sqrt(n)`; `None` for fewer
    /// than two samples. It equals llama-perplexity's `sqrt((E[x²] − E[x]²) / (n−1))`.
    pub fn standard_error(&self) -> Option<f64> {
        (self.n >= 2).then(|| (self.variance / (self.n as f64 - 1.0)).sqrt())
    }

    /// The mean and its Bayesian interval, with samples as independent, as
    /// `scipy.stats.bayes_mvs` computes it (Oliphant 2006, flat prior on mean and log variance).
    /// With C the population variance:
    ///
    /// - n ≤ 1000: `mean ± t(n−1) sqrt(C/(n−1))`;
    /// - above: `mean ± z sqrt(C/n)`.
    ///
    /// One sample has no interval; equal samples have one of width 0, up to rounding.
    pub fn estimate(&self, confidence: Confidence) -> Estimate {
        let n = self.n as f64;
        let (reach, divisor) = match self.n {
            0..2 => return Estimate::point(self.mean),
            2..=STUDENT_UP_TO => (student_two_sided(confidence, n - 1.0), n - 1.0),
            _ => (normal_two_sided(confidence), n),
        };
        Estimate::symmetric(self.mean, reach * (self.variance / divisor).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::{assert_close, pinned, skewed};

    /// scipy.stats.bayes_mvs(x, 0.95)[0] on `skewed(n)`, from `oracle.py`.
    #[test]
    fn interval_matches_scipy() {
        for [n, value, lo, hi] in pinned("BAYES_MVS") {
            let estimate = Moments::from_samples(skewed(n as usize).into_iter())
                .unwrap()
                .estimate(Confidence::default());
            assert_close(estimate.value, value, 1e-10);
            assert_close(estimate.lo.unwrap(), lo, 1e-10);
            assert_close(estimate.hi.unwrap(), hi, 1e-10);
        }
    }

    #[test]
    fn small_and_constant_samples() {
        assert_eq!(Moments::from_samples([].into_iter()), None);
        let one = Moments::from_samples([2.5].into_iter()).unwrap();
        assert_eq!(one.estimate(Confidence::default()), Estimate::point(2.5));
        assert_eq!(one.standard_error(), None);
        for n in [2, 1000, 1001] {
            let constant = Moments::from_samples(std::iter::repeat_n(0.1, n)).unwrap();
            assert!(constant.standard_error().unwrap() < 1e-17);
            let estimate = constant.estimate(Confidence::default());
            let (lo, hi) = (estimate.lo.unwrap(), estimate.hi.unwrap());
            assert!((lo - 0.1).abs() < 1e-16 && (hi - 0.1).abs() < 1e-16);
        }
    }

    #[test]
    fn sum_keeps_what_addition_drops() {
        let sum: Sum = [1.0, 1e100, 1.0, -1e100].into_iter().collect();
        assert_eq!(sum.value(), 2.0);
        let tenths: Sum = std::iter::repeat_n(0.1, 1_000_000).collect();
        assert!((tenths.value() - 1e5).abs() < 1e-10);
    }
}
