//! Evaluations that stop where their interval is narrow enough: how often it then holds the true mean.

use kl::stats::{
    ClusterRule, ClusteredMean, Clusters, Confidence, MIN_WINDOWS_TO_PLAN, Run, Windows,
};
use rayon::prelude::*;

use super::text::{Q4_K_M, Text};

/// The clusters from which `--until` may stop.
const MIN_CLUSTERS: usize = 30;

/// The most windows that an evaluation has.
const MAX_WINDOWS: u32 = 3000;

/// Prints the coverage where the interval is looked at from 100 windows on, from 100 windows and 30
/// clusters on, and from 30 of both on.
pub fn table(replications: u64) {
    let text = |article_sd| Text {
        klds: &Q4_K_M,
        window_sd: 0.08,
        article_sd,
    };
    // Tokens are drawn once, for windows of equal difficulty.
    let easy = Text {
        window_sd: 0.0,
        ..text(0.0)
    };
    let klds = easy.klds_of(20_000, 7, &[&Q4_K_M[..]], 0.0);
    let klds = klds.of_models[0].chunks(klds.windows.len() / 20_000);
    let easy: Vec<f64> = klds
        .map(|of| of.iter().sum::<f64>() / of.len() as f64)
        .collect();
    let truth = easy.iter().sum::<f64>() / easy.len() as f64;
    println!(
        "| text | target, % | from 100 windows | stops at | stopped | and 30 clusters | stops at \
         | stopped | from 30 of both | stops at | stopped |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (of, article_sd) in [("independent", 0.0), ("articles", 0.4)] {
        for target in [0.03, 0.05, 0.1] {
            let cells = [
                (MIN_WINDOWS_TO_PLAN as usize, 0),
                (MIN_WINDOWS_TO_PLAN as usize, MIN_CLUSTERS),
                (MIN_CLUSTERS, MIN_CLUSTERS),
            ]
            .map(|rule| {
                let seeds = (0..replications).into_par_iter();
                let ends = seeds.map(|seed| {
                    let means = text(article_sd).window_means(MAX_WINDOWS, seed, &easy);
                    stop(&means, target, rule)
                });
                let ends: Vec<(usize, f64, f64, bool)> = ends.collect();
                let ends: Vec<_> = ends.iter().filter(|end| end.3).collect();
                let n = ends.len() as f64;
                let holds = ends.iter().filter(|end| (end.1..=end.2).contains(&truth));
                let windows: usize = ends.iter().map(|end| end.0).sum();
                format!(
                    " {:.1} | {:.0} | {n} |",
                    100.0 * holds.count() as f64 / n,
                    windows as f64 / n
                )
            });
            println!("| {of} | {} |{}", 100.0 * target, cells.concat());
        }
    }
}

/// The number of windows at which the evaluation stops, its interval, and whether it stopped at all.
fn stop(means: &[f64], target: f64, (from, clusters): (usize, usize)) -> (usize, f64, f64, bool) {
    let mut look = from;
    while look <= means.len() {
        let ((lo, hi), n_clusters) = interval(&means[..look]);
        let mean = means[..look].iter().sum::<f64>() / look as f64;
        if n_clusters >= clusters && 0.5 * (hi - lo) < target * mean {
            return (look, lo, hi, true);
        }
        look += (look / 100).max(1);
    }
    (means.len(), 0.0, 0.0, false)
}

/// The interval of the mean of windows' means, and its number of clusters.
fn interval(means: &[f64]) -> ((f64, f64), usize) {
    let runs = Run::of_each((0..means.len() as u32).map(|window| (window, 0)));
    let clusters = Clusters::of(&Windows::of(&runs, means), ClusterRule::Auto);
    let mean = ClusteredMean::of_positive(&clusters.of_tokens(&runs), means, Confidence::default());
    let interval = mean.unwrap().clustered;
    let ends = (
        interval.lo.unwrap_or(f64::NEG_INFINITY),
        interval.hi.unwrap_or(f64::INFINITY),
    );
    (ends, clusters.clustering.n as usize)
}
