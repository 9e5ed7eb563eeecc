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

/// The standard deviation without cells of whole models around the mixture.
const DOUBT_WITHOUT: f64 = 0.2;

/// Cells whose sums are within this factor are one, since the slope between them would be mere chance.
const NEAR: f64 = 1.5;

/// A cell with most of the model's tensors, beside the sum of its tensors' KLDs; or the mean of several
/// whose sums are near each other.
#[derive(Clone, Debug)]
pub struct Whole {
    pub together: Combination,
    pub sum: Combination,
    /// True for recipes, which tell more of mixtures like them than a whole model at one type.
    pub is_recipe: bool,
    /// The number of cells.
    pub n: f64,
}

impl Whole {
    /// Both as one: the recipe, if one of them is, or else their mean.
    fn join(self, other: Self) -> Self {
        if self.is_recipe != other.is_recipe {
            return if self.is_recipe { self } else { other };
        }
        let n = self.n + other.n;
        let mean = |a: &Combination, b: &Combination| {
            let mut sum = a.times(self.n / n);
            sum.add(b, other.n / n);
            sum
        };
        Self {
            together: mean(&self.together, &other.together),
            sum: mean(&self.sum, &other.sum),
            n,
            ..self
        }
    }

    fn is_near(&self, next: &Self) -> bool {
        next.sum.value < NEAR * self.sum.value || next.together.value <= self.together.value
    }
}

/// The curve from sums to wholes, through these points.
#[derive(Clone, Debug, Default)]
pub struct Curve(Vec<Whole>);

impl Curve {
    /// The curve through these cells. One whose KLD or whose sum is not above 0 is left out.
    pub fn through(mut wholes: Vec<Whole>) -> Self {
        wholes.retain(|whole| whole.together.value > 0.0 && whole.sum.value > 0.0);
        wholes.sort_by(|a, b| a.sum.value.total_cmp(&b.sum.value));
        let mut points: Vec<Whole> = Vec::new();
        for mut whole in wholes {
            while let Some(last) = points.pop_if(|last| last.is_near(&whole)) {
                whole = last.join(whole);
            }
            points.push(whole);
        }
        Self(points)
    }

    /// The KLD of a mixture whose tensors' KLDs have this sum.
    pub fn whole(&self, sum: f64) -> f64 {
        let whole = self.along(sum, |whole| whole.sum.value, |whole| whole.together.value);
        if sum > 0.0 { whole } else { 0.0 }
    }

    /// The sum of the KLDs of a mixture's tensors, whose KLD is this.
    pub fn sum(&self, whole: f64) -> f64 {
        self.along(whole, |whole| whole.together.value, |whole| whole.sum.value)
    }

    /// The `y` at this `x`.
    fn along(&self, at: f64, x: fn(&Whole) -> f64, y: fn(&Whole) -> f64) -> f64 {
        match self.around(at, x) {
            (Some(below), Some(above)) => {
                y(below) + (at - x(below)) / (x(above) - x(below)) * (y(above) - y(below))
            }
            (Some(only), None) | (None, Some(only)) => at * y(only) / x(only),
            (None, None) => at,
        }
    }

    /// The points below and above this `x`.
    fn around(&self, at: f64, x: fn(&Whole) -> f64) -> (Option<&Whole>, Option<&Whole>) {
        let n_below = self.0.partition_point(|whole| x(whole) <= at);
        let (below, above) = self.0.split_at(n_below);
        (below.last(), above.first())
    }

    /// The KLD of a mixture from the sum of its tensors' KLDs, with what both are made of.
    pub fn predict(&self, sum: &Combination) -> Combination {
        if sum.value <= 0.0 {
            return Combination::default();
        }
        // The slope of the straight line, and the points that it is through, with their weights.
        let (slope, ends) = match self.around(sum.value, |whole| whole.sum.value) {
            (Some(below), Some(above)) => {
                let width = above.sum.value - below.sum.value;
                let part = (sum.value - below.sum.value) / width;
                let slope = (above.together.value - below.together.value) / width;
                (slope, vec![(below, 1.0 - part), (above, part)])
            }
            // Through 0: the point counts by the part of it that the sum is.
            (Some(only), None) | (None, Some(only)) => {
                let slope = only.together.value / only.sum.value;
                (slope, vec![(only, sum.value / only.sum.value)])
            }
            (None, None) => return sum.times(1.0).doubted(Doubt::Additivity, DOUBT_WITHOUT),
        };
        let mut predicted = sum.times(slope);
        for (end, weight) in ends {
            predicted.add(&end.together, weight);
            predicted.add(&end.sum, -slope * weight);
        }
        predicted.doubted(Doubt::Additivity, DOUBT)
    }
}
