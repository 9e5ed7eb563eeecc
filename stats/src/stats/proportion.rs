//! A share of tokens, such as those whose top tokens agree.

use serde::Serialize;

use super::cluster::Cluster;
use super::estimate::{Confidence, Estimate};
use super::probability;
use super::spread::Spread;

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
    use super::*;
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
