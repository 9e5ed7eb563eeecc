use super::*;

mod order_statistics {
    use super::*;

    /// scipy.stats.binom.ppf, from `oracle.py`; 0: none.
    #[test]
    fn matches_scipy() {
        for (n, m, p, lo, hi) in RANKS {
            let got = interval_ranks(n, m as f64, p, Confidence::default());
            let want = [lo, hi].map(|rank| (rank > 0).then_some(rank));
            assert_eq!([got.0, got.1], want, "n {n} m {m} p {p}");
        }
    }

    const RANKS: [(usize, usize, f64, usize, usize); 24] = [
        (1, 1, 0.001, 0, 1),
        (1, 1, 0.5, 0, 0),
        (1, 1, 0.99, 1, 0),
        (5, 5, 0.001, 0, 1),
        (5, 5, 0.5, 0, 0),
        (5, 5, 0.99, 4, 0),
        (100, 100, 0.001, 0, 2),
        (100, 100, 0.5, 40, 61),
        (100, 100, 0.99, 97, 0),
        (3687, 3687, 0.001, 0, 9),
        (3687, 3687, 0.5, 1784, 1904),
        (3687, 3687, 0.99, 3638, 3662),
        (3688, 3688, 0.001, 1, 9),
        (3688, 3688, 0.5, 1784, 1905),
        (3688, 3688, 0.99, 3639, 3663),
        (1000000, 1000000, 0.001, 939, 1063),
        (1000000, 1000000, 0.5, 499020, 500981),
        (1000000, 1000000, 0.99, 989805, 990196),
        (1000, 250, 0.001, 0, 12),
        (1000, 250, 0.5, 437, 564),
        (1000, 250, 0.99, 973, 0),
        (5000, 3999, 0.001, 1, 12),
        (5000, 3999, 0.5, 2422, 2579),
        (5000, 3999, 0.99, 4933, 4967),
    ];

    #[test]
    fn mirrored_quantiles_have_mirrored_ranks() {
        for (n, m) in [(1000, 1000.0), (1000, 437.9), (50_000, 12_345.6)] {
            for p in [0.001, 0.05, 0.3] {
                let low = interval_ranks(n, m, p, Confidence::default());
                let high = interval_ranks(n, m, 1.0 - p, Confidence::default());
                let mirrored = |rank: usize| n + 1 - rank;
                assert_eq!(low.0, high.1.map(mirrored), "n {n} m {m} p {p}");
                assert_eq!(low.1, high.0.map(mirrored), "n {n} m {m} p {p}");
            }
        }
    }
}

mod maritz_jarrett {
    use super::*;
    use crate::stats::oracle::{assert_close, skewed};
    use crate::stats::quantile::linear;

    fn sorted(n: usize) -> Vec<f64> {
        let mut samples = skewed(n);
        samples.sort_unstable_by(f64::total_cmp);
        samples
    }

    /// scipy computes each weight as a difference of beta CDFs and the variance as a difference of
    /// squares: at n = 1e5 that costs it 1.3e-10, compared with 30-digit arithmetic.
    const SCIPY_DIGITS: f64 = 1e-9;

    /// numpy.quantile and scipy.stats.mstats.mquantiles_cimj on `skewed(n)`, from `oracle.py`.
    #[test]
    fn matches_numpy_and_scipy() {
        for (n, p, value, lo, hi) in CIMJ {
            let sorted = sorted(n);
            assert_close(linear(&sorted, p).unwrap(), value, 1e-10);
            let got = maritz_jarrett_interval(&sorted, p, Confidence::default()).unwrap();
            assert_close(got.0, lo, SCIPY_DIGITS);
            assert_close(got.1, hi, SCIPY_DIGITS);
        }
    }

    const CIMJ: [(usize, f64, f64, f64, f64); 15] = [
        (3, 0.5, 0.016464082324, -0.98434209897, 1.0172702636),
        (6, 0.9, 3.8434813811, 1.0881046145, 7.002522841),
        (17, 0.5, 0.051459714788, -0.10668007118, 0.20959950075),
        (40, 0.95, 25.374263493, 11.193224052, 42.853983462),
        (
            200,
            0.01,
            2.2942853737e-07,
            -7.1826030203e-07,
            7.282516677e-07,
        ),
        (501, 0.999, 830.80236942, 440.32495972, 1445.3013379),
        (1000, 0.5, 0.11449330627, 0.071668044552, 0.15731856798),
        (1000, 0.9, 6.65506807, 4.9678668808, 8.5229081697),
        (1000, 0.95, 16.556066114, 10.819051216, 24.011349707),
        (1000, 0.99, 187.37543311, 89.424625715, 289.38084781),
        (1000, 0.999, 634.37249195, 495.35748535, 960.27622552),
        (
            100000,
            0.1,
            0.00010838997172,
            0.00010049509668,
            0.00011623585372,
        ),
        (100000, 0.5, 0.12276751802, 0.11902680234, 0.12650823369),
        (100000, 0.99, 91.12662311, 86.106813069, 96.160400599),
        (100000, 0.999, 564.07283368, 501.02054326, 636.1106593),
    ];

    #[test]
    fn no_interval_where_scipy_has_none() {
        let at = |n, p| maritz_jarrett_interval(&sorted(n), p, Confidence::default());
        assert_eq!(at(0, 0.5), None);
        for (n, p) in [
            (1, 0.5),
            (2, 0.5),
            (2, 0.999),
            (4, 0.9),
            (499, 0.999),
            (100, 0.01),
        ] {
            assert_eq!(at(n, p), None, "n {n} p {p}");
        }
        for (n, p) in [(3, 0.5), (6, 0.9), (501, 0.999), (200, 0.01)] {
            assert!(at(n, p).is_some(), "n {n} p {p}");
        }
    }

    #[test]
    fn equal_samples_have_an_interval_of_width_0() {
        let got = maritz_jarrett_interval(&[0.1; 1000], 0.9, Confidence::default()).unwrap();
        assert_close(got.0, 0.1, 1e-15);
        assert_close(got.1, 0.1, 1e-15);
    }

    /// Only a few thousand cells of a million are looked at.
    #[test]
    fn few_cells_matter() {
        let (first, weights) = beta_weights(1_000_000, 500_000);
        assert!(weights.len() < 11_000, "{}", weights.len());
        assert!(first > 490_000 && first + weights.len() < 510_000);
    }
}
