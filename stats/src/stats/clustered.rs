//! The mean of samples that are correlated within their cluster, and the share of tokens that have a
//! trait.

use std::borrow::Cow;

use serde::Serialize;

use super::cluster::Cluster;
use super::estimate::{Confidence, Estimate, finite, finite_or_null};
use super::mean::Moments;
use super::probability;
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

/// A share of tokens, with its clustered interval.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Share {
    /// The share, and its interval at the effective number of tokens.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The number of independent tokens that would tell as much: their number over the design effect, the
    /// variance as a multiple of that with tokens as independent, where that is above 1.
    pub n_effective: f64,
}

impl Share {
    /// Estimates the share of tokens that are hits, where `hits[i]` is in cluster `clusters[i]`.
    ///
    /// Its interval is Jeffreys' for [`Spread::n_for_share`] tokens: none from one cluster. `None`
    /// without tokens.
    pub fn of(clusters: &[Cluster], hits: &[bool], confidence: Confidence) -> Option<Self> {
        let n = hits.len() as f64;
        let share = hits.iter().filter(|hit| **hit).count() as f64 / n;
        let residuals = hits.iter().map(|hit| f64::from(u8::from(*hit)) - share);
        let spread = Spread::of(clusters, residuals);
        let estimate = match spread.n_for_share(confidence) {
            Some(n) => jeffreys(share, n, confidence),
            None if hits.is_empty() => return None,
            None => Estimate::point(share),
        };
        Some(Self {
            estimate,
            n_effective: spread.n_effective(),
        })
    }
}

/// The Bayesian interval of a share of `n` independent tokens, which need not be whole.
///
/// It is the equal-tailed interval of the posterior Beta(k + ½, n − k + ½), `k = share · n`, from
/// the Jeffreys prior Beta(½, ½). For `k = 0` the lower end is 0 and for `k = n` the upper end is 1
/// (Brown, Cai & DasGupta 2001), so that the interval holds the observed share.
pub(super) fn jeffreys(share: f64, n: f64, confidence: Confidence) -> Estimate {
    let tail = 0.5 * confidence.outside();
    let body = 1.0 - tail;
    let (a, b) = (share * n + 0.5, (1.0 - share) * n + 0.5);
    let lo = match share > 0.0 {
        true => probability::quantile(a, b, tail, body),
        false => 0.0,
    };
    let hi = match share < 1.0 {
        true => probability::quantile(a, b, body, tail),
        false => 1.0,
    };
    Estimate::within(share, lo, hi)
}

#[cfg(test)]
mod tests {
    mod clustered_mean {
        use super::super::*;
        use crate::stats::oracle::splitmix_normals;

        #[test]
        fn one_window_has_no_clustered_interval() {
            let samples = [1.0, 2.0, 3.0, 4.0];
            let mean =
                ClusteredMean::of(&[3; 4].map(Cluster::from), &samples, Confidence::default())
                    .unwrap();
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

    mod proportion {
        use super::super::*;
        use crate::stats::oracle::assert_close;

        /// scipy.stats.beta.ppf([0.025, 0.975], k + 0.5, n - k + 0.5), from `oracle.py`.
        #[test]
        fn matches_scipy() {
            for (k, n, lo, hi) in JEFFREYS {
                let (share, n) = (k as f64 / n as f64, n as f64);
                let got = jeffreys(share, n, Confidence::default());
                assert_close(got.value, share, 1e-15);
                assert_close(got.lo.unwrap(), lo, 1e-13);
                assert_close(got.hi.unwrap(), hi, 1e-13);
            }
        }

        const JEFFREYS: [(u64, u64, f64, f64); 9] = [
            (1, 2, 0.06083027592009732, 0.9391697240799026),
            (3, 10, 0.09269459393815316, 0.6058183181486713),
            (868, 1000, 0.8459666417873076, 0.8879070610138672),
            (1188, 1369, 0.8490732004230881, 0.8849471658486512),
            (1, 1000000, 1.0789766246541867e-07, 4.6741920467298275e-06),
            (999000, 1000000, 0.998936597358415, 0.9990605142644841),
            (1, 10000000, 1.0789764342729502e-08, 4.674200826695119e-07),
            (5000000, 10000000, 0.4996901025213566, 0.5003098974786434),
            (9999990, 10000000, 0.9999982260569356, 0.9999994858549989),
        ];

        #[test]
        fn none_and_all() {
            let at = |k, n| {
                jeffreys(
                    f64::from(k) / f64::from(n),
                    f64::from(n),
                    Confidence::default(),
                )
            };
            assert_eq!(at(0, 50).lo, Some(0.0));
            assert_eq!(at(50, 50).hi, Some(1.0));
            assert!(at(0, 50).hi.unwrap() < 0.05);
            assert_eq!(at(0, 1).lo, Some(0.0));
            assert_eq!(Share::of(&[], &[], Confidence::default()), None);
        }

        #[test]
        fn mirrored_counts_give_mirrored_intervals() {
            for n in [1, 3, 1000, 10_000_000] {
                for k in [0, n / 7, n / 2] {
                    let at = |k: u64| {
                        let share = k as f64 / n as f64;
                        jeffreys(share, n as f64, Confidence::default())
                    };
                    let (left, right) = (at(k), at(n - k));
                    assert_close(left.lo.unwrap(), 1.0 - right.hi.unwrap(), 1e-9);
                    assert!(left.lo.unwrap() <= left.value && left.value <= left.hi.unwrap());
                }
            }
        }
    }
}
