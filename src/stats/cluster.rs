//! The tokens that count as one observation: those of a window, or of a block of windows.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;
use kl_formats::sidecar::TokenRecord;
use serde::{Deserialize, Serialize};

use super::exclusion::is_counted;
use super::mean::Sum;
use super::strata::Cluster;

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

impl ClusterRule {
    fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Block => "block",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for ClusterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
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
#[derive(Clone, Debug, PartialEq)]
pub struct Clusters {
    clustering: Clustering,
    /// Ascending by window.
    windows: Vec<(u32, Cluster)>,
}

impl Clusters {
    /// Puts the windows of the counted ones among `records` into clusters. Records may be in any
    /// order.
    pub fn of_records(records: &[TokenRecord], rule: ClusterRule) -> Self {
        let counted = records.iter().filter(|record| is_counted(record));
        let tokens = counted.map(|record| (record.window, record.group, record.kld));
        Self::of_means(&WindowMeans::of(tokens), rule)
    }

    /// Puts windows into clusters.
    pub(super) fn of_means(means: &WindowMeans, rule: ClusterRule) -> Self {
        let n_windows = means.n_windows();
        let autocorrelation = means.autocorrelation();
        let in_blocks = match rule {
            ClusterRule::Window => false,
            ClusterRule::Block => true,
            ClusterRule::Auto => {
                let errors = autocorrelation.map(|r| r * (n_windows as f64).sqrt());
                n_windows >= BLOCKS.start() * MIN_WINDOWS_PER_BLOCK
                    && errors.is_some_and(|errors| errors >= AUTOCORRELATED)
            }
        };
        let windows_per_block = match in_blocks {
            true => windows_per_block(n_windows),
            false => 1,
        };
        let (windows, n) = in_clusters(means, windows_per_block);
        let clustering = Clustering {
            rule,
            kind: match in_blocks {
                true => ClusterKind::Block,
                false => ClusterKind::Window,
            },
            n: n.into(),
            windows_per_block: windows_per_block as u64,
            autocorrelation,
        };
        Self {
            clustering,
            windows,
        }
    }

    /// Describes how the windows were put into clusters.
    pub fn clustering(&self) -> Clustering {
        self.clustering
    }

    /// Returns the number of windows.
    pub fn n_windows(&self) -> usize {
        self.windows.len()
    }

    /// A window's cluster.
    ///
    /// A window without counted records belongs with the one that follows it, the last ones with
    /// the one before.
    pub fn of_window(&self, window: u32) -> Cluster {
        let index = self.windows.partition_point(|(w, _)| *w < window);
        let found = self.windows.get(index).or(self.windows.last());
        found.map_or(Cluster::from(0), |(_, cluster)| *cluster)
    }
}

/// Each window's cluster, ascending by window, and how many clusters there are. Blocks are of
/// contiguous windows of a group, of which a group has at least two if it has two windows.
fn in_clusters(means: &WindowMeans, windows_per_block: usize) -> (Vec<(u32, Cluster)>, u32) {
    let mut clusters = Vec::with_capacity(means.n_windows());
    let mut number = 0;
    let groups = means.by_group();
    for (stratum, windows) in &groups {
        let length = match groups.len() {
            1 => windows_per_block,
            _ => windows_per_block.min(windows.len().div_ceil(2)),
        };
        for block in windows.chunks(length) {
            let cluster = Cluster {
                stratum: *stratum,
                number,
            };
            clusters.extend(block.iter().map(|window| (*window, cluster)));
            number += 1;
        }
    }
    clusters.sort_unstable();
    (clusters, number)
}

/// Returns the number of windows in a block, if there are `windows` in all; the last may have
/// fewer.
fn windows_per_block(windows: usize) -> usize {
    let blocks = (windows / WINDOWS_FOR_A_BLOCK).clamp(*BLOCKS.start(), *BLOCKS.end());
    windows.div_ceil(blocks).max(MIN_WINDOWS_PER_BLOCK)
}

/// The mean of each window, in the order of the windows' numbers, from tokens in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowMeans(BTreeMap<u32, Total>);

/// The tokens of a window with a finite value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    /// The group of the window; 0 without groups.
    pub group: u32,
    pub n: u64,
    pub sum: Sum,
}

impl Total {
    fn push(&mut self, group: u32, value: f64) {
        self.group = group;
        if value.is_finite() {
            self.n += 1;
            self.sum.add(value);
        }
    }
}

impl WindowMeans {
    /// The means of tokens, each with its window, its group and its value.
    pub fn of(tokens: impl IntoIterator<Item = (u32, u32, f64)>) -> Self {
        let mut means = Self::default();
        // Adjacent tokens mostly share a window: one look-up for each run of them.
        let mut open: Option<(u32, Total)> = None;
        for (window, group, value) in tokens {
            let mut total = match open {
                Some((last, total)) if last == window => total,
                _ => {
                    means.0.extend(open);
                    means.0.get(&window).copied().unwrap_or_default()
                }
            };
            total.push(group, value);
            open = Some((window, total));
        }
        means.0.extend(open);
        means
    }

    /// Adds a token. One whose value is not finite adds only its window.
    pub fn push(&mut self, window: u32, group: u32, value: f64) {
        self.0.entry(window).or_default().push(group, value);
    }

    /// Each window's total, in the order of their numbers.
    pub fn totals(&self) -> impl Iterator<Item = (u32, Total)> {
        self.0.iter().map(|(window, total)| (*window, *total))
    }

    /// Returns the number of windows.
    pub fn n_windows(&self) -> usize {
        self.0.len()
    }

    /// The windows of each group, in the order of their numbers.
    pub fn by_group(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut groups = BTreeMap::<u32, Vec<u32>>::new();
        for (window, total) in self.totals() {
            groups.entry(total.group).or_default().push(window);
        }
        groups
    }

    /// The correlation of the rank of a window's mean with that of the next window of its group;
    /// `None` for fewer than three windows, and where all means are equal.
    ///
    /// Ranks are of all windows, and about the mean rank of the group: that groups differ does not
    /// make neighbours alike.
    pub fn autocorrelation(&self) -> Option<f64> {
        let with_mean = self.totals().filter(|(_, total)| total.n > 0);
        let (groups, means): (Vec<u32>, Vec<f64>) = with_mean
            .map(|(_, total)| (total.group, total.sum.value() / total.n as f64))
            .unzip();
        let mut by_group = BTreeMap::<u32, Vec<f64>>::new();
        for (group, rank) in groups.iter().zip(ranks(&means)) {
            by_group.entry(*group).or_default().push(rank);
        }
        autocorrelation(by_group.values().map(Vec::as_slice))
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
fn autocorrelation<'s>(series: impl IntoIterator<Item = &'s [f64]>) -> Option<f64> {
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
    fn windows(means: impl IntoIterator<Item = f64>) -> WindowMeans {
        let mut windows = WindowMeans::default();
        for (window, mean) in means.into_iter().enumerate() {
            windows.push(window as u32, 0, mean);
        }
        windows
    }

    #[test]
    fn rules_read_as_they_print() {
        for (text, rule) in [
            ("window", ClusterRule::Window),
            ("block", ClusterRule::Block),
            ("auto", ClusterRule::Auto),
        ] {
            assert_eq!(ClusterRule::from_str(text, false), Ok(rule));
            assert_eq!(rule.to_string(), text);
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
        let of = |means: &WindowMeans| Clusters::of_means(means, ClusterRule::Auto).clustering();
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
        let mut means = WindowMeans::default();
        for window in [900, 7, 3, 40, 8] {
            means.push(window, 0, 1.0);
        }
        let clusters = Clusters::of_means(&means, ClusterRule::Block);
        assert_eq!((clusters.n_windows(), clusters.clustering().n), (5, 3));
        assert_eq!(
            [3, 7, 8, 40, 900].map(|window| clusters.of_window(window).number),
            [0, 0, 1, 1, 2]
        );
        let windows = Clusters::of_means(&means, ClusterRule::Window);
        assert_eq!(
            [3, 900].map(|window| windows.of_window(window).number),
            [0, 4]
        );
    }

    /// Two groups, whose windows alternate, as prompts' do.
    #[test]
    fn blocks_never_straddle_groups() {
        let mut means = WindowMeans::default();
        (0..60).for_each(|window| means.push(window, window % 2, 1.0));
        means.push(60, 7, 1.0);
        let clusters = Clusters::of_means(&means, ClusterRule::Block);
        let Clustering {
            n,
            windows_per_block,
            ..
        } = clusters.clustering();
        // Of 30, 30 and 1 windows.
        assert_eq!((windows_per_block, n), (7, 5 + 5 + 1));
        assert_eq!(clusters.of_window(0), clusters.of_window(12));
        assert_ne!(clusters.of_window(0), clusters.of_window(1));
        assert_ne!(clusters.of_window(0), clusters.of_window(14));
        assert_eq!(clusters.of_window(60).stratum, 7);
        let mut few = WindowMeans::default();
        (0..24).for_each(|window| few.push(window, window / 4, 1.0));
        let clusters = Clusters::of_means(&few, ClusterRule::Block);
        assert_eq!(clusters.clustering().n, 12);
    }

    mod window_means {
        use super::*;

        /// By hand: from the mean 3, −2 −1 0 1 2; (2 + 0 + 0 + 2) / (4 + 1 + 0 + 1 + 4).
        #[test]
        fn autocorrelation_is_of_neighbours() {
            let of = |series: &[f64]| autocorrelation([series]);
            assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some(0.4));
            assert_eq!(of(&[1.0, 2.0]), None);
            assert_eq!(of(&[2.0; 9]), None);
        }

        /// By hand: (−1 0 1) and (−1 1); (0 + 0 − 1) / (1 + 0 + 1 + 1 + 1).
        #[test]
        fn groups_that_differ_do_not_make_neighbours_alike() {
            let apart: [&[f64]; 2] = [&[1.0, 2.0, 3.0], &[101.0, 103.0]];
            assert_eq!(autocorrelation(apart), Some(-0.25));
        }

        #[test]
        fn equal_values_share_their_rank() {
            assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0, 9.0]), [3.5, 2.0, 3.5, 1.0, 5.0]);
            assert_eq!(ranks(&[]), Vec::<f64>::new());
        }
    }
}
