//! By how much a choice makes the sum of its KLDs too low.
//!
//! Of several tensors, the best mixture gives few bits to those that were measured too low. How far that
//! goes is simulated: the map's KLDs are taken for true, the errors that few windows make are drawn,
//! and mixtures are chosen by the KLDs with these errors.
//!
//! A KLD that follows from another one has errors too. But they are as often above as below whatever is
//! chosen by it, so they do not count here.

use std::f64::consts::TAU;

use super::Sensitivities;
use super::knapsack::{Item, Step, steps};
use super::solve::Options;
use crate::Random;

/// The sets of errors that are drawn.
const DRAWS: usize = 64;

/// The true sum of KLDs over the one that they were chosen by, for choices of each of these weights,
/// which rise. `classes` are the items of the options, by KLD and weight.
pub fn selection(
    of: &Sensitivities,
    options: &Options<'_>,
    classes: &[Vec<Item>],
    weights: &[f64],
) -> Vec<f64> {
    let errors = errors(of, options);
    let path = Path::of(options, classes);
    let best = path.sums(classes, weights);
    let (mut lost, mut gained) = (vec![0.0; weights.len()], vec![0.0; weights.len()]);
    let random = &mut Random(0);
    for _ in 0..DRAWS {
        let drawn: Vec<f64> = of.means.iter().map(|_| normal(random)).collect();
        let with_errors = with_errors(classes, &errors, &drawn);
        let other = Path::of(options, &with_errors);
        // Beside the best mixture with the same errors, so that few draws are enough.
        let sums = path.sums(&with_errors, weights).into_iter();
        let sums = sums.zip(other.sums(&with_errors, weights));
        for (gained, (best, chosen)) in gained.iter_mut().zip(sums) {
            *gained += (best - chosen) / DRAWS as f64;
        }
        for (lost, (chosen, best)) in lost
            .iter_mut()
            .zip(other.sums(classes, weights).iter().zip(&best))
        {
            *lost += (chosen - best) / DRAWS as f64;
        }
    }
    let factors = best.iter().zip(lost).zip(gained);
    let factors = factors.map(|((best, lost), gained)| (best + lost) / (best - gained));
    factors
        .map(|factor| {
            if factor.is_finite() {
                factor.max(1.0)
            } else {
                1.0
            }
        })
        .collect()
}

/// The relative standard deviations of each item by the cells that it follows from.
fn errors(of: &Sensitivities, options: &Options<'_>) -> Vec<Vec<Vec<(usize, f64)>>> {
    let of_item = |tensor, kind| {
        let kld = of.kld(tensor, kind).filter(|kld| kld.value > 0.0);
        let errors = kld.into_iter().flat_map(|kld| kld.of_windows(&of.means));
        errors.collect()
    };
    let tensors = options.kinds().enumerate();
    let tensors = tensors.map(|(tensor, kinds)| kinds.map(|kind| of_item(tensor, kind)).collect());
    tensors.collect()
}

/// The items with errors, whose mean is 0.
fn with_errors(
    classes: &[Vec<Item>],
    errors: &[Vec<Vec<(usize, f64)>>],
    drawn: &[f64],
) -> Vec<Vec<Item>> {
    let item = |(item, errors): (&Item, &Vec<(usize, f64)>)| {
        let ln: f64 = errors
            .iter()
            .map(|(i, sd)| sd * drawn[*i] - 0.5 * sd * sd)
            .sum();
        Item {
            cost: item.cost * ln.exp(),
            ..*item
        }
    };
    let classes = classes.iter().zip(errors);
    classes
        .map(|(items, errors)| items.iter().zip(errors).map(item).collect())
        .collect()
}

/// The best choices of all weights.
struct Path {
    lightest: Vec<usize>,
    steps: Vec<Step>,
}

impl Path {
    fn of(options: &Options<'_>, classes: &[Vec<Item>]) -> Self {
        Self {
            lightest: options.lightest(classes),
            steps: steps(classes),
        }
    }

    /// What the choices of these weights cost by other items; between two steps a part of the second.
    fn sums(&self, classes: &[Vec<Item>], weights: &[f64]) -> Vec<f64> {
        let mut chosen: Vec<Item> = classes
            .iter()
            .zip(&self.lightest)
            .map(|(items, &i)| items[i])
            .collect();
        let mut sum: f64 = chosen.iter().map(|item| item.cost).sum();
        let mut weight: f64 = chosen.iter().map(|item| item.weight).sum();
        let mut sums = Vec::with_capacity(weights.len());
        for step in &self.steps {
            let next = classes[step.class][step.item];
            let change = next.cost - chosen[step.class].cost;
            while let Some(wanted) = weights
                .get(sums.len())
                .filter(|wanted| **wanted < weight + step.weight)
            {
                sums.push(sum + change * ((wanted - weight) / step.weight).max(0.0));
            }
            sum += change;
            weight += step.weight;
            chosen[step.class] = next;
        }
        sums.resize(weights.len(), sum);
        sums
    }
}

/// A standard normal number (Box & Muller 1958).
fn normal(random: &mut Random) -> f64 {
    // Above 0 and at most 1.
    let mut uniform = || ((random.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    (-2.0 * uniform().ln()).sqrt() * (TAU * uniform()).cos()
}
