mod ratio {
    use super::super::*;
    use crate::stats::mean::Sum;
    use crate::stats::oracle::{Lcg, assert_close, pinned};

    /// The ratio of clusters in these strata, with these numbers of tokens.
    fn ratio_in(clusters: &[(u32, f64)], a: &[f64], b: &[f64]) -> Option<Ratio> {
        let both = clusters.iter().zip(a.iter().zip(b)).zip(0..);
        let sums = both.map(|((&(stratum, n), (&a, &b)), number)| {
            let sums = [a, b, 0.0];
            (Cluster { stratum, number }, Totals { n, sums })
        });
        Ratio::from_sums(&sums.collect(), Confidence::default())
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
        for (got, [value, se_ln, lo, hi, upper, p]) in cases.into_iter().zip(pinned("RATIOS")) {
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

    /// scipy 1.17: `w = a + b; t.sf(ln(a.sum() / b.sum()) / se, w.sum()**2 / (w**2).sum() - 1)`, with the jackknife's
    /// `se` of the logarithm.
    #[test]
    fn unequal_clusters_are_worth_fewer_degrees_of_freedom() {
        let (a, b) = ([3.0, 5.0, 4.0, 8.0], [2.0, 4.0, 5.0, 6.0]);
        let clusters = (0..4).map(Cluster::from);
        let estimator = Estimator::new(clusters, Confidence::default());
        assert_close(
            p_no_farther(&estimator, &a, &b).unwrap(),
            0.158_952_255_517_065_16,
            1e-12,
        );
        assert_close(
            p_no_farther(&estimator, &b, &a).unwrap(),
            0.841_047_744_482_934_8,
            1e-12,
        );
        assert_eq!(p_no_farther(&estimator, &a, &[0.0; 4]), None);
        // One holds nearly all.
        let one = [1.0, 1.0, 1.0, 500.0];
        assert_eq!(p_no_farther(&estimator, &one, &one), None);
    }

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

mod paired {
    use super::super::*;
    use crate::stats::oracle::{assert_close, pinned, records, runs};
    use crate::stats::{ClusterRule, Clusters, WindowSums};

    fn compare(windows: &[u32], a: &[f64], b: &[f64]) -> Option<Paired> {
        let runs = runs(windows.iter().map(|window| (*window, 0)));
        let clusters = Clusters::by_rule(&WindowSums::from_tokens(&runs, a), ClusterRule::Window);
        Paired::compare(&clusters.estimator(&runs, Confidence::default()), a, b)
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
        for [is_block, groups, half, value, lo, hi] in pinned("DIFFERENCES") {
            let rule = if is_block == 1.0 {
                ClusterRule::Block
            } else {
                ClusterRule::Window
            };
            let groups = groups as u32;
            let runs = runs(records.iter().map(|r| (r.window, r.window % groups)));
            let klds: Vec<f64> = records.iter().map(|r| r.kld).collect();
            let others: Vec<f64> = records.iter().map(|r| half * r.reverse_kld).collect();
            let clusters = Clusters::by_rule(&WindowSums::from_tokens(&runs, &klds), rule);
            let estimator = clusters.estimator(&runs, Confidence::default());
            let got = Paired::compare(&estimator, &others, &klds)
                .unwrap()
                .difference;
            assert_close(got.value, value, 1e-9);
            assert_close(got.lo.unwrap(), lo, 1e-9);
            assert_close(got.hi.unwrap(), hi, 1e-9);
        }
    }
}

mod span_ratio {
    use super::super::*;
    use crate::stats::oracle::{assert_close, pinned, records};
    use crate::stats::{ClusterRule, Clusters, WindowSums};

    const NAMES: [&str; 5] = ["prompt", "answer", "reasoning", "tool call", "code"];

    /// The records' two divergences, as if they were two models', on the tokens of these spans.
    fn of_each(span: impl Fn(u32, u32) -> u32) -> Vec<SpanRatio> {
        let mut records: Vec<_> = records().into_iter().filter(|r| r.flags == 0).collect();
        for record in &mut records {
            record.span = span(record.window, record.position);
        }
        let runs = Run::from_records(&records);
        let klds: Vec<f64> = records.iter().map(|record| record.kld).collect();
        let reverse: Vec<f64> = records.iter().map(|record| record.reverse_kld).collect();
        let clusters =
            Clusters::by_rule(&WindowSums::from_tokens(&runs, &klds), ClusterRule::Window);
        let estimator = clusters.estimator(&runs, Confidence::default());
        let names = NAMES.map(str::to_owned);
        SpanRatio::of_each(&estimator, &runs, &names, &reverse, &klds)
    }

    /// The cases of `oracle.py`.
    #[test]
    fn matches_numpy_and_scipy() {
        let got = of_each(|window, position| match position {
            0..10 => 1,
            25.. if window % 3 == 0 => 3,
            _ => 2,
        });
        let labels: Vec<&str> = got.iter().map(|of| of.label.as_str()).collect();
        assert_eq!(labels, ["answer", "reasoning", "tool call"]);
        // Of a ratio and of its quotient with that of the others: value, ends and p-value.
        for (got, expected) in got.iter().zip(pinned::<8>("SPAN_RATIOS")) {
            let both = [got.ratio, got.to_others].map(Option::unwrap);
            let ends = |of: Ratio| [of.value, of.lo.unwrap(), of.hi.unwrap(), of.p.unwrap()];
            for (got, expected) in both.map(ends).as_flattened().iter().zip(expected) {
                assert_close(*got, expected, 1e-12);
            }
        }
    }

    #[test]
    fn a_single_span_is_all_of_the_tokens() {
        assert!(of_each(|_, _| 1).is_empty());
        // One that is in a single window has a ratio, but no interval.
        let got = of_each(|window, _| 1 + u32::from(window == 7));
        assert_eq!(got.len(), 2);
        assert!(got[1].ratio.is_some_and(|ratio| ratio.p.is_none()));
        assert!(got.iter().all(|of| of.to_others.is_none()));
    }
}

mod adjusted {
    use super::super::*;

    /// By hand: 0.01 · 4, 0.02 · 3, 0.03 · 2 (not below the one before), 0.9 · 1.
    #[test]
    fn holm_adjusts_each_by_how_many_are_left() {
        let got = holm(&[0.9, 0.01, 0.03, 0.02]);
        let expected = [0.9, 0.04, 0.06, 0.06];
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15));
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert_eq!(holm(&[0.7]), [0.7]);
        assert_eq!(holm(&[0.6, 1.0, 0.7]), [1.0; 3]);
    }
}
