//! The solver against brute force, against a table of all weights, and against scipy.

use kl_stats::Lcg;

use super::{Item, Path, Solution, minimise};

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

/// Bytes of 256 elements: q2_K to q8_0 and f16.
const BYTES: [f64; 14] = [
    84.0, 98.0, 110.0, 110.0, 136.0, 144.0, 144.0, 160.0, 176.0, 176.0, 192.0, 210.0, 272.0, 512.0,
];

/// The lowest costs of `model`s at some bits, from `oracle.py`.
const SCIPY: [(usize, f64, f64); 9] = [
    (22, 2.8, 4.012489958508436),
    (22, 3.45, 1.2037452015127739),
    (22, 4.95, 0.15293322782636945),
    (100, 2.8, 14.865378191411645),
    (100, 3.45, 4.42040906301569),
    (100, 4.95, 0.49945416329309666),
    (1000, 2.8, 138.1815522246934),
    (1000, 3.45, 37.70124333319677),
    (1000, 4.95, 4.324992774485502),
];

/// The tensors of a model, as `model` in `oracle.py` makes them.
fn model(n: usize) -> Vec<Vec<Item>> {
    let mut lcg = Lcg::new(n as u64);
    let mut tensor = |_| {
        let rows = [256.0, 768.0, 1024.0, 4096.0][(4.0 * lcg.uniform()) as usize];
        let scale = (4.0 * lcg.uniform()).exp();
        let item = |bytes: f64| Item {
            cost: scale * (-bytes / 23.0).exp() * (0.7 + 0.6 * lcg.uniform()),
            weight: 256.0 * rows * bytes,
        };
        BYTES.map(item).to_vec()
    };
    (0..n).map(&mut tensor).collect()
}

#[test]
fn models_are_solved_like_by_scipy() {
    for (n, bits, best) in SCIPY {
        let classes = model(n);
        let largest: f64 = classes.iter().map(|class| class[13].weight).sum();
        let budget = (bits * largest / 16.0).floor();
        let found = minimise(&classes, budget).unwrap();
        is_what_it_states(&classes, budget, &found);
        assert!((found.cost / best - 1.0).abs() < 1e-12, "{n} at {bits}");
        assert_eq!(found.bound, found.cost);
        // The other way round, that cost is reached by no fewer bytes.
        let swapped = |item: &Item| Item {
            cost: item.weight,
            weight: item.cost,
        };
        let swapped: Vec<Vec<Item>> = classes
            .iter()
            .map(|class| class.iter().map(swapped).collect())
            .collect();
        let smallest = minimise(&swapped, best * (1.0 + 1e-12)).unwrap();
        assert!(smallest.cost <= found.weight);
        assert_eq!(smallest.bound, smallest.cost);
        let again = minimise(&classes, smallest.cost).unwrap();
        assert!((again.cost / best - 1.0).abs() < 1e-11, "{n} at {bits}");
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
    let steps = Path::on_hulls(&classes).steps;
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
