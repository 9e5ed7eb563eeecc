//! The order statistics between which a quantile lies.

use super::beta;
use super::estimate::Confidence;

/// The ranks, from 1 to n, of the samples that are the ends of the p-quantile's interval.
///
/// Of m independent samples, Binomial(m, p) are below the quantile. The interval is from the
/// highest sample that is below it, and to the lowest that is above it, with a probability of at
/// least `(1 + confidence)/2` each. An end is `None` where even the first or the last sample is not:
/// the 99.9 % quantile has an upper end from 3,688 samples on, at 95 %.
///
/// `n_effective` is m, at most n. The ranks are those of n samples that are m different ones, each
/// n/m times, so with `n_effective` = n they are exact.
pub fn ranks(
    n: usize,
    n_effective: f64,
    p: f64,
    confidence: Confidence,
) -> (Option<usize>, Option<usize>) {
    let m = (n_effective as usize).clamp(1, n.max(1));
    let tail = 0.5 * confidence.outside();
    // P(at least k of m samples are below the quantile), and its complement.
    let at_least = |k: usize| beta::tails(k as f64, (m - k + 1) as f64, p);
    let surely_below = first(m, |k| at_least(k).1 > tail) - 1;
    let surely_above = first(m, |k| at_least(k).0 <= tail);
    let copies = n as f64 / m as f64;
    let lo = (surely_below >= 1).then(|| ((surely_below - 1) as f64 * copies) as usize + 1);
    let hi = (surely_above <= m).then(|| ((surely_above as f64 * copies).ceil() as usize).min(n));
    (lo, hi)
}

/// The first k of 1 to m for which `holds`, which then holds for all after it; m + 1 if it does for
/// none.
fn first(m: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut lo, mut hi) = (1, m + 1);
    while lo < hi {
        let middle = lo.midpoint(hi);
        match holds(middle) {
            true => hi = middle,
            false => lo = middle + 1,
        }
    }
    lo
}

#[cfg(test)]
mod tests {
    use super::*;

    /// scipy.stats.binom.ppf, from `oracle.py`; 0: none.
    #[test]
    fn matches_scipy() {
        for (n, m, p, lo, hi) in RANKS {
            let got = ranks(n, m as f64, p, Confidence::default());
            let want = [lo, hi].map(|rank| (rank > 0).then_some(rank));
            assert_eq!([got.0, got.1], want, "n {n} m {m} p {p}");
        }
    }

    const RANKS: [(usize, usize, f64, usize, usize); 50] = [
        (1, 1, 0.001, 0, 1),
        (1, 1, 0.5, 0, 0),
        (1, 1, 0.9, 0, 0),
        (1, 1, 0.99, 1, 0),
        (1, 1, 0.999, 1, 0),
        (5, 5, 0.001, 0, 1),
        (5, 5, 0.5, 0, 0),
        (5, 5, 0.9, 3, 0),
        (5, 5, 0.99, 4, 0),
        (5, 5, 0.999, 5, 0),
        (6, 6, 0.001, 0, 1),
        (6, 6, 0.5, 1, 6),
        (6, 6, 0.9, 4, 0),
        (6, 6, 0.99, 5, 0),
        (6, 6, 0.999, 6, 0),
        (100, 100, 0.001, 0, 2),
        (100, 100, 0.5, 40, 61),
        (100, 100, 0.9, 84, 96),
        (100, 100, 0.99, 97, 0),
        (100, 100, 0.999, 99, 0),
        (3687, 3687, 0.001, 0, 9),
        (3687, 3687, 0.5, 1784, 1904),
        (3687, 3687, 0.9, 3282, 3355),
        (3687, 3687, 0.99, 3638, 3662),
        (3687, 3687, 0.999, 3679, 0),
        (3688, 3688, 0.001, 1, 9),
        (3688, 3688, 0.5, 1784, 1905),
        (3688, 3688, 0.9, 3283, 3356),
        (3688, 3688, 0.99, 3639, 3663),
        (3688, 3688, 0.999, 3680, 3688),
        (1000000, 1000000, 0.001, 939, 1063),
        (1000000, 1000000, 0.5, 499020, 500981),
        (1000000, 1000000, 0.9, 899412, 900589),
        (1000000, 1000000, 0.99, 989805, 990196),
        (1000000, 1000000, 0.999, 998938, 999062),
        (1000, 250, 0.001, 0, 12),
        (1000, 250, 0.5, 437, 564),
        (1000, 250, 0.9, 857, 940),
        (1000, 250, 0.99, 973, 0),
        (1000, 250, 0.999, 989, 0),
        (1000, 333, 0.001, 0, 10),
        (1000, 333, 0.5, 445, 556),
        (1000, 333, 0.9, 865, 934),
        (1000, 333, 0.99, 976, 0),
        (1000, 333, 0.999, 991, 0),
        (5000, 3999, 0.001, 1, 12),
        (5000, 3999, 0.5, 2422, 2579),
        (5000, 3999, 0.9, 4453, 4548),
        (5000, 3999, 0.99, 4933, 4967),
        (5000, 3999, 0.999, 4989, 5000),
    ];

    #[test]
    fn mirrored_quantiles_have_mirrored_ranks() {
        for (n, m) in [(1000, 1000.0), (1000, 437.9), (50_000, 12_345.6)] {
            for p in [0.001, 0.05, 0.3] {
                let low = ranks(n, m, p, Confidence::default());
                let high = ranks(n, m, 1.0 - p, Confidence::default());
                let mirrored = |rank: usize| n + 1 - rank;
                assert_eq!(low.0, high.1.map(mirrored), "n {n} m {m} p {p}");
                assert_eq!(low.1, high.0.map(mirrored), "n {n} m {m} p {p}");
            }
        }
    }
}
