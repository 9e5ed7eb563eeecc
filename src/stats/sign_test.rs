//! The sign test: how often one of two models is nearer, whatever the distance.

use serde::Serialize;

use super::beta;

/// The exact sign test of two models, over clusters.
///
/// Tokens of a cluster are not independent, and a test over tokens would find differences that are
/// not there. So each cluster counts once, for the model with the smaller sum of KLDs in it.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SignTest {
    /// Clusters in which model a is nearer to the reference.
    pub n_a: u64,
    /// Clusters in which model b is nearer.
    pub n_b: u64,
    /// Clusters in which both are equally near, which are left out of the test.
    pub n_ties: u64,
    /// The two-sided p-value: of counts at least as uneven, if each cluster were as likely to be
    /// a's as b's. 1 where all clusters are ties.
    pub p: f64,
}

impl SignTest {
    /// Tests the signs of each cluster's difference, a's less b's.
    pub fn of(differences: impl IntoIterator<Item = f64>) -> Self {
        let (mut n_a, mut n_b, mut n_ties) = (0, 0, 0);
        for difference in differences {
            *match difference {
                x if x < 0.0 => &mut n_a,
                x if x > 0.0 => &mut n_b,
                _ => &mut n_ties,
            } += 1;
        }
        Self {
            n_a,
            n_b,
            n_ties,
            p: two_sided(n_a, n_b),
        }
    }
}

/// `min(1, 2 P(X ≤ min(a, b)))` for a binomial X of a + b fair tosses.
fn two_sided(a: u64, b: u64) -> f64 {
    let (fewer, more) = (a.min(b), a.max(b));
    if fewer == more {
        return 1.0;
    }
    // P(X ≤ k) of n tosses is P(B ≤ ½) of a B ~ Beta(n − k, k + 1).
    let (lower, _) = beta::tails(more as f64, fewer as f64 + 1.0, 0.5);
    (2.0 * lower).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_signs() {
        let test = SignTest::of([-1.0, 2.0, 0.0, -3.0, -0.5]);
        assert_eq!((test.n_a, test.n_b, test.n_ties), (3, 1, 1));
        // 2 · (1 + 4) / 16
        assert!((test.p - 0.625).abs() < 1e-15);
        assert_eq!(SignTest::of([]).p, 1.0);
    }

    /// scipy.stats.binomtest, from `oracle.py`.
    #[test]
    fn matches_scipy() {
        for (a, b, expected) in SIGN_TEST {
            let got = two_sided(a, b);
            assert!((got / expected - 1.0).abs() < 1e-11, "{a}, {b}: {got}");
            assert_eq!(got, two_sided(b, a));
        }
    }

    const SIGN_TEST: [(u64, u64, f64); 7] = [
        (1, 0, 1.0),
        (3, 3, 1.0),
        (2, 9, 0.0654296875),
        (40, 20, 0.01348929373119186),
        (150, 151, 1.0),
        (9000, 9500, 0.00024357068556988114),
        (0, 300, 9.818186930595453e-91),
    ];
}
