//! The clusters of an evaluation: each window, blocks of windows, or parts of few long ones.

use std::collections::BTreeMap;
use std::iter::repeat_n;

use serde::{Deserialize, Serialize};

use super::estimate::Confidence;
use super::windows::{Cluster, PIECE, Parts, Run, WindowPiece, WindowSums};

/// From this many windows on, intervals hold the true value about as often as they promise, if the
/// windows are independent: see docs/INTERVALS.md.
const MIN_WINDOWS: u64 = 30;

/// [`MIN_WINDOWS`] for windows that were put into blocks, because neighbours resemble each other.
const MIN_WINDOWS_IN_BLOCKS: u64 = 100;

/// The number of windows for each block, between the fewest blocks and the most.
///
/// Longer blocks cut fewer articles in two, more blocks leave more observations. These cover best
/// in the simulation of docs/INTERVALS.md, with articles of 8 windows.
const WINDOWS_FOR_A_BLOCK: usize = 15;
const BLOCKS: std::ops::RangeInclusive<usize> = 10..=30;

/// The number of windows from which blocks are as many as they can be.
pub const WINDOWS_FOR_MOST_BLOCKS: u64 = (WINDOWS_FOR_A_BLOCK * *BLOCKS.end()) as u64;

/// The fewest windows in a block.
const MIN_WINDOWS_IN_A_BLOCK: usize = 2;

/// `auto` uses blocks from this autocorrelation on, in standard errors of that of independent
/// windows (`1/sqrt(n)`). One in seven texts of independent windows is put into blocks without
/// need, which makes intervals about 8 % wider.
const AUTOCORRELATED: f64 = 1.0;

/// The rule by which tokens are put into clusters.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClusterRule {
    /// Each window, or prompt.
    Window,
    /// Each block of contiguous windows.
    Block,
    /// Blocks if neighbouring windows resemble each other and make at least 10; parts of fewer than 6
    /// long windows, unless those of one window resemble each other; else windows.
    #[default]
    Auto,
}

/// The kind of a cluster.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClusterKind {
    /// One window.
    #[default]
    Window,
    /// Several contiguous windows.
    Block,
    /// Contiguous positions of a window.
    Part,
}

/// The clusters that the tokens of one evaluation were put into.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Clustering {
    /// The rule that was asked for.
    pub rule: ClusterRule,
    /// The kind of a cluster.
    pub kind: ClusterKind,
    /// The number of clusters.
    pub n: u64,
    /// The number of clusters of equal length that these are worth, `(Σ tokens)² / Σ tokens²`. Student's t
    /// has as many degrees of freedom, less one for each group.
    pub n_effective: f64,
    /// Windows in the longest block; others may have one less. 1 if each window is a cluster.
    pub windows_per_block: u64,
    /// Positions in the longest part of a window; absent unless each part is a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positions_per_part: Option<u64>,
    /// The correlation of the rank of a window's mean KLD with that of the next window's, of several
    /// models the mean of theirs; `None` for fewer than three windows, and where all means are equal.
    /// Of few long windows it is that of their parts, whichever are the clusters.
    pub autocorrelation: Option<f64>,
}

impl Clustering {
    /// Windows with these numbers of rows, each a cluster, before their KLDs are known.
    pub fn of_windows(lengths: impl Iterator<Item = u32>) -> Self {
        let lengths: Vec<f64> = lengths.filter(|n| *n > 0).map(f64::from).collect();
        Self {
            n: lengths.len() as u64,
            n_effective: n_effective(lengths),
            ..Self::default()
        }
    }

    /// The number of windows of equal length that `n_windows` in these clusters are worth, rounded up, if that is
    /// notably less; `None` otherwise.
    pub fn worth_notably_less(&self, n_windows: u64) -> Option<u64> {
        let worth = (n_windows as f64 * self.n_effective / self.n as f64).ceil() as u64;
        (5 * worth < 4 * n_windows).then_some(worth)
    }

    /// The fewest windows from which the intervals hold the true value about as often as they
    /// promise.
    pub fn min_windows(&self) -> u64 {
        if self.kind == ClusterKind::Block {
            MIN_WINDOWS_IN_BLOCKS
        } else {
            MIN_WINDOWS
        }
    }
}

/// The number of clusters of equal length that clusters of these lengths are worth, `(Σn)² / Σn²`
/// (Kish 1965, "Survey Sampling", 11.2C). 0 without tokens.
pub(super) fn n_effective(lengths: impl IntoIterator<Item = f64>) -> f64 {
    let add = |(sum, squares): (f64, f64), n: f64| (sum + n, squares + n * n);
    let (sum, squares) = lengths.into_iter().fold((0.0, 0.0), add);
    if sum == 0.0 { 0.0 } else { sum * sum / squares }
}

/// The clusters of the tokens of some windows.
#[derive(Clone, Debug)]
pub struct Clusters {
    /// The rule, the kind and the number of the clusters.
    pub clustering: Clustering,
    /// The cluster of each window, by its number; the window itself where its parts are clusters.
    windows: BTreeMap<u32, Cluster>,
    /// The parts of windows, if each is a cluster.
    parts: BTreeMap<WindowPiece, Cluster>,
    /// The parts among the pieces of one depth ([`WindowPiece::depth`]), if these have enough parts.
    parts_by_depth: BTreeMap<WindowPiece, Cluster>,
}

/// Estimates numbers of tokens from samples: the cluster of each token, and the level of all intervals.
#[derive(Clone, Debug)]
pub struct Estimator {
    pub clusters: Vec<Cluster>,
    pub confidence: Confidence,
}

impl Estimator {
    /// Tokens in these clusters.
    pub fn new(clusters: impl IntoIterator<Item = Cluster>, confidence: Confidence) -> Self {
        Self {
            clusters: clusters.into_iter().collect(),
            confidence,
        }
    }
}

impl ClusterRule {
    /// The kind of cluster that the rule chooses for windows, or for their parts, if neighbours have this
    /// correlation.
    fn kind(
        self,
        windows: &WindowSums,
        parts: Option<&Parts>,
        autocorrelation: Option<f64>,
    ) -> ClusterKind {
        let n = parts.map_or(windows.count(), |of| of.n as usize) as f64;
        let are_alike = autocorrelation.is_some_and(|r| r * n.sqrt() >= AUTOCORRELATED);
        let can_have_blocks = windows.count() >= BLOCKS.start() * MIN_WINDOWS_IN_A_BLOCK;
        match (self, parts) {
            (Self::Window, _) => ClusterKind::Window,
            (Self::Block, _) => ClusterKind::Block,
            (_, Some(_)) if !are_alike || windows.count() == 1 => ClusterKind::Part,
            (_, None) if are_alike && can_have_blocks => ClusterKind::Block,
            _ => ClusterKind::Window,
        }
    }
}

impl Clusters {
    /// Puts the windows of one evaluation into clusters.
    pub fn by_rule(windows: &WindowSums, rule: ClusterRule) -> Self {
        Self::new(windows, rule, None, windows.autocorrelation())
    }

    /// Puts windows into clusters of the kind that a comparison with other models has chosen, or that the
    /// rule chooses where neighbours have this correlation: of several models on the same windows, the mean
    /// of theirs.
    pub fn new(
        windows: &WindowSums,
        rule: ClusterRule,
        kind: Option<ClusterKind>,
        autocorrelation: Option<f64>,
    ) -> Self {
        let possible = Parts::of_few(windows);
        let kind = kind.unwrap_or_else(|| rule.kind(windows, possible.as_ref(), autocorrelation));
        let windows_or_blocks = numbered(&windows.windows(), kind);
        let parts = possible.filter(|_| kind == ClusterKind::Part);
        let pieces = windows.pieces();
        let parts_at_depth = |depth: u32| {
            let inside = pieces.iter().filter(|piece| piece.depth() == depth);
            Parts::of_windows(&Vec::from_iter(inside.copied()))
        };
        let depths = 1..=if parts.is_some() { u32::BITS } else { 0 };
        let by_first = windows_or_blocks.clusters.iter();
        let by_number = by_first.map(|(first, cluster)| (first.window, *cluster));
        let chosen = parts.as_ref().unwrap_or(&windows_or_blocks);
        let longest_part = parts.as_ref().map(|parts| parts.longest as u64);
        let mut clusters = Self {
            clustering: Clustering {
                rule,
                kind: match (&parts, windows_or_blocks.longest) {
                    (Some(_), _) => ClusterKind::Part,
                    (None, 0 | 1) => ClusterKind::Window,
                    (None, _) => kind,
                },
                n: chosen.n.into(),
                n_effective: 0.0,
                windows_per_block: windows_or_blocks.longest as u64,
                positions_per_part: longest_part.map(|n_pieces| n_pieces * u64::from(PIECE)),
                autocorrelation,
            },
            parts_by_depth: depths
                .filter_map(parts_at_depth)
                .flat_map(|of| of.clusters)
                .collect(),
            windows: by_number.collect(),
            parts: parts.map(|parts| parts.clusters).unwrap_or_default(),
        };
        let mut lengths = BTreeMap::<Cluster, f64>::new();
        for (piece, sums) in windows.sums_of_pieces() {
            *lengths
                .entry(clusters.of_piece(&clusters.parts, piece))
                .or_default() += sums.n;
        }
        clusters.clustering.n_effective = n_effective(lengths.into_values());
        clusters
    }

    /// The cluster of a window that was put into one, or the window itself where its parts are
    /// clusters.
    pub fn of_window(&self, window: u32) -> Cluster {
        self.windows.get(&window).copied().unwrap_or_default()
    }

    /// The part that holds a piece, or the cluster of its window.
    fn of_piece(&self, parts: &BTreeMap<WindowPiece, Cluster>, piece: &WindowPiece) -> Cluster {
        let part = parts.get(piece).copied();
        part.unwrap_or_else(|| self.of_window(piece.window))
    }

    /// Estimates numbers of these tokens.
    pub fn estimator(&self, runs: &[Run], confidence: Confidence) -> Estimator {
        self.of_tokens(&self.parts, runs, confidence)
    }

    /// Estimates numbers of these tokens, among those of pieces of one depth.
    ///
    /// Where parts of windows are clusters, those positions have parts of their own; where there are
    /// too few of them, their windows are the clusters.
    pub fn estimator_by_depth(&self, runs: &[Run], confidence: Confidence) -> Estimator {
        self.of_tokens(&self.parts_by_depth, runs, confidence)
    }

    fn of_tokens(
        &self,
        parts: &BTreeMap<WindowPiece, Cluster>,
        runs: &[Run],
        confidence: Confidence,
    ) -> Estimator {
        let clusters = runs
            .iter()
            .flat_map(|run| repeat_n(self.of_piece(parts, &run.piece), run.n));
        Estimator::new(clusters, confidence)
    }
}

/// Windows, each as a cluster or in blocks.
///
/// A block is of contiguous windows of one group. A group of two windows or more has at least two blocks.
fn numbered(windows: &[WindowPiece], kind: ClusterKind) -> Parts {
    let all = windows.len();
    Parts::divide(
        windows,
        |window| window.group,
        |n| {
            // A group has as many blocks as its share of the windows.
            let share = n_blocks(all) as f64 * n as f64 / all as f64;
            match kind {
                ClusterKind::Block if n == all => n_blocks(n),
                ClusterKind::Block => (share.round() as usize).clamp(n.min(2), n),
                ClusterKind::Window | ClusterKind::Part => n,
            }
        },
    )
}

/// The number of blocks that `n_windows` windows make.
fn n_blocks(n_windows: usize) -> usize {
    let most = (n_windows / MIN_WINDOWS_IN_A_BLOCK).max(1);
    let blocks = (n_windows / WINDOWS_FOR_A_BLOCK).clamp(*BLOCKS.start(), *BLOCKS.end());
    blocks.min(most)
}

#[cfg(test)]
#[path = "tests/clusters.rs"]
mod tests;
