//! How often the 95 % intervals of a report hold the true value, on made-up evaluations: the tables
//! of docs/INTERVALS.md.
//!
//!     coverage [REPLICATIONS]                  of one model
//!     coverage lengths [REPLICATIONS]          of windows of very different length
//!     coverage paired [REPLICATIONS]           of models on the same tokens
//!     coverage spans [REPLICATIONS]            of two models on a span's tokens
//!     coverage answers [REPLICATIONS]          of greedy answers
//!     coverage long [REPLICATIONS]             of few long windows
//!     coverage until [REPLICATIONS] [A.kls...] of evaluations that stop by themselves
//!     coverage gates [REPLICATIONS] [A.kls B.kls...]   how often gates pass
//!
//! The last two draw windows of real evaluations if they get sidecars.
//!
//! With 100 replications (the default) a share of 95 % is known to about ±4 %, with 1,600 to ±1 %.
//! 500 windows take so long that there are a quarter as many.

mod answers;
mod lengths;
mod long;
mod paired;
mod real;
mod spans;
mod text;
mod until;

use kl::stats::probability::student_two_sided;
use kl::stats::{
    ClusterRule, ClusteredInterval, Clusters, Confidence, Estimate, Estimator, PartNames,
    TokenTable,
};
use rayon::prelude::*;

use text::{Q4_K_M, Text};

/// tiny-q2_K on the same windows as `Q4_K_M`.
#[rustfmt::skip]
const Q2_K: [(f64, f64); 21] = [
    (0.0, 2.33e-7), (0.001, 7.19e-7), (0.01, 1.61e-6), (0.1, 1.23e-5), (0.25, 8.05e-5),
    (0.5, 0.00113), (0.75, 0.00388), (0.9, 0.0103), (0.95, 0.0202), (0.98, 0.0465),
    (0.99, 0.081), (0.995, 0.133), (0.998, 0.249), (0.999, 0.417), (0.9995, 0.722),
    (0.9998, 1.35), (0.9999, 2.0), (0.99995, 3.06), (0.99998, 4.03), (0.99999, 4.62),
    (1.0, 7.87),
];
/// Within a factor of 4, all tokens alike.
const LIGHT: [(f64, f64); 2] = [(0.0, 2.5e-4), (1.0, 1e-3)];

/// Longest first: its values, averaged, are the true ones.
const N_WINDOWS: [u32; 4] = [500, 100, 30, 10];

/// A value and its interval, whose ends are infinite where it is open.
struct Interval {
    value: f64,
    lo: f64,
    hi: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let of = args.next_if(|arg| arg.parse::<u64>().is_err());
    let replications = args.next().and_then(|n| n.parse().ok()).unwrap_or(100);
    let paths: Vec<String> = args.collect();
    match of.as_deref() {
        None => evaluations(replications),
        Some("lengths") => lengths::table(replications),
        Some("paired") => paired::tables(replications),
        Some("spans") => spans::table(replications),
        Some("answers") => answers::table(replications),
        Some("long") => long::tables(replications),
        Some("until") if paths.is_empty() => until::table(replications),
        Some("until") => real::until(replications, &paths)?,
        Some("gates") => real::gates(replications, &paths)?,
        Some(other) => return Err(format!("no tables of '{other}'").into()),
    }
    Ok(())
}

/// Prints the tables of evaluations of one model.
fn evaluations(replications: u64) {
    for (of, article_sd) in [("independent windows", 0.0), ("articles of 8 windows", 0.4)] {
        for (name, klds, window_sd) in [
            ("Light tails", &LIGHT[..], 0.1),
            ("q4_K_M's tails", &Q4_K_M, 0.08),
            ("q2_K's tails", &Q2_K, 0.1),
        ] {
            println!("\n{name}, {of}:\n");
            table(
                &Text {
                    klds,
                    window_sd,
                    article_sd,
                },
                replications,
            );
        }
    }
}

/// Prints the coverage of each interval, in percent, for each number of windows.
fn table(text: &Text, replications: u64) {
    let columns = N_WINDOWS.map(|n_windows| {
        let replications = match n_windows {
            500 => replications.div_ceil(4),
            _ => replications,
        };
        let seeds = (0..replications).into_par_iter();
        let seeds = seeds.map(|i| u64::from(n_windows) << 32 | i);
        let intervals = seeds.map(|seed| intervals(text, n_windows, seed));
        intervals.collect::<Vec<_>>()
    });
    println!("| interval | 10 windows | 30 | 100 | 500 |\n|---|---:|---:|---:|---:|");
    for row in 0..columns[0][0].len() {
        let name = &columns[0][0][row].0;
        let values = columns[0].iter().map(|intervals| intervals[row].1.value);
        let truth = match name.starts_with("mean KLD") {
            true => text.mean_kld(),
            false => values.sum::<f64>() / columns[0].len() as f64,
        };
        let cells = columns.iter().rev().map(|column| {
            let holds = |interval: &Interval| (interval.lo..=interval.hi).contains(&truth);
            let hits = column.iter().filter(|row_of| holds(&row_of[row].1)).count();
            format!(" {:.1} |", 100.0 * hits as f64 / column.len() as f64)
        });
        println!("| {} |{}", name, cells.collect::<String>());
    }
}

/// The intervals of one made-up evaluation, by name.
fn intervals(text: &Text, n_windows: u32, seed: u64) -> Vec<(String, Interval)> {
    let records = text.records(n_windows, seed);
    let confidence = Confidence::default();
    let table = TokenTable::from_records(&records);
    let clusters = Clusters::by_rule(&table.windows(), ClusterRule::Auto);
    let statistics = table.summarise(&clusters, PartNames::default(), confidence);
    let summary = statistics.summary;
    let kld = summary.kld.as_ref().unwrap().mean;
    let by_window = Estimator::new(records.iter().map(|r| r.window.into()), confidence);
    let klds = records.iter().map(|record| record.kld);
    let by_window = by_window.mean_of_positive(klds).unwrap();
    let student = {
        let t = student_two_sided(confidence, f64::from(n_windows) - 1.0);
        let half_width = t * by_window.clustered.se.unwrap();
        Estimate::symmetric(kld.independent.value, half_width)
    };
    let clustered = |value: f64, interval: ClusteredInterval| ends(value, interval.lo, interval.hi);
    let estimate = |estimate: &Estimate| ends(estimate.value, estimate.lo, estimate.hi);
    let by_window = clustered(kld.independent.value, by_window.clustered);
    let perplexity = summary.perplexity.unwrap();
    let (reverse, delta_p) = (summary.reverse_kld.unwrap(), summary.delta_p.unwrap());
    let of_eval = ends(
        perplexity.evaluated,
        perplexity.eval_cluster_lo,
        perplexity.eval_cluster_hi,
    );
    let mut named = vec![
        ("mean KLD", clustered(kld.independent.value, kld.clustered)),
        ("mean KLD, `--cluster window`", by_window),
        (
            "mean KLD, windows and Student's t alone",
            estimate(&student),
        ),
        (
            "mean KLD, tokens as independent (`lo`, `hi`)",
            estimate(&kld.independent),
        ),
        (
            "mean reverse KLD",
            clustered(reverse.mean.independent.value, reverse.mean.clustered),
        ),
        (
            "same top token",
            estimate(&summary.agreement.unwrap().ref_top1.estimate),
        ),
        ("perplexity", of_eval),
        (
            "perplexity ratio",
            clustered(perplexity.ratio.value, perplexity.ratio.clustered),
        ),
        (
            "mean Δp",
            clustered(delta_p.mean.independent.value, delta_p.mean.clustered),
        ),
        (
            "RMS Δp",
            clustered(delta_p.rms.value, delta_p.rms.clustered),
        ),
    ]
    .into_iter()
    .map(|(name, interval)| (name.to_owned(), interval))
    .collect::<Vec<_>>();
    for quantile in &summary.kld.unwrap().quantiles {
        let name = format!("{} % quantile of the KLD", 100.0 * quantile.p);
        named.push((name, estimate(&quantile.estimate)));
    }
    named
}

fn ends(value: f64, lo: Option<f64>, hi: Option<f64>) -> Interval {
    Interval {
        value,
        lo: lo.unwrap_or(f64::NEG_INFINITY),
        hi: hi.unwrap_or(f64::INFINITY),
    }
}
