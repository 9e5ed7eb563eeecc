//! Models on the same tokens: how often the intervals of their ratio and of their difference hold the
//! true ones, how often a gate lets a build pass, and how often the nearest model is left out of the
//! set that cannot be told from the best.

use std::collections::BTreeMap;

use kl::stats::{
    Cluster, ClusterRule, Clusters, Confidence, Paired, PairedComparison, Ratio, Run, Totals,
    WindowSums, holm, usable_kld,
};
use kl_formats::TokenRecord;
use rayon::prelude::*;

use super::Q2_K;
use super::text::{Klds, Q4_K_M, Random, Text, tokens_of};

/// How many times as far the one model is as the other.
const RATIOS: [f64; 7] = [1.0, 1.02, 1.05, 1.1, 1.2, 3.0, 30.0];

const N_WINDOWS: [u32; 4] = [10, 30, 100, 300];

/// Independent windows, articles, and articles in which each model has difficulties of its own.
const TEXTS: [(&str, f64, f64); 3] = [
    ("independent windows", 0.0, 0.0),
    ("articles", 0.4, 0.0),
    ("articles, own effects", 0.4, 0.15),
];

/// Prints all tables.
pub fn tables(replications: u64) {
    println!("| text | tails | windows | times as far | ratio | difference | p < 0.05 | passes |");
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    for (of, article_sd, own_sd) in TEXTS {
        for (tails, klds) in [("q4_K_M", &Q4_K_M), ("q2_K", &Q2_K)] {
            for n_windows in N_WINDOWS {
                two_models(
                    of,
                    tails,
                    &text(klds, article_sd),
                    own_sd,
                    n_windows,
                    replications,
                );
            }
        }
    }
    println!(
        "\n| text | models | windows | the nearest left out: equal | spread | told apart: k - 1 | every two |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for (of, article_sd, own_sd) in [TEXTS[0], TEXTS[2]] {
        for n_windows in [30, 100] {
            for n_models in [5, 15, 40] {
                set(
                    of,
                    &text(&Q4_K_M, article_sd),
                    own_sd,
                    n_windows,
                    n_models,
                    replications,
                );
            }
        }
    }
    println!(
        "\n| one damaged token in | windows | passes ratio.upper | agreement.difference.lo < -0.005 | agreement falls |"
    );
    println!("|---:|---:|---:|---:|---:|");
    for one_in in [10_000, 1_000] {
        for n_windows in [100, 300] {
            damage(one_in, n_windows, replications);
        }
    }
}

fn text(klds: &'static [(f64, f64)], article_sd: f64) -> Text {
    Text {
        klds,
        window_sd: 0.08,
        article_sd,
    }
}

/// One row for each ratio.
fn two_models(of: &str, tails: &str, text: &Text, own_sd: f64, n_windows: u32, replications: u64) {
    let one = |seed: u64| {
        let seed = u64::from(n_windows) << 32 | seed;
        let klds = text.klds_of(n_windows, seed, &[text.klds; 2], own_sd);
        let runs = Run::from_records(&tokens_of(&klds.windows));
        let clusters = clusters(&klds, &runs);
        RATIOS.map(|ratio| {
            let a: Vec<f64> = klds.of_models[0].iter().map(|kld| ratio * kld).collect();
            let b = &klds.of_models[1];
            let paired =
                Paired::compare(&clusters.estimator(&runs, Confidence::default()), &a, b).unwrap();
            let (got, difference) = (paired.ratio.unwrap(), paired.difference);
            let truth = (ratio - 1.0) * text.mean_kld();
            [
                (got.lo.unwrap()..=got.hi.unwrap()).contains(&ratio),
                (difference.lo.unwrap()..=difference.hi.unwrap()).contains(&truth),
                got.p.unwrap() < 0.05,
                got.upper.unwrap() <= 1.05,
            ]
        })
    };
    let all: Vec<_> = (0..replications).into_par_iter().map(one).collect();
    for (i, ratio) in RATIOS.iter().enumerate() {
        let cells = (0..4).map(|cell| percent(all.iter().filter(|of| of[i][cell]).count(), &all));
        let cells: String = cells.collect();
        println!("| {of} | {tails} | {n_windows} | {ratio} |{cells}");
    }
}

/// The clusters of a report: from the mean over its models of their windows' autocorrelation.
fn clusters(klds: &Klds, runs: &[Run]) -> Clusters {
    let windows = klds
        .of_models
        .iter()
        .map(|klds| WindowSums::from_tokens(runs, klds));
    let windows: Vec<WindowSums> = windows.collect();
    let each: Vec<f64> = windows
        .iter()
        .filter_map(WindowSums::autocorrelation)
        .collect();
    let mean = each.iter().sum::<f64>() / each.len() as f64;
    Clusters::new(&windows[0], ClusterRule::Auto, None, Some(mean))
}

/// How often the nearest of several models is told from the best: where all are equal (a given one),
/// and where the others are 1.02 to 1.5 times as far. The share of models 1.1 times as far that are,
/// with Holm's correction for the comparisons with the best and for those of every two.
fn set(of: &str, text: &Text, own_sd: f64, n_windows: u32, n_models: usize, replications: u64) {
    let one = |seed: u64| {
        let klds = text.klds_of(
            n_windows,
            1 << 48 | seed,
            &vec![text.klds; n_models],
            own_sd,
        );
        let runs = Run::from_records(&tokens_of(&klds.windows));
        let clusters = clusters(&klds, &runs);
        let sums = klds.of_models.iter().map(|klds| {
            let mut sums = BTreeMap::<Cluster, (f64, f64)>::new();
            let mut rest = klds.iter();
            for run in &runs {
                let (n, sum) = sums
                    .entry(clusters.of_window(run.piece.window))
                    .or_default();
                *n += run.n as f64;
                *sum += rest.by_ref().take(run.n).sum::<f64>();
            }
            sums
        });
        let sums: Vec<BTreeMap<Cluster, (f64, f64)>> = sums.collect();
        let spread = |i: usize| 1.02 + 0.48 * (i - 1) as f64 / (n_models - 1) as f64;
        let factors = |of: &dyn Fn(usize) -> f64| -> Vec<f64> {
            (0..n_models)
                .map(|i| if i == 0 { 1.0 } else { of(i) })
                .collect()
        };
        let every_two = n_models * (n_models - 1) / 2;
        let equal = left_out(&sums, &factors(&|_| 1.0), n_models - 1);
        let spread = left_out(&sums, &factors(&spread), n_models - 1);
        let [new, former] = [n_models - 1, every_two].map(|n_tests| {
            let left_out = left_out(&sums, &factors(&|_| 1.1), n_tests);
            left_out[1..].iter().filter(|is| **is).count()
        });
        (equal[0], spread[0], new, former)
    };
    let all: Vec<_> = (0..replications).into_par_iter().map(one).collect();
    let share = |n: usize| 100.0 * n as f64 / (all.len() * (n_models - 1)) as f64;
    println!(
        "| {of} | {n_models} | {n_windows} |{}{} {:.1} | {:.1} |",
        percent(all.iter().filter(|of| of.0).count(), &all),
        percent(all.iter().filter(|of| of.1).count(), &all),
        share(all.iter().map(|of| of.2).sum()),
        share(all.iter().map(|of| of.3).sum()),
    );
}

/// Which models are told from the best, by their sums of KLDs times a factor each.
fn left_out(sums: &[BTreeMap<Cluster, (f64, f64)>], factors: &[f64], n_tests: usize) -> Vec<bool> {
    let total = |i: usize| factors[i] * sums[i].values().map(|(_, sum)| sum).sum::<f64>();
    let best = (0..sums.len())
        .min_by(|&i, &j| total(i).total_cmp(&total(j)))
        .unwrap();
    let p = |i: usize| {
        let both = sums[i].iter().zip(sums[best].values());
        let both = both.map(|((cluster, (n, of_i)), (_, of_best))| {
            let (n, sums) = (*n, [factors[i] * of_i, factors[best] * of_best, 0.0]);
            (*cluster, Totals { n, sums })
        });
        Ratio::from_sums(&both.collect(), Confidence::default())
            .unwrap()
            .p
            .unwrap()
    };
    let others: Vec<usize> = (0..sums.len()).filter(|i| *i != best).collect();
    let mut all: Vec<f64> = others.iter().map(|i| p(*i)).collect();
    // Tests whose p-value is 1 only add to the number of tests.
    all.resize(n_tests, 1.0);
    let mut is_left_out = vec![false; sums.len()];
    for (i, p) in others.into_iter().zip(holm(&all)) {
        is_left_out[i] = p < 0.05;
    }
    is_left_out
}

/// A build that is its original but for rare tokens, whose KLD is 5 nats more and whose top token is
/// another: how often each gate sees it.
fn damage(one_in: u64, n_windows: u32, replications: u64) {
    let text = text(&Q2_K, 0.0);
    let one = |seed: u64| {
        let seed = u64::from(n_windows) << 32 | seed;
        let original = text.records(n_windows, seed);
        let mut draws = Random(seed ^ 1 << 60);
        let damaged = original
            .iter()
            .map(|record| match draws.uniform() < 1.0 / one_in as f64 {
                true => TokenRecord {
                    kld: record.kld + 5.0,
                    eval_top: 1,
                    ..*record
                },
                false => *record,
            });
        let damaged: Vec<TokenRecord> = damaged.collect();
        let confidence = Confidence::default();
        let runs = Run::from_records(&original);
        let klds = Vec::from_iter(original.iter().map(usable_kld));
        let clusters = Clusters::by_rule(&WindowSums::from_tokens(&runs, &klds), ClusterRule::Auto);
        let pair =
            PairedComparison::in_depth(&damaged, &original, &[], &clusters, confidence, 0).unwrap();
        let agreement = pair.agreement.difference.estimate;
        [
            pair.ratio.unwrap().upper.unwrap() <= 1.05,
            agreement.lo.unwrap() < -0.005,
            agreement.hi.unwrap() < 0.0,
        ]
    };
    let all: Vec<[bool; 3]> = (0..replications).into_par_iter().map(one).collect();
    let cells = (0..3).map(|cell| percent(all.iter().filter(|of| of[cell]).count(), &all));
    println!("| {one_in} | {n_windows} |{}", cells.collect::<String>());
}

fn percent<T>(n: usize, of: &[T]) -> String {
    format!(" {:.1} |", 100.0 * n as f64 / of.len() as f64)
}
