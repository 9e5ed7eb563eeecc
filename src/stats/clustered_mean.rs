//! The mean of samples that are correlated within their cluster, and the mean of groups' means.

use std::collections::BTreeMap;

use serde::Serialize;

use super::clustered_error::{ClusteredInterval, Spread};
use super::columns::Columns;
use super::distribution::finite_of;
use super::estimate::{Confidence, Estimate, finite, finite_or_null};
use super::mean::{Moments, Sum};
use super::strata::{Cluster, Stratum};

/// A mean with two intervals: one that treats tokens as independent, one that treats clusters so.
///
/// Tokens of one window share a text and a context, so the first interval (`lo`, `hi`, `se`) is
/// too narrow. The clustered interval is the one to believe.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClusteredValue {
    /// The value; null if an exponential overflowed.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(test, schemars(with = "Option<f64>"))]
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
        let moments = Moments::of(samples)?;
        Some(Self::of_moments(&moments, clusters, samples, confidence))
    }

    /// The same with the moments of the samples.
    pub(super) fn of_moments(
        moments: &Moments,
        clusters: &[Cluster],
        samples: &[f64],
        confidence: Confidence,
    ) -> Self {
        debug_assert_eq!(clusters.len(), samples.len());
        let spread = Spread::of(clusters, samples.iter().map(|x| x - moments.mean));
        Self {
            estimate: moments.estimate(confidence),
            se: moments.standard_error().and_then(finite),
            clustered: spread.interval(moments.mean, confidence),
        }
    }

    /// The same for samples that cannot be negative, and so have no mean below 0.
    pub fn of_non_negative(
        clusters: &[Cluster],
        samples: &[f64],
        confidence: Confidence,
    ) -> Option<Self> {
        Some(Self::of(clusters, samples, confidence)?.not_below_0())
    }

    /// The same mean, of samples that cannot be negative.
    pub(super) fn not_below_0(self) -> Self {
        Self {
            clustered: self.clustered.not_below_0(),
            ..self
        }
    }

    /// Half the width of the clustered interval, over the mean; `None` for fewer than two clusters,
    /// and for a mean of 0.
    pub fn relative_half_width(&self) -> Option<f64> {
        finite(self.clustered.half_width()? / self.estimate.value)
    }
}

impl ClusteredValue {
    /// The exponential of the value, with the exponentials of its interval's ends.
    #[must_use]
    pub fn exp(self) -> Self {
        let value = self.value.exp();
        Self {
            value,
            se: self.se.and_then(|se| finite(value * se)),
            clustered: self.clustered.map(f64::exp, value),
        }
    }
}

/// The mean of the groups' mean KLDs with its clustered interval, over the tokens whose KLD is
/// finite. A group that has none of these is not counted.
///
/// The clustered variances of the groups' means add up, over the square of the number of groups. The
/// variance of a group with a single cluster cannot be told, so there is no interval then. `None` for
/// fewer than two groups.
pub(super) fn macro_mean(
    columns: &Columns,
    clusters: &[Cluster],
    confidence: Confidence,
) -> Option<Estimate> {
    let (clusters, klds) = finite_of(clusters, &columns.kld);
    let first = clusters.first()?.stratum;
    if clusters.iter().all(|cluster| cluster.stratum == first) {
        return None;
    }
    let groups = Stratum::of_each(&clusters, klds.iter().copied());
    let n_groups = groups.len() as f64;
    // Over all n tokens, a group weighs one of n_groups.
    let groups = groups.into_iter().map(|(group, tokens)| {
        let n = tokens.powers.n;
        let weight = klds.len() as f64 / n / n_groups;
        (
            group,
            (tokens.powers.sum / n, weight, tokens.clusters.len()),
        )
    });
    let groups: BTreeMap<u32, (f64, f64, usize)> = groups.collect();
    let value = groups
        .values()
        .map(|(mean, ..)| *mean)
        .collect::<Sum>()
        .value()
        / n_groups;
    let residuals = klds.iter().zip(&*clusters).map(|(kld, cluster)| {
        let (mean, weight, _) = groups[&cluster.stratum];
        weight * (kld - mean)
    });
    let interval = Spread::of(&clusters, residuals).interval(value, confidence);
    Some(
        match groups.values().all(|(.., n_clusters)| *n_clusters > 1) {
            true => interval.not_below_0().of(value),
            false => Estimate::point(value),
        },
    )
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

    #[test]
    fn the_mean_of_what_cannot_be_negative_has_no_end_below_0() {
        let samples = [0.0, 0.1, 3.0];
        let mean = ClusteredMean::of(
            &[0, 1, 2].map(Cluster::from),
            &samples,
            Confidence::default(),
        )
        .unwrap();
        assert!(mean.clustered.lo.unwrap() < 0.0);
        let mean = ClusteredMean::of_non_negative(
            &[0, 1, 2].map(Cluster::from),
            &samples,
            Confidence::default(),
        );
        assert_eq!(mean.unwrap().clustered.lo, Some(0.0));
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

    mod macro_mean {
        use kl_formats::TokenRecord;

        use super::*;
        use crate::stats::oracle::{assert_close, records};
        use crate::stats::{ClusterRule, RunningInterval, Summary};

        /// The records, in groups.
        fn grouped(group: fn(u32) -> u32) -> Vec<TokenRecord> {
            let mut records = records();
            for record in &mut records {
                record.group = group(record.window);
            }
            records
        }

        fn summary(records: &[TokenRecord]) -> Summary {
            Summary::from_records(records, Confidence::default(), ClusterRule::Window)
        }

        #[test]
        fn matches_numpy_and_scipy() {
            let records = grouped(|window| u32::from(window >= 5) + u32::from(window >= 20));
            let summary = summary(&records);
            let micro = summary.kld.unwrap().mean;
            let micro = Estimate {
                value: micro.estimate.value,
                lo: micro.clustered.lo,
                hi: micro.clustered.hi,
            };
            let both = [summary.kld_macro.unwrap(), micro];
            for (got, (value, lo, hi)) in both.into_iter().zip(MACRO_AND_MICRO) {
                assert_close(got.value, value, 1e-12);
                assert_close(got.lo.unwrap(), lo, 1e-11);
                assert_close(got.hi.unwrap(), hi, 1e-11);
            }
            let mut running = RunningInterval::default();
            for record in records.iter().filter(|r| r.flags == 0) {
                running.push(record.window, record.group, record.kld);
            }
            let width = running.relative_half_width(Confidence::default(), ClusterRule::Window);
            let half_width = 0.5 * (micro.hi.unwrap() - micro.lo.unwrap());
            assert_close(width.unwrap(), half_width / micro.value, 1e-11);
        }

        const MACRO_AND_MICRO: [(f64, f64, f64); 2] = [
            (0.4195048566190991, 0.3113204797657645, 0.589174457915319),
            (0.4403726113181395, 0.3228418967469451, 0.6481700438666395),
        ];

        #[test]
        fn a_group_with_one_cluster_leaves_no_interval() {
            let of_one = summary(&grouped(|window| u32::from(window == 39)));
            let mean = of_one.kld_macro.unwrap();
            assert!(mean.value > 0.0 && mean.lo.is_none() && mean.hi.is_none());
            // Joined with the others, it has its share in the mean of all.
            let all = summary(&grouped(|_| 0));
            assert_eq!(of_one.kld, all.kld);
            assert_eq!(all.kld_macro, None);
        }
    }
}
