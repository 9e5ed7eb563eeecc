use super::*;

#[test]
fn linear_reaches_both_ends() {
    assert_eq!(linear(&[1.0, 2.0, 4.0], 0.0), Some(1.0));
    assert_eq!(linear(&[1.0, 2.0, 4.0], 0.75), Some(3.0));
    assert_eq!(linear(&[1.0, 2.0, 4.0], 1.0), Some(4.0));
    assert_eq!(linear(&[], 0.5), None);
}

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
            assert_close(linear(&sorted, p).unwrap(), value, 1e-15);
            let got = maritz_jarrett_interval(&sorted, p, Confidence::default()).unwrap();
            assert_close(got.0, lo, SCIPY_DIGITS);
            assert_close(got.1, hi, SCIPY_DIGITS);
        }
    }

    const CIMJ: [(usize, f64, f64, f64, f64); 15] = [
        (
            3,
            0.5,
            0.01646408232403317,
            -0.9843420989728664,
            1.0172702636209328,
        ),
        (
            6,
            0.9,
            3.8434813810938318,
            1.0881046144767934,
            7.002522840955716,
        ),
        (
            17,
            0.5,
            0.05145971478790969,
            -0.10668007117868639,
            0.20959950075450579,
        ),
        (
            40,
            0.95,
            25.374263492760768,
            11.193224052329489,
            42.853983462214124,
        ),
        (
            200,
            0.01,
            2.2942853737429163e-07,
            -7.182603020254283e-07,
            7.282516676954507e-07,
        ),
        (
            501,
            0.999,
            830.8023694227961,
            440.32495972488346,
            1445.301337861723,
        ),
        (
            1000,
            0.5,
            0.11449330626773904,
            0.07166804455151556,
            0.15731856798396254,
        ),
        (
            1000,
            0.9,
            6.655068069993859,
            4.967866880815259,
            8.522908169711275,
        ),
        (
            1000,
            0.95,
            16.556066113973397,
            10.819051216329733,
            24.011349706591204,
        ),
        (
            1000,
            0.99,
            187.37543311214228,
            89.42462571473129,
            289.38084781334106,
        ),
        (
            1000,
            0.999,
            634.3724919524436,
            495.3574853467301,
            960.2762255208359,
        ),
        (
            100000,
            0.1,
            0.00010838997172140052,
            0.00010049509667832319,
            0.0001162358537169079,
        ),
        (
            100000,
            0.5,
            0.12276751801666866,
            0.11902680234178893,
            0.12650823369154837,
        ),
        (
            100000,
            0.99,
            91.1266231097868,
            86.10681306924423,
            96.16040059936975,
        ),
        (
            100000,
            0.999,
            564.0728336773611,
            501.0205432594786,
            636.1106593014448,
        ),
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
