//! The best mixture for a goal, those of all sizes, and a second round.
//!
//! Below 3 bits the KLDs of tensors no longer add up from the original on. From a recipe on, a small
//! step is measured as it is: one tensor at a time gets the next smaller and the next larger type.

use kl_formats::{GgmlType, Mixture};

use super::knapsack::{self, Item, Path};
use super::options::{Options, selection};
use super::{Cost, FrontierPoint, Goal, Recipe, Sensitivities, TensorCosts};
use crate::stats::Estimate;

/// KLDs that differ by less than this part are equal: their sums depend on the order.
const ROUNDING: f64 = 1e-12;

/// By how much a sum is too low depends on what is chosen by it: after so many rounds it hardly changes.
const ROUNDS: usize = 6;

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
    let best = options.mixture(&Path::of(&classes).lightest);
    let (size, bits) = (of.size_bytes(&best), of.bpw(&best));
    let kld = of.predict(&best, 1.0).value;
    Err(format!(
        "no mixture of these types has a predicted KLD of {most} nats or less: the lowest is \
         {kld:.3e}, at {size} bytes ({bits:.2} bits a parameter)"
    ))
}

fn too_small(of: &Sensitivities, options: &Options<'_>, goal: &str) -> String {
    let classes = options.classes(|cost| (cost.kld.value, cost.bytes as f64));
    let smallest = options.mixture(&Path::of(&classes).lightest);
    format!(
        "no mixture of these types has {goal} or less: the smallest file has {} bytes, {:.3} bits a \
         parameter",
        of.size_bytes(&smallest),
        of.bpw(&smallest)
    )
}

/// The mixtures of these types that none of their size beats, by rising bytes: those on the lower
/// convex hull of KLD by size, from the smallest file to the one that moves least. Between two of
/// them there are more, whose gain is less than in proportion.
pub fn frontier(of: &Sensitivities, types: &[GgmlType]) -> Vec<FrontierPoint> {
    let options = Options::of(of, types);
    let classes = options.classes(|cost| (cost.kld.value, cost.bytes as f64));
    let path = Path::of(&classes);
    let mut chosen = path.lightest;
    let mut weights = Vec::new();
    let mut point = |chosen: &[usize]| {
        let (mut size_bytes, mut tensor_bytes) = (of.fixed_bytes, of.fixed_tensor_bytes);
        let mut sum = 0.0;
        for (tensor, cost) in options.costs(chosen) {
            size_bytes += cost.bytes;
            tensor_bytes += tensor.data_bytes(cost.kind);
            sum += cost.kld.value;
        }
        weights.push((size_bytes - of.fixed_bytes) as f64);
        let (bpw, kld) = (of.bits(tensor_bytes), sum);
        FrontierPoint {
            size_bytes,
            bpw,
            kld,
        }
    };
    let mut points = vec![point(&chosen)];
    for step in path.steps {
        chosen[step.class] = step.item;
        points.push(point(&chosen));
    }
    let selection = selection(of, &options, &classes, &weights);
    let mut least = f64::INFINITY;
    for (point, selection) in points.iter_mut().zip(selection) {
        // What is drawn at random makes no larger file worse.
        point.kld = of.curve.whole(point.kld * selection).min(least);
        least = point.kld;
    }
    points
}

/// At most `n` of a frontier's points, whose sizes grow by about the same factor, the first and the last
/// among them.
pub fn thinned(points: &[FrontierPoint], n: usize) -> Vec<FrontierPoint> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let growth = last.size_bytes as f64 / first.size_bytes.max(1) as f64;
    let mut thin: Vec<FrontierPoint> = Vec::new();
    for i in 0..n {
        let wanted = first.size_bytes as f64 * growth.powf(i as f64 / (n.max(2) - 1) as f64);
        let distance = |point: &FrontierPoint| (point.size_bytes as f64 - wanted).abs();
        let nearest = points
            .iter()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)));
        thin.extend(nearest.filter(|point| thin.last() != Some(point)));
    }
    thin
}

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
            // Where a smaller type measures better, that is chance: it counts as equal.
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
