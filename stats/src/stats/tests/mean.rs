use super::*;
use crate::stats::oracle::{assert_close, skewed};

/// scipy.stats.bayes_mvs(x, 0.95)[0] on `skewed(n)`, from `oracle.py`.
#[test]
fn interval_matches_scipy() {
    for (n, value, lo, hi) in BAYES_MVS {
        let estimate = Moments::of(&skewed(n))
            .unwrap()
            .estimate(Confidence::default());
        assert_close(estimate.value, value, 1e-14);
        assert_close(estimate.lo.unwrap(), lo, 1e-13);
        assert_close(estimate.hi.unwrap(), hi, 1e-13);
    }
}

const BAYES_MVS: [(usize, f64, f64, f64); 7] = [
    (2, 4.96489563929574, -39.11061254804639, 49.04040382663787),
    (
        3,
        0.3693602167423637,
        -1.1841824505952656,
        1.922902884079993,
    ),
    (
        10,
        4.657131381180526,
        -1.8692177264227814,
        11.183480488783832,
    ),
    (999, 5.688297423960203, 3.45180797092988, 7.9247868769905265),
    (
        1000,
        6.422763945608761,
        3.920311358245204,
        8.925216532972318,
    ),
    (
        1001,
        5.484381898670816,
        3.3105858236374957,
        7.658177973704136,
    ),
    (
        5000,
        4.228942151722298,
        3.427434907533585,
        5.030449395911011,
    ),
];

#[test]
fn small_and_constant_samples() {
    assert_eq!(Moments::of(&[]), None);
    let one = Moments::of(&[2.5]).unwrap();
    assert_eq!(one.estimate(Confidence::default()), Estimate::point(2.5));
    assert_eq!(one.standard_error(), None);
    for n in [2, 1000, 1001] {
        let constant = Moments::of(&vec![0.1; n]).unwrap();
        assert!(constant.standard_error().unwrap() < 1e-17);
        let estimate = constant.estimate(Confidence::default());
        let (lo, hi) = (estimate.lo.unwrap(), estimate.hi.unwrap());
        assert!((lo - 0.1).abs() < 1e-16 && (hi - 0.1).abs() < 1e-16);
    }
}

#[test]
fn sum_keeps_what_addition_drops() {
    let sum: Sum = [1.0, 1e100, 1.0, -1e100].into_iter().collect();
    assert_eq!(sum.value(), 2.0);
    let tenths: Sum = std::iter::repeat_n(0.1, 1_000_000).collect();
    assert!((tenths.value() - 1e5).abs() < 1e-10);
}
