//! The best mixture for a goal, those of all sizes, and a second round.
//!
//! Below 3 bits the KLDs of tensors no longer add up from the original on. From a recipe on, a small
//! step is measured as it is: one tensor at a time gets the next smaller and the next larger type.

use kl_formats::{GgmlType, Mixture};
use kl_stats::stats::Estimate;

use super::knapsack::{Item, Path, minimise};
use super::selection::selection;
use super::{Cost, FrontierPoint, Goal, Recipe, Sensitivities, TensorCosts};

/// KLDs that differ by less than this part are equal: their sums depend on the order.
const ROUNDING: f64 = 1e-12;

/// The rounds after which a sum's correction hardly changes: it depends on the mixture that is chosen by it.
const ROUNDS: usize = 6;

/// Finds the best mixture of these types; of all that the map has, if there are none.
///
/// A tensor whose rows are whole blocks of none of them may have, for each of them, the nearest type
/// of the map that has as many bits or more.
///
/// # Errors
/// A goal that no mixture reaches: what can be reached.
pub fn solve(
    sensitivities: &Sensitivities,
    goal: Goal,
    types: &[GgmlType],
) -> Result<Recipe, String> {
    solve_holding(&Mixture::new(), sensitivities, goal, types)
}

/// Finds the best mixture in which these tensors have these types.
///
/// # Errors
/// Those of [`solve`].
pub fn solve_holding(
    held: &Mixture,
    sensitivities: &Sensitivities,
    goal: Goal,
    types: &[GgmlType],
) -> Result<Recipe, String> {
    let choices = Choices::at_types(sensitivities, types).holding(held);
    let (found, what) = match goal {
        Goal::Size(bytes) => {
            let budget = bytes as f64 - sensitivities.fixed_bytes as f64;
            let found = choices.within(budget, |_, cost| cost.bytes);
            (found, format!("{bytes} bytes"))
        }
        Goal::Bpw(bits) => {
            let budget = (bits * sensitivities.n_params as f64 / 8.0).floor()
                - sensitivities.fixed_tensor_bytes as f64;
            let found = choices.within(budget, |tensor, cost| tensor.data_bytes(cost.kind));
            (found, format!("{bits} bits a parameter"))
        }
        Goal::Kld(most) => return choices.smallest(most),
    };
    found.ok_or_else(|| {
        let smallest = choices.lightest(&choices.classes(|_, cost| (cost.kld.value, cost.bytes as f64)));
        format!(
            "no mixture of these types has {what} or less: the smallest file has {} bytes, {:.3} bits \
             a parameter",
            sensitivities.size_bytes(&smallest),
            sensitivities.bpw(&smallest)
        )
    })
}

/// The types that each tensor may have in a recipe.
struct Choices<'s> {
    sensitivities: &'s Sensitivities,
    tensors: Vec<(&'s TensorCosts, Vec<Cost>)>,
}

impl<'s> Choices<'s> {
    /// The costs at these types, or at all that the map has if there are none: for each tensor those that
    /// [`solve`] allows it, or its own type's if there is none.
    fn at_types(sensitivities: &'s Sensitivities, types: &[GgmlType]) -> Self {
        let with_costs = |tensor| (tensor, costs_at(tensor, types));
        Self {
            sensitivities,
            tensors: sensitivities.tensors.iter().map(with_costs).collect(),
        }
    }

    /// These choices, but for tensors that are held at a type, so far as they can have it.
    fn holding(mut self, held: &Mixture) -> Self {
        for (tensor, costs) in &mut self.tensors {
            let cost = held.get(&tensor.name).and_then(|kind| tensor.at(*kind));
            if let Some(cost) = cost {
                *costs = vec![*cost];
            }
        }
        self
    }

    /// The items of each tensor, whose cost and weight `item` gives.
    fn classes(&self, item: impl Fn(&TensorCosts, &Cost) -> (f64, f64)) -> Vec<Vec<Item>> {
        let items = |(tensor, costs): &(&TensorCosts, Vec<Cost>)| {
            let items = costs.iter().map(|cost| item(tensor, cost));
            items.map(|(cost, weight)| Item { cost, weight }).collect()
        };
        self.tensors.iter().map(items).collect()
    }

    /// The tensors with the costs that were chosen.
    fn chosen(&self, items: &[usize]) -> impl Iterator<Item = (&'s TensorCosts, Cost)> {
        let tensors = self.tensors.iter().zip(items);
        tensors.map(|((tensor, costs), &index)| (*tensor, costs[index]))
    }

    fn mixture(&self, items: &[usize]) -> Mixture {
        let chosen = self.chosen(items);
        chosen
            .map(|(tensor, cost)| (tensor.name.clone(), cost.kind))
            .collect()
    }

    fn lightest(&self, classes: &[Vec<Item>]) -> Mixture {
        self.mixture(&Path::on_hulls(classes).lightest)
    }

    /// The true sum of KLDs over the one that they were chosen by, for choices of each of these weights.
    fn selection(&self, classes: &[Vec<Item>], weights: &[f64]) -> Vec<f64> {
        let of_cost = |index: usize, cost: &Cost| -> Vec<(usize, f64)> {
            match self.sensitivities.kld(index, cost.kind) {
                Some(kld) if kld.value > 0.0 => kld.of_windows(&self.sensitivities.means).collect(),
                _ => Vec::new(),
            }
        };
        let of_tensors = self.tensors.iter().enumerate().map(|(index, (_, costs))| {
            let of_costs = costs.iter().map(|cost| of_cost(index, cost));
            of_costs.collect()
        });
        let errors: Vec<Vec<_>> = of_tensors.collect();
        selection(classes, &errors, self.sensitivities.means.len(), weights)
    }

    /// The mixture with the lowest KLD whose tensors have at most `budget` bytes; `None` if none has.
    fn within(&self, budget: f64, bytes: impl Fn(&TensorCosts, &Cost) -> u64) -> Option<Recipe> {
        let classes = self.classes(|tensor, cost| (cost.kld.value, bytes(tensor, cost) as f64));
        let solution = minimise(&classes, budget)?;
        let curve = &self.sensitivities.curve;
        let gap = curve.whole(solution.cost) - curve.whole(solution.bound);
        let selection = self.selection(&classes, &[solution.weight])[0];
        let mixture = self.mixture(&solution.items);
        Some(self.sensitivities.recipe(&mixture, selection, gap))
    }

    /// The smallest file whose KLD is at most this, and of several the one with the lowest.
    fn smallest(&self, most: f64) -> Result<Recipe, String> {
        let sum = self.sensitivities.curve.sum(most) * (1.0 + ROUNDING);
        let classes = self.classes(|_, cost| (cost.bytes as f64, cost.kld.value));
        let (mut budget, mut smallest) = (sum, None::<Recipe>);
        for _ in 0..ROUNDS {
            let Some(solution) = minimise(&classes, budget) else {
                break;
            };
            let Some(recipe) = self.within(solution.cost, |_, cost| cost.bytes) else {
                break;
            };
            budget = sum / recipe.selection;
            let is_smaller = |known: &Recipe| recipe.size_bytes < known.size_bytes;
            let is_reached = recipe.kld.predicted.value <= most * (1.0 + ROUNDING);
            if is_reached && smallest.as_ref().is_none_or(is_smaller) {
                smallest = Some(recipe);
            }
        }
        smallest.ok_or_else(|| {
            let best = self.lightest(&classes);
            let (size, bits) = (self.sensitivities.size_bytes(&best), self.sensitivities.bpw(&best));
            let kld = self.sensitivities.predict(&best, 1.0).value;
            format!(
                "no mixture of these types has a predicted KLD of {most} nats or less: the lowest is \
                 {kld:.3e}, at {size} bytes ({bits:.2} bits a parameter)"
            )
        })
    }
}

fn costs_at(tensor: &TensorCosts, types: &[GgmlType]) -> Vec<Cost> {
    let all = &tensor.costs;
    if types.is_empty() {
        return all.clone();
    }
    let mut costs: Vec<Cost> = types
        .iter()
        .filter_map(|kind| tensor.at(*kind))
        .copied()
        .collect();
    if costs.is_empty() {
        let nearest = |kind: &GgmlType| {
            let as_wide = all.iter().filter(|cost| cost.kind.bits() >= kind.bits());
            as_wide.copied().min_by(|a, b| {
                let by_bits = a.bytes.cmp(&b.bytes);
                by_bits.then(a.kld.value.total_cmp(&b.kld.value))
            })
        };
        costs = types.iter().filter_map(nearest).collect();
    }
    if costs.is_empty() {
        costs.extend(all.last());
    }
    costs
}

/// The mixtures of these types that none of their size beats, by rising bytes: those on the lower
/// convex hull of KLD by size, from the smallest file to the one that moves least. Between two of
/// them there are more, whose gain is less than in proportion.
pub fn frontier(sensitivities: &Sensitivities, types: &[GgmlType]) -> Vec<FrontierPoint> {
    let choices = Choices::at_types(sensitivities, types);
    let classes = choices.classes(|_, cost| (cost.kld.value, cost.bytes as f64));
    let path = Path::on_hulls(&classes);
    let mut items = path.lightest;
    let point = |items: &[usize]| {
        let (mut size_bytes, mut tensor_bytes) =
            (sensitivities.fixed_bytes, sensitivities.fixed_tensor_bytes);
        let mut kld = 0.0;
        for (tensor, cost) in choices.chosen(items) {
            size_bytes += cost.bytes;
            tensor_bytes += tensor.data_bytes(cost.kind);
            kld += cost.kld.value;
        }
        FrontierPoint {
            size_bytes,
            bpw: sensitivities.bits(tensor_bytes),
            kld,
        }
    };
    let mut points = vec![point(&items)];
    for step in path.steps {
        items[step.class] = step.item;
        points.push(point(&items));
    }
    let weights = points
        .iter()
        .map(|at| (at.size_bytes - sensitivities.fixed_bytes) as f64);
    let selection = choices.selection(&classes, &Vec::from_iter(weights));
    let mut least = f64::INFINITY;
    for (point, selection) in points.iter_mut().zip(selection) {
        // What is drawn at random makes no larger file worse.
        point.kld = sensitivities.curve.whole(point.kld * selection).min(least);
        least = point.kld;
    }
    points
}

/// Below this KLD, in nats, how much smaller another is matters little.
const LITTLE_KLD: f64 = 0.01;

/// At most `n` of a frontier's points, the first and the last among them, evenly spaced along its curve of the logarithm
/// of the KLD by that of the size: where a few bytes change the KLD much, they are as near as where many change little.
pub fn thinned(points: &[FrontierPoint], n: usize) -> Vec<FrontierPoint> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let growth = |from: &FrontierPoint, to: &FrontierPoint| {
        (to.size_bytes as f64 / from.size_bytes.max(1) as f64).ln()
    };
    let fall = |from: &FrontierPoint, to: &FrontierPoint| {
        ((LITTLE_KLD + from.kld) / (LITTLE_KLD + to.kld)).ln()
    };
    let part = |step: f64, whole: f64| if whole > 0.0 { step / whole } else { 0.0 };
    let way_to = |point: &FrontierPoint| {
        part(growth(first, point), growth(first, last))
            + part(fall(first, point), fall(first, last))
    };
    let mut thin: Vec<FrontierPoint> = Vec::new();
    for i in 0..n {
        let wanted = way_to(last) * i as f64 / (n.max(2) - 1) as f64;
        let distance = |point: &&FrontierPoint| (way_to(point) - wanted).abs();
        let nearest = points
            .iter()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)));
        thin.extend(nearest.filter(|point| thin.last() != Some(point)));
    }
    thin
}

/// The neighbours of a recipe, as a tensor and its other type: for each tensor, of the types with the
/// next fewer bytes and of those with the next more, the one that is predicted to be the best.
pub fn neighbours(
    sensitivities: &Sensitivities,
    recipe: &Recipe,
    types: &[GgmlType],
) -> Vec<(String, GgmlType)> {
    let mut neighbours = Vec::new();
    for (tensor, own) in sensitivities.in_mixture(&recipe.mixture()) {
        let costs = tensor.costs.iter();
        let allowed = costs.filter(|cost| types.is_empty() || types.contains(&cost.kind));
        let smaller = allowed.clone().filter(|cost| cost.bytes < own.bytes);
        let larger = allowed.clone().filter(|cost| cost.bytes > own.bytes);
        let down = smaller.map(|cost| cost.bytes).max();
        let up = larger.map(|cost| cost.bytes).min();
        for bytes in [down, up] {
            let same = allowed.clone().filter(|cost| Some(cost.bytes) == bytes);
            let best = same.min_by(|a, b| a.kld.value.total_cmp(&b.kld.value));
            neighbours.extend(best.map(|cost| (tensor.name.clone(), cost.kind)));
        }
    }
    neighbours
}

/// Finds the best mixture of the recipe's types and of its neighbours', at most as large as the recipe;
/// in bits, where the goal is in bits. `kld`: the recipe's own, as measured; `neighbours`: with those of
/// the neighbours. Returns what the map predicts for it, and the KLD that follows from these.
pub fn improved(
    sensitivities: &Sensitivities,
    recipe: &Recipe,
    goal: Goal,
    kld: f64,
    neighbours: &[((String, GgmlType), f64)],
) -> (Recipe, f64) {
    let weight = |tensor: &TensorCosts, cost: &Cost| match goal {
        Goal::Bpw(_) => tensor.data_bytes(cost.kind) as f64,
        Goal::Size(_) | Goal::Kld(_) => cost.bytes as f64,
    };
    let mixture = recipe.mixture();
    let mut budget = 0.0;
    let tensors = sensitivities.in_mixture(&mixture).map(|(tensor, own)| {
        budget += weight(tensor, own);
        let of_all = neighbours.iter();
        let of_tensor = of_all.filter(|((name, _), _)| *name == tensor.name);
        let changes = of_tensor.filter_map(|((_, kind), moved)| {
            let cost = tensor.at(*kind)?;
            // Where a smaller type measures better, that is chance: it counts as equal.
            let (change, is_smaller) = (moved - kld, cost.bytes < own.bytes);
            Some((cost, if is_smaller { change.max(0.0) } else { change }))
        });
        let with_own = [(own, 0.0)].into_iter().chain(changes);
        let changed = with_own.map(|(cost, change)| Cost {
            kld: Estimate::point(change),
            ..*cost
        });
        (tensor, changed.collect())
    });
    let choices = Choices {
        sensitivities,
        tensors: tensors.collect(),
    };
    let classes = choices.classes(|tensor, cost| (cost.kld.value, weight(tensor, cost)));
    let found = minimise(&classes, budget).map_or(vec![0; classes.len()], |found| found.items);
    let change: f64 = choices.chosen(&found).map(|(_, cost)| cost.kld.value).sum();
    let mut better = sensitivities.recipe(&choices.mixture(&found), recipe.selection, 0.0);
    // By the map, no mixture is better than the first recipe by more than its own gap.
    let loss = better.kld.predicted.value - recipe.kld.predicted.value;
    better.gap = (loss + recipe.gap).max(0.0);
    (better, (kld + change).max(0.0))
}
