mod parts {
    use kl_formats::TokenRecord;

    use super::super::*;
    use crate::stats::oracle::{assert_close, pinned, records, skewed, statistics};
    use crate::stats::{ClusterKind, ClusterRule, Clusters, Confidence};

    /// Windows of these lengths, and the means of each piece of theirs.
    fn windows(lengths: &[u32], mean: impl Fn(u32, u32) -> f64) -> (Vec<Run>, WindowSums) {
        let (mut runs, mut values) = (Vec::new(), Vec::new());
        for (window, &length) in (0..).zip(lengths) {
            for position in 1..length {
                let record = TokenRecord {
                    window,
                    position,
                    ..TokenRecord::default()
                };
                Run::add(&mut runs, &record);
                values.push(mean(window, position / PIECE));
            }
        }
        let windows = WindowSums::from_tokens(&runs, &values);
        (runs, windows)
    }

    fn lengths(lengths: &[u32]) -> Option<Vec<usize>> {
        let (runs, windows) = windows(lengths, |_, piece| f64::from(piece % 2));
        let parts = Parts::of_few(&windows)?;
        let mut n = vec![0; parts.n as usize];
        for run in runs {
            n[parts.clusters[&run.piece].number as usize] += run.n;
        }
        Some(n)
    }

    #[test]
    fn there_are_ten_parts_of_equal_length() {
        let one = lengths(&[25_600]).unwrap();
        assert_eq!((one.len(), one[0], &one[1..]), (10, 2559, &[2560; 9][..]));
        assert_eq!(lengths(&[12_800; 2]).map(|n| n.len()), Some(10));
        assert_eq!(lengths(&[12_800; 3]).map(|n| n.len()), Some(12));
        assert_eq!(lengths(&[12_800; 4]).map(|n| n.len()), Some(12));
        assert_eq!(lengths(&[12_800; 5]).map(|n| n.len()), Some(10));
        // Enough by themselves.
        assert_eq!(lengths(&[12_800; 6]), None);
        // In proportion to their lengths.
        assert_eq!(lengths(&[20_480, 5_120]).map(|n| n.len()), Some(10));
        assert_eq!(lengths(&[20_480, 300]).map(|n| n.len()), Some(11));
    }

    #[test]
    fn parts_are_of_1024_positions_or_more() {
        let shortest = lengths(&[8192]).unwrap();
        assert_eq!((shortest.len(), shortest[7]), (8, 1024));
        assert_eq!(lengths(&[7936]), None);
        assert_eq!(
            lengths(&[2048; 4]),
            Some(vec![1023, 1024, 1023, 1024, 1023, 1024, 1023, 1024])
        );
        assert_eq!(lengths(&[512; 5]), None);
        assert_eq!(lengths(&[]), None);
    }

    /// Pieces that alternate do not resemble their neighbours, those of a window of its own level do.
    #[test]
    fn auto_uses_windows_where_parts_of_one_resemble_each_other() {
        let of = |lengths: &[u32], rule, mean: &dyn Fn(u32, u32) -> f64| {
            let (_, windows) = windows(lengths, mean);
            Clusters::by_rule(&windows, rule).clustering
        };
        let alternate = |_, piece: u32| f64::from(piece / 10 % 2);
        let parts = of(&[12_800; 3], ClusterRule::Auto, &alternate);
        assert_eq!((parts.kind, parts.n), (ClusterKind::Part, 12));
        assert_eq!(
            (parts.windows_per_block, parts.positions_per_part),
            (1, Some(3328))
        );
        let levels = |window: u32, piece: u32| f64::from(10 * window + piece / 10 % 2);
        let by_window = of(&[12_800; 3], ClusterRule::Auto, &levels);
        assert!(by_window.autocorrelation.unwrap() > 0.5);
        assert_eq!((by_window.kind, by_window.n), (ClusterKind::Window, 3));
        // One window leaves no choice.
        let rising = |_, piece: u32| f64::from(piece);
        let one = of(&[25_600], ClusterRule::Auto, &rising);
        assert_eq!((one.kind, one.n), (ClusterKind::Part, 10));
        let asked = of(&[25_600], ClusterRule::Window, &rising);
        assert_eq!((asked.kind, asked.n), (ClusterKind::Window, 1));
        assert_eq!(of(&[25_600], ClusterRule::Block, &rising).n, 1);
    }

    /// Each power of two has parts of its own, where it is long enough.
    #[test]
    fn depths_are_divided_by_themselves() {
        let (runs, windows) = windows(&[65_536], |_, piece| f64::from(piece % 3));
        let clusters = Clusters::by_rule(&windows, ClusterRule::Auto);
        let by_depth = clusters.estimator_by_depth(&runs, Confidence::default());
        let n_parts = |positions: std::ops::Range<usize>| {
            let mut parts = by_depth.clusters[positions.start - 1..positions.end - 1].to_vec();
            parts.dedup();
            parts.len()
        };
        assert_eq!([1..256, 256..4096, 4096..8192].map(n_parts), [1, 1, 1]);
        assert_eq!(
            [8192..16_384, 16_384..32_768, 32_768..65_536].map(n_parts),
            [8, 10, 10]
        );
    }

    /// `oracle.py` makes the same windows.
    #[test]
    fn intervals_by_parts_match_numpy_and_scipy() {
        let positions = (0..).zip([16_384, 5_120]);
        let places =
            positions.flat_map(|(window, n)| (1..n).map(move |position| (window, position)));
        let (klds, template) = (skewed(16_383 + 5_119).into_iter(), records()[1]);
        let records = places
            .zip(klds)
            .map(|((window, position), kld)| TokenRecord {
                window,
                position,
                flags: 0,
                kld,
                ..template
            });
        let records: Vec<TokenRecord> = records.collect();
        let of = statistics(&records, &[], ClusterRule::Auto);
        let clusters = of.summary.clusters;
        assert_eq!((clusters.kind, clusters.n), (ClusterKind::Part, 11));
        let all = of.summary.kld.unwrap().mean.estimate();
        let bins = of.breakdown.by_position;
        for (got, [value, lo, hi]) in [all, bins.last().unwrap().kld.unwrap()]
            .iter()
            .zip(pinned("LONG"))
        {
            assert_close(got.value, value, 1e-12);
            assert_close(got.lo.unwrap(), lo, 1e-10);
            assert_close(got.hi.unwrap(), hi, 1e-10);
        }
        // Too short for parts, in both windows, and in the first alone.
        let ends = |from: f64| {
            let bin = bins.iter().find(|bin| bin.from == Some(from));
            bin.unwrap().kld.unwrap().lo
        };
        assert!(ends(1024.0).is_some());
        let one = statistics(&records[..16_383], &[], ClusterRule::Auto)
            .breakdown
            .by_position;
        assert!(
            one.iter()
                .all(|bin| bin.kld.unwrap().lo.is_some() == (bin.from == Some(8192.0)))
        );
    }
}

mod neighbours {
    use super::super::*;

    /// By hand: from the mean 3, −2 −1 0 1 2; (2 + 0 + 0 + 2) / (4 + 1 + 0 + 1 + 4).
    #[test]
    fn autocorrelation_is_of_neighbours() {
        let of = |series: &[f64]| autocorrelation([series.to_vec()]);
        assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some(0.4));
        assert_eq!(of(&[1.0, 2.0]), None);
        assert_eq!(of(&[2.0; 9]), None);
    }

    /// By hand: (−1 0 1) and (−1 1); (0 + 0 − 1) / (1 + 0 + 1 + 1 + 1).
    #[test]
    fn groups_that_differ_do_not_make_neighbours_alike() {
        let apart = [vec![1.0, 2.0, 3.0], vec![101.0, 103.0]];
        assert_eq!(autocorrelation(apart), Some(-0.25));
    }

    #[test]
    fn equal_values_share_their_rank() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0, 9.0]), [3.5, 2.0, 3.5, 1.0, 5.0]);
        assert_eq!(ranks(&[]), Vec::<f64>::new());
    }
}
