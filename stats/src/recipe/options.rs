//! The types that a recipe may choose from, and by how much a choice makes the sum of its KLDs too low.
//!
//! Of several tensors, the best mixture gives few bits to those that were measured too low. How far that
//! goes is simulated: the map's KLDs are taken for true, the errors that few windows make are drawn,
//! and mixtures are chosen by the KLDs with these errors.
//!
//! A KLD that follows from another one has errors too. But they are as often above as below whatever is
//! chosen by it, so they do not count here.

use std::f64::consts::TAU;

use kl_formats::{GgmlType, Mixture};

use super::knapsack::{Item, Path};
use super::{Cost, Sensitivities, TensorCosts};
use crate::Random;

/// The sets of errors that are drawn.
const DRAWS: usize = 64;

/// The types that each tensor may have in a recipe.
pub struct Options<'s> {
    pub tensors: Vec<(&'s TensorCosts, Vec<Cost>)>,
}

impl<'s> Options<'s> {
    /// The costs at these types, or at all that the map has if there are none.
    ///
    /// A tensor whose rows are whole blocks of none of them may have, for each of them, the nearest
    /// type that has as many bits or more; and if there is none, its own.
    pub fn of(of: &'s Sensitivities, types: &[GgmlType]) -> Self {
        let tensors = of.tensors.iter();
        let tensors = tensors.map(|tensor| (tensor, costs_at(tensor, types)));
        Self {
            tensors: tensors.collect(),
        }
    }

    /// The items of each tensor, whose cost and weight `item` gives.
    pub fn classes(&self, item: impl Fn(&Cost) -> (f64, f64)) -> Vec<Vec<Item>> {
        let items = |costs: &Vec<Cost>| {
            let items = costs.iter().map(&item);
            items.map(|(cost, weight)| Item { cost, weight }).collect()
        };
        self.tensors.iter().map(|(_, costs)| items(costs)).collect()
    }

    /// The tensors with the costs that were chosen.
    pub fn costs(&self, chosen: &[usize]) -> impl Iterator<Item = (&'s TensorCosts, Cost)> {
        let tensors = self.tensors.iter().zip(chosen);
        tensors.map(|((tensor, costs), &index)| (*tensor, costs[index]))
    }

    /// The types that each tensor may have, in the order of its items.
    pub fn kinds(&self) -> impl Iterator<Item = impl Iterator<Item = GgmlType> + '_> {
        let costs = self.tensors.iter().map(|(_, costs)| costs);
        costs.map(|costs| costs.iter().map(|cost| cost.kind))
    }

    pub fn mixture(&self, chosen: &[usize]) -> Mixture {
        let costs = self.costs(chosen);
        costs
            .map(|(tensor, cost)| (tensor.name.clone(), cost.kind))
            .collect()
    }
}

fn costs_at(tensor: &TensorCosts, types: &[GgmlType]) -> Vec<Cost> {
    let all = &tensor.costs;
    let of = |kind: &GgmlType| all.iter().find(|cost| cost.kind == *kind);
    if types.is_empty() {
        return all.clone();
    }
    let mut costs: Vec<Cost> = types.iter().filter_map(of).copied().collect();
    if costs.is_empty() {
        costs = types
            .iter()
            .filter_map(|kind| {
                let as_wide = all.iter().filter(|cost| cost.kind.bits() >= kind.bits());
                as_wide.copied().min_by(|a, b| {
                    let by_bits = a.bytes.cmp(&b.bytes);
                    by_bits.then(a.kld.value.total_cmp(&b.kld.value))
                })
            })
            .collect();
    }
    if costs.is_empty() {
        costs = all.last().copied().into_iter().collect();
    }
    costs
}

/// The true sum of KLDs over the one that they were chosen by, for choices of each of these weights,
/// which rise. `classes` are the items of the options, by KLD and weight.
pub fn selection(
    of: &Sensitivities,
    options: &Options<'_>,
    classes: &[Vec<Item>],
    weights: &[f64],
) -> Vec<f64> {
    let errors = errors(of, options);
    let path = Path::of(classes);
    let best = path.sums(classes, weights);
    let (mut lost, mut gained) = (vec![0.0; weights.len()], vec![0.0; weights.len()]);
    let random = &mut Random(0);
    for _ in 0..DRAWS {
        let drawn: Vec<f64> = of.means.iter().map(|_| normal(random)).collect();
        let with_errors = with_errors(classes, &errors, &drawn);
        let other = Path::of(&with_errors);
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
    let sums = best.iter().zip(lost).zip(gained);
    let factors = sums.map(|((best, lost), gained)| (best + lost) / (best - gained));
    let at_least_1 = |factor: f64| {
        if factor.is_finite() {
            factor.max(1.0)
        } else {
            1.0
        }
    };
    factors.map(at_least_1).collect()
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

/// A standard normal number (Box & Muller 1958).
fn normal(random: &mut Random) -> f64 {
    // Above 0 and at most 1.
    let mut uniform = || ((random.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    (-2.0 * uniform().ln()).sqrt() * (TAU * uniform()).cos()
}
