//! The tokens that count as one observation: those of a window, or of a block of windows.

use std::collections::BTreeMap;
use std::iter::repeat_n;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::columns::Run;
use super::mean::{Powers, Sum};

/// One observation: the tokens of a window or of a block of windows, in its stratum.
///
/// Groups of a text are strata: clusters never straddle them, and how many tokens each group has is
/// not left to chance. A number makes a cluster of the only stratum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cluster {
    pub(super) stratum: u32,
    number: u32,
}

impl From<u32> for Cluster {
    fn from(number: u32) -> Self {
        Self { stratum: 0, number }
    }
}

/// The sums of some values by cluster: `values[i]` is in cluster `clusters[i]`.
pub(super) fn by_cluster(
    clusters: &[Cluster],
    values: impl IntoIterator<Item = f64>,
) -> BTreeMap<Cluster, Powers> {
    let mut sums = BTreeMap::<Cluster, Powers>::new();
    let mut values = values.into_iter();
    // Adjacent tokens mostly share a cluster: one look-up for each run of them.
    for run in clusters.chunk_by(|one, next| one == next) {
        *sums.entry(run[0]).or_default() += values.by_ref().take(run.len()).collect();
    }
    sums
}

/// From this many clusters on, the clustered intervals cover about what they promise: see
/// docs/INTERVALS.md.
pub const MIN_CLUSTERS: usize = 30;

/// There is one more block for each of this many windows, from the fewest blocks to the most.
///
/// Longer blocks cut fewer articles in two, more blocks leave more observations. These cover best
/// in the simulation of docs/INTERVALS.md, with articles of 8 windows.
const WINDOWS_FOR_A_BLOCK: usize = 15;
const BLOCKS: std::ops::RangeInclusive<usize> = 10..=MIN_CLUSTERS;

/// From this many windows on, blocks are [`MIN_CLUSTERS`].
pub const MIN_WINDOWS_IN_BLOCKS: usize = WINDOWS_FOR_A_BLOCK * MIN_CLUSTERS;

/// The fewest windows in a block.
const MIN_WINDOWS_PER_BLOCK: usize = 2;

/// `auto` uses blocks from this autocorrelation on, in standard errors of that of independent
/// windows (`1/sqrt(n)`). One in seven texts of independent windows is put into blocks without
/// need, which makes intervals about 8 % wider.
const AUTOCORRELATED: f64 = 1.0;

/// The rule by which tokens are put into clusters.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClusterRule {
    /// Each window, or prompt.
    Window,
    /// Each block of contiguous windows.
    Block,
    /// Blocks if neighbouring windows resemble each other and make at least 10, else windows.
    #[default]
    Auto,
}

/// The kind of a cluster.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClusterKind {
    /// One window.
    #[default]
    Window,
    /// Several contiguous windows.
    Block,
}

/// The clusters that the tokens of one evaluation were put into.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Clustering {
    /// The rule that was asked for.
    pub rule: ClusterRule,
    /// The kind of a cluster.
    pub kind: ClusterKind,
    /// The number of clusters.
    pub n: u64,
    /// Windows in a block: the last may have fewer. 1 if each window is a cluster.
    pub windows_per_block: u64,
    /// The correlation of the rank of a window's mean KLD with that of the next window's; `None`
    /// for fewer than three windows, and where all means are equal.
    pub autocorrelation: Option<f64>,
}

/// The cluster of each window, by the number of the window.
#[derive(Clone, Debug)]
pub struct Clusters {
    /// How the windows were put into clusters.
    pub clustering: Clustering,
    windows: BTreeMap<u32, Cluster>,
}

impl Clusters {
    /// Puts windows into clusters. Blocks are of contiguous windows of a group, of which a group has
    /// at least two if it has two windows.
    pub fn of(windows: &Windows, rule: ClusterRule) -> Self {
        let n_windows = windows.len();
        let autocorrelation = windows.autocorrelation();
        let in_blocks = match rule {
            ClusterRule::Window => false,
            ClusterRule::Block => true,
            ClusterRule::Auto => {
                let errors = autocorrelation.map(|r| r * (n_windows as f64).sqrt());
                n_windows >= BLOCKS.start() * MIN_WINDOWS_PER_BLOCK
                    && errors.is_some_and(|errors| errors >= AUTOCORRELATED)
            }
        };
        let (kind, windows_per_block) = match in_blocks {
            true => (ClusterKind::Block, windows_per_block(n_windows)),
            false => (ClusterKind::Window, 1),
        };
        let mut clusters = BTreeMap::new();
        let mut number = 0;
        for (&stratum, of_group) in &windows.0 {
            let length = match windows.0.len() {
                1 => windows_per_block,
                _ => windows_per_block.min(of_group.len().div_ceil(2)),
            };
            let of_group: Vec<u32> = of_group.keys().copied().collect();
            for block in of_group.chunks(length) {
                let cluster = Cluster { stratum, number };
                clusters.extend(block.iter().map(|window| (*window, cluster)));
                number += 1;
            }
        }
        Self {
            clustering: Clustering {
                rule,
                kind,
                n: number.into(),
                windows_per_block: windows_per_block as u64,
                autocorrelation,
            },
            windows: clusters,
        }
    }

    /// The cluster of a window that was put into one.
    pub fn of_window(&self, window: u32) -> Cluster {
        self.windows.get(&window).copied().unwrap_or_default()
    }

    /// The cluster of each token.
    pub fn of_tokens(&self, runs: &[Run]) -> Vec<Cluster> {
        let mut clusters = Vec::new();
        for run in runs {
            clusters.extend(repeat_n(self.of_window(run.window), run.n));
        }
        clusters
    }
}

/// Returns the number of windows in a block, if there are `windows` in all; the last may have
/// fewer.
fn windows_per_block(windows: usize) -> usize {
    let blocks = (windows / WINDOWS_FOR_A_BLOCK).clamp(*BLOCKS.start(), *BLOCKS.end());
    windows.div_ceil(blocks).max(MIN_WINDOWS_PER_BLOCK)
}

/// The sums of some tokens' finite values: of each window, by its number, in each group.
#[derive(Clone, Debug, Default)]
pub struct Windows(BTreeMap<u32, BTreeMap<u32, Powers>>);

impl Windows {
    /// The windows of tokens with these values.
    pub fn of(runs: &[Run], values: &[f64]) -> Self {
        let mut windows = Self::default();
        windows.add(runs, values);
        windows
    }

    /// Adds tokens with these values.
    pub fn add(&mut self, runs: &[Run], values: &[f64]) {
        let mut values = values.iter().copied();
        for run in runs {
            let group = self.0.entry(run.group).or_default();
            let values = values.by_ref().take(run.n);
            *group.entry(run.window).or_default() += values.filter(|x| x.is_finite()).collect();
        }
    }

    /// Returns the number of windows.
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// The number of each window that has a finite value, and its sums.
    pub fn sums(&self) -> impl Iterator<Item = (u32, Powers)> {
        let windows = self.0.values().flatten();
        let windows = windows.map(|(window, sums)| (*window, *sums));
        windows.filter(|(_, sums)| sums.n > 0.0)
    }

    /// The correlation of the rank of a window's mean with that of the next window of its group;
    /// `None` for fewer than three windows, and where all means are equal.
    ///
    /// Ranks are of all windows, and about the mean rank of the group: that groups differ does not
    /// make neighbours alike.
    fn autocorrelation(&self) -> Option<f64> {
        let groups = self.0.values().map(|windows| {
            let with_mean = windows.values().filter(|sums| sums.n > 0.0);
            with_mean.map(Powers::mean)
        });
        let means: Vec<f64> = groups.clone().flatten().collect();
        let mut ranks = ranks(&means).into_iter();
        autocorrelation(groups.map(|means| ranks.by_ref().take(means.count()).collect()))
    }
}

/// The rank of each value among all, from 1; equal values share their mean rank.
///
/// A few windows with large KLDs dominate the autocorrelation of the values themselves, and would
/// hide that the others resemble their neighbours.
fn ranks(series: &[f64]) -> Vec<f64> {
    let mut rising: Vec<(usize, f64)> = series.iter().copied().enumerate().collect();
    rising.sort_unstable_by(|(_, a), (_, b)| a.total_cmp(b));
    let mut ranks = vec![0.0; series.len()];
    let mut before = 0;
    for equal in rising.chunk_by(|(_, a), (_, b)| a == b) {
        let rank = before as f64 + 0.5 * (equal.len() as f64 + 1.0);
        for (index, _) in equal {
            ranks[*index] = rank;
        }
        before += equal.len();
    }
    ranks
}

/// The lag-1 autocorrelation of series, `Σ (x_i − mean)(x_{i+1} − mean) / Σ (x_i − mean)²`, each
/// about its own mean.
///
/// `None` for fewer than three values, and for equal ones.
fn autocorrelation(series: impl IntoIterator<Item = Vec<f64>>) -> Option<f64> {
    let (mut n, mut squares, mut products) = (0, Sum::default(), Sum::default());
    for series in series {
        let mean = series.iter().copied().collect::<Sum>().value() / series.len() as f64;
        let from_mean: Vec<f64> = series.iter().map(|x| x - mean).collect();
        n += series.len();
        from_mean.iter().for_each(|x| squares.add(x * x));
        let pairs = from_mean.windows(2);
        pairs.for_each(|pair| products.add(pair[0] * pair[1]));
    }
    let r = products.value() / squares.value();
    (n >= 3 && r.is_finite()).then_some(r)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows with these means, of one token each.
    fn windows(means: impl IntoIterator<Item = f64>) -> Windows {
        let means: Vec<f64> = means.into_iter().collect();
        Windows::of(&runs((0..means.len() as u32).map(|i| (i, 0))), &means)
    }

    /// Windows of one token each, with their groups.
    fn runs(windows: impl IntoIterator<Item = (u32, u32)>) -> Vec<Run> {
        Run::of_each(windows)
    }

    fn in_groups(windows: impl IntoIterator<Item = (u32, u32)>) -> Windows {
        let runs = runs(windows);
        Windows::of(&runs, &vec![1.0; runs.len()])
    }

    #[test]
    fn rules_read_as_they_print() {
        for (text, rule) in [
            ("window", ClusterRule::Window),
            ("block", ClusterRule::Block),
            ("auto", ClusterRule::Auto),
        ] {
            assert_eq!(ClusterRule::from_str(text, false), Ok(rule));
            assert_eq!(serde_json::to_value(rule).unwrap(), text);
        }
    }

    #[test]
    fn there_are_10_to_30_blocks() {
        let blocks = |windows: usize| windows.div_ceil(windows_per_block(windows));
        assert_eq!([1, 4, 20, 100].map(blocks), [1, 2, 10, 10]);
        assert_eq!([300, 450, 100_000].map(blocks), [20, 30, 30]);
    }

    #[test]
    fn auto_uses_blocks_where_neighbours_resemble_each_other() {
        let of = |windows: &Windows| Clusters::of(windows, ClusterRule::Auto).clustering;
        let articles = of(&windows((0..100).map(|i| f64::from(i / 10 % 2))));
        assert_eq!(articles.kind, ClusterKind::Block);
        assert!(articles.windows_per_block > 1 && articles.n < 100);
        let alternating = of(&windows((0..100).map(|i| f64::from(i % 2))));
        assert_eq!(alternating.kind, ClusterKind::Window);
        assert_eq!((alternating.windows_per_block, alternating.n), (1, 100));
        let few = of(&windows((0..19).map(|i| f64::from(i / 5 % 2))));
        assert!(few.kind == ClusterKind::Window && few.autocorrelation.unwrap() > 0.5);
    }

    #[test]
    fn blocks_are_of_the_windows_that_are_there() {
        let means = in_groups([900, 7, 3, 40, 8].map(|window| (window, 0)));
        let clusters = Clusters::of(&means, ClusterRule::Block);
        assert_eq!((means.len(), clusters.clustering.n), (5, 3));
        assert_eq!(
            [3, 7, 8, 40, 900].map(|window| clusters.of_window(window).number),
            [0, 0, 1, 1, 2]
        );
        let windows = Clusters::of(&means, ClusterRule::Window);
        assert_eq!(
            [3, 900].map(|window| windows.of_window(window).number),
            [0, 4]
        );
    }

    /// Two groups, whose windows alternate, as prompts' do.
    #[test]
    fn blocks_never_straddle_groups() {
        let two = (0..60).map(|window| (window, window % 2));
        let clusters = Clusters::of(&in_groups(two.chain([(60, 7)])), ClusterRule::Block);
        let Clustering {
            n,
            windows_per_block,
            ..
        } = clusters.clustering;
        // Of 30, 30 and 1 windows.
        assert_eq!((windows_per_block, n), (7, 5 + 5 + 1));
        assert_eq!(clusters.of_window(0), clusters.of_window(12));
        assert_ne!(clusters.of_window(0), clusters.of_window(1));
        assert_ne!(clusters.of_window(0), clusters.of_window(14));
        assert_eq!(clusters.of_window(60).stratum, 7);
        let few = in_groups((0..24).map(|window| (window, window / 4)));
        let clusters = Clusters::of(&few, ClusterRule::Block);
        assert_eq!(clusters.clustering.n, 12);
    }

    mod window_means {
        use super::*;

        /// By hand: from the mean 3, −2 −1 0 1 2; (2 + 0 + 0 + 2) / (4 + 1 + 0 + 1 + 4).
        #[test]
        fn autocorrelation_is_of_neighbours() {
            let of = |series: &[f64]| autocorrelation([series.to_vec()]);
            assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some(0.4));
            assert_eq!(of(&[1.0, 2.0]), None);
            assert_eq!(of(&[2.0; 9]), None);
        }

        /// By hand: (−1 0 1) and (−1 1); (0 + 0 − 1) / (1 + 0 + 1 + 1 + 1).
        #[test]
        fn groups_that_differ_do_not_make_neighbours_alike() {
            let apart = [vec![1.0, 2.0, 3.0], vec![101.0, 103.0]];
            assert_eq!(autocorrelation(apart), Some(-0.25));
        }

        #[test]
        fn equal_values_share_their_rank() {
            assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0, 9.0]), [3.5, 2.0, 3.5, 1.0, 5.0]);
            assert_eq!(ranks(&[]), Vec::<f64>::new());
        }
    }
}
