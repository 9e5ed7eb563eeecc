//! Two models on the same tokens: the ratio of their mean KLDs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cluster::Cluster;
use super::estimate::{Confidence, finite, finite_or_null};
use super::jackknife::{degrees, standard_error, strata};
use super::mean::Sum;
use super::probability::{student_one_sided, student_outside, student_two_sided};

/// The ratio of two models' mean KLDs on the same tokens: one is so many times as far from the reference
/// as the other.
///
/// What makes a text hard multiplies every model's KLD, so in the ratio it cancels, however far the
/// models are apart. Its interval is the exponential of that of its logarithm.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Ratio {
    /// The first model's mean KLD over the second's; null where it is not finite, because the
    /// second's is 0, and in a comparison where it is noise: below 1e-9, or at most twice the noise
    /// floor's.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(feature = "testing", schemars(with = "Option<f64>"))]
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

/// Two models' sums of KLDs over the tokens of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PairSums {
    /// The number of tokens.
    pub n: f64,
    pub a: f64,
    pub b: f64,
}

impl PairSums {
    /// The sums over all clusters.
    fn total(sums: &BTreeMap<Cluster, Self>) -> Self {
        let add = |of: fn(&Self) -> f64| sums.values().map(of).collect::<Sum>().value();
        Self {
            n: add(|sums| sums.n),
            a: add(|sums| sums.a),
            b: add(|sums| sums.b),
        }
    }

    /// The logarithm of the ratio, of these sums less those of a cluster.
    fn ln_without(self, cluster: Self) -> f64 {
        // A difference, so that swapping the two changes the sign alone.
        (self.a - cluster.a).ln() - (self.b - cluster.b).ln()
    }
}

impl Ratio {
    /// Estimates the ratio from both models' sums of KLDs in each cluster. `None` without clusters,
    /// and where both models' KLDs are all 0.
    ///
    /// The error is that of the ratio's logarithm, left without each cluster in turn (see
    /// `jackknife`), and the interval is Student's.
    pub fn of(sums: &BTreeMap<Cluster, PairSums>, confidence: Confidence) -> Option<Self> {
        let total = PairSums::total(sums);
        let PairSums { a, b, .. } = total;
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
        let without = sums.iter();
        let without = without.map(|(cluster, of)| (*cluster, total.ln_without(*of)));
        let se = standard_error(strata(&without.collect()));
        // The larger over the smaller, so that swapping the two changes the sign alone.
        let distance = (a.max(b) / a.min(b)).ln();
        let degrees = degrees(sums, |of| of.n);
        Some(Self::within(value, distance, se, degrees, confidence))
    }

    /// Estimates how many times as large the ratio is on some tokens as on others, from both models'
    /// sums of KLDs in each cluster that has such tokens. `None` where a sum of all clusters is 0, and
    /// for fewer than two clusters of either.
    ///
    /// Each cluster is left out of both at once, so what its tokens have in common cancels. The degrees
    /// of freedom are those of the tokens whose clusters are worth less, since what these differ by is
    /// known least.
    pub(super) fn of_ratios(
        inside: &BTreeMap<Cluster, PairSums>,
        outside: &BTreeMap<Cluster, PairSums>,
        confidence: Confidence,
    ) -> Option<Self> {
        let of = |sums: &BTreeMap<Cluster, PairSums>, cluster| {
            let sums: Option<&PairSums> = sums.get(cluster);
            sums.copied().unwrap_or_default()
        };
        let [total_in, total_out] = [inside, outside].map(PairSums::total);
        let value = total_in.a / total_in.b / (total_out.a / total_out.b);
        let without = inside.keys().chain(outside.keys()).map(|cluster| {
            let ln_inside = total_in.ln_without(of(inside, cluster));
            (
                *cluster,
                ln_inside - total_out.ln_without(of(outside, cluster)),
            )
        });
        let without: BTreeMap<Cluster, f64> = without.collect();
        let distance = value.ln().abs();
        let has_clusters = inside.len().min(outside.len()) > 1;
        (has_clusters && distance.is_finite()).then(|| {
            let [inside, outside] = [inside, outside].map(|sums| degrees(sums, |of| of.n));
            let se = standard_error(strata(&without));
            Self::within(value, distance, se, inside.min(outside), confidence)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::{Lcg, assert_close};

    /// The ratio of clusters in these strata, with these numbers of tokens.
    fn ratio_in(clusters: &[(u32, f64)], a: &[f64], b: &[f64]) -> Option<Ratio> {
        let both = clusters.iter().zip(a.iter().zip(b)).zip(0..);
        let sums = both.map(|((&(stratum, n), (&a, &b)), number)| {
            (Cluster { stratum, number }, PairSums { n, a, b })
        });
        Ratio::of(&sums.collect(), Confidence::default())
    }

    fn ratio(a: &[f64], b: &[f64]) -> Option<Ratio> {
        ratio_in(&vec![(0, 1.0); a.len()], a, b)
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
            ratio_in(&[0, 0, 1, 1].map(|stratum| (stratum, 1.0)), &a, &b),
            ratio_in(&[5.0, 9.0, 7.0, 19.0].map(|n| (0, n)), &a, &b),
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

    const RATIOS: [(f64, f64, f64, f64, f64, f64); 6] = [
        (
            1.1764705882352942,
            0.13170151537298708,
            0.7736667361996183,
            1.7889912803819752,
            1.6039357621132808,
            0.30506124791683903,
        ),
        (
            0.85,
            0.13170151537298705,
            0.5589742169042243,
            1.2925462000759769,
            1.1588435881268453,
            0.30506124791683864,
        ),
        (
            11.76470588235294,
            0.13170151537298716,
            7.736667361996181,
            17.889912803819755,
            16.039357621132815,
            0.0003328836965644246,
        ),
        (
            1.1764705882352942,
            0.10073540728461353,
            0.7626847188287124,
            1.814751247551275,
            1.5787996864398537,
            0.2480136483937392,
        ),
        (
            1.1764705882352942,
            0.13170151537298708,
            0.6846289519432521,
            2.021654271345252,
            1.7070988128057434,
            0.3373900083523721,
        ),
        (
            5.0200000000000005,
            0.126161094860187,
            3.773616061650455,
            6.6780508637590925,
            6.326185629112748,
            4.469306305776208e-07,
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
