mod distribution {
    use super::super::*;

    #[test]
    fn shares_of_the_largest() {
        let mut samples = vec![1.0; 2000];
        (samples[1998], samples[1999]) = (1001.0, 2002.0);
        let tail = Tail::from_sorted(&samples);
        // 2 of 2,000, and 20 of them; the sum is 5,001.
        assert_eq!(tail.top_0_1_percent, Some(3003.0 / 5001.0));
        assert_eq!(tail.top_1_percent, Some(3021.0 / 5001.0));
        assert_eq!(tail.mean_without_max, Some(2999.0 / 1999.0));
    }

    #[test]
    fn part_of_a_token_counts_in_proportion() {
        let mut samples = vec![1.0; 1500];
        (samples[1498], samples[1499]) = (5.0, 11.0);
        assert_eq!(
            Tail::from_sorted(&samples).top_0_1_percent,
            Some(13.5 / 1514.0)
        );
    }

    #[test]
    fn too_few_and_only_zeros() {
        let tail = Tail::from_sorted(&[1.0; 999]);
        assert_eq!(tail.top_0_1_percent, None);
        assert!(tail.top_1_percent.is_some());
        assert_eq!(Tail::from_sorted(&[0.0; 1000]).top_0_1_percent, None);
        assert_eq!(Tail::from_sorted(&[1.0]).mean_without_max, None);
    }
}

mod delta_p {
    use super::super::*;
    use crate::stats::oracle::{assert_close, estimator};

    #[test]
    fn rms_and_its_error() {
        let got = DeltaP::from_changes(&estimator([0, 0, 1]), &[0.1, -0.3, 0.2]).unwrap();
        let mean_square: f64 = (0.01 + 0.09 + 0.04) / 3.0;
        let mean_fourth: f64 = (0.0001 + 0.0081 + 0.0016) / 3.0;
        let se = ((mean_fourth - mean_square.powi(2)) / 2.0).sqrt();
        assert_close(got.rms.value, mean_square.sqrt(), 1e-14);
        assert_close(got.rms.se.unwrap(), 0.5 * se / mean_square.sqrt(), 1e-12);
        assert_eq!((got.min, got.max), (-0.3, 0.2));
        assert_close(got.mean.independent.value, 0.0, 1e-13);
    }

    #[test]
    fn no_change_and_no_tokens() {
        let got = DeltaP::from_changes(&estimator([0, 1]), &[0.0, 0.0]).unwrap();
        assert_eq!((got.rms.value, got.rms.se), (0.0, Some(0.0)));
        assert_eq!(DeltaP::from_changes(&estimator([]), &[]), None);
    }
}

mod curves {
    use kl_formats::TokenRecord;

    use super::super::*;
    use crate::stats::ClusterRule;
    use crate::stats::oracle::Statistics;
    use crate::stats::oracle::{records, statistics};

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
        assert_eq!(along.len(), 200);
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
