//! The beta, normal and Student distributions, accurate to parameters of 1e7 and beyond.
//!
//! statrs' incomplete beta stops its continued fraction after 140 terms, where about `sqrt(a)` are
//! needed, and computes its prefactor from differences of log-gammas of the size of `a ln a`. Both
//! lose digits at the sample sizes that occur here, so the function is written out.

use statrs::function::erf::erfc_inv;

use super::estimate::Confidence;

/// ln sqrt(2 pi)
const LN_SQRT_2PI: f64 = 0.918_938_533_204_672_8;

/// From this argument on, the asymptotic series of [`stirling_error`] is exact to f64.
const SERIES_FROM: f64 = 16.0;

/// The error of Stirling's formula, `ln Γ(z) − [(z − ½) ln z − z + ½ ln 2π]`, for `z > 0`.
///
/// Source: Abramowitz & Stegun 6.1.41; smaller arguments by the recurrence of Γ.
fn stirling_error(z: f64) -> f64 {
    let mut z = z;
    let mut below = 0.0;
    while z < SERIES_FROM {
        below += (z + 0.5) * (1.0 / z).ln_1p() - 1.0;
        z += 1.0;
    }
    const SERIES: [f64; 6] = [
        1.0 / 12.0,
        -1.0 / 360.0,
        1.0 / 1260.0,
        -1.0 / 1680.0,
        1.0 / 1188.0,
        -691.0 / 360_360.0,
    ];
    let step = 1.0 / (z * z);
    let series = SERIES.iter().rev().fold(0.0, |sum, c| sum * step + c);
    below + series / z
}

/// `ln(r)`, given both `r` and `change = r − 1`: uses the one that does not cancel.
fn ln_ratio(r: f64, change: f64) -> f64 {
    if change.abs() < 0.5 {
        change.ln_1p()
    } else {
        r.ln()
    }
}

/// `a − (a+b) x`, computed from the smaller of x and 1−x.
fn below_mean(a: f64, b: f64, x: f64) -> f64 {
    if x > 0.5 {
        (a + b) * (1.0 - x) - b
    } else {
        a - (a + b) * x
    }
}

/// `x^a (1−x)^b / B(a, b)` for `0 < x < 1`.
///
/// Written around the mean `a/(a+b)`, so that no large logarithms cancel (Didonato & Morris,
/// ACM TOMS 708, `BRCOMP`).
fn power_terms(a: f64, b: f64, x: f64) -> f64 {
    let y = 1.0 - x;
    let sum = a + b;
    let excess = below_mean(a, b, x);
    let exponent = a * ln_ratio(x * sum / a, -excess / a) + b * ln_ratio(y * sum / b, excess / b);
    let correction = stirling_error(sum) - stirling_error(a) - stirling_error(b);
    let scale = 0.5 * (a.ln() + b.ln() - sum.ln()) - LN_SQRT_2PI;
    (scale + correction + exponent).exp()
}

/// The continued fraction F with `P(X ≤ x) = x^a y^b / (B(a, b) F)`, `y = 1 − x`, by Lentz's
/// method.
///
/// The caller gives `excess = a − (a+b) x`, which it can compute without cancellation.
///
/// Didonato & Morris, ACM TOMS 708, `BFRAC`, in the form
///
/// ```text
/// F = b₀ + a₁/(b₁ + a₂/(b₂ + …))
/// aₘ = (a+m−1) (a+b+m−1) m (b−m) x² / (a+2m−1)²
/// bₘ = m + m (b−m) x / (a+2m−1) + (a+m) (excess + 1 + m (1+y)) / (a+2m+1)
/// ```
///
/// Converges fast for `x < (a+1)/(a+b+2)`, in about `sqrt(max(a, b))` terms at worst.
fn continued_fraction(a: f64, b: f64, (x, y): (f64, f64), excess: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away_from_zero = |v: f64| if v.abs() < TINY { TINY } else { v };
    let max_terms = 1000 + 20 * a.max(b).sqrt() as u64;

    let mut fraction = away_from_zero(a * (excess + 1.0) / (a + 1.0));
    let mut c = fraction;
    let mut d = 0.0;
    for term in 1..=max_terms {
        let m = term as f64;
        let before = a + 2.0 * m - 1.0;
        let cross = m * (b - m) * x / before;
        let numerator = (a + m - 1.0) * (a + b + m - 1.0) * cross * x / before;
        let denominator = m + cross + (a + m) * (excess + 1.0 + m * (1.0 + y)) / (before + 2.0);
        d = 1.0 / away_from_zero(denominator + numerator * d);
        c = away_from_zero(denominator + numerator / c);
        let change = c * d;
        fraction *= change;
        if (change - 1.0).abs() <= f64::EPSILON {
            break;
        }
    }
    fraction
}

/// Both tails of Beta(a, b) at `x`: `(P(X ≤ x), P(X > x))`, the smaller one without cancellation.
pub fn tails(a: f64, b: f64, x: f64) -> (f64, f64) {
    let y = 1.0 - x;
    if x <= 0.0 {
        (0.0, 1.0)
    } else if y <= 0.0 {
        (1.0, 0.0)
    } else if x < (a + 1.0) / (a + b + 2.0) {
        let fraction = continued_fraction(a, b, (x, y), below_mean(a, b, x));
        let lower = power_terms(a, b, x) / fraction;
        (lower, 1.0 - lower)
    } else {
        let fraction = continued_fraction(b, a, (y, x), -below_mean(a, b, x));
        let upper = power_terms(a, b, x) / fraction;
        (1.0 - upper, upper)
    }
}

/// The `x` with `P(X ≤ x) = lower` and `P(X > x) = upper` for X ~ Beta(a, b), `a, b > 0`.
///
/// The two probabilities sum to 1; giving both keeps the digits of a far tail. Solved by Newton's
/// method on the smaller one, inside a shrinking bracket.
pub(super) fn quantile(a: f64, b: f64, lower: f64, upper: f64) -> f64 {
    const MAX_STEPS: usize = 200;
    const TOLERANCE: f64 = 1e-15;
    let (mut below, mut above) = (0.0, 1.0);
    let mut x = a / (a + b);
    for _ in 0..MAX_STEPS {
        let (p, q) = tails(a, b, x);
        let excess = if lower <= upper { p - lower } else { upper - q };
        if excess == 0.0 {
            break;
        }
        if excess > 0.0 {
            above = x;
        } else {
            below = x;
        }
        let density = power_terms(a, b, x) / (x * (1.0 - x));
        let newton = x - excess / density;
        let next = if newton > below && newton < above {
            newton
        } else {
            0.5 * (below + above)
        };
        let settled = (next - x).abs() <= TOLERANCE * x;
        x = next;
        if settled {
            break;
        }
    }
    x
}

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
    let y = quantile(0.5, 0.5 * degrees, inside, outside);
    if y < 0.5 {
        return (degrees * y / (1.0 - y)).sqrt();
    }
    // From the other end, because 1 - y would lose digits here.
    let x = quantile(0.5 * degrees, 0.5, outside, inside);
    (degrees * (1.0 - x) / x).sqrt()
}

/// The t with `P(T ≤ t) = confidence`, for a Student T with ν = `degrees` > 0 degrees of freedom: 0
/// for a confidence of ½ or less, since no upper end is below the value.
pub fn student_one_sided(confidence: Confidence, degrees: f64) -> f64 {
    let inside = Confidence::new(2.0 * confidence.level() - 1.0);
    inside.map_or(0.0, |inside| student_two_sided(inside, degrees))
}

/// `P(|T| > t)` for a Student T with ν = `degrees` > 0 degrees of freedom and `t ≥ 0`.
pub fn student_outside(t: f64, degrees: f64) -> f64 {
    let square = t * t;
    if square.is_infinite() {
        return 0.0;
    }
    // T²/(ν + T²) ~ Beta(½, ν/2); the smaller of it and its complement keeps the digits.
    if square < degrees {
        tails(0.5, 0.5 * degrees, square / (degrees + square)).1
    } else {
        tails(0.5 * degrees, 0.5, degrees / (degrees + square)).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// scipy.stats.beta.ppf, from `oracle.py`.
    #[test]
    fn quantile_matches_scipy() {
        for (a, b, p, expected) in PINNED {
            let got = quantile(a, b, p, 1.0 - p);
            let error = (got / expected - 1.0).abs();
            assert!(
                error < 1e-13,
                "Beta({a}, {b}) at {p}: {got} vs {expected}, {error:e}"
            );
        }
    }

    const PINNED: [(f64, f64, f64, f64); 44] = [
        (0.5, 0.5, 0.005, 6.168375916970068e-05),
        (0.5, 0.5, 0.025, 0.001541333133436012),
        (0.5, 0.5, 0.5, 0.4999999999999999),
        (0.5, 0.5, 0.975, 0.9984586668665639),
        (0.5, 10.5, 0.005, 1.915059649943142e-06),
        (0.5, 10.5, 0.025, 4.7890433157581876e-05),
        (0.5, 10.5, 0.5, 0.021940166768717413),
        (0.5, 10.5, 0.975, 0.21719626750921053),
        (1.5, 100.5, 0.005, 0.0003558778409801837),
        (1.5, 100.5, 0.025, 0.0010703768005596197),
        (1.5, 100.5, 0.5, 0.011673227613592681),
        (1.5, 100.5, 0.975, 0.04533496210032598),
        (2.5, 9.5, 0.005, 0.01992818134722055),
        (2.5, 9.5, 0.025, 0.039826943084991136),
        (2.5, 9.5, 0.5, 0.19183314322370001),
        (2.5, 9.5, 0.975, 0.467243791022445),
        (50.5, 50.5, 0.005, 0.3736232360408633),
        (50.5, 50.5, 0.025, 0.40317395089641805),
        (50.5, 50.5, 0.5, 0.5),
        (50.5, 50.5, 0.975, 0.596826049103582),
        (999.5, 1.5, 0.005, 0.9935998839526161),
        (999.5, 1.5, 0.025, 0.9953355411912086),
        (999.5, 1.5, 0.5, 0.9988174169493913),
        (999.5, 1.5, 0.975, 0.999892081195319),
        (1234.5, 8766.5, 0.005, 0.11510783804290163),
        (1234.5, 8766.5, 0.025, 0.11706297185589627),
        (1234.5, 8766.5, 0.5, 0.12341255436446447),
        (1234.5, 8766.5, 0.975, 0.129954986657764),
        (9.5, 1000000.0, 0.005, 3.421965324444145e-06),
        (9.5, 1000000.0, 0.025, 4.4532293990950045e-06),
        (9.5, 1000000.0, 0.5, 9.168745447891846e-06),
        (9.5, 1000000.0, 0.975, 1.642595871258647e-05),
        (900000.0, 100000.5, 0.005, 0.8992252983669873),
        (900000.0, 100000.5, 0.025, 0.8994108028396426),
        (900000.0, 100000.5, 0.5, 0.8999998166664527),
        (900000.0, 100000.5, 0.975, 0.9005867817192514),
        (3000000.5, 7000000.5, 0.005, 0.2996268220676404),
        (3000000.5, 7000000.5, 0.025, 0.2997160321518848),
        (3000000.5, 7000000.5, 0.5, 0.3000000066666669),
        (3000000.5, 7000000.5, 0.975, 0.30028408362033127),
        (0.5, 10000000.5, 0.005, 1.9635210619358405e-12),
        (0.5, 10000000.5, 0.025, 4.910345462997084e-11),
        (0.5, 10000000.5, 0.5, 2.2746820328599193e-08),
        (0.5, 10000000.5, 0.975, 2.5119427153660024e-07),
    ];

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
}
