//! Two models on the same tokens: the ratio of their mean KLDs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cluster::Cluster;
use super::estimate::{Confidence, finite, finite_or_null};
use super::mean::Sum;
use super::probability::{student_one_sided, student_outside, student_two_sided};
use super::spread::strata;

/// The ratio of two models' mean KLDs on the same tokens: one is so many times as far from the reference
/// as the other.
///
/// What makes a text hard multiplies every model's KLD, so in the ratio it cancels, however far the
/// models are apart. Its interval is the exponential of that of its logarithm.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Ratio {
    /// The first model's mean KLD over the second's; null where it is not finite, because the
    /// second's is 0, and in a comparison where it is noise: below 1e-9, or at most twice the noise
    /// floor's.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(test, schemars(with = "Option<f64>"))]
    pub value: f64,
    /// The standard error of its natural logarithm, by cluster; `None` for fewer than two clusters,
    /// and where a mean is 0.
    pub se_ln: Option<f64>,
    /// The lower end of its interval.
    pub lo: Option<f64>,
    /// The upper end of its interval.
    pub hi: Option<f64>,
    /// The end of the one-sided interval: the true ratio is below it with the asked confidence.
    pub upper: Option<f64>,
    /// The two-sided p-value of equally far models; `None` for fewer than two clusters.
    pub p: Option<f64>,
}

impl Ratio {
    /// Estimates the ratio from both models' sums of KLDs in each cluster. `None` without clusters,
    /// and where both models' KLDs are all 0.
    ///
    /// With A_g and B_g the sums of cluster g, `u_g = A_g/ΣA − B_g/ΣB`, and
    ///
    /// ```text
    /// SE² = Σ_h G_h/(G_h−1) · Σ_g (u_g − ū_h)²
    /// ```
    ///
    /// is the variance of ln(ΣA/ΣB), with one stratum h or several (the delta method; Cochran 1977,
    /// "Sampling Techniques", ch. 6). The interval is Student's, with a degree of freedom for each
    /// cluster less one for each stratum.
    pub fn of(sums: &BTreeMap<Cluster, [f64; 2]>, confidence: Confidence) -> Option<Self> {
        let total = |i: usize| sums.values().map(|sums| sums[i]).collect::<Sum>().value();
        let [a, b] = [total(0), total(1)];
        let value = a / b;
        if value.is_nan() {
            return None;
        }
        let point = |p| Self {
            value,
            se_ln: None,
            lo: None,
            hi: None,
            upper: None,
            p,
        };
        if sums.len() < 2 {
            return Some(point(None));
        }
        if a == 0.0 || b == 0.0 {
            // Only one of them is the reference's equal: 0 times as far as the other, or infinitely.
            let end = finite(value);
            return Some(Self {
                lo: end,
                hi: end,
                upper: end,
                ..point(Some(0.0))
            });
        }
        let influences = sums
            .iter()
            .map(|(cluster, [of_a, of_b])| (*cluster, of_a / a - of_b / b));
        let se = standard_error(&influences.collect());
        // The larger over the smaller, so that swapping the two changes the sign alone.
        let distance = (a.max(b) / a.min(b)).ln();
        Some(Self::within(value, distance, se, degrees(sums), confidence))
    }

    /// Estimates how many times as large the ratio is on some tokens as on others, from both models'
    /// sums of KLDs in each cluster that has such tokens. `None` where a sum of all clusters is 0, and
    /// for fewer than two clusters of either.
    ///
    /// A cluster's influence on the logarithm is its influence on that of the ratio inside less its
    /// influence outside. The degrees of freedom are those of the tokens that are in fewer clusters,
    /// since what these differ by is known least.
    pub(super) fn of_ratios(
        inside: &BTreeMap<Cluster, [f64; 2]>,
        outside: &BTreeMap<Cluster, [f64; 2]>,
        confidence: Confidence,
    ) -> Option<Self> {
        let mut influences = BTreeMap::<Cluster, f64>::new();
        let mut value = 1.0;
        for (sums, sign) in [(inside, 1.0), (outside, -1.0)] {
            let total = |i: usize| sums.values().map(|sums| sums[i]).collect::<Sum>().value();
            let [a, b] = [total(0), total(1)];
            value *= (a / b).powf(sign);
            for (cluster, [of_a, of_b]) in sums {
                *influences.entry(*cluster).or_default() += sign * (of_a / a - of_b / b);
            }
        }
        let distance = value.ln().abs();
        let has_clusters = inside.len().min(outside.len()) > 1;
        (has_clusters && distance.is_finite()).then(|| {
            let degrees = degrees(inside).min(degrees(outside));
            Self::within(
                value,
                distance,
                standard_error(&influences),
                degrees,
                confidence,
            )
        })
    }

    /// A ratio whose logarithm is `distance` from 0, and has this standard error.
    fn within(value: f64, distance: f64, se: f64, degrees: f64, confidence: Confidence) -> Self {
        let factor = (student_two_sided(confidence, degrees) * se).exp();
        let factor_above = (student_one_sided(confidence, degrees) * se).exp();
        Self {
            value,
            se_ln: finite(se),
            lo: finite(value / factor),
            hi: finite(value * factor),
            upper: finite(value * factor_above),
            p: match distance == 0.0 {
                true => Some(1.0),
                false => finite(student_outside(distance / se, degrees)),
            },
        }
    }

    /// The p-value alone, where the second mean is too small for a multiple of it to say anything.
    pub fn p_alone(self) -> Self {
        Self {
            value: f64::INFINITY,
            se_ln: None,
            lo: None,
            hi: None,
            upper: None,
            p: self.p,
        }
    }

    /// The second model over the first. Its one-sided end is not known.
    pub fn inverse(self) -> Self {
        Self {
            value: 1.0 / self.value,
            lo: self.hi.map(f64::recip),
            hi: self.lo.map(f64::recip),
            upper: None,
            ..self
        }
    }
}

/// The standard error of a number from the clusters' influences on it.
fn standard_error(influences: &BTreeMap<Cluster, f64>) -> f64 {
    let variances = strata(influences).into_iter().map(|stratum| {
        let n = stratum.len() as f64;
        let mean = stratum.iter().copied().collect::<Sum>().value() / n;
        let squares: Sum = stratum.iter().map(|u| (u - mean).powi(2)).collect();
        n / (n - 1.0) * squares.value()
    });
    variances.collect::<Sum>().value().sqrt()
}

/// A degree of freedom for each cluster, less one for each stratum.
fn degrees(sums: &BTreeMap<Cluster, [f64; 2]>) -> f64 {
    (sums.len() - strata(sums).len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::{Lcg, assert_close};

    fn ratio_in(strata: &[u32], a: &[f64], b: &[f64]) -> Option<Ratio> {
        let both = strata.iter().zip(a.iter().zip(b)).zip(0..);
        let sums = both.map(|((&stratum, (a, b)), number)| (Cluster { stratum, number }, [*a, *b]));
        Ratio::of(&sums.collect(), Confidence::default())
    }

    fn ratio(a: &[f64], b: &[f64]) -> Option<Ratio> {
        ratio_in(&vec![0; a.len()], a, b)
    }

    /// The cases of `oracle.py`.
    #[test]
    fn matches_numpy_and_scipy() {
        let (a, b) = ([3.0, 5.0, 4.0, 8.0], [2.0, 4.0, 5.0, 6.0]);
        let rare = [0.06, 0.06, 0.06, 0.06, 0.011, 0.06, 0.06, 0.06, 0.06, 0.011];
        let cases = [
            ratio(&a, &b),
            ratio(&b, &a),
            ratio(&a.map(|x| 10.0 * x), &b),
            ratio_in(&[0, 0, 1, 1], &a, &b),
            ratio(&rare, &[0.01; 10]),
        ];
        for (got, (value, se_ln, lo, hi, upper, p)) in cases.into_iter().zip(RATIOS) {
            let got = got.unwrap();
            assert_close(got.value, value, 1e-14);
            let got = [got.se_ln, got.lo, got.hi, got.upper, got.p].map(Option::unwrap);
            for (got, expected) in got.into_iter().zip([se_ln, lo, hi, upper, p]) {
                assert!(
                    (got / expected - 1.0).abs() < 1e-12,
                    "{got}, not {expected}"
                );
            }
        }
    }

    const RATIOS: [(f64, f64, f64, f64, f64, f64); 5] = [
        (
            1.1764705882352942,
            0.12824788569229673,
            0.7822170022221184,
            1.7694361552495053,
            1.5909523740021905,
            0.294506368574915,
        ),
        (
            0.85,
            0.12824788569229673,
            0.5651517841054806,
            1.2784176221677674,
            1.1494630902165828,
            0.294506368574915,
        ),
        (
            11.764705882352942,
            0.12824788569229673,
            7.822170022221186,
            17.69436155249505,
            15.909523740021907,
            0.00030753888317504503,
        ),
        (
            1.1764705882352942,
            0.14227513673468029,
            0.6378567338490343,
            2.169896422713441,
            1.7823991203057303,
            0.3716506375160169,
        ),
        (
            5.0200000000000005,
            0.1301460823373174,
            3.7397510361417003,
            6.738523435506351,
            6.372567186275394,
            5.83243159990705e-07,
        ),
    ];

    /// Sums of so many clusters, and those of a model that is `factor` times as far.
    fn models(n: usize, factor: f64) -> [Vec<f64>; 2] {
        let mut lcg = Lcg::new(n as u64);
        let b: Vec<f64> = (0..n).map(|_| 0.5 + lcg.uniform()).collect();
        let a = b.iter().map(|b| factor * b * (0.9 + 0.2 * lcg.uniform()));
        [a.collect(), b]
    }

    #[test]
    fn swapping_the_models_inverts_the_ratio() {
        for n in [2, 3, 10, 33] {
            for factor in [1e-6, 0.5, 1.0, 1.2, 30.0] {
                let [a, b] = models(n, factor);
                let (one, other) = (ratio(&a, &b).unwrap(), ratio(&b, &a).unwrap());
                assert_eq!((one.se_ln, one.p), (other.se_ln, other.p));
                assert_close(one.value * other.value, 1.0, 1e-15);
                assert_close(one.lo.unwrap() * other.hi.unwrap(), 1.0, 1e-15);
            }
        }
    }

    /// With the clusters' shares as they are, so that only the ratio grows.
    #[test]
    fn p_falls_strictly_as_the_ratio_grows() {
        for n in [2, 3, 10, 33, 300] {
            let [a, b] = models(n, 1.0);
            let total = |of: &[f64]| of.iter().copied().collect::<Sum>().value();
            let even = total(&b) / total(&a);
            let p_at = |ln: f64| {
                let factor = even * ln.exp();
                let a: Vec<f64> = a.iter().map(|a| factor * a).collect();
                ratio(&a, &b).unwrap().p.unwrap()
            };
            for sign in [-1.0, 1.0] {
                let mut last = 1.0;
                for step in 1..60 {
                    let p = p_at(sign * 0.002 * 1.15_f64.powi(step));
                    assert!(
                        p < last || p == 0.0,
                        "{n} clusters, step {step}: {p}, {last}"
                    );
                    last = p;
                }
            }
        }
    }

    #[test]
    fn what_has_no_error_is_certain() {
        let same = ratio(&[1.0, 2.0], &[1.0, 2.0]).unwrap();
        assert_eq!((same.value, same.lo, same.p), (1.0, Some(1.0), Some(1.0)));
        let twice = ratio(&[2.0, 4.0], &[1.0, 2.0]).unwrap();
        assert_eq!((twice.upper, twice.p), (Some(2.0), Some(0.0)));
        let exact = ratio(&[1.0, 2.0], &[0.0, 0.0]).unwrap();
        assert_eq!(
            (exact.value, exact.hi, exact.p),
            (f64::INFINITY, None, Some(0.0))
        );
        let exact = ratio(&[0.0, 0.0], &[1.0, 2.0]).unwrap();
        assert_eq!(
            (exact.value, exact.upper, exact.p),
            (0.0, Some(0.0), Some(0.0))
        );
        let one_cluster = ratio(&[3.0], &[2.0]).unwrap();
        assert_eq!(
            (one_cluster.value, one_cluster.hi, one_cluster.p),
            (1.5, None, None)
        );
        assert_eq!(ratio(&[0.0; 3], &[0.0; 3]), None);
        assert_eq!(ratio(&[], &[]), None);
    }
}
