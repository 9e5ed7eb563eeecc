//! A share of tokens, such as those whose top tokens agree.

use super::beta;
use super::estimate::{Confidence, Estimate};

/// Estimates the share k/n (k = `successes`) with its Bayesian interval.
///
/// It is the equal-tailed interval of the posterior Beta(k + ½, n − k + ½), from the Jeffreys prior
/// Beta(½, ½). For `k = 0` the lower end is 0 and for `k = n` the upper end is 1 (Brown, Cai &
/// DasGupta 2001), so that the interval holds the observed share. `None` if `n = 0` or `k > n`.
pub fn estimate(successes: u64, n: u64, confidence: Confidence) -> Option<Estimate> {
    if n == 0 {
        return None;
    }
    let failures = n.checked_sub(successes)?;
    let tail = 0.5 * confidence.outside();
    let body = 1.0 - tail;
    let (a, b) = (successes as f64 + 0.5, failures as f64 + 0.5);
    let lo = if successes == 0 {
        0.0
    } else {
        beta::quantile(a, b, tail, body)
    };
    let hi = if failures == 0 {
        1.0
    } else {
        beta::quantile(a, b, body, tail)
    };
    Some(Estimate::within(successes as f64 / n as f64, lo, hi))
}

#[cfg(test)]
mod tests {
    use super::super::oracle::assert_close;
    use super::*;

    /// scipy.stats.beta.ppf([0.025, 0.975], k + 0.5, n - k + 0.5), from `oracle.py`.
    #[test]
    fn matches_scipy() {
        for (k, n, lo, hi) in JEFFREYS {
            let got = estimate(k, n, Confidence::default()).unwrap();
            assert_close(got.value, k as f64 / n as f64, 1e-15);
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
        let at = |k, n| estimate(k, n, Confidence::default());
        assert_eq!(at(0, 0), None);
        assert_eq!(at(2, 1), None);
        assert_eq!(at(0, 50).unwrap().lo, Some(0.0));
        assert_eq!(at(50, 50).unwrap().hi, Some(1.0));
        assert!(at(0, 50).unwrap().hi.unwrap() < 0.05);
        assert_eq!(at(0, 1).unwrap().lo, Some(0.0));
    }

    #[test]
    fn mirrored_counts_give_mirrored_intervals() {
        for n in [1, 3, 1000, 10_000_000] {
            for k in [0, n / 7, n / 2] {
                let left = estimate(k, n, Confidence::default()).unwrap();
                let right = estimate(n - k, n, Confidence::default()).unwrap();
                assert_close(left.lo.unwrap(), 1.0 - right.hi.unwrap(), 1e-9);
                assert!(left.lo.unwrap() <= left.value && left.value <= left.hi.unwrap());
            }
        }
    }
}
