//! The mean KLD and its interval, updated with each window.

use std::collections::BTreeMap;

use kl_formats::sidecar::TokenRecord;

use super::cluster::WindowMeans;
use super::cluster::{ClusterRule, Clusters, MIN_CLUSTERS};
use super::clustered_error::Spread;
use super::estimate::Confidence;
use super::exclusion::is_counted;
use super::mean::Sum;
use super::strata::{Powers, Stratum};

/// The mean KLD of the records so far, for a progress bar.
///
/// Records that the statistics leave out and KLDs that are not finite are skipped, as they are in
/// the mean that the report shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningMean {
    sum: Sum,
    n: u64,
}

impl RunningMean {
    /// Adds the records of one window or of several.
    pub fn push(&mut self, records: &[TokenRecord]) {
        let counted = records.iter().filter(|record| is_counted(record));
        for record in counted.filter(|record| record.kld.is_finite()) {
            self.sum.add(record.kld);
            self.n += 1;
        }
    }

    /// The mean so far; `None` before the first counted record.
    pub fn mean(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum.value() / self.n as f64)
    }
}

/// The mean KLD so far and the width of its clustered interval, for a run that stops when it is
/// narrow enough.
///
/// Windows may come in any order. Tokens whose KLD is not finite are skipped, as the statistics of
/// the KLD leave them out.
#[derive(Clone, Debug, Default)]
pub struct RunningInterval {
    means: WindowMeans,
    /// The finite KLDs of each group.
    groups: BTreeMap<u32, Powers<Sum>>,
}

impl RunningInterval {
    /// Adds a counted token of a window; its group is 0 without groups.
    pub fn push(&mut self, window: u32, group: u32, kld: f64) {
        self.means.push(window, group, kld);
        if kld.is_finite() {
            self.groups.entry(group).or_default().push(kld);
        }
    }

    /// The mean so far; `None` before the first token.
    pub fn mean(&self) -> Option<f64> {
        let n: f64 = self.groups.values().map(|klds| klds.n).sum();
        let sum: Sum = self.groups.values().map(|klds| klds.sum.value()).collect();
        (n > 0.0).then(|| sum.value() / n)
    }

    /// Half the width of the interval that [`super::ClusteredMean`] has for the tokens so far, over
    /// their mean. The time is about proportional to the number of windows.
    ///
    /// `None` for fewer than [`MIN_CLUSTERS`] clusters, and for a mean of 0.
    pub fn relative_half_width(&self, confidence: Confidence, rule: ClusterRule) -> Option<f64> {
        let mean = self.mean().filter(|mean| *mean > 0.0)?;
        let clusters = Clusters::of_means(&self.means, rule);
        if clusters.clustering().n < MIN_CLUSTERS as u64 {
            return None;
        }
        let mut totals = BTreeMap::new();
        for (window, total) in self.means.totals().filter(|(_, total)| total.n > 0) {
            let (n, residuals) = totals.entry(clusters.of_window(window)).or_default();
            *n += total.n as f64;
            *residuals += total.sum.value() - total.n as f64 * mean;
        }
        let strata = self.groups.iter().map(|(group, klds)| Stratum {
            powers: klds.values().about(mean),
            clusters: totals
                .iter()
                .filter(|(cluster, _)| cluster.stratum == *group)
                .map(|(_, total)| *total)
                .collect(),
        });
        let interval = Spread::of_strata(strata).interval(mean, confidence);
        Some(interval.not_below_0().half_width()? / mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Summary;
    use crate::stats::oracle::{assert_close, records};

    /// The summary's own interval is pinned to numpy and scipy.
    #[test]
    fn equals_the_summary_of_the_tokens_so_far() {
        let records = records();
        let confidence = Confidence::default();
        for rule in [ClusterRule::Window, ClusterRule::Auto] {
            let mut running = RunningInterval::default();
            for record in records.iter().rev().filter(|r| !r.is_excluded()) {
                running.push(record.window, record.group, record.kld);
            }
            running.push(17, 0, f64::INFINITY);
            let kld = Summary::from_records(&records, confidence, rule)
                .kld
                .unwrap();
            let (lo, hi) = kld.mean.clustered.ends().unwrap();
            assert_close(running.mean().unwrap(), kld.mean.estimate.value, 1e-13);
            let got = running.relative_half_width(confidence, rule).unwrap();
            assert_close(got, 0.5 * (hi - lo) / kld.mean.estimate.value, 1e-11);
        }
    }

    #[test]
    fn few_clusters_have_no_width() {
        let mut running = RunningInterval::default();
        let width = |running: &RunningInterval| {
            running.relative_half_width(Confidence::default(), ClusterRule::Window)
        };
        assert_eq!(width(&running), None);
        for window in 0..MIN_CLUSTERS as u32 {
            assert_eq!(width(&running), None);
            running.push(window, 0, 1.0 + f64::from(window % 3));
            running.push(window, 0, 2.0);
        }
        assert!(width(&running).is_some());
        let mut same = RunningInterval::default();
        (0..100).for_each(|window| same.push(window, 0, 0.0));
        assert_eq!(width(&same), None);
    }

    #[test]
    fn the_running_mean_counts_what_the_statistics_count() {
        let one = records()[0];
        let record = |kld: f64, eval_nll: f64| TokenRecord {
            kld,
            eval_nll,
            ..one
        };
        let mut running = RunningMean::default();
        running.push(&[]);
        assert_eq!(running.mean(), None);
        running.push(&[record(1.0, 1.0), record(f64::NAN, 1.0)]);
        // A probability of e^1000 is impossible, though no logit is marked.
        running.push(&[record(7.0, -1000.0), record(3.0, 1.0)]);
        running.push(&[record(f64::INFINITY, 1.0)]);
        assert_eq!(running.mean(), Some(2.0));
    }
}
