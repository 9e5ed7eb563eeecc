mod clustered_mean {
    use super::super::*;
    use crate::stats::oracle::{estimator, splitmix_normals};

    #[test]
    fn one_window_has_no_clustered_interval() {
        let samples = [1.0, 2.0, 3.0, 4.0];
        let mean = estimator([3; 4]).mean(samples.into_iter()).unwrap();
        assert!(mean.independent.lo.is_some() && mean.se.is_some());
        assert_eq!(mean.clustered.ends(), None);
        assert_eq!(estimator([]).mean([].into_iter()), None);
    }

    /// Samples of a window share a term, as the tokens of a text do: intra-window correlation 1/4.
    #[test]
    fn clustered_interval_covers_what_it_promises() {
        const REPLICATIONS: usize = 1000;
        const WINDOWS: u32 = 30;
        const TRUTH: f64 = 0.25;
        let mut normals = splitmix_normals(7);
        let mut normal = || normals.next().unwrap();
        let (mut naive, mut clustered) = (0, 0);
        for _ in 0..REPLICATIONS {
            let (mut windows, mut samples) = (Vec::new(), Vec::new());
            for window in 0..WINDOWS {
                let shared = normal() / 3f64.sqrt();
                // Unequal sizes: the last window of a text is short.
                for _ in 0..20 + window % 3 * 10 {
                    windows.push(window);
                    samples.push(TRUTH + shared + normal());
                }
            }
            let mean = estimator(windows).mean(samples.into_iter()).unwrap();
            let holds = |lo: Option<f64>, hi: Option<f64>| {
                (lo.unwrap()..=hi.unwrap()).contains(&TRUTH) as usize
            };
            naive += holds(mean.independent.lo, mean.independent.hi);
            clustered += holds(mean.clustered.lo, mean.clustered.hi);
        }
        // A true share of 95 % lies within 93..97 in 99.6 % of such experiments.
        let share = |hits: usize| hits as f64 / REPLICATIONS as f64;
        assert!(
            (0.93..=0.97).contains(&share(clustered)),
            "{}",
            share(clustered)
        );
        assert!(share(naive) < 0.7, "{}", share(naive));
    }

    mod groups {

        use super::*;
        use crate::stats::ClusterRule;
        use crate::stats::oracle::{self, assert_close, pinned, records};

        /// The mean of the records, in groups.
        fn mean(group: fn(u32) -> u32) -> ClusteredMean {
            let mut records = records();
            for record in &mut records {
                record.group = group(record.window);
            }
            let summary = oracle::summary(&records, ClusterRule::Window);
            summary.kld.unwrap().mean
        }

        #[test]
        fn strata_match_numpy_and_scipy() {
            let mean = mean(|window| u32::from(window >= 5) + u32::from(window >= 20));
            let [value, lo, hi] = pinned("STRATIFIED").next().unwrap();
            assert_close(mean.independent.value, value, 1e-12);
            assert_close(mean.clustered.lo.unwrap(), lo, 1e-11);
            assert_close(mean.clustered.hi.unwrap(), hi, 1e-11);
        }

        #[test]
        fn a_group_of_one_cluster_is_joined_with_the_others() {
            assert_eq!(mean(|window| u32::from(window == 39)), mean(|_| 0));
        }
    }
}

mod proportion {
    use super::super::*;
    use crate::stats::oracle::{assert_close, estimator, pinned};

    /// scipy.stats.beta.ppf([0.025, 0.975], k + 0.5, n - k + 0.5), from `oracle.py`.
    #[test]
    fn matches_scipy() {
        for [k, n, lo, hi] in pinned("JEFFREYS") {
            let got = jeffreys(k / n, n, Confidence::default());
            assert_close(got.value, k / n, 1e-15);
            assert_close(got.lo.unwrap(), lo, 1e-13);
            assert_close(got.hi.unwrap(), hi, 1e-13);
        }
    }

    #[test]
    fn none_and_all() {
        let at = |k, n| {
            jeffreys(
                f64::from(k) / f64::from(n),
                f64::from(n),
                Confidence::default(),
            )
        };
        assert_eq!(at(0, 50).lo, Some(0.0));
        assert_eq!(at(50, 50).hi, Some(1.0));
        assert!(at(0, 50).hi.unwrap() < 0.05);
        assert_eq!(at(0, 1).lo, Some(0.0));
        assert_eq!(estimator([]).share([].into_iter()), None);
    }

    #[test]
    fn mirrored_counts_give_mirrored_intervals() {
        for n in [1, 3, 1000, 10_000_000] {
            for k in [0, n / 7, n / 2] {
                let at = |k: u64| {
                    let share = k as f64 / n as f64;
                    jeffreys(share, n as f64, Confidence::default())
                };
                let (left, right) = (at(k), at(n - k));
                assert_close(left.lo.unwrap(), 1.0 - right.hi.unwrap(), 1e-9);
                assert!(left.lo.unwrap() <= left.value && left.value <= left.hi.unwrap());
            }
        }
    }
}
