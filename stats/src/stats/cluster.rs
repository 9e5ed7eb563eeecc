//! The tokens that count as one observation, and the error of an estimate from what it is without each
//! of them, whatever their lengths.
//!
//! One long cluster among short ones decides most of an estimate. The squares of the clusters' residuals
//! do not show that: it pulls the estimate towards itself. Without it the estimate moves as far as it
//! really may.

use std::collections::BTreeMap;

use super::mean::{Powers, Sum};

/// One observation: the tokens of a window, of a block of windows, or of a part of a window, in its
/// stratum.
///
/// Groups of a text are strata: clusters never straddle them, and how many tokens each group has is
/// not left to chance. A number makes a cluster of the only stratum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cluster {
    pub(super) stratum: u32,
    pub(super) number: u32,
}

impl From<u32> for Cluster {
    fn from(number: u32) -> Self {
        Self { stratum: 0, number }
    }
}

/// The sums of some values by cluster: `values[i]` is in cluster `clusters[i]`.
pub(super) fn by_cluster(
    clusters: &[Cluster],
    values: impl IntoIterator<Item = f64>,
) -> BTreeMap<Cluster, Powers> {
    let mut sums = BTreeMap::<Cluster, Powers>::new();
    let mut values = values.into_iter();
    // Adjacent tokens mostly share a cluster: one look-up for each run of them.
    for run in clusters.chunk_by(|one, next| one == next) {
        *sums.entry(run[0]).or_default() += values.by_ref().take(run.len()).collect();
    }
    sums
}

/// The number of clusters of equal length that clusters of these lengths are worth, `(Σn)² / Σn²`
/// (Kish 1965, "Survey Sampling", 11.2C). 0 without tokens.
pub(super) fn n_effective(lengths: impl IntoIterator<Item = f64>) -> f64 {
    let add = |(sum, squares): (f64, f64), n: f64| (sum + n, squares + n * n);
    match lengths.into_iter().fold((0.0, 0.0), add) {
        (0.0, _) => 0.0,
        (sum, squares) => sum * sum / squares,
    }
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
pub(super) fn standard_error<S: AsRef<[f64]>>(strata: impl IntoIterator<Item = S>) -> f64 {
    let variance = |stratum: S| {
        let without = stratum.as_ref();
        let n = without.len() as f64;
        let mean = without.iter().copied().collect::<Sum>().value() / n;
        let squares: Sum = without.iter().map(|x| (x - mean).powi(2)).collect();
        (n - 1.0) / n * squares.value()
    };
    let se = strata
        .into_iter()
        .map(variance)
        .collect::<Sum>()
        .value()
        .sqrt();
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
