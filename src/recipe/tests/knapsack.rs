//! The solver against brute force, against a table of all weights, and against scipy.

use super::{Item, Solution, minimise, steps};
use crate::stats::oracle::Lcg;

fn best_of_all(classes: &[Vec<Item>], budget: f64) -> Option<f64> {
    let mut sums = vec![(0.0, 0.0)];
    for class in classes {
        let extend = |&(cost, weight): &(f64, f64)| {
            let with = move |item: &Item| (cost + item.cost, weight + item.weight);
            class.iter().map(with).collect::<Vec<_>>()
        };
        sums = sums.iter().flat_map(extend).collect();
    }
    let within = sums.into_iter().filter(|(_, weight)| *weight <= budget);
    within.map(|(cost, _)| cost).min_by(f64::total_cmp)
}

/// Made-up classes: costs that fall with the weight, but for some noise.
fn classes(lcg: &mut Lcg, n: usize, n_items: usize, weight: impl Fn(f64) -> f64) -> Vec<Vec<Item>> {
    let class = |_| {
        let scale = (4.0 * lcg.uniform()).exp();
        let item = |_| {
            let bits = 1.0 + 7.0 * lcg.uniform();
            let cost = scale * (-1.4 * bits).exp() * (0.5 + lcg.uniform());
            let weight = weight(bits);
            Item { cost, weight }
        };
        (0..n_items).map(item).collect()
    };
    (0..n).map(class).collect()
}

fn is_what_it_states(classes: &[Vec<Item>], budget: f64, found: &Solution) {
    let chosen = || classes.iter().zip(&found.items).map(|(class, i)| class[*i]);
    let weight: f64 = chosen().map(|item| item.weight).sum();
    let cost: f64 = chosen().map(|item| item.cost).sum();
    assert!(weight <= budget, "{weight} of {budget}");
    assert_eq!((found.weight, found.cost), (weight, cost));
}

#[test]
fn small_ones_are_solved_like_by_brute_force() {
    for seed in 0..400 {
        let mut lcg = Lcg::new(seed);
        let n = 1 + (6.0 * lcg.uniform()) as usize;
        // Weights that differ by chance alone, and few different ones.
        let is_even = lcg.uniform() < 0.5;
        let classes = classes(&mut lcg, n, 6, |bits| match is_even {
            true => bits.round(),
            false => bits,
        });
        let budget = n as f64 * (0.8 + 5.0 * lcg.uniform());
        let found = minimise(&classes, budget);
        match best_of_all(&classes, budget) {
            None => assert_eq!(found, None, "seed {seed}"),
            Some(best) => {
                let found = found.expect("a solution");
                is_what_it_states(&classes, budget, &found);
                assert!((found.cost - best).abs() < 1e-12 * best, "seed {seed}");
                assert_eq!(found.bound, found.cost);
            }
        }
    }
}

/// The cost of the best solution, from a table of the best ones for each whole weight.
fn by_table(classes: &[Vec<Item>], budget: usize) -> f64 {
    let mut best = vec![0.0; budget + 1];
    for class in classes {
        let at = |weight: usize| {
            let fits = class.iter().filter(|item| item.weight <= weight as f64);
            let costs = fits.map(|item| best[weight - item.weight as usize] + item.cost);
            costs.fold(f64::INFINITY, f64::min)
        };
        best = (0..=budget).map(at).collect();
    }
    best[budget]
}

#[test]
fn many_classes_are_solved_to_the_optimum() {
    for (n, n_items) in [(22, 14), (200, 14), (1000, 20)] {
        let mut lcg = Lcg::new(n as u64);
        let classes = classes(&mut lcg, n, n_items, |bits| (8.0 * bits).round());
        for bits in [2.1, 3.3, 4.7] {
            let budget = (8.0 * bits * n as f64).floor();
            let found = minimise(&classes, budget).unwrap();
            is_what_it_states(&classes, budget, &found);
            let best = by_table(&classes, budget as usize);
            assert!((found.cost / best - 1.0).abs() < 1e-12, "{n} {bits}");
            assert_eq!(found.bound, found.cost);
        }
    }
}

/// Where all combinations differ, not all may be listed; then the bound says how good it is.
#[test]
fn a_bound_is_below_the_best() {
    for seed in 0..20 {
        let mut lcg = Lcg::new(seed);
        let classes = classes(&mut lcg, 400, 20, |bits| bits);
        let found = minimise(&classes, 1400.0).unwrap();
        is_what_it_states(&classes, 1400.0, &found);
        let gap = found.cost / found.bound - 1.0;
        assert!((0.0..1e-6).contains(&gap), "seed {seed}: {gap:e}");
    }
}

#[test]
fn steps_lead_from_the_lightest_to_the_cheapest_by_falling_rates() {
    let mut lcg = Lcg::new(1);
    let classes = classes(&mut lcg, 30, 14, |bits| bits);
    let steps = steps(&classes);
    let rates = steps.iter().map(|step| step.saving / step.weight);
    assert!(rates.is_sorted_by(|a, b| a >= b));
    let saved: f64 = steps.iter().map(|step| step.saving).sum();
    let (mut most, mut least) = (0.0, 0.0);
    for class in &classes {
        let lightest = class.iter().min_by(|a, b| a.weight.total_cmp(&b.weight));
        let cheapest = class.iter().map(|item| item.cost);
        most += lightest.unwrap().cost;
        least += cheapest.fold(f64::INFINITY, f64::min);
    }
    assert!((saved - (most - least)).abs() < 1e-12 * most);
}
