//! Decides when an evaluation has seen enough text.

use kl_formats::TokenRecord;
use serde::Serialize;

use super::distribution::windows_for;
use super::{
    ClusterKind, ClusterRule, ClusteredMean, Confidence, MIN_CLUSTERS, MIN_WINDOWS_IN_BLOCKS,
    RunningInterval, Summary, exclusion,
};

/// The end of an evaluation that was to stop where the interval of the mean KLD is narrow enough.
#[derive(Serialize, Debug, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UntilInfo {
    /// Half the interval's width over the mean, as asked for.
    pub target: f64,
    /// True if the evaluation stopped because the interval is that narrow.
    pub reached: bool,
    /// Half the width of the clustered interval, divided by the mean; null if there is no interval.
    pub relative_half_width: Option<f64>,
    /// Windows that there were to evaluate, if the reference records how many it has.
    pub of: Option<u64>,
    /// About how many windows would have been enough; null if it was reached, or cannot be told.
    pub windows_needed: Option<u64>,
}

/// Watches the interval of the mean KLD as windows come.
#[derive(Clone)]
pub struct Until {
    /// Half the interval's width over the mean, at which the evaluation stops.
    target: f64,
    confidence: Confidence,
    clusters: ClusterRule,
    interval: RunningInterval,
    n_windows: usize,
    /// The number of windows at which the interval is computed next.
    next_look: usize,
    is_reached: bool,
}

impl Until {
    /// Watches for a target at a confidence, with clusters.
    pub fn new(target: f64, confidence: Confidence, clusters: ClusterRule) -> Self {
        Self {
            target,
            confidence,
            clusters,
            interval: RunningInterval::default(),
            n_windows: 0,
            next_look: MIN_CLUSTERS,
            is_reached: false,
        }
    }

    /// Adds the records of the next window. Returns whether that is enough.
    ///
    /// The interval takes a pass over all windows so far. So it is computed each time that they are
    /// a hundredth more: after every window of the first two hundred.
    pub fn push(&mut self, window: &[TokenRecord]) -> bool {
        for record in window.iter().filter(|record| exclusion::is_counted(record)) {
            self.interval.push(record.window, record.group, record.kld);
        }
        self.n_windows += 1;
        if self.n_windows < self.next_look {
            return false;
        }
        self.next_look = self.n_windows + (self.n_windows / 100).max(1);
        let width = self
            .interval
            .relative_half_width(self.confidence, self.clusters);
        self.is_reached = width.is_some_and(|width| width < self.target);
        self.is_reached
    }

    /// Adds the records of an earlier run, window by window, until that is enough. Returns how many
    /// they are.
    pub fn replay(&mut self, records: &[TokenRecord]) -> usize {
        let mut n_needed = 0;
        for window in records.chunk_by(|one, next| one.window == next.window) {
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

    /// Describes how far the evaluation got, whose numbers are `summary`, of `of` windows, if their
    /// number is known.
    pub fn info(&self, summary: &Summary, of: Option<u64>) -> UntilInfo {
        let mean = summary.kld.as_ref().map(|kld| &kld.mean);
        let windows_needed = mean.filter(|_| !self.is_reached).and_then(|mean| {
            let least = match summary.clusters.kind {
                ClusterKind::Window => MIN_CLUSTERS,
                ClusterKind::Block => MIN_WINDOWS_IN_BLOCKS,
            };
            Some(windows_for(self.target, mean, summary.n_windows)?.max(least as u64))
        });
        UntilInfo {
            target: self.target,
            reached: self.is_reached,
            relative_half_width: mean.and_then(ClusteredMean::relative_half_width),
            of,
            windows_needed,
        }
    }
}
