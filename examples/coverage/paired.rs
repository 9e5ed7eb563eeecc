//! How often the interval of a paired difference holds the true one, how many windows pairing saves,
//! and how often a model is wrongly told from the best.

use kl::stats::{ClusterRule, Confidence, PairedDifference, Run, holm};
use rayon::prelude::*;

use super::Q2_K;
use super::text::{Q4_K_M, Text};

const N_WINDOWS: [u32; 3] = [30, 100, 300];

/// The rank correlation of two models' KLDs on a token: that of tiny-q4_K_M and tiny-q2_K is 0.86,
/// of the quants of stories260K 0.6.
const CORRELATIONS: [f64; 2] = [0.86, 0.6];

/// Prints both tables.
pub fn tables(replications: u64) {
    for (of, article_sd) in [("independent windows", 0.0), ("articles of 8 windows", 0.4)] {
        println!("\nPaired differences, {of}:\n");
        println!("| models | correlation | 30 windows | 100 | 300 | saved: 30 | 100 | 300 |");
        println!("|---|---:|---:|---:|---:|---:|---:|---:|");
        for (name, other) in [
            ("q4_K_M and its equal", &Q4_K_M),
            ("q4_K_M and q2_K", &Q2_K),
        ] {
            for correlation in CORRELATIONS {
                let text = Text {
                    klds: &Q4_K_M,
                    window_sd: 0.08,
                    article_sd,
                };
                row(name, &text, other, correlation, replications);
            }
        }
    }
    println!("\nEqual models, of which one is wrongly told from the best, 100 windows:\n");
    println!("| models | any of them, % | a given one, % |\n|---:|---:|---:|");
    for n_models in [2, 3, 5, 10, 20] {
        wrongly_told_apart(n_models, replications);
    }
}

fn row(name: &str, text: &Text, other: &'static [(f64, f64)], correlation: f64, replications: u64) {
    let truth = text.mean_kld()
        - Text {
            klds: other,
            ..*text
        }
        .mean_kld();
    let (mut coverage, mut saved) = (String::new(), String::new());
    for n_windows in N_WINDOWS {
        let seeds = (0..replications).into_par_iter();
        let each = seeds.map(|seed| {
            let klds = text.klds_of(
                n_windows,
                u64::from(n_windows) << 32 | seed,
                &[(text.klds, correlation), (other, correlation)],
            );
            let difference = |a: &[f64], b: &[f64]| between(&klds.windows, a, b);
            let zeros = vec![0.0; klds.windows.len()];
            let [a, b] = [&klds.of_models[0], &klds.of_models[1]];
            let paired = difference(a, b);
            let holds = paired.lo.unwrap() <= truth && truth <= paired.hi.unwrap();
            // What two evaluations on different texts would have.
            let apart = difference(a, &zeros).se.unwrap().powi(2)
                + difference(b, &zeros).se.unwrap().powi(2);
            (holds, apart, paired.se.unwrap().powi(2))
        });
        let each: Vec<(bool, f64, f64)> = each.collect();
        let hits = each.iter().filter(|(holds, ..)| *holds).count();
        coverage += &format!(" {:.1} |", 100.0 * hits as f64 / replications as f64);
        let apart: f64 = each.iter().map(|(_, apart, _)| apart).sum();
        let paired: f64 = each.iter().map(|(.., paired)| paired).sum();
        saved += &format!(" {:.1} times |", apart / paired);
    }
    println!("| {name} | {correlation} |{coverage}{saved}");
}

fn wrongly_told_apart(n_models: usize, replications: u64) {
    let text = Text {
        klds: &Q4_K_M,
        window_sd: 0.08,
        article_sd: 0.0,
    };
    let told_apart = |seed: u64| {
        let klds = text.klds_of(100, 1 << 48 | seed, &vec![(text.klds, 0.86); n_models]);
        let sum = |of: &&Vec<f64>| of.iter().sum::<f64>();
        let by_sum = |a: &&Vec<f64>, b: &&Vec<f64>| sum(a).total_cmp(&sum(b));
        let best = klds.of_models.iter().min_by(by_sum).unwrap();
        let others = klds.of_models.iter().filter(|of| !std::ptr::eq(*of, best));
        let p: Vec<f64> = others
            .map(|of| between(&klds.windows, of, best).p.unwrap())
            .collect();
        holm(&p, n_models * (n_models - 1) / 2)
            .into_iter()
            .filter(|p| *p < 0.05)
            .count()
    };
    let counts = (0..replications).into_par_iter().map(told_apart);
    let counts: Vec<usize> = counts.collect();
    let percent = |n: usize, of: u64| 100.0 * n as f64 / of as f64;
    println!(
        "| {n_models} | {:.1} | {:.1} |",
        percent(counts.iter().filter(|n| **n > 0).count(), replications),
        percent(counts.iter().sum(), replications * n_models as u64),
    );
}

fn between(windows: &[u32], a: &[f64], b: &[f64]) -> PairedDifference {
    let windows = Run::of_each(windows.iter().map(|window| (*window, 0)));
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let (confidence, rule) = (Confidence::default(), ClusterRule::Auto);
    PairedDifference::of(&windows, &differences, confidence, rule).unwrap()
}
