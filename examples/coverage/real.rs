//! Windows of real evaluations, drawn again and again: how often intervals hold the mean of all of them
//! where `--until` stops, and how often a gate passes.

use std::error::Error;
use std::path::Path;

use kl::stats::{ClusterRule, Clusters, Confidence, Paired, Run, WindowSums};
use kl_formats::{SidecarReader, TokenRecord};
use rayon::prelude::*;

use super::text::{Q4_K_M, Random, Text, tokens_of};
use super::until::{self, TARGETS};

/// The numbers of windows with which a gate is tried, and its bounds.
const N_WINDOWS: [u32; 9] = [30, 50, 100, 150, 200, 300, 400, 600, 800];
const BOUNDS: [f64; 3] = [1.05, 1.1, 1.2];

/// How many times as far as its original a build is.
const RATIOS: [f64; 3] = [1.0, 1.02, 1.05];

/// The windows of an evaluation.
struct Pool {
    name: String,
    windows: Vec<Vec<TokenRecord>>,
}

impl Pool {
    fn read(path: &str) -> Result<Self, Box<dyn Error>> {
        let records = SidecarReader::open(Path::new(path))?.read_all()?;
        let windows = records.chunk_by(|one, next| one.window == next.window);
        let name = Path::new(path)
            .file_stem()
            .map(|name| name.to_string_lossy());
        Ok(Self {
            name: name.unwrap_or_default().into_owned(),
            windows: windows.map(<[TokenRecord]>::to_vec).collect(),
        })
    }

    fn mean(&self) -> f64 {
        let klds = self.windows.iter().flatten().map(|record| record.kld);
        klds.sum::<f64>() / self.windows.iter().flatten().count() as f64
    }
}

/// Indices of windows, each drawn from all.
fn draw(n: usize, seed: u64) -> impl Iterator<Item = usize> {
    let mut random = Random(seed);
    std::iter::repeat_with(move || (random.uniform() * n as f64) as usize)
}

/// Prints how often the interval holds the mean of a sidecar's windows where `--until` stops.
pub fn until(replications: u64, paths: &[String]) -> Result<(), Box<dyn Error>> {
    until::header();
    for path in paths {
        let pool = Pool::read(path)?;
        let truth = pool.mean();
        let name = format!("{}, {} windows", pool.name, pool.windows.len());
        for target in TARGETS {
            let seeds = (0..replications).into_par_iter();
            let stops = seeds.map(|seed| {
                let windows = (0..).zip(draw(pool.windows.len(), seed));
                let windows = windows.map(|(window, i)| {
                    let records = pool.windows[i].iter();
                    let records = records.map(|record| TokenRecord { window, ..*record });
                    records.collect::<Vec<_>>()
                });
                until::stop(windows, target)
            });
            until::row(&name, target, truth, &stops.collect::<Vec<_>>());
        }
    }
    Ok(())
}

/// Prints how often gates on the ratio pass: on a made-up text of independent windows, and on windows of two
/// evaluations of the same tokens, the first of which gets the second one's mean.
pub fn gates(replications: u64, paths: &[String]) -> Result<(), Box<dyn Error>> {
    println!(
        "| text | windows | times as far |{}",
        " passes |".repeat(BOUNDS.len())
    );
    println!("|---|---:|---:|{}", "---:|".repeat(BOUNDS.len()));
    let text = Text {
        klds: &Q4_K_M,
        window_sd: 0.08,
        article_sd: 0.0,
    };
    rows("made up", replications, |n_windows, seed| {
        let klds = text.klds_of(n_windows, seed, &[text.klds; 2], 0.0);
        let [a, b] = klds.of_models.try_into().expect("two models");
        (klds.windows, a, b)
    });
    for pair in paths.chunks_exact(2) {
        let (a, b) = (Pool::read(&pair[0])?, Pool::read(&pair[1])?);
        let factor = b.mean() / a.mean();
        rows(
            &format!("{} over {}", a.name, b.name),
            replications,
            |n, seed| {
                let (mut windows, mut of_a, mut of_b) = (Vec::new(), Vec::new(), Vec::new());
                for (window, i) in (0..n).zip(draw(a.windows.len(), seed)) {
                    windows.extend(a.windows[i].iter().map(|_| window));
                    of_a.extend(a.windows[i].iter().map(|record| factor * record.kld));
                    of_b.extend(b.windows[i].iter().map(|record| record.kld));
                }
                (windows, of_a, of_b)
            },
        );
    }
    Ok(())
}

/// Prints a row for each number of windows and each ratio. `klds` gives the window of each token, and both
/// models' KLDs.
fn rows(
    of: &str,
    replications: u64,
    klds: impl Fn(u32, u64) -> (Vec<u32>, Vec<f64>, Vec<f64>) + Sync,
) {
    for n_windows in N_WINDOWS {
        let seeds = (0..replications).into_par_iter();
        let uppers = seeds.map(|seed| {
            let (windows, a, b) = klds(n_windows, u64::from(n_windows) << 32 | seed);
            let runs = Run::from_records(&tokens_of(&windows));
            let clusters =
                Clusters::by_rule(&WindowSums::from_tokens(&runs, &b), ClusterRule::Auto);
            let paired = Paired::compare(&clusters.estimator(&runs, Confidence::default()), &a, &b);
            paired
                .and_then(|paired| paired.ratio?.upper)
                .unwrap_or(f64::INFINITY)
        });
        let uppers: Vec<f64> = uppers.collect();
        for ratio in RATIOS {
            let cells = BOUNDS.map(|bound| {
                let passes = uppers.iter().filter(|upper| ratio * **upper <= bound);
                format!(
                    " {:.1} |",
                    100.0 * passes.count() as f64 / uppers.len() as f64
                )
            });
            println!("| {of} | {n_windows} | {ratio} |{}", cells.concat());
        }
    }
}
