//! The error of an estimate from what it is without each cluster, whatever their lengths; that of a mean,
//! and the interval made from it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::clusters::n_effective;
use super::estimate::{Confidence, Estimate, finite};
use super::mean::{Sum, Totals};
use super::probability::{normal_two_sided, student_p, student_two_sided};
use super::windows::Cluster;

/// Hall's correction is made for at most this skewness of a mean. Beyond it the transformation is
/// nearly flat: intervals would explode, and cover no better (docs/INTERVALS.md).
const MAX_SKEWNESS: f64 = 0.3;

/// The logarithm of the factor, 1,000, by which an interval may reach above or below a mean that cannot be negative.
/// One that reaches further would say nothing: one cluster has nearly all of the mean, and how often such a one comes
/// is not known (docs/INTERVALS.md).
const MAX_REACH: f64 = 6.907_755_278_982_137;

/// The sums by cluster of values with their weights, where these are finite: the `i`-th value is in cluster
/// `clusters[i]`.
pub(super) fn by_cluster(
    clusters: &[Cluster],
    values: impl IntoIterator<Item = Totals>,
) -> BTreeMap<Cluster, Totals> {
    let mut sums = BTreeMap::<Cluster, Totals>::new();
    let mut values = values.into_iter();
    // Adjacent tokens mostly share a cluster: one look-up for each run of them.
    for run in clusters.chunk_by(|one, next| one == next) {
        let values_of_run = values.by_ref().take(run.len());
        *sums.entry(run[0]).or_default() += values_of_run
            .filter(|value| value.sum().is_finite())
            .collect();
    }
    sums.retain(|_, sum| sum.n > 0.0);
    sums
}

/// The degrees of freedom of an error from clusters of these lengths: as many as equal clusters that
/// they are worth, less one for each stratum, and at least 1.
pub(super) fn degrees<T: Copy>(clusters: &BTreeMap<Cluster, T>, length: impl Fn(&T) -> f64) -> f64 {
    let n_strata = strata(clusters).len() as f64;
    (n_effective(clusters.values().map(length)) - n_strata).max(1.0)
}

/// The standard error of an estimate, from its value without each cluster of each stratum
///
/// ```text
/// SE² = Σ_h (G_h − 1)/G_h · Σ_g (θ₍g₎ − θ̄_h)²
/// ```
///
/// (Efron & Tibshirani 1993, "An Introduction to the Bootstrap", 11.5; by stratum, Wolter 2007,
/// "Introduction to Variance Estimation", 4.5). Infinite where one of the values is.
///
/// One long cluster among short ones decides most of an estimate. The squares of the clusters' residuals
/// do not show that: it pulls the estimate towards itself. Only leaving it out shows how far it moves the
/// estimate.
pub(super) fn standard_error(strata: &[Vec<f64>]) -> f64 {
    let variance = |without: &Vec<f64>| {
        let n = without.len() as f64;
        let mean = without.iter().copied().collect::<Sum>().value() / n;
        let squares: Sum = without.iter().map(|x| (x - mean).powi(2)).collect();
        (n - 1.0) / n * squares.value()
    };
    let se = strata.iter().map(variance).collect::<Sum>().value().sqrt();
    if se.is_nan() { f64::INFINITY } else { se }
}

/// The clusters of each stratum.
///
/// A stratum of a single cluster is joined with the one before it, and the first with the next: one
/// cluster does not show how much clusters differ. What the joined strata differ by counts as
/// chance, which errs to the wide side (Cochran 1977, "Sampling Techniques", 5A.12).
pub(super) fn strata<T: Copy>(clusters: &BTreeMap<Cluster, T>) -> Vec<Vec<T>> {
    let mut strata: Vec<Vec<T>> = Vec::new();
    let clusters: Vec<(&Cluster, &T)> = clusters.iter().collect();
    for stratum in clusters.chunk_by(|(one, _), (next, _)| one.stratum == next.stratum) {
        let sums = stratum.iter().map(|(_, sums)| **sums);
        match strata.last_mut() {
            Some(last) if last.len() < 2 || stratum.len() < 2 => last.extend(sums),
            _ => strata.push(sums.collect()),
        }
    }
    strata
}

/// The uncertainty of a mean, with its samples as independent and with its clusters as independent.
///
/// It serves any smooth function of means too: the residuals are then those of its linearisation,
/// the gradient times the residuals of the means.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    n: f64,
    /// The standard error with samples as independent; `None` for fewer than two.
    pub se: Option<f64>,
    /// The third central moment of the mean, from the differences of samples within clusters.
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
    /// The changes of the mean without each cluster of each stratum.
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

/// The difference of two models' shares of tokens.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ShareDifference {
    /// The difference, with its interval by cluster.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The two-sided p-value of equal shares; `None` for fewer than two clusters.
    pub p: Option<f64>,
}

impl Spread {
    /// Computes both errors of a mean from its samples' residuals, whose sum is 0. The `i`-th belongs to
    /// cluster `clusters[i]`; NaN stands for a missing sample. A cluster's samples may be anywhere in the
    /// list.
    ///
    /// Without the samples of cluster g, whose residuals add up to T_g, a mean of n changes by
    /// `−T_g / (n − n_g)`; the clustered error is that of these changes (see [`standard_error`]). With
    /// clusters of equal size it is `G/(G−1) · Σ T_g² / n²`, with one sample per cluster the ordinary
    /// standard error.
    ///
    /// With strata, each has its own mean, whose share in the mean of all is not left to chance: a
    /// cluster changes only its stratum's mean.
    pub fn from_residuals(clusters: &[Cluster], residuals: impl IntoIterator<Item = f64>) -> Self {
        let residuals = residuals.into_iter().map(|x| Totals::of_powers(x, 1.0));
        Self::of_clusters(&by_cluster(clusters, residuals))
    }

    /// Computes both errors from the sums of each cluster's residuals.
    pub fn of_clusters(clusters: &BTreeMap<Cluster, Totals>) -> Self {
        let strata = strata(clusters);
        let n: f64 = clusters.values().map(|cluster| cluster.n).sum();
        let (mut squares, mut without) = (0.0, Vec::with_capacity(strata.len()));
        for stratum in &strata {
            let all: Totals = stratum.iter().copied().collect();
            let (mean, of_n) = (all.mean(), all.n / n);
            let [_, squares_about, _] = all.about(mean).sums;
            // So that the formula of one stratum gives the variance of several.
            squares += squares_about * all.n / (all.n - 1.0) * (n - 1.0) / n;
            let change =
                |cluster: &Totals| (cluster.n * mean - cluster.sum()) / (all.n - cluster.n) * of_n;
            without.push(Vec::from_iter(stratum.iter().map(change)));
        }
        let cubes = clusters
            .values()
            .map(|cluster| cluster.about(cluster.mean()).sums[2]);
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

    /// The interval of a mean of samples that cannot be negative: [`Self::interval`] of its logarithm, which
    /// a few clusters leave nearly symmetric. None where it would reach further than [`MAX_REACH`], as where
    /// one cluster has all samples above 0.
    pub fn interval_of_positive(&self, mean: f64, confidence: Confidence) -> ClusteredInterval {
        if mean <= 0.0 {
            return self.interval(mean, confidence).clamp(0.0, f64::INFINITY);
        }
        let ends = self.clustered.as_ref().and_then(|clustered| {
            let mut without = clustered.without.clone();
            let changes = without.iter_mut().flatten();
            changes.for_each(|change| *change = (*change / mean).ln_1p());
            let se = standard_error(&without);
            let (below, above) = self.reach(se, clustered.degrees, mean, confidence);
            let is_known = below.max(above) <= MAX_REACH;
            is_known.then(|| (mean * (-below).exp(), mean * above.exp()))
        });
        self.within(ends)
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

    /// A difference of shares, from Student's t alone: by the larger of the two standard errors.
    pub fn student(&self, value: f64, confidence: Confidence) -> ShareDifference {
        let errors = self.clustered.as_ref().zip(self.se);
        let known = errors.and_then(|(clustered, se)| {
            let se = clustered.se.max(se);
            let half_width = student_two_sided(confidence, clustered.degrees) * se;
            let p = finite(student_p(value, se, clustered.degrees))?;
            Some((Estimate::symmetric(value, half_width), p))
        });
        ShareDifference {
            estimate: known.map_or(Estimate::point(value), |(estimate, _)| estimate),
            p: known.map(|(_, p)| p),
        }
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
            // 0 is not known any better where the derivative is infinite.
            se: self
                .se
                .and_then(|se| finite(if se == 0.0 { 0.0 } else { se * derivative })),
            lo: end(self.lo),
            hi: end(self.hi),
            ..self
        }
    }

    /// The interval of a value that cannot be below `least` or above `most`.
    pub fn clamp(self, least: f64, most: f64) -> Self {
        Self {
            lo: self.lo.map(|lo| lo.max(least)),
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
    let root_less_1 = if y > -0.5 {
        // Does not cancel for small k.
        (y.ln_1p() / 3.0).exp_m1()
    } else {
        (1.0 + y).cbrt() - 1.0
    };
    3.0 / k * root_less_1
}

#[cfg(test)]
#[path = "tests/spread.rs"]
mod tests;
