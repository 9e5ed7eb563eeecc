//! Recipes of maps of a few windows: how far their true KLDs are spread, and how often the predicted
//! interval holds them.

use std::collections::BTreeMap;

use kl::pipeline::shuffled;
use kl::recipe::mathematics::{Goal, Sensitivities, role_and_layer, solve};
use kl::stats::Confidence;
use kl_formats::{GgmlType, Mixture};

use crate::bench::Bench;
use crate::facts::quantile;
use crate::{Like, Result, kind};

/// Maps of each kind.
const MAPS: u64 = 200;

/// The windows on which a map measures single tensors.
const WINDOWS: [usize; 3] = [2, 4, 8];

/// The windows on which it measures all tensors together.
const WINDOWS_TOGETHER: usize = 16;

/// The types at which all tensors are measured together, beside the measured one.
const TOGETHER: [&str; 4] = ["q8_0", "q6_K", "q4_K", "q2_K"];

/// The types at which each role is measured as a whole, and the windows on which.
const ROLES: [&str; 2] = ["q8_0", "q6_K"];
const WINDOWS_OF_ROLES: usize = 4;

/// Predicted cells that are measured too.
const CHECKS: usize = 6;

/// What the recipe of one map was predicted to have, and what it has.
struct Outcome {
    kld: f64,
    predicted: f64,
    lo: f64,
    hi: f64,
}

/// Prints a row for each number of windows, with columns for each quant whose size the recipes have.
pub fn table(bench: &mut Bench<'_>, likes: &[Like]) -> Result<()> {
    println!(
        "\n| tokens a tensor | as large as | its KLD | recipes' KLD: median | 5 % | 95 % | over its, median | predicted over true: median | 5 % | 95 % | interval holds | its width, median | different recipes |"
    );
    println!("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for n_windows in WINDOWS {
        for like in likes {
            let mut outcomes = Vec::new();
            let mut different = std::collections::BTreeSet::new();
            for seed in 0..MAPS {
                let (mixture, outcome) = recipe(bench, Some(n_windows), seed, like)?;
                different.insert(mixture);
                outcomes.push(outcome);
            }
            let own = bench.mean(&like.mixture)?;
            let sorted = |of: fn(&Outcome) -> f64| {
                let mut values: Vec<f64> = outcomes.iter().map(of).collect();
                values.sort_by(f64::total_cmp);
                [0.5, 0.05, 0.95].map(|p| quantile(&values, p))
            };
            let holds = |of: &&Outcome| of.lo <= of.kld && of.kld <= of.hi;
            let n = outcomes.iter().filter(holds).count();
            let [median, low, high] = sorted(|of| of.kld);
            let [ratio, ratio_low, ratio_high] = sorted(|of| of.predicted / of.kld);
            let [width, ..] = sorted(|of| (of.hi - of.lo) / of.predicted);
            println!(
                "| {} | {} | {own:.3e} | {median:.3e} | {low:.3e} | {high:.3e} | {:.2} | {ratio:.2} | {ratio_low:.2} | {ratio_high:.2} | {:.1} % | {width:.2} | {} |",
                n_windows as u32 * bench.n_rows(),
                like.name,
                median / own,
                100.0 * n as f64 / outcomes.len() as f64,
                different.len(),
            );
        }
    }
    println!("\nFrom all windows, and every type measured:\n");
    println!("| as large as | its KLD | recipe's KLD | over its | predicted over true |");
    println!("|---|---:|---:|---:|---:|");
    for like in likes {
        let (_, outcome) = recipe(bench, None, 0, like)?;
        let own = bench.mean(&like.mixture)?;
        println!(
            "| {} | {own:.3e} | {:.3e} | {:.2} | {:.2} |",
            like.name,
            outcome.kld,
            outcome.kld / own,
            outcome.predicted / outcome.kld,
        );
    }
    Ok(())
}

/// The recipe of a map of some windows at random, or of all and of every type, with its true KLD.
fn recipe(
    bench: &mut Bench<'_>,
    n_windows: Option<usize>,
    seed: u64,
    like: &Like,
) -> Result<(Mixture, Outcome)> {
    let windows = shuffled(bench.n_windows(), seed);
    let tensors = bench.tensors.clone();
    let singles: Vec<Mixture> = tensors
        .iter()
        .map(|tensor| bench.single(tensor, bench.measured_type(tensor)))
        .collect();
    let types = TOGETHER.map(kind);
    let mut together = vec![
        singles
            .iter()
            .flatten()
            .map(|(name, kind)| (name.clone(), *kind))
            .collect(),
    ];
    together.extend(types.map(|kind| bench.all_at(kind)));
    let n = n_windows.unwrap_or(windows.len());
    let n_together = n.max(WINDOWS_TOGETHER);
    let mut cells: Vec<(Mixture, usize)> = singles.into_iter().map(|of| (of, n)).collect();
    cells.extend(together.into_iter().map(|of| (of, n_together)));
    for kind in ROLES.map(kind) {
        let mut roles = BTreeMap::<String, Mixture>::new();
        for tensor in &tensors {
            if bench.types(tensor).any(|of| of == kind) {
                let role = roles.entry(role_and_layer(&tensor.name).0).or_default();
                role.insert(tensor.name.clone(), kind);
            }
        }
        let n_roles = n.max(WINDOWS_OF_ROLES);
        cells.extend(roles.into_values().map(|of| (of, n_roles)));
    }
    let checks = shuffled(tensors.len(), seed)
        .into_iter()
        .zip(types.iter().cycle());
    for (i, &of) in checks.take(CHECKS) {
        let tensor = &tensors[i];
        let single = bench.single(tensor, of);
        let is_new = cells.iter().all(|(known, _)| *known != single);
        if is_new && bench.types(tensor).any(|kind| kind == of) {
            cells.push((single, n));
        }
    }
    if n_windows.is_none() {
        for tensor in &tensors {
            for of in bench.types(tensor) {
                let single = bench.single(tensor, of);
                if cells.iter().all(|(known, _)| *known != single) {
                    cells.push((single, n));
                }
            }
        }
    }
    let map = bench.map(&cells, &windows)?;
    let of = Sensitivities::from_map(&map, Confidence::default())?;
    let all: [GgmlType; 0] = [];
    let recipe = solve(&of, Goal::Size(like.bytes), &all)?;
    let kld = bench.mean(&recipe.mixture())?;
    let outcome = Outcome {
        kld,
        predicted: recipe.kld.predicted.value,
        lo: recipe.kld.predicted.lo.unwrap_or(f64::NEG_INFINITY),
        hi: recipe.kld.predicted.hi.unwrap_or(f64::INFINITY),
    };
    Ok((recipe.mixture(), outcome))
}
