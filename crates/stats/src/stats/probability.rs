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

/// The two-sided p-value of a distance with this standard error, by Student's t; 1 for a distance of 0,
/// even without an error.
pub(super) fn student_p(distance: f64, se: f64, degrees: f64) -> f64 {
    if distance == 0.0 {
        return 1.0;
    }
    student_outside(distance.abs() / se, degrees)
}

/// `P(|T| > t)` for a Student T with ν = `degrees` > 0 degrees of freedom and `t ≥ 0`.
fn student_outside(t: f64, degrees: f64) -> f64 {
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
#[path = "tests/probability.rs"]
mod tests;
