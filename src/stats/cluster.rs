//! The tokens that count as one observation: those of a window, or of a block of windows.

use std::fmt;

use clap::ValueEnum;
use kl_formats::sidecar::TokenRecord;
use serde::{Deserialize, Serialize};

use super::exclusion::is_counted;
use super::strata::Cluster;
use super::window_means::WindowMeans;

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
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClusterKind {
    /// One window.
    Window,
    /// Several contiguous windows.
    Block,
}

/// The clusters that the tokens of one evaluation were put into.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
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
}
