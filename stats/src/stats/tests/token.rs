use super::*;

fn record(position: u32, kld: f64) -> TokenRecord {
    TokenRecord {
        window: 0,
        position,
        token: 1,
        flags: 0,
        ref_top: 0,
        eval_top: 0,
        ref_top_rank: 1,
        eval_top_rank: 1,
        kld,
        reverse_kld: kld,
        ref_nll: 1.0,
        eval_nll: 1.0,
        ref_entropy: 1.0,
        ref_top_p: 0.5,
        eval_top_p: 0.25,
        ref_unknown_p: 0.0,
        group: 0,
        span: 0,
        acceptance: 0.9,
    }
}

/// Many ties, in a scrambled order.
fn records() -> Vec<TokenRecord> {
    (0..500u32)
        .map(|i| record((i * 211) % 500, f64::from((i * 7919) % 37)))
        .collect()
}

#[test]
fn they_are_the_first_n_in_sorted_order() {
    let mut sorted = records();
    sorted.sort_by(order);
    for n in [1, 2, 3, 40, 499, 500, 501, usize::MAX] {
        let mut most = MostDivergent::new(n);
        for record in &records() {
            most.push(record, || record.position);
        }
        let kept = most.into_sorted();
        let got: Vec<TokenRecord> = kept.iter().map(|(record, _)| *record).collect();
        assert_eq!(got, sorted[..n.min(500)]);
        let noted = kept.iter().all(|(record, note)| record.position == *note);
        assert!(noted, "each keeps its own note");
    }
}

#[test]
fn only_what_is_kept_is_noted() {
    let mut most = MostDivergent::new(3);
    let mut noted = 0;
    for position in 0..1000 {
        most.push(&record(position, 1.0), || noted += 1);
    }
    assert_eq!(noted, 3, "of equal ones the first");
}

#[test]
fn records_that_no_statistic_counts_are_left_out() {
    let mut most = MostDivergent::new(3);
    let excluded = TokenRecord {
        flags: TokenRecord::EVAL_NOT_FINITE,
        ..record(0, f64::NAN)
    };
    most.push(&excluded, || ());
    most.push(&record(1, 0.5), || ());
    assert_eq!(most.into_sorted().len(), 1);
}
