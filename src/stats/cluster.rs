//! Which tokens count as one observation: those of a window, or of a block of windows.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use kl_formats::sidecar::TokenRecord;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::exclusion::is_counted;
use super::mean::Sum;

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

/// How tokens are put into clusters.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ClusterRule {
    /// Each window is a cluster.
    Window,
    /// Each block of contiguous windows is a cluster.
    Block,
    /// Blocks if neighbouring windows resemble each other and there are enough for 10 blocks, else
    /// windows.
    #[default]
    Auto,
}

/// A text that does not name a rule.
#[derive(Error, Clone, Debug, PartialEq, Eq)]
#[error("clusters are 'window', 'block' or 'auto'; got '{0}'")]
pub struct ClusterRuleError(String);

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

impl FromStr for ClusterRule {
    type Err = ClusterRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Window, Self::Block, Self::Auto]
            .into_iter()
            .find(|rule| rule.name() == text)
            .ok_or_else(|| ClusterRuleError(text.to_owned()))
    }
}

/// What one cluster is.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ClusterKind {
    /// One window.
    Window,
    /// Several contiguous windows.
    Block,
}

/// How the tokens of one evaluation were put into clusters; the fields are the JSON's keys.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Clustering {
    /// The rule that was asked for.
    pub rule: ClusterRule,
    /// What a cluster is.
    pub kind: ClusterKind,
    /// How many clusters there are.
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
    /// Ascending.
    windows: Vec<u32>,
}

impl Clusters {
    /// Puts the windows of the counted ones among `records` into clusters. Records may be in any
    /// order.
    pub fn of_records(records: &[TokenRecord], rule: ClusterRule) -> Self {
        let mut means = WindowMeans::default();
        for record in records.iter().filter(|record| is_counted(record)) {
            means.push(record.window, record.kld);
        }
        Self::of_means(&means, rule)
    }

    /// Puts windows into clusters.
    pub(super) fn of_means(means: &WindowMeans, rule: ClusterRule) -> Self {
        let windows: Vec<u32> = means.0.keys().copied().collect();
        let autocorrelation = autocorrelation(&ranks(&means.finite()));
        let in_blocks = match rule {
            ClusterRule::Window => false,
            ClusterRule::Block => true,
            ClusterRule::Auto => {
                let errors = autocorrelation.map(|r| r * (windows.len() as f64).sqrt());
                windows.len() >= BLOCKS.start() * MIN_WINDOWS_PER_BLOCK
                    && errors.is_some_and(|errors| errors >= AUTOCORRELATED)
            }
        };
        let windows_per_block = match in_blocks {
            true => windows_per_block(windows.len()),
            false => 1,
        };
        let clustering = Clustering {
            rule,
            kind: match in_blocks {
                true => ClusterKind::Block,
                false => ClusterKind::Window,
            },
            n: windows.len().div_ceil(windows_per_block) as u64,
            windows_per_block: windows_per_block as u64,
            autocorrelation,
        };
        Self {
            clustering,
            windows,
        }
    }

    /// How the windows were put into clusters.
    pub fn clustering(&self) -> Clustering {
        self.clustering
    }

    /// How many windows there are.
    pub fn n_windows(&self) -> usize {
        self.windows.len()
    }

    /// The number of each record's cluster.
    pub(super) fn of_each(&self, records: &[&TokenRecord]) -> Vec<u32> {
        records
            .iter()
            .map(|record| self.of_window(record.window))
            .collect()
    }

    /// The number of a window's cluster, from 0.
    ///
    /// A window without counted records belongs with the one that follows it.
    pub fn of_window(&self, window: u32) -> u32 {
        let index = self.windows.partition_point(|&w| w < window);
        // There are at most as many clusters as window numbers.
        (index as u64 / self.clustering.windows_per_block) as u32
    }
}

/// The mean KLD of each window, in the order of the windows' numbers, from tokens in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowMeans(BTreeMap<u32, Total>);

/// The tokens of a window with a finite KLD.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    pub n: u64,
    pub sum: Sum,
}

impl WindowMeans {
    /// Adds a token. One whose KLD is not finite adds only its window.
    pub fn push(&mut self, window: u32, kld: f64) {
        let total = self.0.entry(window).or_default();
        if kld.is_finite() {
            total.n += 1;
            total.sum.add(kld);
        }
    }

    /// Each window's total, in the order of their numbers.
    pub fn totals(&self) -> impl Iterator<Item = (u32, Total)> {
        self.0.iter().map(|(window, total)| (*window, *total))
    }

    /// The means of windows that have one.
    fn finite(&self) -> Vec<f64> {
        self.totals()
            .filter(|(_, total)| total.n > 0)
            .map(|(_, total)| total.sum.value() / total.n as f64)
            .collect()
    }
}

/// How many windows each block has, if there are `windows` in all; the last may have fewer.
fn windows_per_block(windows: usize) -> usize {
    let blocks = (windows / WINDOWS_FOR_A_BLOCK).clamp(*BLOCKS.start(), *BLOCKS.end());
    windows.div_ceil(blocks).max(MIN_WINDOWS_PER_BLOCK)
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

/// The lag-1 autocorrelation of a series, `Σ (x_i − mean)(x_{i+1} − mean) / Σ (x_i − mean)²`.
///
/// `None` for fewer than three values, and for equal ones.
fn autocorrelation(series: &[f64]) -> Option<f64> {
    if series.len() < 3 {
        return None;
    }
    let mean = series.iter().copied().collect::<Sum>().value() / series.len() as f64;
    let from_mean: Vec<f64> = series.iter().map(|x| x - mean).collect();
    let squares: Sum = from_mean.iter().map(|x| x * x).collect();
    let products: Sum = from_mean.windows(2).map(|pair| pair[0] * pair[1]).collect();
    let r = products.value() / squares.value();
    r.is_finite().then_some(r)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows with these means, of one token each.
    fn windows(means: impl IntoIterator<Item = f64>) -> WindowMeans {
        let mut windows = WindowMeans::default();
        for (window, mean) in means.into_iter().enumerate() {
            windows.push(window as u32, mean);
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
            assert_eq!(
                (text.parse(), rule.to_string()),
                (Ok(rule), text.to_owned())
            );
            assert_eq!(serde_json::to_value(rule).unwrap(), text);
        }
        let error = "chapter".parse::<ClusterRule>().unwrap_err().to_string();
        assert!(error.ends_with("got 'chapter'"), "{error}");
    }

    /// By hand: from the mean 3, −2 −1 0 1 2; (2 + 0 + 0 + 2) / (4 + 1 + 0 + 1 + 4).
    #[test]
    fn autocorrelation_is_of_neighbours() {
        assert_eq!(autocorrelation(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some(0.4));
        assert_eq!(autocorrelation(&[1.0, 2.0]), None);
        assert_eq!(autocorrelation(&[2.0; 9]), None);
    }

    #[test]
    fn equal_values_share_their_rank() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0, 9.0]), [3.5, 2.0, 3.5, 1.0, 5.0]);
        assert_eq!(ranks(&[]), Vec::<f64>::new());
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
            means.push(window, 1.0);
        }
        let clusters = Clusters::of_means(&means, ClusterRule::Block);
        assert_eq!((clusters.n_windows(), clusters.clustering().n), (5, 3));
        assert_eq!(
            [3, 7, 8, 40, 900].map(|window| clusters.of_window(window)),
            [0, 0, 1, 1, 2]
        );
        let windows = Clusters::of_means(&means, ClusterRule::Window);
        assert_eq!([3, 900].map(|window| windows.of_window(window)), [0, 4]);
    }
}
