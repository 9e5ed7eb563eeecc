//! The sums that all statistics are built on, and the mean of independent samples.

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
    max: Option<f64>,
}

impl MeanMaxSoFar {
    /// Adds a value.
    pub fn push(&mut self, x: f64) {
        self.n += 1;
        self.sum.add(x);
        self.max = Some(self.max.map_or(x, |max| max.max(x)));
    }

    /// Both; `None` without values.
    pub fn value(&self) -> Option<MeanMax> {
        Some(MeanMax {
            mean: self.sum.value() / self.n as f64,
            max: self.max?,
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

/// The number of some values, and the sums of their powers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Powers {
    pub n: f64,
    pub sum: f64,
    pub squares: f64,
    pub cubes: f64,
}

impl Powers {
    /// Those of one value that counts `weight` times.
    pub fn weighted(x: f64, weight: f64) -> Self {
        Self {
            n: weight,
            sum: weight * x,
            squares: weight * x * x,
            cubes: weight * x.powi(3),
        }
    }

    /// The mean of the values.
    pub fn mean(&self) -> f64 {
        self.sum / self.n
    }

    /// The same of the values less `mean`.
    pub fn about(self, mean: f64) -> Self {
        let Self {
            n,
            sum,
            squares,
            cubes,
        } = self;
        let squares_about = squares - 2.0 * mean * sum + n * mean * mean;
        Self {
            n,
            sum: sum - n * mean,
            // Not NaN.max(0.0), which is 0.
            squares: if squares_about < 0.0 {
                0.0
            } else {
                squares_about
            },
            cubes: cubes - 3.0 * mean * squares + 3.0 * mean * mean * sum - n * mean.powi(3),
        }
    }
}

impl FromIterator<f64> for Powers {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        values.into_iter().map(|x| Self::weighted(x, 1.0)).collect()
    }
}

impl FromIterator<Self> for Powers {
    fn from_iter<I: IntoIterator<Item = Self>>(parts: I) -> Self {
        let (mut n, [mut sum, mut squares, mut cubes]) = (0.0, [Sum::default(); 3]);
        for part in parts {
            n += part.n;
            sum.add(part.sum);
            squares.add(part.squares);
            cubes.add(part.cubes);
        }
        Self {
            n,
            sum: sum.value(),
            squares: squares.value(),
            cubes: cubes.value(),
        }
    }
}

impl AddAssign for Powers {
    fn add_assign(&mut self, more: Self) {
        self.n += more.n;
        self.sum += more.sum;
        self.squares += more.squares;
        self.cubes += more.cubes;
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
    /// Computes them in two passes over finite samples; `None` without any.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let n = samples.len();
        if n == 0 {
            return None;
        }
        let mean = mean_of(samples.iter().copied(), n);
        let variance = mean_of(samples.iter().map(|x| (x - mean).powi(2)), n);
        Some(Self { n, mean, variance })
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
        let half_width = match self.n {
            0..2 => return Estimate::point(self.mean),
            2..=STUDENT_UP_TO => {
                let degrees = self.n as f64 - 1.0;
                student_two_sided(confidence, degrees) * (self.variance / degrees).sqrt()
            }
            _ => normal_two_sided(confidence) * (self.variance / self.n as f64).sqrt(),
        };
        Estimate::symmetric(self.mean, half_width)
    }
}

/// The mean of `n` > 0 terms.
fn mean_of(terms: impl Iterator<Item = f64>, n: usize) -> f64 {
    terms.collect::<Sum>().value() / n as f64
}

#[cfg(test)]
#[path = "tests/mean.rs"]
mod tests;
