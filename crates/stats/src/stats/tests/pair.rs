mod pair {
    use super::super::*;
    use crate::stats::oracle::records;
    use crate::stats::{ClusterRule, WindowSums};

    fn compare(a: &[TokenRecord], b: &[TokenRecord]) -> Option<PairedComparison> {
        let mut windows = WindowSums::default();
        windows.add(&Run::from_records(a), &[]);
        let clusters = Clusters::by_rule(&windows, ClusterRule::Window);
        let names = ["prompt", "answer", "code"].map(str::to_owned);
        PairedComparison::in_depth(a, b, &names, &clusters, Confidence::default(), 3)
    }

    /// The records of two models: b's KLDs are the reverse KLDs, and its top tokens differ.
    fn models() -> [Vec<TokenRecord>; 2] {
        let a = records();
        let mut b = a.clone();
        for (i, record) in b.iter_mut().enumerate() {
            record.kld = match i % 10 {
                0 => record.kld,
                _ => record.reverse_kld,
            };
            record.eval_top = u32::from(i % 3 == 0) * record.ref_top + 60 * u32::from(i % 3 > 0);
        }
        [a, b]
    }

    #[test]
    fn counts_and_differences_add_up() {
        let [a, b] = models();
        let got = compare(&a, &b).unwrap();
        let counted = a.iter().filter(|r| r.flags == 0).count() as u64;
        assert_eq!(got.n_tokens, counted);
        assert_eq!(got.n_tokens + got.n_left_out, a.len() as u64);
        let Nearer {
            n_a, n_b, n_ties, ..
        } = got.nearer;
        assert_eq!(n_a + n_b + n_ties, counted);
        let ties = a
            .iter()
            .enumerate()
            .filter(|(i, r)| i % 10 == 0 && r.flags == 0);
        assert_eq!(n_ties, ties.count() as u64);
        let share = got.nearer.share_a.unwrap().estimate.value;
        assert!((share - n_a as f64 / (n_a + n_b) as f64).abs() < 1e-15);
        let agreement = got.agreement;
        let only = agreement.n_only_a as f64 - agreement.n_only_b as f64;
        assert!((agreement.difference.estimate.value - only / counted as f64).abs() < 1e-12);
    }

    /// Acceptances are compared as KLDs are: with the same numbers, the result is the same.
    #[test]
    fn acceptances_are_compared_where_both_are_known() {
        let [mut a, mut b] = models();
        for record in a.iter_mut().chain(&mut b) {
            record.acceptance = record.kld;
        }
        let same = compare(&a, &b).unwrap();
        assert_eq!(same.acceptance_difference, Some(same.difference));
        let counted = a.iter().position(|record| record.flags == 0).unwrap();
        a[counted].acceptance = f64::NAN;
        let without = compare(&a, &b).unwrap();
        a.remove(counted);
        let alone = compare(&a, &b).unwrap().difference;
        assert_eq!(without.acceptance_difference, Some(alone));
        a.iter_mut().for_each(|record| record.acceptance = f64::NAN);
        assert_eq!(compare(&a, &b).unwrap().acceptance_difference, None);
    }

    #[test]
    fn the_order_of_the_records_does_not_matter() {
        let [a, b] = models();
        let expected = compare(&a, &b);
        let reversed: Vec<TokenRecord> = b.iter().rev().copied().collect();
        assert_eq!(compare(&a, &reversed), expected);
        let swapped = compare(&b, &a).unwrap();
        let expected = expected.unwrap();
        assert_eq!(swapped.nearer.n_a, expected.nearer.n_b);
        assert_eq!(swapped.ratio.unwrap().p, expected.ratio.unwrap().p);
    }

    #[test]
    fn the_largest_differences_come_first() {
        let [a, b] = models();
        let top = compare(&a, &b).unwrap().top;
        let distances: Vec<f64> = top.iter().map(|t| (t.kld_a - t.kld_b).abs()).collect();
        assert!(top.len() == 3 && distances.is_sorted_by(|x, y| x >= y));
        let both = a.iter().zip(&b).filter(|(a, _)| a.flags == 0);
        let largest = both.map(|(a, b)| (a.kld - b.kld).abs()).fold(0.0, f64::max);
        assert_eq!(distances[0], largest);
    }

    /// Each span's ratio is that of its tokens alone.
    #[test]
    fn spans_divide_the_tokens() {
        let [mut a, mut b] = models();
        assert!(compare(&a, &b).unwrap().by_span.is_empty());
        let in_spans = |records: &mut [TokenRecord]| {
            for record in records {
                record.span = 1 + u32::from(record.position % 3 == 0);
            }
        };
        in_spans(&mut a);
        in_spans(&mut b);
        let by_span = compare(&a, &b).unwrap().by_span;
        let labels: Vec<&str> = by_span.iter().map(|of| of.label.as_str()).collect();
        assert_eq!(labels, ["answer", "code"]);
        for (of, span) in by_span.iter().zip(1..) {
            let [a, b] = [&a, &b].map(|records| {
                let mut records = records.clone();
                records.retain(|record| record.span == span);
                records
            });
            let alone = compare(&a, &b).unwrap();
            assert_eq!((of.n_tokens, of.ratio), (alone.n_tokens, alone.ratio));
            // Of two spans, each is the other's rest: one test.
            let (p, p_holm) = (of.to_others.unwrap().p.unwrap(), of.p_holm.unwrap());
            assert!((p_holm - p).abs() < 1e-9);
        }
        let [one, other] = [0, 1].map(|i: usize| by_span[i].to_others.unwrap().value);
        assert!((one * other - 1.0).abs() < 1e-12);
    }

    #[test]
    fn tokens_of_only_one_are_left_out() {
        let [mut a, b] = models();
        a.truncate(500);
        a[0].kld = f64::INFINITY;
        let got = compare(&a, &b).unwrap();
        let counted = a.iter().filter(|r| r.flags == 0).count() as u64;
        assert_eq!(got.n_tokens, counted - 1);
        assert_eq!(got.n_tokens + got.n_left_out, b.len() as u64);
        assert_eq!(compare(&a[..1], &b), None);
        assert_eq!(compare(&[], &[]), None);
    }
}
