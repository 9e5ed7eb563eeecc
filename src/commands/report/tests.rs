//! The quants of one model, as they were measured: what a report says of them.

use kl_formats::{ModelIdentity, ReferenceSummary, SidecarHeader, TokenRecord, TokenTexts};

use super::*;
use crate::report::comparison::NEAR;
use crate::stats::ClusterKind;

/// Seventeen quants: their names, the bytes of their files, and their sums of KLDs by window, after a
/// line with the number of tokens in each window.
const QUANTS: &str = include_str!("../../../fixtures/quants.csv");

/// Compares the quants with these names, or all if there are none.
fn compare(names: &[&str], rule: ClusterRule, near: f64) -> Comparison {
    let mut lines = QUANTS.lines().map(|line| Vec::from_iter(line.split(',')));
    let n_tokens: Vec<u32> = lines.next().unwrap()[2..]
        .iter()
        .map(|n| n.parse().unwrap())
        .collect();
    let mut comparer = Comparer::new(Confidence::default(), rule, near);
    let wanted = lines.filter(|line| names.is_empty() || names.contains(&line[0]));
    for (index, line) in wanted.enumerate() {
        let mut header = SidecarHeader::new(ReferenceSummary::default(), 128, 1024, None);
        let mut model = ModelIdentity::named(format!("{}.gguf", line[0]));
        model.file_bytes = Some(line[1].parse().unwrap());
        header.model = Some(model);
        header.label = Some(line[0].to_owned());
        // All of a window's KLD is in its first token: its sum and its mean are the real ones.
        let windows = (0..).zip(&n_tokens).zip(&line[2..]);
        let records = windows.flat_map(|((window, &n), sum)| {
            let sum: f64 = sum.parse().unwrap();
            (0..n).map(move |position| TokenRecord {
                window,
                position,
                kld: if position == 0 { sum } else { 0.0 },
                ..TokenRecord::default()
            })
        });
        let records: Vec<TokenRecord> = records.collect();
        let stored = StoredEvaluation::whole(header, None, records.len() as u64);
        let row = Row::measure(stored, Confidence::default(), rule, |_, each| {
            each(&records)?;
            Ok(TokenTexts::default())
        });
        comparer.push(index, row.unwrap());
    }
    comparer.compare(&Watch::new(&())).unwrap()
}

fn said(comparison: &Comparison) -> String {
    comparison.sentences(str::to_owned).join(" ")
}

fn ratio_to_best(of: &Comparison, label: &str) -> RatioToBest {
    let mut models = of.models.iter();
    let model = models.find(|model| model.label == label);
    model.unwrap().ratio_to_best.unwrap()
}

#[track_caller]
fn assert_six_digits(got: f64, expected: f64) {
    let error = (got / expected - 1.0).abs();
    assert!(error < 5e-6, "{got}, not {expected}");
}

/// The numbers are numpy's and scipy's, from every token.
#[test]
fn a_quant_26_times_as_far_is_told_from_the_best() {
    let all = compare(&[], ClusterRule::Auto, NEAR);
    let clusters = all.clusters.unwrap();
    assert_eq!((clusters.kind, clusters.n), (ClusterKind::Window, 33));
    assert!((clusters.autocorrelation.unwrap() - -0.046595).abs() < 5e-7);
    assert_eq!(all.best().unwrap().label, "q8_0");
    let largest = all.models.iter().filter_map(|model| model.ratio_to_best);
    let largest = largest.filter_map(|of| of.p_holm).fold(0.0, f64::max);
    assert_six_digits(largest, 1.74672e-29);
    let blocks = compare(&[], ClusterRule::Block, NEAR);
    assert_eq!(blocks.clusters.unwrap().n, 10);
    for (of, se_ln, lo, hi, upper, p) in [
        (&all, 0.050172, 23.3882, 28.6922, 28.2026, 1.55903e-35),
        (&blocks, 0.0495471, 23.1581, 28.9773, 28.3678, 2.21851e-13),
    ] {
        let got = ratio_to_best(of, "q4_1").ratio;
        assert_six_digits(got.value, 25.9048);
        let got = [got.se_ln, got.lo, got.hi, got.upper, got.p].map(Option::unwrap);
        for (got, expected) in got.into_iter().zip([se_ln, lo, hi, upper, p]) {
            assert_six_digits(got, expected);
        }
    }
    let pair = compare(&["rec3.498", "iq3_s"], ClusterRule::Auto, NEAR);
    let got = ratio_to_best(&pair, "iq3_s").ratio;
    assert_six_digits(1.0 / got.value, 0.972078);
    assert_six_digits(got.p.unwrap(), 0.601374);
}

#[test]
fn six_quants_of_about_one_size() {
    let names = ["iq4_nl", "q4_1", "iq4_xs", "rec4.488", "q4_0", "q3_K_M"];
    let six = compare(&names, ClusterRule::Auto, NEAR);
    assert_eq!(six.best().unwrap().label, "iq4_nl");
    for (label, p) in [
        ("q4_1", 0.352247),
        ("iq4_xs", 3.3795e-07),
        ("rec4.488", 0.00064795),
        ("q4_0", 2.11348e-05),
        ("q3_K_M", 4.58506e-13),
    ] {
        assert_six_digits(ratio_to_best(&six, label).p_holm.unwrap(), p);
    }
}

#[test]
fn the_sentences_of_real_quants() {
    let all = compare(&[], ClusterRule::Auto, NEAR);
    insta::assert_snapshot!(said(&all), @"q8_0 is nearest to the original, by more than chance at 95 %. The next smaller, q6_K, is 6.33 [5.86, 6.85] times as far, and is 486.10 KiB smaller. Leaving out q4_K_M, q4_1, rec4.488 and q4_0 costs nothing: another is no larger and no farther.");
    let six = ["iq4_nl", "q4_1", "iq4_xs", "rec4.488", "q4_0", "q3_K_M"];
    insta::assert_snapshot!(said(&compare(&six, ClusterRule::Auto, NEAR)), @"iq4_nl is nearest to the original. q4_1 cannot be told from it on this text, but may be up to 1.13 times as far. The next smaller, iq4_xs, is 1.12 [1.08, 1.16] times as far, and is 62.05 KiB smaller. Leaving out q4_1, rec4.488 and q4_0 costs nothing: another is no larger and no farther.");
    insta::assert_snapshot!(said(&compare(&six, ClusterRule::Auto, 1.3)), @"iq4_nl is nearest to the original. q4_1 cannot be told from it on this text. iq4_xs is as near as makes no difference: at most 1.15 times as far, and 62.05 KiB smaller. Leaving out q4_1, rec4.488 and q4_0 costs nothing: another is no larger and no farther.");
    let equals = ["rec3.498", "iq3_s"];
    insta::assert_snapshot!(said(&compare(&equals, ClusterRule::Auto, NEAR)), @"rec3.498 is nearest to the original. iq3_s cannot be told from it on this text, but may be up to 1.15 times as far. The next smaller, iq3_s, is 1.03 [0.922, 1.15] times as far, and is 14.40 KiB smaller.");
    let two = ["q8_0", "q4_1"];
    insta::assert_snapshot!(said(&compare(&two, ClusterRule::Auto, NEAR)), @"q8_0 is nearest to the original, by more than chance at 95 %. The next smaller, q4_1, is 25.9 [23.4, 28.7] times as far, and is 873.94 KiB smaller.");
    let dominated = ["q4_K_M", "q4_1"];
    insta::assert_snapshot!(said(&compare(&dominated, ClusterRule::Auto, NEAR)), @"q4_K_M is nearest to the original, by more than chance at 95 %. q4_K_M is also the smallest. Leaving out q4_1 costs nothing: another is no larger and no farther.");
}
