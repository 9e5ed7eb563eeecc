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
    let wanted = lines.filter(|line| names.is_empty() || names.contains(&line[0]));
    let sidecars = wanted.map(|line| {
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
        (header(line[0], line[1].parse().unwrap()), records.collect())
    });
    compare_sidecars(sidecars, rule, near)
}

/// The header of a quant's sidecar.
fn header(label: &str, bytes: u64) -> SidecarHeader {
    let mut reference = ReferenceSummary::default();
    let mut original = ModelIdentity::named("f16.gguf");
    original.metadata_sha256 = Some("f16".to_owned());
    reference.model = Some(original);
    let mut header = SidecarHeader::new(reference, 128, 1024, None);
    let mut model = ModelIdentity::named(format!("{label}.gguf"));
    model.file_bytes = Some(bytes);
    model.metadata_sha256 = Some(label.to_owned());
    header.model = Some(model);
    header.label = Some(label.to_owned());
    header
}

fn compare_sidecars(
    sidecars: impl IntoIterator<Item = (SidecarHeader, Vec<TokenRecord>)>,
    rule: ClusterRule,
    near: f64,
) -> Comparison {
    let mut comparer = Comparer::new(Confidence::default(), rule, near);
    for (index, (header, records)) in sidecars.into_iter().enumerate() {
        let stored = StoredEvaluation::whole(header, None, records.len() as u64);
        let row = Row::measure(stored, Confidence::default(), rule, false, |_, each| {
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
    assert_six_digits(largest, 2.56875e-29);
    let blocks = compare(&[], ClusterRule::Block, NEAR);
    assert_eq!(blocks.clusters.unwrap().n, 10);
    for (of, se_ln, lo, hi, upper, p) in [
        (&all, 0.0504773, 23.3736, 28.7101, 28.2172, 1.90132e-35),
        (&blocks, 0.0500665, 23.1221, 29.0223, 28.4013, 4.05222e-13),
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
    assert_six_digits(got.p.unwrap(), 0.60335);
}

#[test]
fn six_quants_of_about_one_size() {
    let names = ["iq4_nl", "q4_1", "iq4_xs", "rec4.488", "q4_0", "q3_K_M"];
    let six = compare(&names, ClusterRule::Auto, NEAR);
    assert_eq!(six.best().unwrap().label, "iq4_nl");
    for (label, p) in [
        ("q4_1", 0.35366),
        ("iq4_xs", 3.37734e-07),
        ("rec4.488", 0.000796359),
        ("q4_0", 2.35687e-05),
        ("q3_K_M", 4.6559e-13),
    ] {
        assert_six_digits(ratio_to_best(&six, label).p_holm.unwrap(), p);
    }
}

#[test]
fn the_sentences_of_real_quants() {
    let all = compare(&[], ClusterRule::Auto, NEAR);
    insta::assert_snapshot!(said(&all), @"q8_0 is nearest to the original, by more than chance at 95 %. The next smaller, q6_K, is 6.33 [5.85, 6.85] times as far, and is 486.10 KiB smaller. Leaving out q4_K_M, q4_1, rec4.488 and q4_0 costs nothing: another is no larger and no farther.");
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

/// A made-up sidecar of 40 windows. Its KLDs are about `mean`, up to `own` of that to either side of what
/// is hard for every model.
fn made_up(label: &str, bytes: u64, mean: f64, own: f64) -> (SidecarHeader, Vec<TokenRecord>) {
    let seed: u32 = label.bytes().map(u32::from).sum();
    let records = (0..40).flat_map(|window| (0..10).map(move |position| (window, position)));
    let records = records.map(|(window, position)| {
        let i = window * 10 + position;
        let hard = 0.5 + f64::from(window * 7 % 11) / 10.0;
        let noise = f64::from((i + seed).wrapping_mul(2_654_435_761) >> 16) / 32_768.0 - 1.0;
        TokenRecord {
            window,
            position,
            kld: mean * hard * (1.0 + own * noise),
            ..TokenRecord::default()
        }
    });
    (header(label, bytes), records.collect())
}

/// Makes some tokens of a sidecar ones without a finite row, or with an infinite KLD.
fn spoil(of: &mut (SidecarHeader, Vec<TokenRecord>), tokens: &[usize], kld: f64) {
    for &i in tokens {
        of.1[i].kld = kld;
        if kld.is_nan() {
            of.1[i].flags = TokenRecord::EVAL_NOT_FINITE;
        }
    }
}

fn reported(sidecars: &[(SidecarHeader, Vec<TokenRecord>)]) -> Comparison {
    compare_sidecars(sidecars.iter().cloned(), ClusterRule::Auto, NEAR)
}

fn three() -> [(SidecarHeader, Vec<TokenRecord>); 3] {
    [
        made_up("q8", 8_000_000, 0.001, 0.1),
        made_up("q6", 6_000_000, 0.002, 0.1),
        made_up("q4", 4_000_000, 0.004, 0.1),
    ]
}

#[test]
fn a_model_that_cannot_be_ranked_is_named_first() {
    let mut of = three();
    spoil(&mut of[0], &[7], f64::NAN);
    let mut all = vec![said(&reported(&of)), said(&reported(&of[..2]))];
    spoil(&mut of[1], &[8, 9], f64::NAN);
    all.push(said(&reported(&of)));
    // An infinite KLD is a result, which no other evaluation changes.
    let mut of = three();
    spoil(&mut of[0], &[7, 70], f64::INFINITY);
    all.push(said(&reported(&of)));
    insta::assert_snapshot!(all.join("\n"));
}

/// The original has no infinite KLD, and every quant may have some.
#[test]
fn the_original_among_them_changes_no_rank() {
    let original = made_up("f16", 16_000_000, 1e-8, 0.1);
    for (kld, tokens) in [(1e-8, 0..0), (f64::NAN, 3..5), (f64::INFINITY, 3..5)] {
        let mut of = three();
        let tokens = Vec::from_iter(tokens);
        of.iter_mut().for_each(|of| spoil(of, &tokens, kld));
        let without = reported(&of);
        let with = reported(&[&of[..], &[original.clone()]].concat());
        assert_eq!(said(&with), said(&without));
        assert_eq!(with.clusters, without.clusters);
        assert_eq!(with.pairs, without.pairs);
        let quants = with.models.iter().filter(|model| !model.is_noise_floor);
        assert!(quants.clone().count() == 3 && quants.clone().all(ComparedModel::is_candidate));
        let warned = |of: &Comparison| serde_json::to_value(&of.warnings).unwrap();
        assert_eq!(warned(&with), warned(&without));
    }
}
