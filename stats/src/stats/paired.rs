//! Two models on the same tokens: the ratio and the difference of their mean KLDs.

use std::collections::BTreeMap;

use super::cluster::{Cluster, by_cluster};
use super::clustered_mean::ClusteredMean;
use super::clusters::Clusters;
use super::estimate::{Confidence, Estimate};
use super::mean::Powers;
use super::ratio::{PairSums, Ratio};
use super::runs::Run;

/// The comparison of two models over the tokens that both count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// The number of tokens.
    pub n_tokens: u64,
    /// The first model's mean KLD over the second's; `None` where both are 0.
    pub ratio: Option<Ratio>,
    /// The first model's mean KLD less the second's, in nats, with its interval by cluster.
    pub difference: Estimate,
    /// Of the tokens whose KLDs differ, the share on which the first model is nearer to the
    /// reference; `None` if none differs.
    pub share_a_nearer: Option<f64>,
}

impl Paired {
    /// Compares the KLDs of two models, in nats, on the tokens of `runs`: NaN where a model does not
    /// count a token. `None` if they have no token in common.
    pub fn of(
        runs: &[Run],
        a: &[f64],
        b: &[f64],
        clusters: &Clusters,
        confidence: Confidence,
    ) -> Option<Self> {
        let tokens = clusters.of_tokens(runs).into_iter().zip(a.iter().zip(b));
        let counted = tokens.filter(|(_, (a, b))| !a.is_nan() && !b.is_nan());
        let (clusters, both): (Vec<Cluster>, Vec<(f64, f64)>) =
            counted.map(|(cluster, (a, b))| (cluster, (*a, *b))).unzip();
        let differences: Vec<f64> = both.iter().map(|(a, b)| a - b).collect();
        let n_nearer = both.iter().filter(|(a, b)| a < b).count();
        let n_farther = both.iter().filter(|(a, b)| a > b).count();
        let n_untied = n_nearer + n_farther;
        Some(Self {
            n_tokens: both.len() as u64,
            ratio: Ratio::of(&sums(&clusters, &both), confidence),
            difference: ClusteredMean::of(&clusters, &differences, confidence)?.by_cluster(),
            share_a_nearer: (n_untied > 0).then(|| n_nearer as f64 / n_untied as f64),
        })
    }
}

/// The sums of two models' KLDs in each cluster: the `i`-th token is in cluster `clusters[i]`.
pub(super) fn sums(clusters: &[Cluster], klds: &[(f64, f64)]) -> BTreeMap<Cluster, PairSums> {
    let of_a = by_cluster(clusters, klds.iter().map(|(a, _)| *a));
    let of_b = by_cluster(clusters, klds.iter().map(|(_, b)| *b));
    let sums = of_a.into_iter().zip(of_b.into_values());
    sums.map(
        |((cluster, Powers { n, sum: a, .. }), Powers { sum: b, .. })| {
            (cluster, PairSums { n, a, b })
        },
    )
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::{assert_close, records};
    use crate::stats::{ClusterRule, Windows};

    fn compare(windows: &[u32], a: &[f64], b: &[f64]) -> Option<Paired> {
        let runs = Run::of_each(windows.iter().map(|window| (*window, 0)));
        let clusters = Clusters::of(&Windows::of(&runs, a), ClusterRule::Window);
        Paired::of(&runs, a, b, &clusters, Confidence::default())
    }

    #[test]
    fn tokens_that_either_model_leaves_out_are_left_out() {
        let a = [1.0, 2.0, f64::NAN, 4.0, 5.0];
        let b = [2.0, 2.0, 3.0, f64::NAN, 1.0];
        let paired = compare(&[0, 0, 1, 1, 2], &a, &b).unwrap();
        assert_eq!((paired.n_tokens, paired.share_a_nearer), (3, Some(0.5)));
        assert_eq!(
            (paired.ratio.unwrap().value, paired.difference.value),
            (1.6, 1.0)
        );
        assert_eq!(compare(&[0, 0, 1, 1, 2], &a, &[f64::NAN; 5]), None);
    }

    #[test]
    fn equal_models_do_not_differ() {
        let same = compare(&[0, 0, 1, 1], &[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(same.difference, Estimate::within(0.0, 0.0, 0.0));
        assert_eq!(
            (same.ratio.unwrap().p, same.share_a_nearer),
            (Some(1.0), None)
        );
        let both_exact = compare(&[0, 1], &[0.0; 2], &[0.0; 2]).unwrap();
        assert_eq!(both_exact.ratio, None);
    }

    /// The records' two divergences, as if they were two models': `oracle.py`.
    #[test]
    fn the_difference_matches_numpy_and_scipy() {
        let records: Vec<_> = records().into_iter().filter(|r| r.flags == 0).collect();
        for (rule, groups, half, value, lo, hi) in DIFFERENCES {
            let runs = Run::of_each(records.iter().map(|r| (r.window, r.window % groups)));
            let klds: Vec<f64> = records.iter().map(|r| r.kld).collect();
            let others: Vec<f64> = records.iter().map(|r| half * r.reverse_kld).collect();
            let clusters = Clusters::of(&Windows::of(&runs, &klds), rule);
            let got = Paired::of(&runs, &others, &klds, &clusters, Confidence::default());
            let got = got.unwrap().difference;
            assert_close(got.value, value, 1e-12);
            assert_close(got.lo.unwrap(), lo, 1e-11);
            assert_close(got.hi.unwrap(), hi, 1e-11);
        }
    }

    const DIFFERENCES: [(ClusterRule, u32, f64, f64, f64, f64); 7] = [
        (
            ClusterRule::Window,
            1,
            1.0,
            0.012309529951745769,
            -0.031356893598200986,
            0.07324893498929375,
        ),
        (
            ClusterRule::Block,
            1,
            1.0,
            0.012309529951745769,
            -0.03225678703888048,
            0.08403079512759769,
        ),
        (
            ClusterRule::Window,
            3,
            1.0,
            0.012309529951745769,
            -0.030635639179335702,
            0.07319538959617056,
        ),
        (
            ClusterRule::Window,
            1,
            0.9,
            -0.032958684175242746,
            -0.0724470676710875,
            0.00920678633281475,
        ),
        (
            ClusterRule::Window,
            3,
            0.9,
            -0.032958684175242746,
            -0.07120763900365149,
            0.008149586081570286,
        ),
        (
            ClusterRule::Block,
            1,
            0.7,
            -0.12349511242921982,
            -0.18698148788438368,
            -0.08606350941435711,
        ),
        (
            ClusterRule::Block,
            3,
            0.7,
            -0.12349511242921982,
            -0.19139322805705783,
            -0.08351599324937917,
        ),
    ];
}
