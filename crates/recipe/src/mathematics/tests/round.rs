//! The second round on a made-up map.

use super::*;
use crate::mathematics::{Recipe, improved, neighbours};

type Neighbour = (String, GgmlType);

/// What the neighbours really cost: the attention is worth much more than the map says.
fn measured(of: &Sensitivities, (name, kind): &Neighbour, own: &str, kld: f64) -> f64 {
    let before = cost(of, name, own).kld.value;
    let after = cost(of, name, kind.name).kld.value;
    let times = if name.contains("attn") { 50.0 } else { 1.0 };
    kld + times * (after - before)
}

/// All mixtures of the recipe's types and of its neighbours', by brute force.
fn best_by_trying(
    of: &Sensitivities,
    recipe: &Recipe,
    moved: &[(Neighbour, f64)],
    kld: f64,
) -> f64 {
    let mut best = kld;
    let mut choices: Vec<(Mixture, f64)> = vec![(recipe.mixture(), kld)];
    for tensor in &of.tensors {
        let before = choices.clone();
        for ((name, kind), klds) in moved.iter().filter(|((name, _), _)| *name == tensor.name) {
            let with = before.iter().map(|(mixture, sum)| {
                let sum = sum + (klds - kld);
                let mut mixture = mixture.clone();
                mixture.insert(name.clone(), *kind);
                (mixture, sum)
            });
            choices.extend(with);
        }
    }
    for (mixture, sum) in choices {
        if of.size_bytes(&mixture) <= recipe.size_bytes {
            best = best.min(sum);
        }
    }
    best
}

#[test]
fn a_second_round_finds_the_best_of_the_neighbours() {
    let of = read(singles());
    for bits in [3.0, 3.5, 4.0, 5.0] {
        let goal = Goal::Size((bits * of.n_params as f64 / 8.0) as u64);
        let recipe = solve(&of, goal, &[]).unwrap();
        let neighbours = neighbours(&of, &recipe, &[]);
        let kld = recipe.kld.predicted.value;
        let moved = neighbours.into_iter().map(|neighbour| {
            let own = recipe.mixture()[&neighbour.0].name;
            let klds = measured(&of, &neighbour, own, kld);
            (neighbour, klds)
        });
        let moved: Vec<(Neighbour, f64)> = moved.collect();
        assert!(moved.len() > of.tensors.len(), "{bits}: {moved:?}");
        let (after, expected_kld) = improved(&of, &recipe, goal, kld, &moved);
        assert!(after.size_bytes <= recipe.size_bytes);
        let expected = best_by_trying(&of, &recipe, &moved, kld);
        assert!((expected_kld - expected.max(0.0)).abs() < 1e-9 * kld);
        assert_ne!(after.mixture(), recipe.mixture(), "{bits}");
    }
}

/// A smaller type that measures as better does so by chance, so nothing is gained by it.
#[test]
fn smaller_types_are_not_predicted_to_be_better() {
    let of = read(singles());
    let goal = Goal::Size(of.n_params / 2);
    let recipe = solve(&of, goal, &[]).unwrap();
    let bytes = |name: &str, kind: GgmlType| cost(&of, name, kind.name).bytes;
    let is_smaller =
        |(name, kind): &Neighbour| bytes(name, *kind) < bytes(name, recipe.mixture()[name]);
    let all = neighbours(&of, &recipe, &[]).into_iter();
    let smaller = all.filter(is_smaller);
    let moved: Vec<(Neighbour, f64)> = smaller.map(|neighbour| (neighbour, 0.0)).collect();
    assert!(moved.len() >= 3, "{moved:?}");
    let kld = recipe.kld.predicted.value;
    assert_eq!(improved(&of, &recipe, goal, kld, &moved).1, kld);
    let kinds = [kind("q4_K"), kind("q3_K")];
    let few = neighbours(&of, &recipe, &kinds);
    assert!(few.iter().all(|neighbour| kinds.contains(&neighbour.1)));
}
