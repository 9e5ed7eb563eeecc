//! The tokens that count as one observation: those of a window, of a block of windows, or of a part of
//! a window.

use std::collections::BTreeMap;

use super::mean::Powers;

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
