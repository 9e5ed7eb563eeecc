//! The KLD of a mixture from the sum of its tensors' KLDs.
//!
//! Where most tensors were exchanged together, the whole is measured beside the sum. Between such
//! cells, ordered by their sums, the whole is a straight line in the sum: what rounded activations add
//! hardly depends on the types. Beyond them its ratio to the sum is constant.

use super::combination::{Combination, Doubt};

/// The standard deviation of the logarithm of a mixture's KLD, with cells of whole models around it,
/// beside what windows and types make of it: with it, the intervals of 35 of 36 recipes hold what they
/// have on another text (docs/RECIPES.md).
const DOUBT: f64 = 0.04;

/// The same without such cells.
const DOUBT_WITHOUT: f64 = 0.2;

/// Cells whose sums are within this factor are one, since the slope between them would be mere chance.
const NEAR: f64 = 1.5;

/// A cell with most of the model's tensors, beside the sum of its tensors' KLDs.
#[derive(Clone, Debug)]
pub struct Whole {
    pub together: Combination,
    pub sum: Combination,
    /// True for a recipe, which tells more of mixtures like it than a whole model at one type.
    pub is_recipe: bool,
}

/// The curve from sums to wholes.
#[derive(Clone, Debug)]
pub struct Curve {
    knots: Vec<Knot>,
}

/// One cell, or the mean of several whose sums are near each other.
#[derive(Clone, Debug)]
struct Knot {
    together: f64,
    sum: f64,
    /// The cells that it is the mean of.
    of: Vec<Whole>,
}

/// The straight line on which a sum lies: between two knots, or through one.
struct Line<'k> {
    /// The knots, with their weights.
    ends: Vec<(&'k Knot, f64)>,
    slope: f64,
    whole: f64,
}

impl Knot {
    fn of(of: Vec<Whole>) -> Self {
        let n = of.len() as f64;
        let mean = |value: fn(&Whole) -> f64| of.iter().map(value).sum::<f64>() / n;
        Self {
            together: mean(|whole| whole.together.value),
            sum: mean(|whole| whole.sum.value),
            of,
        }
    }

    /// Both as one: the recipes among them, or else all.
    fn join(self, other: Self) -> Self {
        let all = || self.of.iter().chain(&other.of).cloned();
        let recipes: Vec<Whole> = all().filter(|whole| whole.is_recipe).collect();
        match recipes.is_empty() {
            true => Self::of(all().collect()),
            false => Self::of(recipes),
        }
    }

    fn is_near(&self, next: &Self) -> bool {
        next.sum < NEAR * self.sum || next.together <= self.together
    }
}

impl Curve {
    /// The curve through these cells. One whose KLD or whose sum is not above 0 is left out.
    pub fn of(wholes: Vec<Whole>) -> Self {
        let is_known = |whole: &Whole| whole.together.value > 0.0 && whole.sum.value > 0.0;
        let wholes = wholes.into_iter().filter(is_known);
        let mut all: Vec<Knot> = wholes.map(|whole| Knot::of(vec![whole])).collect();
        all.sort_by(|a, b| a.sum.total_cmp(&b.sum));
        let mut knots: Vec<Knot> = Vec::new();
        for mut knot in all {
            while let Some(last) = knots.pop_if(|last| last.is_near(&knot)) {
                knot = last.join(knot);
            }
            knots.push(knot);
        }
        Self { knots }
    }

    /// The KLD of a mixture whose tensors' KLDs have this sum.
    pub fn whole(&self, sum: f64) -> f64 {
        match sum > 0.0 {
            true => self.line(sum).whole,
            false => 0.0,
        }
    }

    /// The sum of the KLDs of a mixture's tensors, whose KLD is this.
    pub fn sum(&self, whole: f64) -> f64 {
        let n_below = self.knots.partition_point(|knot| knot.together <= whole);
        let (below, above) = self.knots.split_at(n_below);
        match (below.last(), above.first()) {
            (Some(below), Some(above)) => {
                let part = (whole - below.together) / (above.together - below.together);
                below.sum + part * (above.sum - below.sum)
            }
            (Some(knot), None) | (None, Some(knot)) => whole * knot.sum / knot.together,
            (None, None) => whole,
        }
    }

    /// The KLD of a mixture from the sum of its tensors' KLDs, with what both are made of.
    pub fn predict(&self, sum: &Combination) -> Combination {
        if sum.value <= 0.0 {
            return Combination::default();
        }
        let line = self.line(sum.value);
        let mut predicted = sum.times(line.slope);
        for (knot, weight) in line.ends {
            let factor = weight / knot.of.len() as f64;
            for of in &knot.of {
                predicted.add(&of.together, factor);
                predicted.add(&of.sum, -line.slope * factor);
            }
        }
        let doubt = match self.knots.is_empty() {
            true => DOUBT_WITHOUT,
            false => DOUBT,
        };
        predicted.doubted(Doubt::Additivity, doubt)
    }

    fn line(&self, sum: f64) -> Line<'_> {
        let n_below = self.knots.partition_point(|knot| knot.sum <= sum);
        let (below, above) = self.knots.split_at(n_below);
        match (below.last(), above.first()) {
            (Some(below), Some(above)) => {
                let part = (sum - below.sum) / (above.sum - below.sum);
                let rise = above.together - below.together;
                Line {
                    ends: vec![(below, 1.0 - part), (above, part)],
                    slope: rise / (above.sum - below.sum),
                    whole: below.together + part * rise,
                }
            }
            // Through 0: the knot counts by the part of it that the sum is.
            (Some(knot), None) | (None, Some(knot)) => Line {
                ends: vec![(knot, sum / knot.sum)],
                slope: knot.together / knot.sum,
                whole: knot.together * sum / knot.sum,
            },
            (None, None) => Line {
                ends: Vec::new(),
                slope: 1.0,
                whole: sum,
            },
        }
    }
}
