//! Windows of very different length: how often intervals hold the true values, and how often two equally
//! far models are told apart.

use kl::stats::{ClusterRule, Clusters, Confidence, Paired, PartNames, TokenTable, usable_kld};
use kl_formats::TokenRecord;
use rayon::prelude::*;

use super::text::Random;

/// The tokens of a window on average.
const TOKENS: f64 = 60.0;

/// The standard deviation of the logarithm of a window's difficulty: for both models, and for each alone.
const COMMON_SD: f64 = 0.4;
const OWN_SD: f64 = 0.15;

/// That of a token's KLD in a window, of which 0.64 of the variance is both models'.
const TOKEN_SD: f64 = 1.3;

/// The share of tokens whose top token agrees, in a window of ordinary difficulty.
const SAME_TOP: f64 = 0.9;

/// Prints a row for each distribution of lengths, which are drawn anew for each text.
pub fn table(replications: u64) {
    println!(
        "| lengths | worth | p < 0.05 | ratio | mean KLD | hi/lo | same top token | 90 % quantile |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let draw = |n: usize, sd: f64| {
        move |random: &mut Random| -> Vec<u32> {
            let lengths = (0..n).map(|_| (TOKENS * random.difficulty(sd)).round().max(1.0) as u32);
            lengths.collect()
        }
    };
    row("30 of 60", &draw(30, 0.0), replications);
    row("100 of 60", &draw(100, 0.0), replications);
    for n in [30, 100] {
        for sd in [1.0, 1.5] {
            row(
                &format!("{n}, log-normal, sd {sd}"),
                &draw(n, sd),
                replications,
            );
        }
    }
    let one_long = |_: &mut Random| [vec![20; 29], vec![1000]].concat();
    row("one of 1,000, 29 of 20", &one_long, replications);
}

type Lengths<'l> = &'l (dyn Fn(&mut Random) -> Vec<u32> + Sync);

/// What one text shows.
struct Seen {
    n_effective: f64,
    is_rejected: bool,
    /// Whether the intervals hold the truth: of the ratio, the mean, the share and the quantile.
    holds: [bool; 4],
    width: f64,
}

fn row(name: &str, lengths: Lengths<'_>, replications: u64) {
    // Of a token, whatever its window: the logarithm of its KLD is normal.
    let sd = (COMMON_SD * COMMON_SD + OWN_SD * OWN_SD + TOKEN_SD * TOKEN_SD).sqrt();
    let truth = [
        1.0,
        1.0,
        SAME_TOP,
        (1.281_551_565_544_600_4 * sd - 0.5 * sd * sd).exp(),
    ];
    let seeds = (0..replications).into_par_iter();
    let seen: Vec<Seen> = seeds.map(|seed| see(lengths, truth, seed)).collect();
    let n = seen.len() as f64;
    let percent =
        |is: &dyn Fn(&Seen) -> bool| 100.0 * seen.iter().filter(|seen| is(seen)).count() as f64 / n;
    let mut widths: Vec<f64> = seen.iter().map(|seen| seen.width).collect();
    widths.sort_by(f64::total_cmp);
    println!(
        "| {name} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {:.1} | {:.1} |",
        seen.iter().map(|seen| seen.n_effective).sum::<f64>() / n,
        percent(&|seen| seen.is_rejected),
        percent(&|seen| seen.holds[0]),
        percent(&|seen| seen.holds[1]),
        widths[widths.len() / 2],
        percent(&|seen| seen.holds[2]),
        percent(&|seen| seen.holds[3]),
    );
}

fn see(lengths: Lengths<'_>, truth: [f64; 4], seed: u64) -> Seen {
    let mut random = Random(seed);
    let (mut records, mut others) = (Vec::new(), Vec::new());
    for (window, n) in (0..).zip(lengths(&mut random)) {
        let common = random.difficulty(COMMON_SD);
        let [a, b] = [(); 2].map(|()| common * random.difficulty(OWN_SD));
        for position in 0..n {
            let shared = random.difficulty(0.8 * TOKEN_SD);
            let [x, y] = [a, b].map(|of| of * shared * random.difficulty(0.6 * TOKEN_SD));
            let differs = random.uniform() < (1.0 - SAME_TOP) * common;
            records.push(TokenRecord {
                window,
                position,
                kld: x,
                reverse_kld: x,
                ref_nll: 2.0,
                eval_nll: 2.0,
                ref_top_rank: 1 + u32::from(differs),
                eval_top: u32::from(differs),
                eval_top_rank: 1,
                ..TokenRecord::default()
            });
            others.push(y);
        }
    }
    let (table, confidence) = (TokenTable::from_records(&records), Confidence::default());
    let clusters = Clusters::by_rule(&table.windows(), ClusterRule::Auto);
    let statistics = table.summarise(&clusters, PartNames::default(), confidence);
    let summary = statistics.summary;
    let klds = Vec::from_iter(records.iter().map(usable_kld));
    let paired =
        Paired::compare(&clusters.estimator(&table.runs, confidence), &klds, &others).unwrap();
    let (kld, ratio) = (summary.kld.unwrap(), paired.ratio.unwrap());
    let same_top = summary.agreement.unwrap().ref_top1.estimate;
    let quantile = kld
        .quantiles
        .iter()
        .find(|of| of.p == 0.9)
        .unwrap()
        .estimate;
    let mean = kld.mean.estimate();
    let ends = [(ratio.lo, ratio.hi), (mean.lo, mean.hi)];
    let ends = [
        ends[0],
        ends[1],
        (same_top.lo, same_top.hi),
        (quantile.lo, quantile.hi),
    ];
    let holds = |i: usize| {
        let (lo, hi) = ends[i];
        lo.is_none_or(|lo| lo <= truth[i]) && hi.is_none_or(|hi| truth[i] <= hi)
    };
    Seen {
        n_effective: clusters.clustering.n_effective,
        is_rejected: ratio.p.unwrap() < 0.05,
        holds: [0, 1, 2, 3].map(holds),
        width: mean.hi.unwrap() / mean.lo.unwrap(),
    }
}
