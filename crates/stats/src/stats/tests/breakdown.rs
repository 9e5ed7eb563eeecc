use kl_formats::TokenRecord;

use super::*;
use crate::stats::oracle::{records, statistics, summary};
use crate::stats::{ClusterRule, Clusters, Confidence};

fn breakdown(records: &[TokenRecord], groups: &[&str]) -> Breakdown {
    let names: Vec<String> = groups.iter().map(|name| (*name).to_owned()).collect();
    statistics(records, &names, ClusterRule::Auto).breakdown
}

/// Spans that no token is in are left out, and so are tokens of a span without a name.
#[test]
fn spans_with_tokens_are_bins() {
    let mut records = records();
    for (i, record) in records.iter_mut().enumerate() {
        (record.flags, record.span) = (0, [1, 3, 3, 4][i % 4]);
    }
    let names = ["prompt", "answer", "reasoning", "code"].map(str::to_owned);
    let spans = PartNames {
        spans: &names,
        ..PartNames::default()
    };
    let table = TokenTable::from_records(&records);
    let clusters = Clusters::by_rule(&table.windows(), ClusterRule::Window);
    let of = table
        .summarise(&clusters, spans, Confidence::default())
        .breakdown;
    let mean = |of_span: usize| {
        let tokens = records.iter().skip(of_span).step_by(4);
        let klds: Vec<f64> = tokens.map(|record| record.kld).collect();
        klds.iter().sum::<f64>() / klds.len() as f64
    };
    let [answer, code] = of.by_span.as_slice() else {
        panic!("{:?}", of.by_span);
    };
    assert_eq!(
        (answer.label.as_str(), code.label.as_str()),
        ("answer", "code")
    );
    assert_eq!(answer.n_tokens * 2, code.n_tokens);
    let both = (mean(1) + mean(2)) / 2.0;
    for (bin, expected) in [(answer, mean(0)), (code, both)] {
        assert!((bin.kld.unwrap().value - expected).abs() < 1e-12);
    }
    assert!(breakdown(&records, &[]).by_span.is_empty());
}

/// `tests/check_report_with_numpy.py` checks the numbers of real sidecars.
#[test]
fn each_way_divides_all_tokens() {
    let mut records = records();
    for (i, record) in records.iter_mut().enumerate() {
        record.ref_top_p = i as f64 % 17.0 / 16.0;
        record.group = record.window / 20;
        record.flags |= match i % 50 {
            9 => TokenRecord::NEXT_IS_SPECIAL,
            _ => 0,
        };
    }
    records[3].kld = f64::INFINITY;
    let of = breakdown(&records, &["wiki", "code"]);
    let summary = summary(&records, ClusterRule::Auto);
    for bins in [
        &of.by_confidence,
        &of.by_position,
        &of.by_group,
        &of.special,
    ] {
        let n: u64 = bins.iter().map(|bin| bin.n_tokens).sum();
        let n_infinite: u64 = bins.iter().map(|bin| bin.n_infinite).sum();
        let share: f64 = bins.iter().filter_map(|bin| bin.share_of_kld).sum();
        assert_eq!((n, n_infinite), (summary.n_tokens, 1));
        assert!((share - 1.0).abs() < 1e-12);
    }
    let labels =
        |bins: &[Bin]| -> Vec<String> { bins.iter().map(|bin| bin.label.clone()).collect() };
    assert_eq!(
        labels(&of.by_confidence),
        [
            "below 25 %",
            "25 to 50 %",
            "50 to 75 %",
            "75 to 95 %",
            "95 % and above"
        ]
    );
    assert_eq!(
        labels(&of.by_position),
        ["0", "1", "2–3", "4–7", "8–15", "16–31", "32–63"]
    );
    assert_eq!(labels(&of.by_group), ["wiki", "code"]);
    let last = of.by_position.last().unwrap();
    assert_eq!((last.from, last.to), (Some(32.0), Some(64.0)));
}

/// An edge belongs to the bin above it.
#[test]
fn a_bin_holds_its_lower_edge() {
    let mut records = records();
    records.truncate(4);
    for (record, p) in records.iter_mut().zip([0.25, 0.5, 0.95, 1.0]) {
        (record.ref_top_p, record.flags) = (p, 0);
    }
    let n: Vec<u64> = breakdown(&records, &[])
        .by_confidence
        .iter()
        .map(|bin| bin.n_tokens)
        .collect();
    assert_eq!(n, [0, 1, 1, 0, 2]);
}

#[test]
fn what_is_not_known_is_absent() {
    let mut records = records();
    let of = breakdown(&records, &[]);
    assert!(of.by_group.is_empty() && of.special.is_empty());
    let none = breakdown(&[], &["wiki"]);
    assert!(none.by_confidence.is_empty());
    assert_eq!((none.by_group[0].n_tokens, none.by_group[0].kld), (0, None));
    for record in &mut records {
        record.kld = 0.0;
    }
    let zeros = breakdown(&records, &[]);
    assert!(
        zeros
            .by_position
            .iter()
            .all(|bin| bin.share_of_kld.is_none())
    );
}
