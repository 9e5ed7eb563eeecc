//! Two models on the tokens of a span: their ratio, and how many times the ratio elsewhere it is.

use kl::stats::{ClusterRule, Clusters, Confidence, Ratio, Run, SpanRatio, WindowSums};
use kl_formats::TokenRecord;
use rayon::prelude::*;

use crate::text::Random;

const N_WINDOWS: [u32; 3] = [30, 100, 300];

/// Of ten windows, those that have tokens of the span.
const WITH_SPAN: [u32; 3] = [1, 3, 10];

/// Tokens in a window: of the span, and others.
const TOKENS: [u32; 2] = [20, 60];

/// The standard deviation of the logarithm of a token's KLD in a window.
const TOKEN_SD: f64 = 1.2;

/// That of a window's mean, for each model by itself.
const WINDOW_SD: f64 = 0.6;

/// Prints how often intervals hold the true ratio, which is 1.
pub fn table(replications: u64) {
    println!("| windows | ratio, 0.1 | 0.3 | 1 | to others, 0.1 | 0.3 | 1 |");
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for n_windows in N_WINDOWS {
        let columns = WITH_SPAN.map(|with_span| {
            let seeds = (0..replications).into_par_iter();
            let seeds = seeds.map(|i| u64::from(n_windows) << 40 | u64::from(with_span) << 32 | i);
            let both: Vec<[bool; 2]> = seeds.map(|seed| hold(n_windows, with_span, seed)).collect();
            [0, 1].map(|which| {
                let hits = both.iter().filter(|hold| hold[which]).count();
                format!(" {:.1} |", 100.0 * hits as f64 / both.len() as f64)
            })
        });
        let cells = [0, 1].map(|which| {
            columns
                .each_ref()
                .map(|cells| cells[which].as_str())
                .concat()
        });
        println!("| {n_windows} |{}", cells.concat());
    }
}

/// Whether the intervals of one made-up comparison hold 1: of the ratio in the span, and of how many
/// times the ratio elsewhere it is.
fn hold(n_windows: u32, with_span: u32, seed: u64) -> [bool; 2] {
    let mut random = Random(seed);
    let (mut runs, mut a, mut b) = (Vec::new(), Vec::new(), Vec::new());
    for window in 0..n_windows {
        let of_window = [(); 2].map(|()| random.difficulty(WINDOW_SD));
        let in_span = if window % 10 < with_span {
            TOKENS[0]
        } else {
            0
        };
        for position in 0..in_span + TOKENS[1] {
            let span = u32::from(position < in_span);
            let record = TokenRecord {
                window,
                position,
                span,
                ..TokenRecord::default()
            };
            Run::add(&mut runs, &record);
            a.push(of_window[0] * random.difficulty(TOKEN_SD));
            b.push(of_window[1] * random.difficulty(TOKEN_SD));
        }
    }
    let clusters = Clusters::by_rule(&WindowSums::from_tokens(&runs, &a), ClusterRule::Auto);
    let names = ["others", "span"].map(str::to_owned);
    let estimator = clusters.estimator(&runs, Confidence::default());
    let of_each = SpanRatio::of_each(&estimator, &runs, &names, &a, &b);
    let holds = |ratio: Option<Ratio>| {
        let ends = ratio.and_then(|ratio| Some(ratio.lo?..=ratio.hi?));
        ends.is_some_and(|ends| ends.contains(&1.0))
    };
    [holds(of_each[1].ratio), holds(of_each[1].to_others)]
}
