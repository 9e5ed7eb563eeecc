//! The number of standard errors that an interval extends: normal and Student's t.

use statrs::function::erf::erfc_inv;

use super::beta;
use super::estimate::Confidence;

/// The z with `P(|Z| ≤ z) = confidence`, for a standard normal Z.
pub fn normal_two_sided(confidence: Confidence) -> f64 {
    std::f64::consts::SQRT_2 * erfc_inv(confidence.outside())
}

/// The t with `P(|T| ≤ t) = confidence`, for a Student T with ν = `degrees` > 0 degrees of freedom.
///
/// Computed from `T²/(ν + T²) ~ Beta(½, ν/2)`, which keeps its digits at any ν. (statrs' own
/// quantile is off by 2.5e-2 at ν = 1e7.)
pub fn student_two_sided(confidence: Confidence, degrees: f64) -> f64 {
    let (inside, outside) = (confidence.level(), confidence.outside());
    let y = beta::quantile(0.5, 0.5 * degrees, inside, outside);
    if y < 0.5 {
        return (degrees * y / (1.0 - y)).sqrt();
    }
    // From the other end, because 1 - y would lose digits here.
    let x = beta::quantile(0.5 * degrees, 0.5, outside, inside);
    (degrees * (1.0 - x) / x).sqrt()
}

/// `P(|T| > t)` for a Student T with ν = `degrees` > 0 degrees of freedom and `t ≥ 0`.
pub fn student_outside(t: f64, degrees: f64) -> f64 {
    let square = t * t;
    if square.is_infinite() {
        return 0.0;
    }
    // T²/(ν + T²) ~ Beta(½, ν/2); the smaller of it and its complement keeps the digits.
    if square < degrees {
        beta::tails(0.5, 0.5 * degrees, square / (degrees + square)).1
    } else {
        beta::tails(0.5 * degrees, 0.5, degrees / (degrees + square)).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(level: f64) -> Confidence {
        Confidence::new(level).unwrap()
    }

    /// scipy.stats.t.ppf((1 + level) / 2, degrees), from `oracle.py`.
    #[test]
    fn student_matches_scipy() {
        for (degrees, level, expected) in STUDENT {
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
        for (level, expected) in NORMAL {
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
        for (t, degrees, expected) in STUDENT_OUTSIDE {
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

    const STUDENT_OUTSIDE: [(f64, f64, f64); 24] = [
        (0.0, 1.0, 1.0),
        (0.0, 2.5, 1.0),
        (0.0, 29.0, 1.0),
        (0.0, 10000.0, 1.0),
        (1e-09, 1.0, 1.0),
        (1e-09, 2.5, 0.9999999992763825),
        (1e-09, 29.0, 0.9999999992089629),
        (1e-09, 10000.0, 0.9999999992021353),
        (0.5, 1.0, 0.7048327646991335),
        (0.5, 2.5, 0.6576979198697148),
        (0.5, 29.0, 0.6208480841937812),
        (0.5, 10000.0, 0.6170860793232337),
        (2.0, 1.0, 0.2951672353008665),
        (2.0, 2.5, 0.1573914957579659),
        (2.0, 29.0, 0.05494363718296717),
        (2.0, 10000.0, 0.04552726066143543),
        (7.0, 1.0, 0.0903344706017331),
        (7.0, 2.5, 0.010572369527591413),
        (7.0, 29.0, 1.07002715302214e-07),
        (7.0, 10000.0, 2.7240315606798312e-12),
        (40.0, 1.0, 0.015912179824051624),
        (40.0, 2.5, 0.0001419563429049338),
        (40.0, 29.0, 6.346877329729342e-27),
        (40.0, 10000.0, 0.0),
    ];

    const STUDENT: [(f64, f64, f64); 32] = [
        (1.0, 0.5, 1.0000000000000002),
        (1.0, 0.95, 12.706204736174694),
        (1.0, 0.99, 63.656741162871526),
        (1.0, 0.999, 636.6192487687897),
        (2.0, 0.5, 0.8164965809277261),
        (2.0, 0.95, 4.302652729749462),
        (2.0, 0.99, 9.924843200918287),
        (2.0, 0.999, 31.599054576445365),
        (5.0, 0.5, 0.7266868438004226),
        (5.0, 0.95, 2.5705818356363146),
        (5.0, 0.99, 4.032142983555228),
        (5.0, 0.999, 6.868826625881276),
        (30.0, 0.5, 0.6827556933212927),
        (30.0, 0.95, 2.0422724563012378),
        (30.0, 0.99, 2.7499956535672254),
        (30.0, 0.999, 3.6459586350420627),
        (999.0, 0.5, 0.6747354103467192),
        (999.0, 0.95, 1.9623414611334493),
        (999.0, 0.99, 2.5807596372676365),
        (999.0, 0.999, 3.3002924403987666),
        (10000.0, 0.5, 0.6745142844835927),
        (10000.0, 0.95, 1.960201239890626),
        (10000.0, 0.99, 2.5763210466685282),
        (10000.0, 0.999, 3.2914999659416355),
        (1000000.0, 0.5, 0.6744899955310875),
        (1000000.0, 0.95, 1.959966356814107),
        (1000000.0, 0.99, 2.5758342201053344),
        (1000000.0, 0.999, 3.2905364612487222),
        (10000000.0, 0.5, 0.6744897747295749),
        (10000000.0, 0.95, 1.959964221767205),
        (10000000.0, 0.99, 2.5758297952037488),
        (10000000.0, 0.999, 3.2905277044652532),
    ];
    const NORMAL: [(f64, f64); 6] = [
        (0.01, 0.012533469508069276),
        (0.5, 0.6744897501960817),
        (0.9, 1.6448536269514722),
        (0.95, 1.959963984540054),
        (0.99, 2.5758293035489004),
        (0.999, 3.2905267314919255),
    ];

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
