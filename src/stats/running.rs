//! The interval of a mean that is updated with each token.

use super::cluster::{ClusterRule, Clusters, MIN_CLUSTERS, WindowMeans};
use super::clustered_error::Spread;
use super::estimate::Confidence;
use super::mean::Sum;

/// The mean KLD so far and the width of its clustered interval, for a run that stops when it is
/// narrow enough.
///
/// Windows may come in any order. Tokens whose KLD is not finite are skipped, as the statistics of
/// the KLD leave them out.
#[derive(Clone, Debug, Default)]
pub struct RunningInterval {
    means: WindowMeans,
    n: u64,
    sum: Sum,
    squares: Sum,
    cubes: Sum,
}

impl RunningInterval {
    /// Adds a counted token of a window.
    pub fn push(&mut self, window: u32, kld: f64) {
        self.means.push(window, kld);
        if kld.is_finite() {
            self.n += 1;
            self.sum.add(kld);
            self.squares.add(kld * kld);
            self.cubes.add(kld.powi(3));
        }
    }

    /// The mean so far; `None` before the first token.
    pub fn mean(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum.value() / self.n as f64)
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
        let mut totals = vec![0.0; clusters.clustering().n as usize];
        for (window, total) in self.means.totals() {
            let residuals = total.sum.value() - total.n as f64 * mean;
            if let Some(cluster) = totals.get_mut(clusters.of_window(window) as usize) {
                *cluster += residuals;
            }
        }
        let n = self.n as f64;
        // About the mean.
        let (squares, cubes) = (self.squares.value(), self.cubes.value());
        let cubes = cubes - 3.0 * mean * squares + 2.0 * n * mean.powi(3);
        let squares = (squares - n * mean * mean).max(0.0);
        let spread = Spread::of_totals(n, squares, cubes, &totals);
        let interval = spread.interval(mean, confidence).not_below_0();
        Some(interval.half_width()? / mean)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Summary;
    use super::super::oracle::{assert_close, records};
    use super::*;

    /// The summary's own interval is pinned to numpy and scipy.
    #[test]
    fn equals_the_summary_of_the_tokens_so_far() {
        let records = records();
        let confidence = Confidence::default();
        for rule in [ClusterRule::Window, ClusterRule::Auto] {
            let mut running = RunningInterval::default();
            for record in records.iter().rev().filter(|r| !r.is_excluded()) {
                running.push(record.window, record.kld);
            }
            running.push(17, f64::INFINITY);
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
            running.push(window, 1.0 + f64::from(window % 3));
            running.push(window, 2.0);
        }
        assert!(width(&running).is_some());
        let mut same = RunningInterval::default();
        (0..100).for_each(|window| same.push(window, 0.0));
        assert_eq!(width(&same), None);
    }
}
