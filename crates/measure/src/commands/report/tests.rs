//! The quants of one model, as they were measured: what a report says of them.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use kl_formats::{
    ModelIdentity, ReferenceSummary, SidecarHeader, SidecarWriter, TokenRecord, TokenTexts,
};
use kl_report::comparison::{ComparedModel, DEFAULT_NEAR};
use kl_report::layout::View;
use kl_stats::stats::Ratio;
use tempfile::TempDir;

use super::*;

/// Seventeen quants: their names, the bytes of their files, and their sums of KLDs by window, after a
/// line with the number of tokens in each window.
const QUANTS: &str = include_str!("../../../../../fixtures/quants.csv");

/// Compares the quants with these names, or all if there are none.
fn compare(names: &[&str], near: f64) -> Comparison {
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
            (0..n).map(move |position| {
                record(window, position, if position == 0 { sum } else { 0.0 })
            })
        });
        (header(line[0], line[1].parse().unwrap()), records.collect())
    });
    reported_near(&Vec::from_iter(sidecars), near)
}

fn record(window: u32, position: u32, kld: f64) -> TokenRecord {
    TokenRecord {
        window,
        position,
        ref_top_rank: 1,
        eval_top_rank: 1,
        kld,
        ..TokenRecord::default()
    }
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

fn said(comparison: &Comparison) -> String {
    comparison.sentences(str::to_owned).join(" ")
}

#[test]
fn the_sentences_of_real_quants() {
    let all = compare(&[], DEFAULT_NEAR);
    insta::assert_snapshot!(said(&all), @"q8_0 is nearest to the original, by more than chance at 95 %: near-lossless, no top token differs. The next smaller, q6_K, is 6.33 [5.85, 6.85] times as far, and is 486.10 KiB smaller. Leaving out q4_K_M, q4_1 and q4_0 costs nothing: another is no larger, and nearer by more than chance. rec4.488 shows no gain over a model that is no larger.");
    let six = ["iq4_nl", "q4_1", "iq4_xs", "rec4.488", "q4_0", "q3_K_M"];
    insta::assert_snapshot!(said(&compare(&six, DEFAULT_NEAR)), @"iq4_nl has the lowest mean KLD: near-lossless, no top token differs. q4_1 cannot be told from it on this text, but may be up to 1.12 times as far. The next smaller, iq4_xs, is 1.12 [1.08, 1.16] times as far, and is 62.05 KiB smaller. Leaving out q4_0 costs nothing: another is no larger, and nearer by more than chance. q4_1 and rec4.488 show no gain over a model that is no larger.");
    insta::assert_snapshot!(said(&compare(&six, 1.3)), @"iq4_nl has the lowest mean KLD: near-lossless, no top token differs. q4_1 cannot be told from it on this text. iq4_xs is as near as makes no difference: at most 1.15 times as far, and 62.05 KiB smaller. Leaving out q4_0 costs nothing: another is no larger, and nearer by more than chance. q4_1 and rec4.488 show no gain over a model that is no larger.");
    let equals = ["rec3.498", "iq3_s"];
    insta::assert_snapshot!(said(&compare(&equals, DEFAULT_NEAR)), @"rec3.498 has the lowest mean KLD: near-lossless, no top token differs. iq3_s cannot be told from it on this text, but may be up to 1.13 times as far. The next smaller, iq3_s, saves 14.40 KiB.");
    let two = ["q8_0", "q4_1"];
    insta::assert_snapshot!(said(&compare(&two, DEFAULT_NEAR)), @"q8_0 is nearest to the original, by more than chance at 95 %: near-lossless, no top token differs. The next smaller, q4_1, is 25.9 [23.4, 28.7] times as far, and is 873.94 KiB smaller.");
    let dominated = ["q4_K_M", "q4_1"];
    insta::assert_snapshot!(said(&compare(&dominated, DEFAULT_NEAR)), @"q4_K_M is nearest to the original, by more than chance at 95 %: near-lossless, no top token differs. q4_K_M is also the smallest. Leaving out q4_1 costs nothing: another is no larger, and nearer by more than chance.");
}

/// A sidecar: its header and its records.
type MadeUp = (SidecarHeader, Vec<TokenRecord>);

/// A made-up sidecar of 40 windows. Its KLDs are about `mean`, up to `own` of that to either side of what
/// is hard for every model.
fn made_up(label: &str, bytes: u64, mean: f64, own: f64) -> MadeUp {
    let seed: u32 = label.bytes().map(u32::from).sum();
    let records = (0..40).flat_map(|window| (0..10).map(move |position| (window, position)));
    let records = records.map(|(window, position)| {
        let i = window * 10 + position;
        let hard = 0.5 + f64::from(window * 7 % 11) / 10.0;
        let noise = f64::from((i + seed).wrapping_mul(2_654_435_761) >> 16) / 32_768.0 - 1.0;
        record(window, position, mean * hard * (1.0 + own * noise))
    });
    (header(label, bytes), records.collect())
}

/// Makes some tokens of a sidecar ones without a finite row, or with an infinite KLD.
fn spoil(sidecar: &mut MadeUp, tokens: &[usize], kld: f64) {
    for &i in tokens {
        sidecar.1[i].kld = kld;
        if kld.is_nan() {
            sidecar.1[i].flags = TokenRecord::EVAL_NOT_FINITE;
        }
    }
}

fn path_of(folder: &TempDir, sidecar: &MadeUp) -> PathBuf {
    let label = sidecar.0.label.as_deref().unwrap();
    folder.path().join(format!("{label}.kls"))
}

/// A folder with these sidecars.
fn written(sidecars: &[MadeUp]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for sidecar in sidecars {
        let path = path_of(&folder, sidecar);
        let file = BufWriter::new(File::create(&path).unwrap());
        let mut writer = SidecarWriter::create(file, &path, &sidecar.0).unwrap();
        sidecar
            .1
            .iter()
            .for_each(|record| writer.push(record).unwrap());
        writer.finish(&TokenTexts::default()).unwrap();
    }
    folder
}

fn reported_near(sidecars: &[MadeUp], near: f64) -> Comparison {
    let settings = ReportSettings {
        near,
        ..ReportSettings::default()
    };
    reported_with(sidecars, settings)
}

fn reported_with(sidecars: &[MadeUp], settings: ReportSettings) -> Comparison {
    let folder = written(sidecars);
    let settings = ReportSettings {
        paths: vec![folder.path().to_owned()],
        ..settings
    };
    let Reported::Comparison(comparison) = super::report(&settings, &()).unwrap() else {
        unreachable!()
    };
    *comparison
}

/// Settings that compare models by their size with a long context.
fn in_context() -> ReportSettings {
    ReportSettings {
        for_context: Some(32_768),
        ..ReportSettings::default()
    }
}

fn reported(sidecars: &[MadeUp]) -> Comparison {
    reported_near(sidecars, DEFAULT_NEAR)
}

fn three() -> [MadeUp; 3] {
    [
        made_up("q8", 8_000_000, 0.001, 0.1),
        made_up("q6", 6_000_000, 0.002, 0.1),
        made_up("q4", 4_000_000, 0.004, 0.1),
    ]
}

#[test]
fn a_model_that_cannot_be_ranked_is_named_first() {
    let mut sidecars = three();
    spoil(&mut sidecars[0], &[7], f64::NAN);
    let mut all = vec![said(&reported(&sidecars)), said(&reported(&sidecars[..2]))];
    spoil(&mut sidecars[1], &[8, 9], f64::NAN);
    all.push(said(&reported(&sidecars)));
    // An infinite KLD is a result, which no other evaluation changes.
    let mut sidecars = three();
    spoil(&mut sidecars[0], &[7, 70], f64::INFINITY);
    all.push(said(&reported(&sidecars)));
    insta::assert_snapshot!(all.join("\n"));
}

/// The original has no infinite KLD, and every quant may have some.
#[test]
fn the_original_among_them_changes_no_rank() {
    let original = made_up("f16", 16_000_000, 1e-8, 0.1);
    for (kld, tokens) in [(1e-8, 0..0), (f64::NAN, 3..5), (f64::INFINITY, 3..5)] {
        let mut sidecars = three();
        let tokens = Vec::from_iter(tokens);
        for sidecar in &mut sidecars {
            spoil(sidecar, &tokens, kld);
        }
        let without = reported(&sidecars);
        let with = reported(&[&sidecars[..], std::slice::from_ref(&original)].concat());
        assert_eq!(said(&with), said(&without));
        assert_eq!(with.clusters, without.clusters);
        assert_eq!(with.pairs, without.pairs);
        let quants = with.models.iter().filter(|model| !model.is_noise_floor);
        assert!(quants.clone().count() == 3 && quants.clone().all(ComparedModel::is_candidate));
        let warned = |comparison: &Comparison| serde_json::to_value(&comparison.warnings).unwrap();
        assert_eq!(warned(&with), warned(&without));
    }
}

fn model<'c>(comparison: &'c Comparison, label: &str) -> &'c ComparedModel {
    let mut models = comparison.models.iter();
    models.find(|model| model.label == label).unwrap()
}

/// Which of three columns are true of each model: in the set, as near, dominated.
fn marks(comparison: &Comparison) -> Vec<[bool; 3]> {
    let marks = |m: &ComparedModel| [m.indistinguishable_from_best, m.is_as_near, m.is_dominated];
    comparison.models.iter().map(marks).collect()
}

#[test]
fn of_a_set_that_cannot_be_told_apart_none_is_called_nearest() {
    let set = [
        made_up("a", 8_000_000, 0.001, 0.9),
        made_up("b", 8_100_000, 0.00101, 0.9),
        made_up("c", 6_000_000, 0.00101, 0.9),
    ];
    insta::assert_snapshot!(said(&reported_near(&set, 1.02)), @"a has the lowest mean KLD: near-lossless, no top token differs. None of the other 2 can be told from it on this text; one may be up to 1.05 times as far. The next smaller, c, saves 1.91 MiB. b shows no gain over a model that is no larger.");
    // The end that is stated is the one that is compared with --near.
    let upper = reported(&set)
        .models
        .into_iter()
        .filter_map(|model| model.ratio_to_best?.ratio.upper);
    let comparison = reported_near(&set, upper.fold(1.0, f64::max));
    insta::assert_snapshot!(said(&comparison), @"a has the lowest mean KLD: near-lossless, no top token differs. None of the other 2 can be told from it on this text. c is as near as makes no difference: at most 1.05 times as far, and 1.91 MiB smaller. b shows no gain over a model that is no larger.");
    assert_eq!(marks(&comparison), [[true, true, false]; 3]);
}

/// What dominates a model need not be the best.
#[test]
fn leaving_out_what_is_farther_by_more_than_chance_costs_nothing() {
    let [q8, q6, q4] = three();
    let worse = made_up("worse", 7_000_000, 0.0022, 0.1);
    let maybe = made_up("maybe", 4_100_000, 0.00408, 0.9);
    let comparison = reported(&[q8, q6, q4, worse, maybe]);
    insta::assert_snapshot!(said(&comparison), @"q8 is nearest to the original, by more than chance at 95 %: near-lossless, no top token differs. The next smaller, q6, is 2.00 [2.00, 2.01] times as far, and is 1.91 MiB smaller. Leaving out worse costs nothing: another is no larger, and nearer by more than chance. maybe shows no gain over a model that is no larger.");
    let front = comparison
        .pairs
        .iter()
        .filter(|pair| pair.kind == PairKind::Front);
    let front: Vec<_> = front.map(|pair| [&*pair.a, &*pair.b]).collect();
    assert_eq!(front, [["worse", "q6"], ["maybe", "q4"]]);
    assert!(model(&comparison, "worse").is_dominated && !model(&comparison, "maybe").is_dominated);
}

#[test]
fn identical_records_are_called_identical() {
    let a = made_up("a", 8_000_000, 0.001, 0.1);
    let copy = |label, bytes| (header(label, bytes), a.1.clone());
    let b = made_up("b", 6_000_000, 0.002, 0.1);
    let mut two_of_b = b.clone();
    two_of_b.0.label = Some("b2".to_owned());
    let all = [
        reported(&[a.clone(), copy("copy", 8_000_000)]),
        reported(&[a.clone(), copy("copy", 8_000_100), b.clone(), two_of_b]),
    ];
    insta::assert_snapshot!(all.each_ref().map(said).join("\n"));
    let same_as = all[1].models.iter().map(|model| model.same_as.as_deref());
    assert!(same_as.eq([None, Some("a"), None, Some("b")]));
    let page = kl_report::page::html(&all[1]).unwrap();
    assert!(page.contains(">the same as a<"));
    for shown in [all[1].text(View::FULL), all[1].markdown(false)] {
        assert!(
            shown.contains("= has the same KLD as the one above it"),
            "{shown}"
        );
    }
}

/// No model is many times as far as one that rounding tells from the original, or the original itself.
#[test]
fn nothing_is_a_multiple_of_noise() {
    let best = made_up("best", 8_000_000, 1e-15, 0.1);
    let [_, q6, q4] = three();
    let comparison = reported(&[best.clone(), q6.clone(), q4.clone()]);
    insta::assert_snapshot!(said(&comparison), @"best is as near to the original as can be measured: a mean KLD below 1e-9 nats is rounding. The next smaller, q6, has a mean KLD of 0.00201 nats, and is 1.91 MiB smaller.");
    let to_best = model(&comparison, "q6").ratio_to_best.unwrap();
    let Ratio { value, upper, .. } = to_best.ratio;
    assert_eq!((value, upper), (f64::INFINITY, None));
    assert!(to_best.p_holm.unwrap() < 0.05);
    assert_eq!(
        marks(&comparison),
        [[true, true, false], [false; 3], [false; 3]]
    );
    for shown in [
        comparison.text(View::FULL),
        comparison.markdown(true),
        comparison.csv(),
    ] {
        assert!(!shown.contains("e12"), "{shown}");
    }
    let page = kl_report::page::html(&comparison).unwrap();
    assert!(page.contains("a multiple of noise says nothing"));
    // Two, of which one is nearer by more than chance: but not by more than rounding.
    let comparison = reported(&[best, made_up("other", 7_000_000, 2e-15, 0.1), q6.clone()]);
    insta::assert_snapshot!(said(&comparison), @"best and other are as near to the original as can be measured: a mean KLD below 1e-9 nats is rounding. other is as near as makes no difference: 976.56 KiB smaller.");
    assert_eq!(
        marks(&comparison),
        [[true, true, false], [true, true, false], [false; 3]]
    );
    // The original, run again, is about as far from itself as q8 from it.
    let original = made_up("f16", 16_000_000, 0.0006, 0.1);
    let comparison = reported(&[original, three()[0].clone(), q6]);
    insta::assert_snapshot!(said(&comparison), @"q8 is as near to the original as can be measured: the original, run again, is about as far from itself. q8: near-lossless, no top token differs. The next smaller, q6, has a mean KLD of 0.00201 nats, and is 1.91 MiB smaller.");
    let to_best = model(&comparison, "q6").ratio_to_best.unwrap();
    assert_eq!(to_best.ratio.upper, None);
}

#[test]
fn no_saving_below_1_percent_is_offered() {
    let [q8, mut q6, q4] = three();
    q6.0.model.as_mut().unwrap().file_bytes = Some(7_999_999);
    insta::assert_snapshot!(said(&reported(&[q8.clone(), q6.clone(), q4])), @"q8 is nearest to the original, by more than chance at 95 %: near-lossless, no top token differs. The next smaller, q4, is 4.00 [3.99, 4.01] times as far, and is 3.81 MiB smaller.");
    insta::assert_snapshot!(said(&reported(&[q8, q6])), @"q8 is nearest to the original, by more than chance at 95 %: near-lossless, no top token differs. No other is even 1 % smaller.");
}

/// `--pair` says the same, and its JSON keeps the ratio, for gates.
#[test]
fn a_pair_has_the_same_sentences() {
    let [mut q8, q6, _] = three();
    let copy = (header("copy", 8_000_000), q8.1.clone());
    let best = made_up("best", 8_000_000, 1e-15, 0.1);
    let pair = |a: &MadeUp, b: &MadeUp| {
        let folder = written(&[a.clone(), b.clone()]);
        let settings = ReportSettings {
            paths: [a, b].map(|sidecar| path_of(&folder, sidecar)).to_vec(),
            pair: true,
            ..ReportSettings::default()
        };
        match super::report(&settings, &()).unwrap() {
            Reported::Pair(pair) => pair,
            Reported::Comparison(_) => unreachable!(),
        }
    };
    let said = |comparison: &InDepth| {
        let text = comparison.text(View::FULL);
        let (said, _) = text.split_once("\n\n").unwrap();
        said.replace('\n', " ")
    };
    let of_noise = pair(&q6, &best);
    assert!(of_noise.paired.ratio.unwrap().upper.unwrap() > 1e9);
    assert!(
        !of_noise.text(View::FULL).contains("e12")
            && !of_noise.text(View::FULL).contains("\n  ratio")
    );
    let mut all = vec![said(&pair(&q8, &copy)), said(&of_noise)];
    spoil(&mut q8, &[7], f64::NAN);
    all.push(said(&pair(&q8, &q6)));
    insta::assert_snapshot!(all.join("\n"));
}

/// KV caches count where the size of each is recorded: a farther run with a smaller one is on the front.
#[test]
fn a_smaller_cache_is_a_reason_to_be_farther() {
    for (bytes, is_on_front) in [(Some(500), true), (Some(1000), false), (None, false)] {
        let run = |label: &str, bytes: Option<u64>, kld: f64| {
            let mut header = header(label, 1000);
            let mut backend = kl_formats::BackendIdentity::default();
            backend.kv_cache_bytes = bytes;
            header.backend = Some(backend);
            let records = (0..40).map(|i| record(i / 4, i % 4, kld * f64::from(1 + i % 3)));
            (header, records.collect())
        };
        let runs = [run("near", Some(1000), 0.01), run("far", bytes, 0.02)];
        let comparison = reported(&runs);
        let fronts = Vec::from_iter(
            comparison
                .models
                .iter()
                .map(|model| (&*model.label, model.pareto)),
        );
        assert_eq!(fronts, [("near", true), ("far", is_on_front)], "{bytes:?}");
    }
}

/// Runs of a file of 278 MiB, with the bytes of their caches for each token, and their mean KLDs.
fn sweep() -> Vec<MadeUp> {
    let runs = [
        ("k_f16-v_f16", 12_288, 0.010),
        ("k_q8_0-v_f16", 9408, 0.0113),
        ("k_q8_0-v_q8_0", 6528, 0.013),
        ("k_q4_0-v_q4_0", 3456, 0.24),
    ];
    let made_up = runs.map(|(label, per_token, mean)| {
        let (mut header, records) = made_up(label, 278 << 20, mean, 0.1);
        let mut backend = kl_formats::BackendIdentity::default();
        let points = [256, 512].map(|n| (n, n * per_token));
        backend.kv_cache_sizes = Some(kl_formats::CacheSizes(points.to_vec()));
        (backend.type_k, backend.type_v) = (Some("f16".to_owned()), Some(label.to_owned()));
        backend.kv_cache_bytes = Some(512 * per_token);
        header.backend = Some(backend);
        if let Some(model) = &mut header.model {
            model.metadata_sha256 = Some("one file".to_owned());
        }
        (header, records)
    });
    made_up.to_vec()
}

/// Beside the file, none of the caches would be 1 % smaller but the last.
#[test]
fn a_sweep_is_judged_by_its_caches() {
    let comparison = reported(&sweep());
    let front = comparison.models.iter().filter(|model| model.pareto);
    assert_eq!(front.count(), 4);
    insta::assert_snapshot!(said(&comparison), @"k_f16-v_f16 is nearest to the original, by more than chance at 95 %: good, no top token differs. The next smaller, k_q8_0-v_f16, is 1.13 [1.13, 1.14] times as far, and is 2.81 MiB smaller for 1,000 tokens.");
    insta::assert_snapshot!(comparison.text(View::FULL));
}

#[test]
fn at_a_context_weights_and_cache_are_compared_together() {
    let mut runs = sweep();
    let comparison = reported_with(&runs, in_context());
    insta::assert_snapshot!(said(&comparison), @"k_f16-v_f16 is nearest to the original, by more than chance at 95 %: good, no top token differs. The next smaller, k_q8_0-v_f16, is 1.13 [1.13, 1.14] times as far, and is 90.00 MiB smaller with a cache for 32,768 tokens.");
    let memory = comparison.models[1].memory.unwrap();
    assert_eq!(
        (memory.weights, memory.kv_cache),
        (278 << 20, 32_768 * 9408)
    );
    // A sidecar of an earlier kl.
    if let Some(backend) = &mut runs[1].0.backend {
        backend.kv_cache_sizes = None;
    }
    let comparison = reported_with(&runs, in_context());
    let earlier = &comparison.models[1];
    assert!(earlier.memory.is_none() && !earlier.pareto);
    let warned = comparison
        .warnings
        .iter()
        .any(|warning| warning.kind() == "unknown_cache");
    assert!(warned, "{:?}", comparison.warnings);
}

/// Of two equal models neither dominates the other.
#[test]
fn equal_models_of_one_size_are_both_on_the_front() {
    let a = made_up("a", 1000, 0.01, 0.1);
    let equal = (header("b", 1000), a.1.clone());
    let larger = (header("c", 1001), a.1.clone());
    let comparison = reported(&[a, equal, larger]);
    let on_front = ["a", "b", "c"].map(|label| model(&comparison, label).pareto);
    assert_eq!(on_front, [true, true, false]);
}
