//! The mean of groups' means.

use std::collections::{BTreeMap, BTreeSet};

use super::clustered_error::Spread;
use super::columns::Columns;
use super::estimate::{Confidence, Estimate};
use super::mean::{Moments, Sum};
use super::strata::Cluster;

/// The mean of the groups' mean KLDs with its clustered interval, over the tokens whose KLD is
/// finite. A group that has none of these is not counted.
///
/// The clustered variances of the groups' means add up, over the square of the number of groups. The
/// variance of a group with a single cluster cannot be told, so there is no interval then. `None` for
/// fewer than two groups.
pub(super) fn macro_mean(
    columns: &Columns,
    clusters: &[Cluster],
    confidence: Confidence,
) -> Option<Estimate> {
    let mut tokens = columns.kld.iter().zip(clusters);
    let mut groups = BTreeMap::<u32, Group>::new();
    for run in &columns.runs {
        let tokens = tokens.by_ref().take(run.n_counted);
        for (kld, cluster) in tokens.filter(|(kld, _)| kld.is_finite()) {
            let group = groups.entry(run.group).or_default();
            group.klds.push(*kld);
            group.clusters.push(*cluster);
        }
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

#[cfg(test)]
mod tests {
    use kl_formats::TokenRecord;

    use super::super::oracle::{assert_close, records};
    use super::super::{ClusterRule, RunningInterval, Summary};
    use super::*;

    /// The records, in groups.
    fn grouped(group: fn(u32) -> u32) -> Vec<TokenRecord> {
        let mut records = records();
        for record in &mut records {
            record.group = group(record.window);
        }
        records
    }

    fn summary(records: &[TokenRecord]) -> Summary {
        Summary::from_records(records, Confidence::default(), ClusterRule::Window)
    }

    #[test]
    fn matches_numpy_and_scipy() {
        let records = grouped(|window| u32::from(window >= 5) + u32::from(window >= 20));
        let summary = summary(&records);
        let micro = summary.kld.unwrap().mean;
        let micro = Estimate {
            value: micro.estimate.value,
            lo: micro.clustered.lo,
            hi: micro.clustered.hi,
        };
        let both = [summary.kld_macro.unwrap(), micro];
        for (got, (value, lo, hi)) in both.into_iter().zip(MACRO_AND_MICRO) {
            assert_close(got.value, value, 1e-12);
            assert_close(got.lo.unwrap(), lo, 1e-11);
            assert_close(got.hi.unwrap(), hi, 1e-11);
        }
        let mut running = RunningInterval::default();
        for record in records.iter().filter(|r| r.flags == 0) {
            running.push(record.window, record.group, record.kld);
        }
        let width = running.relative_half_width(Confidence::default(), ClusterRule::Window);
        let half_width = 0.5 * (micro.hi.unwrap() - micro.lo.unwrap());
        assert_close(width.unwrap(), half_width / micro.value, 1e-11);
    }

    const MACRO_AND_MICRO: [(f64, f64, f64); 2] = [
        (0.4195048566190991, 0.3113204797657645, 0.589174457915319),
        (0.4403726113181395, 0.3228418967469451, 0.6481700438666395),
    ];

    #[test]
    fn a_group_with_one_cluster_leaves_no_interval() {
        let of_one = summary(&grouped(|window| u32::from(window == 39)));
        let mean = of_one.kld_macro.unwrap();
        assert!(mean.value > 0.0 && mean.lo.is_none() && mean.hi.is_none());
        // Joined with the others, it has its share in the mean of all.
        let all = summary(&grouped(|_| 0));
        assert_eq!(of_one.kld, all.kld);
        assert_eq!(all.kld_macro, None);
    }
}
