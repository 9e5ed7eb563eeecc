//! The factor by which a choice makes the sum of KLDs too low.
//!
//! Of several tensors, the best mixture gives few bits to those that were measured too low. How far that
//! goes is simulated: the map's KLDs are taken for true, the errors that few windows make are drawn,
//! and mixtures are chosen by the KLDs with these errors.
//!
//! A KLD that follows from another one has errors too. But they are as often above as below whatever is
//! chosen by it, so they do not count here.

use std::f64::consts::TAU;

use kl_formats::Random;

use super::knapsack::{Item, Path};

/// The sets of errors that are drawn.
const DRAWS: usize = 64;

/// The true sum of KLDs over the one that they were chosen by, for choices of each of these weights,
/// which rise. `classes` are the items of the tensors, by KLD and weight; `errors` are the relative
/// standard deviations of each item, each with the index below `n_cells` of the cell that it comes from.
pub fn selection(
    classes: &[Vec<Item>],
    errors: &[Vec<Vec<(usize, f64)>>],
    n_cells: usize,
    weights: &[f64],
) -> Vec<f64> {
    let path = Path::on_hulls(classes);
    let best = path.sums(classes, weights);
    let (mut lost, mut gained) = (vec![0.0; weights.len()], vec![0.0; weights.len()]);
    let random = &mut Random(0);
    for _ in 0..DRAWS {
        let drawn: Vec<f64> = (0..n_cells).map(|_| normal(random)).collect();
        let with_errors = with_errors(classes, errors, &drawn);
        let other = Path::on_hulls(&with_errors);
        // Beside the best mixture with the same errors, so that few draws are enough.
        let of_best = path.sums(&with_errors, weights).into_iter();
        let by_errors = of_best.zip(other.sums(&with_errors, weights));
        for (gained, (best, chosen)) in gained.iter_mut().zip(by_errors) {
            *gained += (best - chosen) / DRAWS as f64;
        }
        let in_truth = other.sums(classes, weights).into_iter().zip(&best);
        for (lost, (chosen, best)) in lost.iter_mut().zip(in_truth) {
            *lost += (chosen - best) / DRAWS as f64;
        }
    }
    let sums = best.iter().zip(lost).zip(gained);
    let factors = sums.map(|((best, lost), gained)| (best + lost) / (best - gained));
    let finite = factors.map(|factor| Some(factor).filter(|factor| factor.is_finite()));
    finite
        .map(|factor| factor.unwrap_or(1.0).max(1.0))
        .collect()
}

/// The items with errors, whose mean is 0.
fn with_errors(
    classes: &[Vec<Item>],
    errors: &[Vec<Vec<(usize, f64)>>],
    drawn: &[f64],
) -> Vec<Vec<Item>> {
    let item = |(item, errors): (&Item, &Vec<(usize, f64)>)| {
        let errors = errors.iter();
        let ln: f64 = errors.map(|(i, sd)| sd * drawn[*i] - 0.5 * sd * sd).sum();
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
