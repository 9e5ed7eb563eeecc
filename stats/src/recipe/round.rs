//! A second round: the recipe's neighbours, and the best mixture of them.
//!
//! Below 3 bits the KLDs of tensors no longer add up from the original on. From a recipe on, a small
//! step is measured as it is: one tensor at a time gets the next smaller and the next larger type.

use kl_formats::{GgmlType, Mixture};

use super::knapsack::{self, Item};
use super::{Cost, Goal, Recipe, Sensitivities, TensorCosts};
use crate::stats::Estimate;

/// A recipe with another type for one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbour {
    pub tensor: String,
    pub kind: GgmlType,
}

impl Neighbour {
    /// The neighbours of a mixture: for each tensor, of the types with the next fewer bytes and of those
    /// with the next more, the one that is predicted to be the best.
    pub fn of_each(of: &Sensitivities, mixture: &Mixture, types: &[GgmlType]) -> Vec<Self> {
        let mut neighbours = Vec::new();
        for tensor in &of.tensors {
            let Some(own) = own_cost(tensor, mixture) else {
                continue;
            };
            let allowed = tensor.costs.iter();
            let allowed = allowed.filter(|cost| types.is_empty() || types.contains(&cost.kind));
            let smaller = allowed.clone().filter(|cost| cost.bytes < own.bytes);
            let larger = allowed.filter(|cost| cost.bytes > own.bytes);
            let down = smaller.clone().map(|cost| cost.bytes).max();
            let up = larger.clone().map(|cost| cost.bytes).min();
            let best = |costs: Vec<&Cost>, bytes: Option<u64>| {
                let costs = costs.into_iter().filter(|cost| Some(cost.bytes) == bytes);
                costs
                    .min_by(|a, b| a.kld.value.total_cmp(&b.kld.value))
                    .copied()
            };
            let chosen = [best(smaller.collect(), down), best(larger.collect(), up)];
            neighbours.extend(chosen.into_iter().flatten().map(|cost| Self {
                tensor: tensor.name.clone(),
                kind: cost.kind,
            }));
        }
        neighbours
    }

    /// The mixture with this tensor's other type.
    pub fn mixture(&self, mut of: Mixture) -> Mixture {
        of.insert(self.tensor.clone(), self.kind);
        of
    }
}

fn own_cost(tensor: &TensorCosts, mixture: &Mixture) -> Option<Cost> {
    let kind = mixture.get(&tensor.name)?;
    tensor.costs.iter().find(|cost| cost.kind == *kind).copied()
}

/// Finds the best mixture of the recipe's types and of its neighbours', at most as large as the recipe;
/// in bits, where the goal is in bits. `kld`: the recipe's own, as measured; `neighbours`: with those of
/// the neighbours. Its KLD and its gap are what follows from these, without an interval.
pub fn improved(
    of: &Sensitivities,
    recipe: &Recipe,
    goal: Goal,
    kld: f64,
    neighbours: &[(Neighbour, f64)],
) -> Recipe {
    let weight = |tensor: &TensorCosts, cost: &Cost| match goal {
        Goal::Bpw(_) => tensor.data_bytes(cost.kind) as f64,
        Goal::Size(_) | Goal::Kld(_) => cost.bytes as f64,
    };
    let (mut classes, mut kinds, mut budget) = (Vec::new(), Vec::new(), 0.0);
    for tensor in &of.tensors {
        let Some(own) = own_cost(tensor, &recipe.mixture) else {
            continue;
        };
        budget += weight(tensor, &own);
        let mut choices = vec![(own, 0.0)];
        let moved = neighbours.iter().filter(|(of, _)| of.tensor == tensor.name);
        for (neighbour, moved) in moved {
            let cost = tensor.costs.iter().find(|cost| cost.kind == neighbour.kind);
            // A smaller type is no better: that would be chance.
            let change = |cost: &Cost| match cost.bytes < own.bytes {
                true => f64::max(moved - kld, 0.0),
                false => moved - kld,
            };
            choices.extend(cost.map(|cost| (*cost, change(cost))));
        }
        let least = choices
            .iter()
            .map(|(_, change)| *change)
            .fold(0.0, f64::min);
        let item = |(cost, change): &(Cost, f64)| Item {
            cost: change - least,
            weight: weight(tensor, cost),
        };
        classes.push(choices.iter().map(item).collect::<Vec<Item>>());
        kinds.push((tensor.name.clone(), choices));
    }
    let Some(solution) = knapsack::minimise(&classes, budget) else {
        return recipe.clone();
    };
    let chosen = kinds.iter().zip(&solution.items);
    let chosen = chosen.filter_map(|((name, choices), &i)| Some((name, choices.get(i)?)));
    let mixture: Mixture = chosen
        .clone()
        .map(|(name, (cost, _))| (name.clone(), cost.kind))
        .collect();
    let change: f64 = chosen.map(|(_, (_, change))| change).sum();
    Recipe {
        size_bytes: of.size_bytes(&mixture),
        bpw: of.bpw(&mixture),
        kld: Estimate::point((kld + change).max(0.0)),
        selection: recipe.selection,
        gap: (solution.cost - solution.bound).max(0.0),
        mixture,
    }
}
