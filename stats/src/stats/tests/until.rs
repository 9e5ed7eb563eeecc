use super::*;
use crate::stats::oracle::{assert_close, records, summary};

/// The summary's own interval is pinned to numpy and scipy.
#[test]
fn equals_the_summary_of_the_tokens_so_far() {
    let records = records();
    let confidence = Confidence::default();
    for rule in [ClusterRule::Window, ClusterRule::Auto] {
        let mut running = Until::new(0.0, confidence, rule);
        let windows = records.chunk_by(|one, next| one.window == next.window);
        for window in windows.rev() {
            running.push(window);
        }
        running.push(&[TokenRecord {
            kld: f64::INFINITY,
            ..records[0]
        }]);
        let kld = summary(&records, rule).kld.unwrap();
        let (lo, hi) = kld.mean.clustered.ends().unwrap();
        assert_close(running.klds.mean().unwrap(), kld.mean.estimate.value, 1e-13);
        let got = running.relative_half_width().unwrap();
        assert_close(got, 0.5 * (hi - lo) / kld.mean.estimate.value, 1e-11);
    }
}

#[test]
fn looks_from_100_windows_on() {
    let one = records()[0];
    let watch = || Until::new(1.0, Confidence::default(), ClusterRule::Window);
    let (mut running, mut same) = (watch(), watch());
    for window in 0..100 {
        assert!(!running.is_reached());
        let record = |kld| TokenRecord { window, kld, ..one };
        running.push(&[record(1.0 + f64::from(window % 3)), record(2.0)]);
        same.push(&[record(0.0)]);
    }
    assert!(running.is_reached() && !same.is_reached());
}

#[test]
fn the_running_mean_counts_what_the_statistics_count() {
    let one = records()[0];
    let record = |kld: f64, eval_nll: f64| TokenRecord {
        kld,
        eval_nll,
        ..one
    };
    let mut running = KldSoFar::default();
    running.push(&[]);
    assert_eq!(running.mean(), None);
    running.push(&[record(1.0, 1.0), record(f64::NAN, 1.0)]);
    // A probability of e^1000 is impossible, though no logit is marked.
    running.push(&[record(7.0, -1000.0), record(3.0, 1.0)]);
    running.push(&[record(f64::INFINITY, 1.0)]);
    assert_eq!(running.mean(), Some(2.0));
}
