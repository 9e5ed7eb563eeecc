//! The standard error of a mean whose samples are correlated within clusters, and the interval made
//! from it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cluster::{Cluster, by_cluster, degrees, standard_error, strata};
use super::estimate::{Confidence, Estimate, finite};
use super::mean::Powers;
use super::probability::{normal_two_sided, student_outside, student_two_sided};

/// Hall's correction is made for at most this skewness of a mean. Beyond it the transformation is
/// nearly flat: intervals would explode, and cover no better (docs/INTERVALS.md).
const MAX_SKEWNESS: f64 = 0.3;

/// The uncertainty of a mean, with its samples as independent and with its clusters as independent.
///
/// It serves any smooth function of means too: the residuals are then those of its linearisation,
/// the gradient times the residuals of the means.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    n: f64,
    /// The standard error with samples as independent; `None` for fewer than two.
    pub se: Option<f64>,
    /// The third central moment of the mean, as far as samples differ within clusters.
    cubes: f64,
    /// With clusters as independent; `None` for fewer than two.
    pub clustered: Option<ClusteredError>,
}

/// A cluster-robust standard error.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusteredError {
    /// The standard error of the mean.
    pub se: f64,
    /// Its degrees of freedom.
    pub degrees: f64,
    /// By how much the mean changes without each cluster of each stratum.
    without: Vec<Vec<f64>>,
}

/// The clustered interval of a value, with what it is made of.
///
/// All are `None` for fewer than two clusters.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ClusteredInterval {
    /// The cluster-robust standard error.
    #[serde(rename = "cluster_se")]
    pub se: Option<f64>,
    /// The lower end of the clustered interval.
    #[serde(rename = "cluster_lo")]
    pub lo: Option<f64>,
    /// The upper end of the clustered interval.
    #[serde(rename = "cluster_hi")]
    pub hi: Option<f64>,
    /// The number of independent samples that would tell as much: their number over the design effect, the
    /// variance as a multiple of that with samples as independent, where that is above 1.
    pub n_effective: Option<f64>,
}

impl Spread {
    /// Computes both errors of a mean from its samples' residuals, whose sum is 0. `residuals[i]`
    /// is in cluster `clusters[i]`; the samples of a cluster need not be adjacent.
    ///
    /// Without the samples of cluster g, whose residuals add up to T_g, a mean of n changes by
    /// `−T_g / (n − n_g)`; the clustered error is that of these changes (see [`standard_error`]). With
    /// clusters of equal size it is `G/(G−1) · Σ T_g² / n²`, with one sample per cluster the ordinary
    /// standard error.
    ///
    /// With strata, each has its own mean, whose share in the mean of all is not left to chance: a
    /// cluster changes only its stratum's mean.
    pub fn of(clusters: &[Cluster], residuals: impl IntoIterator<Item = f64>) -> Self {
        Self::of_clusters(&by_cluster(clusters, residuals))
    }

    /// The same from the sums of each cluster's residuals.
    pub fn of_clusters(clusters: &BTreeMap<Cluster, Powers>) -> Self {
        let strata = strata(clusters);
        let n: f64 = clusters.values().map(|cluster| cluster.n).sum();
        let (mut squares, mut without) = (0.0, Vec::with_capacity(strata.len()));
        for stratum in &strata {
            let all: Powers = stratum.iter().copied().collect();
            let (mean, of_n) = (all.mean(), all.n / n);
            let squares_about = all.about(mean).squares;
            // So that the formula of one stratum gives the variance of several.
            squares += squares_about * all.n / (all.n - 1.0) * (n - 1.0) / n;
            let change =
                |cluster: &Powers| (cluster.n * mean - cluster.sum) / (all.n - cluster.n) * of_n;
            without.push(Vec::from_iter(stratum.iter().map(change)));
        }
        let cubes = clusters
            .values()
            .map(|cluster| cluster.about(cluster.mean()).cubes);
        Self {
            n,
            se: (n >= 2.0).then(|| (squares / n / (n - 1.0)).sqrt()),
            cubes: cubes.sum::<f64>() / n.powi(3),
            clustered: (clusters.len() >= 2).then(|| ClusteredError {
                se: standard_error(&without),
                degrees: degrees(clusters, |cluster| cluster.n),
                without,
            }),
        }
    }

    /// The variance as a multiple of that with samples as independent.
    pub fn design_effect(&self) -> Option<f64> {
        finite((self.clustered.as_ref()?.se / self.se?).powi(2))
    }

    /// n over the design effect where that is above 1; n if it is unknown.
    pub fn n_effective(&self) -> f64 {
        self.n / self.design_effect().unwrap_or(1.0).max(1.0)
    }

    /// The number of independent samples that would give an interval of a share that is as wide: n
    /// over the design effect (1 where samples do not differ), less what Student's t costs with
    /// these clusters, and at most n. `None` for fewer than two clusters.
    ///
    /// Korn & Graubard 1998, "Confidence intervals for proportions with small expected number of
    /// positive counts estimated from survey data", Survey Methodology 24.
    pub fn n_for_share(&self, confidence: Confidence) -> Option<f64> {
        let degrees = self.clustered.as_ref()?.degrees;
        let design_effect = self.design_effect().unwrap_or(1.0);
        let z = normal_two_sided(confidence);
        let t = student_two_sided(confidence, degrees);
        Some(self.n / (design_effect * (t / z).powi(2)).max(1.0))
    }

    /// The interval of `value`: Student's t with Hall's correction for skewness, from the larger of
    /// the two standard errors.
    pub fn interval(&self, value: f64, confidence: Confidence) -> ClusteredInterval {
        let clustered = self.clustered.as_ref();
        let reach = clustered.map(|of| self.reach(of.se, of.degrees, 1.0, confidence));
        self.within(reach.map(|(below, above)| (value - below, value + above)))
    }

    /// The interval of a mean of samples that cannot be negative: the same, of its logarithm, which a
    /// few clusters leave nearly symmetric. Where some cluster has all that is above 0, it is that of the
    /// mean itself.
    pub fn interval_of_positive(&self, mean: f64, confidence: Confidence) -> ClusteredInterval {
        let ends = self.clustered.as_ref().and_then(|clustered| {
            let ln = |change: &f64| (change / mean).ln_1p();
            let without = clustered.without.iter();
            let se = standard_error(without.map(|stratum| Vec::from_iter(stratum.iter().map(ln))));
            let (below, above) = self.reach(se, clustered.degrees, mean, confidence);
            (mean > 0.0 && se.is_finite()).then(|| (mean * (-below).exp(), mean * above.exp()))
        });
        match ends {
            Some(_) => self.within(ends),
            None => self.interval(mean, confidence).not_below_0(),
        }
    }

    /// The interval with these ends, if they are finite.
    fn within(&self, ends: Option<(f64, f64)>) -> ClusteredInterval {
        let ends = ends.filter(|(lo, hi)| lo.is_finite() && hi.is_finite());
        ClusteredInterval {
            se: self.clustered.as_ref().and_then(|of| finite(of.se)),
            lo: ends.map(|(lo, _)| lo),
            hi: ends.map(|(_, hi)| hi),
            n_effective: self.clustered.as_ref().map(|_| self.n_effective()),
        }
    }

    /// The interval and the two-sided p-value of a value that may be 0, from Student's t alone: by
    /// the larger of the two standard errors. `None` for fewer than two clusters.
    pub fn student(&self, value: f64, confidence: Confidence) -> Option<(Estimate, f64)> {
        let clustered = self.clustered.as_ref()?;
        let se = clustered.se.max(self.se?);
        let half_width = student_two_sided(confidence, clustered.degrees) * se;
        let p = match value == 0.0 {
            true => 1.0,
            false => student_outside((value / se).abs(), clustered.degrees),
        };
        Some((Estimate::symmetric(value, half_width), finite(p)?))
    }

    /// The distances to the lower and to the upper end, in multiples of `unit`, as `clustered_se` is:
    /// from the larger of it and the error with samples as independent. Windows cannot really differ
    /// less than chance makes them.
    ///
    /// The skewness is that of samples within clusters: a few clusters do not show their own.
    fn reach(
        &self,
        clustered_se: f64,
        degrees: f64,
        unit: f64,
        confidence: Confidence,
    ) -> (f64, f64) {
        let se = clustered_se.max(self.se.unwrap_or(0.0) / unit);
        let skewness = finite(self.cubes / (se * unit).powi(3)).unwrap_or(0.0);
        let (below, above) = reach(student_two_sided(confidence, degrees), skewness);
        (below * se, above * se)
    }
}

impl ClusteredInterval {
    /// The estimate of this value that has this interval.
    pub fn around(&self, value: f64) -> Estimate {
        let (lo, hi) = (self.lo, self.hi);
        Estimate { value, lo, hi }
    }

    /// The interval of `f` of the value, for a rising `f` with this derivative at the value.
    pub fn map(self, f: impl Fn(f64) -> f64, derivative: f64) -> Self {
        let end = |end: Option<f64>| end.map(&f).and_then(finite);
        Self {
            se: self.se.and_then(|se| match se {
                0.0 => Some(0.0),
                se => finite(se * derivative),
            }),
            lo: end(self.lo),
            hi: end(self.hi),
            ..self
        }
    }

    /// The interval of a value that cannot be negative.
    pub fn not_below_0(self) -> Self {
        Self {
            lo: self.lo.map(|lo| lo.max(0.0)),
            ..self
        }
    }

    /// The interval of a value that is at most `most`.
    pub fn not_above(self, most: f64) -> Self {
        Self {
            hi: self.hi.map(|hi| hi.min(most)),
            ..self
        }
    }

    /// Half its width, if there are two clusters or more.
    pub fn half_width(&self) -> Option<f64> {
        let (lo, hi) = self.ends()?;
        Some(0.5 * (hi - lo))
    }

    /// Both ends, if there are two clusters or more.
    pub fn ends(&self) -> Option<(f64, f64)> {
        self.lo.zip(self.hi)
    }
}

/// The number of standard errors that an interval reaches below and above a mean.
///
/// Without skewness that is t on both sides. A right-skewed sample mostly underestimates its mean
/// and its error together, so the interval has to reach further up than down. Hall (1992, "On the
/// removal of skewness by transformation", J. R. Statist. Soc. B 54) turns the studentised mean T
/// into one that is nearly symmetric. With k the `skewness` of the mean (that of one observation,
/// over the square root of their number):
///
/// ```text
/// g(T) = T + k T²/3 + k² T³/27 + k/6,   g⁻¹(x) = (3/k) · ( (1 + k (x − k/6))^⅓ − 1 )
/// ```
///
/// The interval reaches from `mean − g⁻¹(t)·SE` to `mean − g⁻¹(−t)·SE`, with k at most
/// [`MAX_SKEWNESS`] to either side.
fn reach(t: f64, skewness: f64) -> (f64, f64) {
    let skewness = skewness.clamp(-MAX_SKEWNESS, MAX_SKEWNESS);
    let below = inverse(t, skewness);
    let above = -inverse(-t, skewness);
    // At tiny t the shift by k/6 would leave the mean outside.
    (below.max(0.0), above.max(0.0))
}

fn inverse(x: f64, k: f64) -> f64 {
    if k == 0.0 {
        return x;
    }
    let y = k * (x - k / 6.0);
    let root_less_1 = match y > -0.5 {
        // Does not cancel for small k.
        true => (y.ln_1p() / 3.0).exp_m1(),
        false => (1.0 + y).cbrt() - 1.0,
    };
    3.0 / k * root_less_1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::mean::Moments;
    use crate::stats::oracle::{assert_close, skewed};

    #[test]
    fn one_sample_per_cluster_gives_the_ordinary_error() {
        let samples = skewed(500);
        let clusters: Vec<Cluster> = (0..500).map(Cluster::from).collect();
        let moments = Moments::of(&samples).unwrap();
        let spread = Spread::of(&clusters, samples.iter().map(|x| x - moments.mean));
        let ordinary = moments.standard_error().unwrap();
        assert_close(spread.se.unwrap(), ordinary, 1e-13);
        let clustered = spread.clustered.as_ref().unwrap();
        assert_close(clustered.se, ordinary, 1e-13);
        assert_close(clustered.degrees, 499.0, 1e-13);
        assert_close(spread.design_effect().unwrap(), 1.0, 1e-13);
        assert_close(spread.n_effective(), 500.0, 1e-13);
    }

    #[test]
    fn matches_the_formula_by_hand() {
        // Residual totals: cluster 7 -> -3, cluster 2 -> +3. Without the one, the mean of the other is 3
        // more; without that, 3 / 3 less. (2 - 1) / 2 * ((3 - 1)² + (-1 - 1)²) = 4
        let spread = Spread::of(&[7, 2, 7, 7].map(Cluster::from), [-2.0, 3.0, -1.0, 0.0]);
        let error = spread.clustered.as_ref().unwrap();
        // 4² / (3² + 1²) - 1 = 0.6
        assert_eq!((error.se, error.degrees), (2.0, 1.0));
        // Independent: 14 / (4 * 3)
        assert_close(spread.design_effect().unwrap(), 4.0 * 12.0 / 14.0, 1e-14);
        assert_close(spread.n_effective(), 4.0 * 14.0 / 48.0, 1e-14);
    }

    /// Where clusters cancel, the interval is that of independent samples.
    #[test]
    fn the_larger_error_is_used() {
        let spread = Spread::of(
            &[0, 0, 1, 1, 2, 2].map(Cluster::from),
            [1.0, -1.0, 1.0, -1.0, 1.0, -1.0],
        );
        assert_eq!(spread.clustered.as_ref().unwrap().se, 0.0);
        assert_eq!(
            (spread.design_effect(), spread.n_effective()),
            (Some(0.0), 6.0)
        );
        let interval = spread.interval(5.0, Confidence::default());
        let half_width = student_two_sided(Confidence::default(), 2.0) * spread.se.unwrap();
        assert_close(interval.hi.unwrap() - 5.0, half_width, 1e-14);
        assert_eq!(interval.se, Some(0.0));
    }

    /// Its logarithm is less than all numbers without the cluster that has all of it.
    #[test]
    fn a_positive_mean_that_one_cluster_has_alone_has_an_interval() {
        let clusters = [0, 1, 2].map(Cluster::from);
        let of_zeros = Spread::of(&clusters, [0.0; 3]);
        let ends = |spread: &Spread, mean| {
            spread
                .interval_of_positive(mean, Confidence::default())
                .ends()
                .unwrap()
        };
        assert_eq!(ends(&of_zeros, 0.0), (0.0, 0.0));
        assert_eq!(ends(&of_zeros, 7.0), (7.0, 7.0));
        let (lo, hi) = ends(&Spread::of(&clusters, [2.0, -1.0, -1.0]), 1.0);
        assert!(lo == 0.0 && hi > 5.0, "{lo}, {hi}");
    }

    /// By hand, with t(1) = 12.706204736174694 and z = 1.959963984540054 at 95 %.
    #[test]
    fn few_clusters_cost_a_share_more() {
        let spread = Spread::of(&[0, 0, 1, 1].map(Cluster::from), [1.0, 1.0, -1.0, -1.0]);
        let factor = (12.706_204_736_174_694 / 1.959_963_984_540_054_f64).powi(2);
        // 2/1 * (4 + 4) / 4² = 1, independent 4 / (4 * 3)
        assert_close(spread.design_effect().unwrap(), 3.0, 1e-14);
        let got = spread.n_for_share(Confidence::default()).unwrap();
        assert_close(got, 4.0 / (3.0 * factor), 1e-12);
        let cancelling = Spread::of(&[0, 0, 1, 1].map(Cluster::from), [1.0, -1.0, 1.0, -1.0]);
        assert_eq!(cancelling.n_for_share(Confidence::default()), Some(4.0));
    }

    #[test]
    fn one_cluster_has_no_interval() {
        let spread = Spread::of(&[3; 4].map(Cluster::from), [1.0, -1.0, 2.0, -2.0]);
        assert!(spread.se.is_some() && spread.n_effective() == 4.0);
        let interval = spread.interval(5.0, Confidence::default());
        assert_eq!((interval.ends(), interval.n_effective), (None, None));
        assert_eq!(Spread::of(&[], []).se, None);
    }

    #[test]
    fn an_end_beyond_all_numbers_is_none() {
        let spread = Spread::of(&[0, 1, 2].map(Cluster::from), [1e308, -1e308, 0.0]);
        assert_eq!(spread.interval(0.0, Confidence::default()).ends(), None);
        let mapped = Spread::of(&[0, 1, 2].map(Cluster::from), [1.0, -1.0, 0.0])
            .interval(710.0, Confidence::default())
            .map(f64::exp, f64::INFINITY);
        assert_eq!((mapped.se, mapped.hi), (None, None));
    }

    mod hall {
        use super::*;
        use crate::stats::oracle::assert_close;

        /// The roots of g, by bisection, from `oracle.py`.
        #[test]
        fn inverts_the_transformation() {
            for (skewness, t, below, above) in HALL {
                let got = reach(t, skewness);
                assert_close(got.0, below, 1e-12);
                assert_close(got.1, above, 1e-12);
            }
        }

        const HALL: [(f64, f64, f64, f64); 24] = [
            (-0.3, 0.7, 0.8145472499288614, 0.6118059986337429),
            (-0.3, 1.96, 2.650403403447493, 1.6299069738107443),
            (-0.3, 2.045, 2.8112573037175657, 1.6924147878890041),
            (-0.3, 4.3, 16.731315497265285, 3.152060571428129),
            (-1e-06, 0.7, 0.7000003300001413, 0.6999996700001413),
            (-1e-06, 1.96, 1.960001447201612, 1.959998552801612),
            (-1e-06, 2.045, 2.045001560676811, 2.044998439326811),
            (-1e-06, 4.3, 4.300006330015201, 4.299993670015201),
            (1e-09, 0.7, 0.6999999996699999, 0.70000000033),
            (1e-09, 1.96, 1.9599999985528, 1.9600000014471999),
            (1e-09, 2.045, 2.044999998439325, 2.045000001560675),
            (1e-09, 4.3, 4.29999999367, 4.3000000063299995),
            (0.01, 0.7, 0.6967140458968087, 0.7033142144474868),
            (0.01, 1.96, 1.9456870588820243, 1.9746354337689345),
            (0.01, 2.045, 2.029571830487472, 2.060790443120654),
            (0.01, 4.3, 4.238177552422904, 4.364865504234912),
            (0.1, 0.7, 0.6683337678045186, 0.7345030617600461),
            (0.1, 1.96, 1.8294967797326844, 2.1234173447145612),
            (0.1, 2.045, 1.9048279036989506, 2.222209481487325),
            (0.1, 4.3, 3.7855592292155755, 5.150234339150335),
            (0.3, 0.7, 0.6118059986337429, 0.8145472499288614),
            (0.3, 1.96, 1.6299069738107443, 2.650403403447493),
            (0.3, 2.045, 1.6924147878890041, 2.8112573037175657),
            (0.3, 4.3, 3.152060571428129, 16.731315497265285),
        ];

        #[test]
        fn reaches_further_to_the_long_tail() {
            assert_eq!(reach(2.0, 0.0), (2.0, 2.0));
            let (below, above) = reach(2.0, 0.2);
            assert!(below < 2.0 && above > 2.0);
            assert_eq!(reach(2.0, -0.2), (above, below));
            // However skewed, the mean is inside, and the interval does not explode.
            let (below, above) = reach(1e-9, 0.99);
            assert!(below >= 0.0 && above >= 0.0);
            assert_eq!(reach(2.0, 0.99), reach(2.0, MAX_SKEWNESS));
        }
    }
}
