//! The mean of samples that are correlated within their cluster.

use std::borrow::Cow;

use serde::Serialize;

use super::cluster::Cluster;
use super::estimate::{Confidence, Estimate, finite, finite_or_null};
use super::mean::Moments;
use super::spread::{ClusteredInterval, Spread};

/// A mean with two intervals: one that treats tokens as independent, one that treats clusters so.
///
/// Tokens of one window share a text and a context, so the first interval (`lo`, `hi`, `se`) is
/// too narrow. The clustered interval is the one to believe.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ClusteredMean {
    /// The mean, and its interval with tokens as independent.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The standard error with tokens as independent; `None` for fewer than two samples.
    pub se: Option<f64>,
    /// The clustered interval.
    #[serde(flatten)]
    pub clustered: ClusteredInterval,
}

/// A value with a standard error that treats tokens as independent, and its clustered interval.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ClusteredValue {
    /// The value; null if an exponential overflowed.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(feature = "testing", schemars(with = "Option<f64>"))]
    pub value: f64,
    /// The standard error with tokens as independent; `None` where the sample is too small.
    pub se: Option<f64>,
    /// The clustered interval.
    #[serde(flatten)]
    pub clustered: ClusteredInterval,
}

impl ClusteredMean {
    /// Estimates the mean of `samples`, where `samples[i]` is in cluster `clusters[i]`.
    ///
    /// Both slices have the same length. `None` without samples.
    pub fn of(clusters: &[Cluster], samples: &[f64], confidence: Confidence) -> Option<Self> {
        Self::with(clusters, samples, confidence, Spread::interval)
    }

    /// The same, of samples that cannot be negative.
    pub fn of_positive(
        clusters: &[Cluster],
        samples: &[f64],
        confidence: Confidence,
    ) -> Option<Self> {
        Self::with(clusters, samples, confidence, Spread::interval_of_positive)
    }

    fn with(
        clusters: &[Cluster],
        samples: &[f64],
        confidence: Confidence,
        interval: impl Fn(&Spread, f64, Confidence) -> ClusteredInterval,
    ) -> Option<Self> {
        debug_assert_eq!(clusters.len(), samples.len());
        let moments = Moments::of(samples)?;
        let spread = Spread::of(clusters, samples.iter().map(|x| x - moments.mean));
        Some(Self {
            estimate: moments.estimate(confidence),
            se: moments.standard_error().and_then(finite),
            clustered: interval(&spread, moments.mean, confidence),
        })
    }

    /// The mean with its clustered interval.
    pub fn by_cluster(&self) -> Estimate {
        self.clustered.around(self.estimate.value)
    }

    /// Half the width of the clustered interval, over the mean; `None` for fewer than two clusters,
    /// and for a mean of 0.
    pub fn relative_half_width(&self) -> Option<f64> {
        finite(self.clustered.half_width()? / self.estimate.value)
    }
}

impl ClusteredValue {
    /// The exponential of the value, with the exponentials of its interval's ends.
    pub fn exp(self) -> Self {
        let value = self.value.exp();
        Self {
            value,
            se: self.se.and_then(|se| finite(value * se)),
            clustered: self.clustered.map(f64::exp, value),
        }
    }
}

/// The finite ones of some values, and their clusters.
pub(super) fn finite_of<'v>(
    clusters: &'v [Cluster],
    values: &'v [f64],
) -> (Cow<'v, [Cluster]>, Cow<'v, [f64]>) {
    if values.iter().all(|value| value.is_finite()) {
        return (clusters.into(), values.into());
    }
    let both = clusters.iter().zip(values);
    let (clusters, values): (Vec<_>, Vec<_>) = both.filter(|(_, value)| value.is_finite()).unzip();
    (clusters.into(), values.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::splitmix_normals;

    #[test]
    fn one_window_has_no_clustered_interval() {
        let samples = [1.0, 2.0, 3.0, 4.0];
        let mean =
            ClusteredMean::of(&[3; 4].map(Cluster::from), &samples, Confidence::default()).unwrap();
        assert!(mean.estimate.lo.is_some() && mean.se.is_some());
        assert_eq!(mean.clustered.ends(), None);
        assert_eq!(ClusteredMean::of(&[], &[], Confidence::default()), None);
    }

    /// Samples of a window share a term, as the tokens of a text do: intra-window correlation 1/4.
    #[test]
    fn clustered_interval_covers_what_it_promises() {
        const REPLICATIONS: usize = 1000;
        const WINDOWS: u32 = 30;
        const TRUTH: f64 = 0.25;
        let mut normals = splitmix_normals(7);
        let mut normal = || normals.next().unwrap();
        let (mut naive, mut clustered) = (0, 0);
        for _ in 0..REPLICATIONS {
            let (mut windows, mut samples) = (Vec::<Cluster>::new(), Vec::new());
            for window in 0..WINDOWS {
                let shared = normal() / 3f64.sqrt();
                // Unequal sizes: the last window of a text is short.
                for _ in 0..20 + window % 3 * 10 {
                    windows.push(window.into());
                    samples.push(TRUTH + shared + normal());
                }
            }
            let mean = ClusteredMean::of(&windows, &samples, Confidence::default()).unwrap();
            let holds = |lo: Option<f64>, hi: Option<f64>| {
                (lo.unwrap()..=hi.unwrap()).contains(&TRUTH) as usize
            };
            naive += holds(mean.estimate.lo, mean.estimate.hi);
            clustered += holds(mean.clustered.lo, mean.clustered.hi);
        }
        // A true share of 95 % lies within 93..97 in 99.6 % of such experiments.
        let share = |hits: usize| hits as f64 / REPLICATIONS as f64;
        assert!(
            (0.93..=0.97).contains(&share(clustered)),
            "{}",
            share(clustered)
        );
        assert!(share(naive) < 0.7, "{}", share(naive));
    }

    mod groups {

        use super::*;
        use crate::stats::ClusterRule;
        use crate::stats::oracle::{self, assert_close, records};

        /// The mean of the records, in groups.
        fn mean(group: fn(u32) -> u32) -> ClusteredMean {
            let mut records = records();
            for record in &mut records {
                record.group = group(record.window);
            }
            let summary = oracle::summary(&records, ClusterRule::Window);
            summary.kld.unwrap().mean
        }

        #[test]
        fn strata_match_numpy_and_scipy() {
            let mean = mean(|window| u32::from(window >= 5) + u32::from(window >= 20));
            let (value, lo, hi) = STRATIFIED;
            assert_close(mean.estimate.value, value, 1e-12);
            assert_close(mean.clustered.lo.unwrap(), lo, 1e-11);
            assert_close(mean.clustered.hi.unwrap(), hi, 1e-11);
        }

        const STRATIFIED: (f64, f64, f64) =
            (0.4403726113181395, 0.33507205471816215, 0.6439979126268416);

        #[test]
        fn a_group_of_one_cluster_is_joined_with_the_others() {
            assert_eq!(mean(|window| u32::from(window == 39)), mean(|_| 0));
        }
    }
}
