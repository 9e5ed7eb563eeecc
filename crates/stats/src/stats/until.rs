//! Decides when an evaluation has seen enough text.

use std::collections::BTreeMap;

use kl_formats::TokenRecord;
use serde::Serialize;

use super::clustered::ClusteredMean;
use super::clusters::{ClusterKind, ClusterRule, Clusters, WINDOWS_FOR_MOST_BLOCKS};
use super::estimate::{Confidence, finite};
use super::mean::{Sum, Totals};
use super::spread::Spread;
use super::summary::Summary;
use super::token::is_counted;
use super::windows::{Cluster, Run, WindowSums};

/// From this many windows on, an evaluation may stop where its interval is narrow enough:
/// docs/INTERVALS.md.
pub const MIN_WINDOWS_TO_PLAN: u64 = 100;

/// The end of an evaluation that was to stop where the interval of the mean KLD is narrow enough.
#[derive(Serialize, Debug, Clone, Copy)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct UntilInfo {
    /// Half the interval's width over the mean, as asked for.
    pub target: f64,
    /// True if the evaluation stopped because the interval is that narrow.
    pub reached: bool,
    /// Half the width of the clustered interval, divided by the mean; null if there is no interval.
    pub relative_half_width: Option<f64>,
    /// Windows that there were to evaluate, if the reference records how many it has.
    pub of: Option<u64>,
}

/// The KLDs of the windows so far: their mean, and whether its interval is narrow enough.
///
/// Records that the statistics leave out and KLDs that are not finite are skipped, as they are in
/// the mean that the report shows.
#[derive(Clone, Debug, Default)]
pub struct KldSoFar {
    /// Half the interval's width over the mean at which the evaluation stops; `None`: it does not.
    target: Option<f64>,
    confidence: Confidence,
    rule: ClusterRule,
    windows: WindowSums,
    n_windows: usize,
    /// The number of windows at which the interval is computed next.
    next_look: usize,
    n_tokens: u64,
    sum: Sum,
    is_reached: bool,
}

impl KldSoFar {
    /// Watches for a target, if there is one, at a confidence, with clusters by a rule.
    pub fn new(target: Option<f64>, confidence: Confidence, rule: ClusterRule) -> Self {
        Self {
            target,
            confidence,
            rule,
            next_look: MIN_WINDOWS_TO_PLAN as usize,
            ..Self::default()
        }
    }

    /// The mean so far; `None` before the first counted record.
    pub fn mean(&self) -> Option<f64> {
        finite(self.sum.value() / self.n_tokens as f64)
    }

    /// Adds the records of the next window. Returns whether that is enough.
    ///
    /// The interval takes a pass over all windows so far. So it is computed from
    /// [`MIN_WINDOWS_TO_PLAN`] on, and each time that they are a hundredth more.
    pub fn push(&mut self, window: &[TokenRecord]) -> bool {
        let counted = || window.iter().filter(|record| is_counted(record));
        let klds: Vec<f64> = counted().map(|record| record.kld).collect();
        for kld in klds.iter().filter(|kld| kld.is_finite()) {
            self.n_tokens += 1;
            self.sum.add(*kld);
        }
        let Some(target) = self.target.filter(|_| !self.is_reached) else {
            return self.is_reached;
        };
        self.windows.add(&Run::from_records(counted()), &klds);
        self.n_windows += 1;
        if self.n_windows >= self.next_look {
            self.next_look = self.n_windows + (self.n_windows / 100).max(1);
            self.is_reached = self
                .relative_half_width()
                .is_some_and(|width| width < target);
        }
        self.is_reached
    }

    /// Half the width of the interval that [`ClusteredMean`] has for the tokens so far, over their
    /// mean. The time is about proportional to the number of windows.
    ///
    /// `None` for a mean of 0, and for blocks until there are as many as there can be: the first
    /// interval that is narrow enough ends the run, and of those from few blocks it would mostly be
    /// one that is too narrow (docs/INTERVALS.md).
    fn relative_half_width(&self) -> Option<f64> {
        let clusters = Clusters::by_rule(&self.windows, self.rule);
        let in_blocks = clusters.clustering.kind == ClusterKind::Block;
        if in_blocks && (self.windows.count() as u64) < WINDOWS_FOR_MOST_BLOCKS {
            return None;
        }
        let mean = self.mean()?;
        let mut by_cluster = BTreeMap::<Cluster, Totals>::new();
        for (first, sums) in self.windows.sums() {
            let cluster = clusters.of_window(first.window);
            *by_cluster.entry(cluster).or_default() += sums.about(mean);
        }
        let spread = Spread::of_clusters(&by_cluster);
        let interval = spread.interval_of_positive(mean, self.confidence);
        finite(interval.half_width()? / mean)
    }

    /// Adds the records of an earlier run, window by window, until that is enough. Returns how many
    /// they are.
    pub fn replay(&mut self, records: &[TokenRecord]) -> usize {
        let mut n_needed = 0;
        for window in TokenRecord::windows(records) {
            n_needed += window.len();
            if self.push(window) {
                break;
            }
        }
        n_needed
    }

    pub fn is_reached(&self) -> bool {
        self.is_reached
    }

    /// Describes how far the evaluation got, whose numbers are `summary`; `None` without a target.
    pub fn info(&self, summary: &Summary) -> Option<UntilInfo> {
        let mean = summary.kld.as_ref().map(|kld| &kld.mean);
        Some(UntilInfo {
            target: self.target?,
            reached: self.is_reached,
            relative_half_width: mean.and_then(ClusteredMean::relative_half_width),
            of: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::{assert_close, records, summary};

    /// The summary's own interval is pinned to numpy and scipy.
    #[test]
    fn equals_the_summary_of_the_tokens_so_far() {
        let records = records();
        let confidence = Confidence::default();
        for rule in [ClusterRule::Window, ClusterRule::Auto] {
            let mut running = KldSoFar::new(Some(0.0), confidence, rule);
            for window in TokenRecord::windows(&records).rev() {
                running.push(window);
            }
            running.push(&[TokenRecord {
                kld: f64::INFINITY,
                ..records[0]
            }]);
            let kld = summary(&records, rule).kld.unwrap();
            let (lo, hi) = kld.mean.clustered.ends().unwrap();
            let mean = kld.mean.independent.value;
            assert_close(running.mean().unwrap(), mean, 1e-13);
            let got = running.relative_half_width().unwrap();
            assert_close(got, 0.5 * (hi - lo) / mean, 1e-11);
        }
    }

    #[test]
    fn looks_from_100_windows_on() {
        let one = records()[0];
        let watch = || KldSoFar::new(Some(1.0), Confidence::default(), ClusterRule::Window);
        let (mut running, mut same) = (watch(), watch());
        for window in 0..100 {
            assert!(!running.is_reached());
            let record = |kld| TokenRecord { window, kld, ..one };
            running.push(&[record(1.0 + f64::from(window % 3)), record(2.0)]);
            same.push(&[record(0.0)]);
        }
        assert!(running.is_reached() && !same.is_reached());
    }

    #[test]
    fn the_running_mean_counts_what_the_statistics_count() {
        let one = records()[0];
        let record = |kld: f64, eval_nll: f64| TokenRecord {
            kld,
            eval_nll,
            ..one
        };
        let mut running = KldSoFar::new(None, Confidence::default(), ClusterRule::Auto);
        running.push(&[]);
        assert_eq!(running.mean(), None);
        running.push(&[record(1.0, 1.0), record(f64::NAN, 1.0)]);
        // A probability of e^1000 is impossible, though no logit is marked.
        running.push(&[record(7.0, -1000.0), record(3.0, 1.0)]);
        running.push(&[record(f64::INFINITY, 1.0)]);
        assert_eq!(running.mean(), Some(2.0));
    }
}
