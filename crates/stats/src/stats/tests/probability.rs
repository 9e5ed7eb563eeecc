use super::*;
use crate::stats::oracle::pinned;

/// scipy.stats.beta.ppf, from `oracle.py`.
#[test]
fn quantile_matches_scipy() {
    for [a, b, p, expected] in pinned("BETA_QUANTILES") {
        let got = quantile(a, b, p, 1.0 - p);
        let error = (got / expected - 1.0).abs();
        assert!(
            error < 1e-13,
            "Beta({a}, {b}) at {p}: {got} vs {expected}, {error:e}"
        );
    }
}

#[test]
fn quantile_inverts_the_tails() {
    for (a, b) in [(0.5, 0.5), (2.5, 1e7), (3e6, 5e6), (1e9, 2e9)] {
        for p in [1e-6, 0.025, 0.5, 0.9] {
            let (lower, upper) = tails(a, b, quantile(a, b, p, 1.0 - p));
            assert!(
                (lower / p - 1.0).abs() < 1e-9,
                "Beta({a}, {b}) at {p}: {lower}"
            );
            assert!((lower + upper - 1.0).abs() < 1e-15);
        }
    }
}

mod student {
    use super::*;

    fn at(level: f64) -> Confidence {
        Confidence::new(level).unwrap()
    }

    /// scipy.stats.t.ppf((1 + level) / 2, degrees), from `oracle.py`.
    #[test]
    fn student_matches_scipy() {
        for [degrees, level, expected] in pinned("STUDENT") {
            let got = student_two_sided(at(level), degrees);
            let error = (got / expected - 1.0).abs();
            assert!(
                error < 1e-12,
                "t({degrees}) at {level}: {got} vs {expected}, {error:e}"
            );
        }
    }

    /// scipy.stats.norm.ppf((1 + level) / 2), from `oracle.py`.
    #[test]
    fn normal_matches_scipy() {
        for [level, expected] in pinned("NORMAL") {
            let got = normal_two_sided(at(level));
            let error = (got / expected - 1.0).abs();
            assert!(
                error < 1e-12,
                "normal at {level}: {got} vs {expected}, {error:e}"
            );
        }
    }

    /// 2 scipy.stats.t.sf(t, degrees), from `oracle.py`.
    #[test]
    fn what_is_outside_matches_scipy() {
        for [t, degrees, expected] in pinned("STUDENT_OUTSIDE") {
            let got = student_outside(t, degrees);
            // scipy's own are off by 6e-10 at 1 degree, and 0 below the smallest number.
            let error = (got - expected).abs() / expected.max(1e-300);
            assert!(error < 1e-9, "{t}, {degrees}: {got} vs {expected}");
        }
        for degrees in [0.3, 4.0, 1e5] {
            let t = student_two_sided(at(0.95), degrees);
            assert!((student_outside(t, degrees) / 0.05 - 1.0).abs() < 1e-12);
        }
        assert_eq!(student_outside(f64::INFINITY, 3.0), 0.0);
    }

    #[test]
    fn student_tends_to_normal_from_above() {
        for level in [0.5, 0.9, 0.95, 0.999] {
            let normal = normal_two_sided(at(level));
            let ts = [1.0, 3.0, 1e2, 1e4, 1e6, 1e9].map(|d| student_two_sided(at(level), d));
            assert!(ts.is_sorted_by(|a, b| a > b) && ts[5] > normal, "{ts:?}");
            assert!(ts[5] / normal - 1.0 < 1e-8);
        }
    }

    #[test]
    fn extreme_levels_stay_finite() {
        for level in [f64::MIN_POSITIVE, 1e-9, 1.0 - 1e-9, 1.0 - f64::EPSILON] {
            let normal = normal_two_sided(at(level));
            assert!(
                normal.is_finite() && normal >= 0.0,
                "normal at {level}: {normal}"
            );
            for degrees in [1.0, 2.0, 1e3, 1e7] {
                let t = student_two_sided(at(level), degrees);
                assert!(t.is_finite() && t >= 0.0, "t({degrees}) at {level}: {t}");
            }
        }
    }
}
