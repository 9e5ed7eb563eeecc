//! Two models on the same tokens: the mean difference of their KLDs.

use serde::Serialize;

use super::cluster::{Cluster, ClusterRule, Clustering, Clusters};
use super::clustered_error::Spread;
use super::estimate::Confidence;
use super::mean::Moments;
use super::window_means::WindowMeans;

/// The mean difference of a value that two models have on the same tokens, a's less b's.
///
/// What makes a token hard is hard for both models, and drops out of the difference: its interval
/// is mostly much narrower than the two models' own.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct PairedDifference {
    /// The mean difference.
    pub value: f64,
    /// The lower end of its clustered interval; `None` for fewer than two clusters.
    pub lo: Option<f64>,
    /// The upper end.
    pub hi: Option<f64>,
    /// The standard error that the interval is made from: by cluster, or with tokens as
    /// independent where that is larger.
    pub se: Option<f64>,
    /// The two-sided p-value of no difference. It is below `1 − confidence` exactly where the
    /// interval does not hold 0.
    pub p: Option<f64>,
    /// How many tokens were compared.
    pub n_tokens: u64,
    /// How the tokens were put into clusters.
    pub clusters: Clustering,
}

/// Estimates the mean of `a[i] − b[i]` over tokens, the `i`-th of which is in window `windows[i]`
/// of group `groups[i]`. All differences are finite, and all slices equally long; `None` without
/// tokens.
///
/// The rule is applied to the windows' means of the differences themselves, not to those of either
/// model: an article that is hard for both models makes neighbouring windows alike in each, and
/// mostly not in the difference.
pub fn paired_difference(
    windows: &[u32],
    groups: &[u32],
    a: &[f64],
    b: &[f64],
    confidence: Confidence,
    rule: ClusterRule,
) -> Option<PairedDifference> {
    debug_assert_eq!(windows.len(), groups.len());
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let mut means = WindowMeans::default();
    for ((window, group), difference) in windows.iter().zip(groups).zip(&differences) {
        means.push(*window, *group, *difference);
    }
    let clusters = Clusters::of_means(&means, rule);
    let numbers: Vec<Cluster> = windows.iter().map(|w| clusters.of_window(*w)).collect();
    let mean = Moments::of(&differences)?.mean;
    let spread = Spread::of(&numbers, differences.iter().map(|x| x - mean));
    let ends = spread.interval(mean, confidence).ends();
    Some(PairedDifference {
        value: mean,
        lo: ends.map(|(lo, _)| lo),
        hi: ends.map(|(_, hi)| hi),
        se: spread.larger_se(),
        p: ends.and_then(|_| spread.p_of_0(mean)),
        n_tokens: differences.len() as u64,
        clusters: clusters.clustering(),
    })
}
