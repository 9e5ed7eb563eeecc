//! Curves of one evaluation's KLDs, as few points.

use super::mean::Sum;
use super::windows::Windows;

/// A point of a curve: `[x, y]` in the JSON.
pub type Point = (f64, f64);

/// The most points of a distribution: more would not show in a plot.
const CCDF_POINTS: usize = 120;

/// The most points along a text.
const WINDOW_POINTS: usize = 200;

/// The share of counted tokens with at least a KLD: points of KLD (nats) and share, by ascending
/// KLD.
///
/// The shares are spaced evenly in their logarithm, down to that of the largest KLD alone. Infinite
/// KLDs count as large ones, and have no point.
///
/// `sorted` are the finite KLDs of `n` counted tokens, and ascend.
pub(super) fn ccdf(sorted: &[f64], n: usize) -> Vec<Point> {
    let last = (CCDF_POINTS - 1) as f64;
    let mut points: Vec<Point> = (0..CCDF_POINTS)
        .rev()
        .filter_map(|i| {
            let n_largest = (n as f64).powf(i as f64 / last).round() as usize;
            let kld = *sorted.get(n.checked_sub(n_largest)?)?;
            let n_below = sorted.partition_point(|other| *other < kld);
            Some((kld, (n - n_below) as f64 / n as f64))
        })
        .collect();
    points.dedup();
    points
}

/// The mean KLD along the text: points of the number of the first window, and the mean over the
/// finite KLDs from it up to the next point, in nats. Each point is of equally many windows.
pub(super) fn by_window(windows: &Windows) -> Vec<Point> {
    let mut windows: Vec<_> = windows.sums().collect();
    windows.sort_by_key(|(window, _)| *window);
    let per_point = windows.len().div_ceil(WINDOW_POINTS).max(1);
    let points = windows.chunks(per_point).map(|chunk| {
        let n: f64 = chunk.iter().map(|(_, sums)| sums.n).sum();
        let sum: Sum = chunk.iter().map(|(_, sums)| sums.sum).collect();
        (f64::from(chunk[0].0), sum.value() / n)
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use kl_formats::TokenRecord;

    use super::*;
    use crate::stats::oracle::{records, statistics};
    use crate::stats::{ClusterRule, Statistics};

    fn measured(records: &[TokenRecord]) -> Statistics {
        statistics(records, &[], ClusterRule::Window)
    }

    fn ccdf(records: &[TokenRecord]) -> Vec<Point> {
        measured(records).ccdf
    }

    fn by_window(records: &[TokenRecord]) -> Vec<Point> {
        measured(records).by_window
    }

    fn of_klds(klds: impl IntoIterator<Item = f64>) -> Vec<TokenRecord> {
        let template = records()[1];
        let of_kld = |(i, kld): (usize, f64)| TokenRecord {
            window: i as u32 / 10,
            position: i as u32 % 10,
            flags: 0,
            kld,
            ..template
        };
        klds.into_iter().enumerate().map(of_kld).collect()
    }

    #[test]
    fn shares_count_tokens_with_at_least_the_kld() {
        let records = of_klds([4.0, 1.0, 2.0, 2.0]);
        assert_eq!(ccdf(&records), [(1.0, 1.0), (2.0, 0.75), (4.0, 0.25)]);
        let records = of_klds([f64::INFINITY, 1.0]);
        assert_eq!(ccdf(&records), [(1.0, 1.0)]);
        assert_eq!(ccdf(&[]), []);
    }

    #[test]
    fn a_long_text_has_few_points_that_reach_both_ends() {
        let records = of_klds((1..=100_000).map(f64::from));
        let points = ccdf(&records);
        assert!(
            (60..=CCDF_POINTS).contains(&points.len()),
            "{}",
            points.len()
        );
        assert_eq!(points.first(), Some(&(1.0, 1.0)));
        assert_eq!(points.last(), Some(&(100_000.0, 1e-5)));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 > b.1));

        let along = by_window(&records);
        assert_eq!(along.len(), WINDOW_POINTS);
        assert_eq!(along[1], (50.0, (501..=1000).sum::<u64>() as f64 / 500.0));
    }

    #[test]
    fn a_short_text_has_a_point_for_each_window() {
        let mut records = of_klds((0..20).map(f64::from));
        records[19].kld = f64::INFINITY;
        records[0].flags = TokenRecord::EVAL_NOT_FINITE;
        assert_eq!(by_window(&records), [(0.0, 5.0), (1.0, 14.0)]);
    }
}
