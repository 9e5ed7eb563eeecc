//! The best mixture for a goal.

use kl_formats::{GgmlType, Mixture};

use super::knapsack::{self, Item};
use super::selection::selection;
use super::{Cost, Goal, Recipe, Sensitivities, TensorCosts};

/// KLDs that differ by less than this part are equal: their sums depend on the order.
const ROUNDING: f64 = 1e-12;

/// By how much a sum is too low depends on what is chosen by it: after so many rounds it hardly changes.
const ROUNDS: usize = 6;

/// The types that each tensor may have in a recipe.
pub struct Options<'s> {
    tensors: Vec<(&'s TensorCosts, Vec<Cost>)>,
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

    /// The lightest item of each class, and of several the cheapest.
    pub fn lightest(&self, classes: &[Vec<Item>]) -> Vec<usize> {
        let lightest = |class: &Vec<Item>| {
            let order = |&a: &usize, &b: &usize| {
                let (a, b) = (class[a], class[b]);
                let by_weight = a.weight.total_cmp(&b.weight);
                by_weight.then(a.cost.total_cmp(&b.cost))
            };
            (0..class.len()).min_by(order).unwrap_or(0)
        };
        classes.iter().map(lightest).collect()
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

    fn mixture(&self, chosen: &[usize]) -> Mixture {
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

/// Finds the best mixture of these types; of all that the map has, if there are none.
///
/// A tensor whose rows are whole blocks of none of them may have, for each of them, the nearest type
/// of the map that has as many bits or more.
///
/// # Errors
/// A goal that no mixture reaches: what can be reached.
pub fn solve(of: &Sensitivities, goal: Goal, types: &[GgmlType]) -> Result<Recipe, String> {
    let options = Options::of(of, types);
    match goal {
        Goal::Size(bytes) => {
            let budget = bytes as f64 - of.fixed_bytes as f64;
            within(of, &options, budget, |_, cost| cost.bytes)
                .ok_or_else(|| too_small(of, &options, &format!("{bytes} bytes")))
        }
        Goal::Bpw(bits) => {
            let budget = (bits * of.n_params as f64 / 8.0).floor() - of.fixed_tensor_bytes as f64;
            within(of, &options, budget, |tensor, cost| {
                tensor.data_bytes(cost.kind)
            })
            .ok_or_else(|| too_small(of, &options, &format!("{bits} bits a parameter")))
        }
        Goal::Kld(most) => smallest(of, &options, most),
    }
}

/// The mixture with the lowest KLD whose tensors have at most `budget` bytes; `None` if none has.
fn within(
    of: &Sensitivities,
    options: &Options<'_>,
    budget: f64,
    bytes: impl Fn(&TensorCosts, &Cost) -> u64,
) -> Option<Recipe> {
    let items = |(tensor, costs): &(&TensorCosts, Vec<Cost>)| {
        let item = |cost: &Cost| Item {
            cost: cost.kld.value,
            weight: bytes(tensor, cost) as f64,
        };
        costs.iter().map(item).collect()
    };
    let classes: Vec<Vec<Item>> = options.tensors.iter().map(items).collect();
    let solution = knapsack::minimise(&classes, budget)?;
    let gap = of.curve.whole(solution.cost) - of.curve.whole(solution.bound);
    let selection = selection(of, options, &classes, &[solution.weight])[0];
    let mixture = options.mixture(&solution.items);
    Some(Recipe {
        size_bytes: of.size_bytes(&mixture),
        bpw: of.bpw(&mixture),
        kld: of.predict(&mixture, selection),
        selection,
        gap: gap.max(0.0),
        mixture,
    })
}

/// The smallest file whose KLD is at most this, and of several the one with the lowest.
fn smallest(of: &Sensitivities, options: &Options<'_>, most: f64) -> Result<Recipe, String> {
    let sum = of.curve.sum(most) * (1.0 + ROUNDING);
    let classes = options.classes(|cost| (cost.bytes as f64, cost.kld.value));
    let (mut budget, mut smallest) = (sum, None::<Recipe>);
    for _ in 0..ROUNDS {
        let Some(solution) = knapsack::minimise(&classes, budget) else {
            break;
        };
        let recipe = within(of, options, solution.cost, |_, cost| cost.bytes)
            .ok_or("the mixture of this KLD cannot be found again")?;
        budget = sum / recipe.selection;
        let is_smaller = |known: &Recipe| recipe.size_bytes < known.size_bytes;
        if recipe.kld.value <= most * (1.0 + ROUNDING) && smallest.as_ref().is_none_or(is_smaller) {
            smallest = Some(recipe);
        }
    }
    if let Some(recipe) = smallest {
        return Ok(recipe);
    }
    let best = options.mixture(&options.lightest(&classes));
    let (size, bits) = (of.size_bytes(&best), of.bpw(&best));
    let kld = of.predict(&best, 1.0).value;
    Err(format!(
        "no mixture of these types has a predicted KLD of {most} nats or less: the lowest is \
         {kld:.3e}, at {size} bytes ({bits:.2} bits a parameter)"
    ))
}

fn too_small(of: &Sensitivities, options: &Options<'_>, goal: &str) -> String {
    let classes = options.classes(|cost| (cost.kld.value, cost.bytes as f64));
    let smallest = options.mixture(&options.lightest(&classes));
    format!(
        "no mixture of these types has {goal} or less: the smallest file has {} bytes, {:.3} bits a \
         parameter",
        of.size_bytes(&smallest),
        of.bpw(&smallest)
    )
}
