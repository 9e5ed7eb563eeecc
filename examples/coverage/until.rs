//! Evaluations that stop where their interval is narrow enough: how often it then holds the true mean.

use kl::stats::{ClusterRule, Clusters, Confidence, KldSoFar, Run, WindowSums};
use kl_formats::TokenRecord;
use rayon::prelude::*;

use super::Interval;
use super::text::{Q4_K_M, Text};

/// Half the interval's width over the mean, at which evaluations stop.
pub const TARGETS: [f64; 3] = [0.03, 0.05, 0.1];

/// The most windows that an evaluation has.
pub const MAX_WINDOWS: usize = 3000;

/// Where an evaluation has stopped, and its interval there.
pub struct Stop {
    n_windows: usize,
    interval: Interval,
}

/// Prints how often the interval holds the mean of made-up texts.
pub fn table(replications: u64) {
    header();
    for (of, article_sd) in [("independent", 0.0), ("articles", 0.4)] {
        let text = Text {
            klds: &Q4_K_M,
            window_sd: 0.08,
            article_sd,
        };
        for target in TARGETS {
            let seeds = (0..replications).into_par_iter();
            let stops = seeds.map(|seed| stop(text.windows(seed), target));
            row(of, target, text.mean_kld(), &stops.collect::<Vec<_>>());
        }
    }
}

pub fn header() {
    println!("| text | target, % | holds | stops at, on average | never stops |");
    println!("|---|---:|---:|---:|---:|");
}

/// Prints the coverage of the evaluations that have stopped.
pub fn row(of: &str, target: f64, truth: f64, stops: &[Option<Stop>]) {
    let stopped: Vec<&Stop> = stops.iter().flatten().collect();
    let n = stopped.len() as f64;
    let holds = stopped
        .iter()
        .filter(|stop| (stop.interval.lo..=stop.interval.hi).contains(&truth));
    let windows: usize = stopped.iter().map(|stop| stop.n_windows).sum();
    println!(
        "| {of} | {} | {:.1} | {:.0} | {} of {} |",
        100.0 * target,
        100.0 * holds.count() as f64 / n,
        windows as f64 / n,
        stops.len() - stopped.len(),
        stops.len()
    );
}

/// Evaluates these windows with `--until`; `None` if the target is not reached.
pub fn stop(windows: impl Iterator<Item = Vec<TokenRecord>>, target: f64) -> Option<Stop> {
    let (confidence, rule) = (Confidence::default(), ClusterRule::Auto);
    let mut until = KldSoFar::new(Some(target), confidence, rule);
    let (mut runs, mut klds, mut n_windows) = (Vec::new(), Vec::new(), 0);
    for window in windows.take(MAX_WINDOWS) {
        window.iter().for_each(|record| Run::add(&mut runs, record));
        klds.extend(window.iter().map(|record| record.kld));
        n_windows += 1;
        if until.push(&window) {
            let clusters = Clusters::by_rule(&WindowSums::from_tokens(&runs, &klds), rule);
            let estimator = clusters.estimator(&runs, confidence);
            let mean = estimator.mean_of_positive(klds.iter().copied())?;
            return Some(Stop {
                n_windows,
                interval: super::ends(mean.independent.value, mean.clustered.lo, mean.clustered.hi),
            });
        }
    }
    None
}
