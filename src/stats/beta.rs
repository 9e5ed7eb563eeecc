//! The beta distribution, accurate to parameters of 1e7 and beyond.
//!
//! statrs' incomplete beta stops its continued fraction after 140 terms, where about `sqrt(a)` are
//! needed, and computes its prefactor from differences of log-gammas of the size of `a ln a`. Both
//! lose digits at the sample sizes that occur here, so the function is written out.

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
}
