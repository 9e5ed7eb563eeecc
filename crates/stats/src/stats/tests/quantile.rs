use super::*;

mod order_statistics {
    use super::*;
    use crate::stats::oracle::pinned;

    /// scipy.stats.binom.ppf, from `oracle.py`; 0: none.
    #[test]
    fn matches_scipy() {
        for [n, m, p, lo, hi] in pinned("RANKS") {
            let got = interval_ranks(n as usize, m, p, Confidence::default());
            let want = [lo, hi].map(|rank| (rank > 0.0).then_some(rank as usize));
            assert_eq!([got.0, got.1], want, "n {n} m {m} p {p}");
        }
    }

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
    use crate::stats::oracle::{assert_close, pinned, skewed};
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
        for [n, p, value, lo, hi] in pinned("CIMJ") {
            let sorted = sorted(n as usize);
            assert_close(linear(&sorted, p).unwrap(), value, 1e-10);
            let got = maritz_jarrett_interval(&sorted, p, Confidence::default()).unwrap();
            assert_close(got.0, lo, SCIPY_DIGITS);
            assert_close(got.1, hi, SCIPY_DIGITS);
        }
    }

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
