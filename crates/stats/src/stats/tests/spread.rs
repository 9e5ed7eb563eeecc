use super::*;
use crate::stats::mean::Moments;
use crate::stats::oracle::{assert_close, skewed};

#[test]
fn one_sample_per_cluster_gives_the_ordinary_error() {
    let samples = skewed(500);
    let clusters: Vec<Cluster> = (0..500).map(Cluster::from).collect();
    let moments = Moments::from_samples(samples.iter().copied()).unwrap();
    let spread = Spread::from_residuals(&clusters, samples.iter().map(|x| x - moments.mean));
    let ordinary = moments.standard_error().unwrap();
    assert_close(spread.se.unwrap(), ordinary, 1e-13);
    let clustered = spread.clustered.as_ref().unwrap();
    assert_close(clustered.se, ordinary, 1e-13);
    assert_close(clustered.degrees, 499.0, 1e-13);
    assert_close(spread.design_effect().unwrap(), 1.0, 1e-13);
    assert_close(spread.n_effective(), 500.0, 1e-13);
}

#[test]
fn matches_the_formula_by_hand() {
    // Residual totals: cluster 7 -> -3, cluster 2 -> +3. Without the one, the mean of the other is 3
    // more; without that, 3 / 3 less. (2 - 1) / 2 * ((3 - 1)² + (-1 - 1)²) = 4
    let spread = Spread::from_residuals(&[7, 2, 7, 7].map(Cluster::from), [-2.0, 3.0, -1.0, 0.0]);
    let error = spread.clustered.as_ref().unwrap();
    // 4² / (3² + 1²) - 1 = 0.6
    assert_eq!((error.se, error.degrees), (2.0, 1.0));
    // Independent: 14 / (4 * 3)
    assert_close(spread.design_effect().unwrap(), 4.0 * 12.0 / 14.0, 1e-14);
    assert_close(spread.n_effective(), 4.0 * 14.0 / 48.0, 1e-14);
}

/// Where clusters cancel, the interval is that of independent samples.
#[test]
fn the_larger_error_is_used() {
    let spread = Spread::from_residuals(
        &[0, 0, 1, 1, 2, 2].map(Cluster::from),
        [1.0, -1.0, 1.0, -1.0, 1.0, -1.0],
    );
    assert_eq!(spread.clustered.as_ref().unwrap().se, 0.0);
    assert_eq!(
        (spread.design_effect(), spread.n_effective()),
        (Some(0.0), 6.0)
    );
    let interval = spread.interval(5.0, Confidence::default());
    let half_width = student_two_sided(Confidence::default(), 2.0) * spread.se.unwrap();
    assert_close(interval.hi.unwrap() - 5.0, half_width, 1e-14);
    assert_eq!(interval.se, Some(0.0));
}

/// Without the cluster that has all of it, its logarithm is less than all numbers; without one that has nearly all,
/// far less than its own.
#[test]
fn a_positive_mean_that_one_cluster_decides_has_no_interval() {
    let clusters = [0, 1, 2].map(Cluster::from);
    let interval = |residuals: [f64; 3], mean| {
        let spread = Spread::from_residuals(&clusters, residuals);
        spread.interval_of_positive(mean, Confidence::default())
    };
    assert_eq!(interval([0.0; 3], 0.0).ends(), Some((0.0, 0.0)));
    assert_eq!(interval([0.0; 3], 7.0).ends(), Some((7.0, 7.0)));
    for other in [0.0, 1e-6, 0.01] {
        let mean = (3.0 + 2.0 * other) / 3.0;
        let of_one = interval([3.0 - mean, other - mean, other - mean], mean);
        assert_eq!(of_one.ends(), None, "{other}");
        assert!(of_one.n_effective.is_some());
    }
    // By hand: without a cluster the mean of 3, 1 and 1 is 1, 2 and 2. ln(1 / (5/3)) = -0.51083, ln(2 / (5/3)) =
    // 0.18232 twice; SE² = 2/3 * (0.46210² + 2 * 0.23105²) = 0.21353 = (2/3 * ln 2)²; t(2) = 4.30265, from its
    // closed form.
    let mean = 5.0 / 3.0;
    let (lo, hi) = interval([3.0 - mean, 1.0 - mean, 1.0 - mean], mean)
        .ends()
        .unwrap();
    let t = 0.95 / (2.0 * 0.975 * 0.025_f64).sqrt();
    let reach = t * 2.0_f64.ln() * 2.0 / 3.0;
    assert_close(lo, mean * (-reach).exp(), 1e-12);
    assert_close(hi, mean * reach.exp(), 1e-12);
}

/// By hand, with t(1) = 12.706204736174694 and z = 1.959963984540054 at 95 %.
#[test]
fn few_clusters_cost_a_share_more() {
    let spread = Spread::from_residuals(&[0, 0, 1, 1].map(Cluster::from), [1.0, 1.0, -1.0, -1.0]);
    let factor = (12.706_204_736_174_694 / 1.959_963_984_540_054_f64).powi(2);
    // 2/1 * (4 + 4) / 4² = 1, independent 4 / (4 * 3)
    assert_close(spread.design_effect().unwrap(), 3.0, 1e-14);
    let got = spread.n_for_share(Confidence::default()).unwrap();
    assert_close(got, 4.0 / (3.0 * factor), 1e-12);
    let cancelling =
        Spread::from_residuals(&[0, 0, 1, 1].map(Cluster::from), [1.0, -1.0, 1.0, -1.0]);
    assert_eq!(cancelling.n_for_share(Confidence::default()), Some(4.0));
}

#[test]
fn one_cluster_has_no_interval() {
    let spread = Spread::from_residuals(&[3; 4].map(Cluster::from), [1.0, -1.0, 2.0, -2.0]);
    assert!(spread.se.is_some() && spread.n_effective() == 4.0);
    let interval = spread.interval(5.0, Confidence::default());
    assert_eq!((interval.ends(), interval.n_effective), (None, None));
    assert_eq!(Spread::from_residuals(&[], []).se, None);
}

#[test]
fn an_end_beyond_all_numbers_is_none() {
    let spread = Spread::from_residuals(&[0, 1, 2].map(Cluster::from), [1e308, -1e308, 0.0]);
    assert_eq!(spread.interval(0.0, Confidence::default()).ends(), None);
    let mapped = Spread::from_residuals(&[0, 1, 2].map(Cluster::from), [1.0, -1.0, 0.0])
        .interval(710.0, Confidence::default())
        .map(f64::exp, f64::INFINITY);
    assert_eq!((mapped.se, mapped.hi), (None, None));
}

mod hall {
    use super::*;
    use crate::stats::oracle::{assert_close, pinned};

    /// The roots of g, by bisection, from `oracle.py`.
    #[test]
    fn inverts_the_transformation() {
        for [skewness, t, below, above] in pinned("HALL") {
            let got = reach(t, skewness);
            assert_close(got.0, below, 1e-12);
            assert_close(got.1, above, 1e-12);
        }
    }

    #[test]
    fn reaches_further_to_the_long_tail() {
        assert_eq!(reach(2.0, 0.0), (2.0, 2.0));
        let (below, above) = reach(2.0, 0.2);
        assert!(below < 2.0 && above > 2.0);
        assert_eq!(reach(2.0, -0.2), (above, below));
        // However skewed, the mean is inside, and the interval does not explode.
        let (below, above) = reach(1e-9, 0.99);
        assert!(below >= 0.0 && above >= 0.0);
        assert_eq!(reach(2.0, 0.99), reach(2.0, MAX_SKEWNESS));
    }
}
