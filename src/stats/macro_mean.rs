//! The mean of groups' means.

use std::collections::{BTreeMap, BTreeSet};

use kl_formats::sidecar::TokenRecord;

use super::cluster::{Cluster, Clusters};
use super::clustered_error::Spread;
use super::estimate::{Confidence, Estimate};
use super::mean::{Moments, Sum};

/// The mean of the groups' mean divergences with its clustered interval, over the tokens whose
/// divergence is finite. A group that has none of these is not counted.
///
/// The clustered variances of the groups' means add up, over the square of the number of groups. A
/// group with a single cluster has no variance to add, and there is no interval then. `None` for
/// fewer than two groups.
pub(super) fn macro_mean(
    records: &[&TokenRecord],
    clusters: &Clusters,
    divergence: impl Fn(&TokenRecord) -> f64,
    confidence: Confidence,
) -> Option<Estimate> {
    let mut groups = BTreeMap::<u32, Group>::new();
    for record in records.iter().filter(|r| divergence(r).is_finite()) {
        let group = groups.entry(record.group).or_default();
        group.klds.push(divergence(record));
        group.clusters.push(clusters.of_window(record.window));
    }
    if groups.len() < 2 {
        return None;
    }
    let n_groups = groups.len() as f64;
    let n: usize = groups.values().map(|group| group.klds.len()).sum();
    let (mut means, mut numbers, mut residuals) = (Sum::default(), Vec::new(), Vec::new());
    let mut have_intervals = true;
    for group in groups.into_values() {
        let mean = Moments::of(&group.klds)?.mean;
        means.add(mean);
        // Over all n tokens, the group weighs one of n_groups.
        let weight = n as f64 / group.klds.len() as f64 / n_groups;
        residuals.extend(group.klds.iter().map(|kld| weight * (kld - mean)));
        have_intervals &= group.clusters.iter().collect::<BTreeSet<_>>().len() > 1;
        numbers.extend(group.clusters);
    }
    let value = means.value() / n_groups;
    let spread = Spread::of(&numbers, residuals);
    let interval = spread.interval(value, confidence).not_below_0();
    let ends = interval.ends().filter(|_| have_intervals);
    Some(Estimate {
        value,
        lo: ends.map(|(lo, _)| lo),
        hi: ends.map(|(_, hi)| hi),
    })
}

#[derive(Default)]
struct Group {
    klds: Vec<f64>,
    clusters: Vec<Cluster>,
}
