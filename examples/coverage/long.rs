//! Few long windows: intervals by parts, of the mean and by depth.

use kl::stats::{
    Cluster, ClusterKind, ClusterRule, Clusters, Confidence, Estimator, Run, WindowSums,
};
use kl_formats::TokenRecord;
use rayon::prelude::*;

use crate::text::{Q4_K_M, Random, Text, kld};

/// Positions in a window.
const POSITIONS: u32 = 1 << 17;

/// The numbers of windows.
const N_WINDOWS: [u32; 4] = [1, 2, 4, 10];

/// A long text: the logarithm of the difficulty of its tokens varies.
#[derive(Clone, Copy, Default)]
struct Long {
    name: &'static str,
    /// The standard deviation of an autoregressive process, and the number of tokens in which its
    /// correlation falls to 1/e.
    wave: (f64, f64),
    /// That of articles, and their mean length, which is exponentially distributed.
    article: (f64, f64),
    /// That of windows.
    window_sd: f64,
    /// The mean is in proportion to this power of the position.
    drift: f64,
}

#[rustfmt::skip]
const TEXTS: [Long; 8] = [
    Long { name: "independent tokens", ..NONE },
    Long { name: "correlated over 10 tokens", wave: (0.5, 10.0), ..NONE },
    Long { name: "over 100", wave: (0.5, 100.0), ..NONE },
    Long { name: "over 1,000", wave: (0.5, 1000.0), ..NONE },
    Long { name: "articles of 500 tokens", article: (0.4, 500.0), ..NONE },
    Long { name: "articles of 5,000", article: (0.4, 5000.0), ..NONE },
    Long { name: "articles of 500, windows that differ", article: (0.4, 500.0), window_sd: 0.1, ..NONE },
    Long { name: "over 100, rising with depth", wave: (0.5, 100.0), drift: 0.3, ..NONE },
];
const NONE: Long = Long {
    name: "",
    wave: (0.0, 1.0),
    article: (0.0, 1.0),
    window_sd: 0.0,
    drift: 0.0,
};

impl Long {
    /// The KLDs of the tokens of a window, from position 1 on.
    fn window(&self, random: &mut Random) -> Vec<f64> {
        let (wave_sd, length) = self.wave;
        let (article_sd, article_length) = self.article;
        let of_window = random.difficulty(self.window_sd);
        let kept = (-1.0 / length).exp();
        let mut wave = random.normal();
        let (mut article, mut left) = (1.0, 0.0);
        let klds = (1..POSITIONS).map(|position| {
            if wave_sd > 0.0 {
                wave = kept * wave + (1.0 - kept * kept).sqrt() * random.normal();
            }
            if left <= 0.0 {
                article = random.difficulty(article_sd);
                left = -article_length * random.uniform().ln();
            }
            left -= 1.0;
            let of_token = (wave_sd * wave - 0.5 * wave_sd * wave_sd).exp();
            let difficulty = of_window * article * of_token * self.level(position, position + 1);
            difficulty * kld(&Q4_K_M, random.uniform())
        });
        klds.collect()
    }

    /// The mean difficulty of the tokens at positions from one up to another.
    fn level(&self, from: u32, to: u32) -> f64 {
        let up_to =
            |position: u32| (f64::from(position) / f64::from(POSITIONS)).powf(1.0 + self.drift);
        let all = 1.0 - up_to(1);
        let share = f64::from(to - from) / f64::from(POSITIONS - 1);
        (up_to(to) - up_to(from)) / all / share
    }
}

/// An interval, the true value, and the mean.
type Measured = Option<(f64, f64, f64)>;

/// Prints how often intervals hold the true value, and how far they reach, for each text.
pub fn tables(replications: u64) {
    let truth = Text::mean_kld_of(&Q4_K_M);
    println!(
        "| text | windows | mean | ± | by windows | ± | in parts |{}",
        depth_titles()
    );
    println!(
        "|---|---:|---:|---:|---:|---:|---:|{}",
        "---:|".repeat(depths().count())
    );
    for text in TEXTS {
        for n_windows in N_WINDOWS {
            let replications = match n_windows {
                10 => replications.div_ceil(4),
                _ => replications,
            };
            let seeds = (0..replications).into_par_iter();
            let runs: Vec<(bool, Vec<Measured>)> = seeds
                .map(|seed| measure(&text, n_windows, u64::from(n_windows) << 32 | seed))
                .collect();
            let in_parts = runs.iter().filter(|(in_parts, _)| *in_parts).count();
            let truths = [truth; 2].into_iter();
            let truths = truths.chain(depths().map(|(from, to)| truth * text.level(from, to)));
            let cells = truths.enumerate().map(|(column, truth)| {
                let measured = runs.iter().filter_map(|(_, all)| all[column]);
                let n = measured.clone().count();
                let holds = measured
                    .clone()
                    .filter(|(lo, hi, _)| (*lo..=*hi).contains(&truth))
                    .count();
                let width = measured
                    .map(|(lo, hi, _)| 0.5 * (hi - lo) / truth)
                    .sum::<f64>();
                match n {
                    0 => ("-".to_owned(), "-".to_owned()),
                    n => (
                        percent(holds, n),
                        format!("{:.1} %", 100.0 * width / n as f64),
                    ),
                }
            });
            let cells: Vec<(String, String)> = cells.collect();
            let depths = cells[2..].iter().map(|(held, _)| format!(" {held} |"));
            println!(
                "| {} | {n_windows} | {} | {} | {} | {} | {} |{}",
                text.name,
                cells[0].0,
                cells[0].1,
                cells[1].0,
                cells[1].1,
                percent(in_parts, runs.len()),
                depths.collect::<String>()
            );
        }
    }
}

/// The intervals of one made-up evaluation: of the mean, of the mean by windows, and of each depth.
/// True if they are by parts.
fn measure(text: &Long, n_windows: u32, seed: u64) -> (bool, Vec<Measured>) {
    let mut random = Random(seed);
    let (mut runs, mut klds, mut positions) = (Vec::new(), Vec::new(), Vec::new());
    for window in 0..n_windows {
        klds.extend(text.window(&mut random));
        for position in 1..POSITIONS {
            let record = TokenRecord {
                window,
                position,
                ..TokenRecord::default()
            };
            Run::add(&mut runs, &record);
            positions.push(position);
        }
    }
    let windows = WindowSums::from_tokens(&runs, &klds);
    let clusters = Clusters::by_rule(&windows, ClusterRule::Auto);
    let confidence = Confidence::default();
    let by_window = Clusters::by_rule(&windows, ClusterRule::Window).estimator(&runs, confidence);
    let of_depths = clusters.estimator_by_depth(&runs, confidence).clusters;
    let mean = |estimator: &Estimator, klds: &[f64]| {
        let mean = estimator.mean_of_positive(klds.iter().copied())?;
        let (lo, hi) = mean.clustered.ends()?;
        Some((lo, hi, mean.independent.value))
    };
    let mut measured = vec![
        mean(&clusters.estimator(&runs, confidence), &klds),
        mean(&by_window, &klds),
    ];
    for (from, to) in depths() {
        let inside = (0..klds.len()).filter(|&i| (from..to).contains(&positions[i]));
        let (clusters, inside): (Vec<Cluster>, Vec<f64>) =
            inside.map(|i| (of_depths[i], klds[i])).unzip();
        measured.push(mean(&Estimator::new(clusters, confidence), &inside));
    }
    (clusters.clustering.kind == ClusterKind::Part, measured)
}

/// The depths of which intervals are shown.
fn depths() -> impl Iterator<Item = (u32, u32)> {
    [11, 13, 14, 16]
        .into_iter()
        .map(|power| (1 << power, 2 << power))
}

fn depth_titles() -> String {
    let title = |(from, to): (u32, u32)| format!(" {}–{} |", from, to - 1);
    depths().map(title).collect()
}

fn percent(n: usize, of: usize) -> String {
    format!("{:.1}", 100.0 * n as f64 / of as f64)
}
