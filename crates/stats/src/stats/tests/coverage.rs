//! The coverage of the intervals of mean KLDs: how often they hold the true mean.
//! `examples/coverage` has all intervals.

use rayon::prelude::*;

use super::clusters::Clusters;
use super::{ClusterRule, Confidence, Paired, Run, WindowSums};

#[path = "../../../../../examples/coverage/text.rs"]
mod text;

use text::{Q4_K_M, Text};

/// The share of `texts` made-up texts whose interval at 95 % holds the true mean, by each rule.
fn coverage<const N: usize>(
    text: &Text,
    n_windows: u32,
    texts: u64,
    rules: [ClusterRule; N],
) -> [f64; N] {
    let of_text = |seed| {
        let records = text.records(n_windows, seed);
        let klds: Vec<f64> = records.iter().map(|record| record.kld).collect();
        rules.map(|rule| {
            let counted = Run::from_records(&records);
            let clusters = Clusters::by_rule(&WindowSums::from_tokens(&counted, &klds), rule);
            let estimator = clusters.estimator(&counted, Confidence::default());
            let mean = estimator.mean_of_positive(klds.iter().copied()).unwrap();
            let (lo, hi) = mean.clustered.ends().unwrap();
            (lo..=hi).contains(&text.mean_kld())
        })
    };
    let holds: Vec<[bool; N]> = (0..texts).into_par_iter().map(of_text).collect();
    std::array::from_fn(|i| holds.iter().filter(|by| by[i]).count() as f64 / texts as f64)
}

#[test]
fn intervals_cover_with_the_tail_of_a_real_quant() {
    let text = Text {
        klds: &Q4_K_M,
        window_sd: 0.08,
        article_sd: 0.0,
    };
    for (n_windows, at_least) in [(30, 0.915), (100, 0.94)] {
        let [got] = coverage(&text, n_windows, 200, [ClusterRule::Auto]);
        assert!((at_least..0.99).contains(&got), "{n_windows}: {got}");
    }
}

#[test]
fn blocks_cover_where_articles_span_windows() {
    let text = Text {
        klds: &Q4_K_M,
        window_sd: 0.08,
        article_sd: 0.4,
    };
    let [window, auto] = coverage(&text, 200, 50, [ClusterRule::Window, ClusterRule::Auto]);
    assert!(window < 0.75, "by window: {window}");
    assert!(auto > 0.88, "by block: {auto}");
}

/// Models of which one is three times as far from the reference, on texts whose windows are as hard
/// for one as for the other.
#[test]
fn the_interval_of_a_ratio_covers() {
    let text = Text {
        klds: &Q4_K_M,
        window_sd: 0.08,
        article_sd: 0.4,
    };
    let holds_3 = |seed| {
        let klds = text.klds_of(60, seed, &[&Q4_K_M[..]; 2], 0.1);
        let runs = Run::from_records(&text::tokens_of(&klds.windows));
        let [a, b] = [0, 1].map(|i| klds.of_models[i].iter());
        let (a, b): (Vec<f64>, Vec<f64>) = (a.map(|kld| 3.0 * kld).collect(), b.copied().collect());
        let clusters = Clusters::by_rule(&WindowSums::from_tokens(&runs, &b), ClusterRule::Auto);
        let paired =
            Paired::compare(&clusters.estimator(&runs, Confidence::default()), &a, &b).unwrap();
        let ratio = paired.ratio.unwrap();
        (ratio.lo.unwrap()..=ratio.hi.unwrap()).contains(&3.0)
    };
    let holds: Vec<bool> = (0..200).into_par_iter().map(holds_3).collect();
    let share = holds.iter().filter(|holds| **holds).count() as f64 / 200.0;
    assert!((0.91..0.985).contains(&share), "{share}");
}
