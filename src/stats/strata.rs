//! Clusters in strata: clusters of different strata never mix, and each stratum has a mean of its
//! own.

use std::collections::BTreeMap;

use super::mean::Sum;

/// One observation: the tokens of a window or of a block of windows, in its stratum.
///
/// Groups of a text are strata: clusters never straddle them, and how many tokens each group has is
/// not left to chance. A number makes a cluster of the only stratum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cluster {
    pub(super) stratum: u32,
    pub(super) number: u32,
}

impl From<u32> for Cluster {
    fn from(number: u32) -> Self {
        Self { stratum: 0, number }
    }
}

/// The residuals of the samples in one stratum: sums of their powers, and each cluster's total.
#[derive(Clone, Debug, Default)]
pub(super) struct Stratum {
    pub powers: Powers<f64>,
    /// The number of samples in each cluster, and the sum of their residuals.
    pub clusters: Vec<(f64, f64)>,
}

/// The number of samples, and the sums of their powers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Powers<T> {
    pub n: f64,
    pub sum: T,
    pub squares: T,
    pub cubes: T,
}

impl Powers<Sum> {
    /// Adds a sample.
    pub fn push(&mut self, x: f64) {
        self.n += 1.0;
        self.sum.add(x);
        self.squares.add(x * x);
        self.cubes.add(x.powi(3));
    }

    /// The sums so far.
    pub fn values(&self) -> Powers<f64> {
        Powers {
            n: self.n,
            sum: self.sum.value(),
            squares: self.squares.value(),
            cubes: self.cubes.value(),
        }
    }
}

impl Powers<f64> {
    /// The same of the samples less `mean`.
    pub fn about(self, mean: f64) -> Self {
        let Self {
            n,
            sum,
            squares,
            cubes,
        } = self;
        Self {
            n,
            sum: sum - n * mean,
            squares: (squares - 2.0 * mean * sum + n * mean * mean).max(0.0),
            cubes: cubes - 3.0 * mean * squares + 3.0 * mean * mean * sum - n * mean.powi(3),
        }
    }
}

impl Stratum {
    /// The strata of `residuals`, the `i`-th of which is in cluster `clusters[i]`.
    pub fn of_each(
        clusters: &[Cluster],
        residuals: impl IntoIterator<Item = f64>,
    ) -> BTreeMap<u32, Self> {
        let mut strata = BTreeMap::<u32, (Powers<Sum>, BTreeMap<u32, (f64, Sum)>)>::new();
        let mut residuals = residuals.into_iter();
        // Adjacent samples mostly share a cluster: one look-up for each run of them.
        for run in clusters.chunk_by(|one, next| one == next) {
            let Cluster { stratum, number } = run[0];
            let (all, clusters) = strata.entry(stratum).or_default();
            let (n, total) = clusters.entry(number).or_default();
            let (mut powers, mut in_cluster) = (*all, *total);
            for residual in residuals.by_ref().take(run.len()) {
                powers.push(residual);
                in_cluster.add(residual);
            }
            (*all, *total) = (powers, in_cluster);
            *n += run.len() as f64;
        }
        let strata = strata.into_iter().map(|(stratum, (powers, clusters))| {
            let clusters = clusters.into_values();
            let clusters = clusters.map(|(n, total)| (n, total.value())).collect();
            let powers = powers.values();
            (stratum, Self { powers, clusters })
        });
        strata.collect()
    }

    /// Joins each stratum of a single cluster with the one before it, and the first with the next:
    /// one cluster does not show how much clusters differ. What the joined strata differ by counts
    /// as chance, which errs to the wide side (Cochran 1977, "Sampling Techniques", 5A.12).
    pub fn collapse(strata: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut joined: Vec<Self> = Vec::new();
        for stratum in strata {
            match joined.last_mut() {
                Some(last) if last.clusters.len() < 2 || stratum.clusters.len() < 2 => {
                    last.join(stratum);
                }
                _ => joined.push(stratum),
            }
        }
        joined
    }

    fn join(&mut self, other: Self) {
        self.powers.n += other.powers.n;
        self.powers.sum += other.powers.sum;
        self.powers.squares += other.powers.squares;
        self.powers.cubes += other.powers.cubes;
        self.clusters.extend(other.clusters);
    }

    /// The same residuals, about the stratum's own mean.
    pub fn centred(self) -> Self {
        let mean = self.powers.sum / self.powers.n;
        let clusters = self.clusters.into_iter();
        Self {
            powers: self.powers.about(mean),
            clusters: clusters.map(|(n, total)| (n, total - n * mean)).collect(),
        }
    }
}
