//! The most lines that a text has unless `--full` asks for more.

use kl_stats::stats::{Paired, PromptStats};

use super::{BRIEF, FULL};
use crate::comparison::{ComparedModel, ComparedPair, PairKind, RatioToBest};
use crate::testing::{made_up, sample};
use crate::{ModelReport, PromptReport, text_report};

/// Checks that a text has at most so many lines, and that more are there to be asked for.
fn check(max_lines: usize, brief: &str, full: &str) {
    let [n, n_full] = [brief, full].map(|text| text.lines().count());
    assert!(n <= max_lines, "{n} lines:\n{brief}");
    assert!(n < n_full, "{n} of {n_full} lines");
    assert!(
        brief.ends_with("\nMore: --full. Everything: --json.\n"),
        "{brief}"
    );
}

#[test]
fn one_model_has_30_lines() {
    let mut records = made_up::records(120, 80);
    made_up::exclude(&mut records, 5);
    let mut report = ModelReport {
        timing: Some(made_up::timing()),
        max_at_text: Some(" an\n".to_owned()),
        n_resumed: 1234,
        ..made_up::plain("models/tiny-q4_K_M.gguf", &records)
    };
    report.result.is_noise_floor = true;
    let text = |view| text_report(&report, &made_up::reference_of_states(), view);
    check(30, &text(BRIEF), &text(FULL));
}

#[test]
fn a_pair_has_40_lines() {
    let mut comparison = sample::comparison();
    comparison.models.drain(3..);
    comparison.models.remove(0);
    comparison.pairs.truncate(1);
    for model in &mut comparison.models {
        model.result.summary.identical_output = None;
        model.result.breakdown.by_span.clear();
    }
    let [a, b] = [0.5, 0.52].map(sample::records);
    let pair = sample::in_depth(&comparison, [&a, &b]).unwrap();
    check(40, &pair.text(BRIEF), &pair.text(FULL));
}

/// Forty prompts in ten groups, whose answers have three spans.
#[test]
fn answers_have_60_lines() {
    let differ_at: Vec<u32> = (0..40).map(|i| 4 + i * 7 % 50).collect();
    let mut records = made_up::greedy(40, &differ_at, 30);
    for record in &mut records {
        record.group = record.window % 10;
        record.span = record.position % 3;
    }
    let groups: Vec<String> = (0..10).map(|i| format!("group {i}")).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let labels: Vec<String> = (0..40).map(|i| format!("What is {i}?")).collect();
    let prompts = PromptReport::of_each(&labels, PromptStats::of_each(&records, None));
    let report = ModelReport {
        timing: Some(made_up::timing()),
        prompts: Some(prompts),
        result: made_up::result("tiny-q4_K_M.gguf", 1_250_000, &records, &groups),
        ..ModelReport::default()
    };
    let text = |view| text_report(&report, &made_up::reference_of_prompts(), view);
    check(60, &text(BRIEF), &text(FULL));
    // Several models, of which each has answers, too.
    let mut comparison = sample::comparison();
    comparison.not_compared.clear();
    check(60, &comparison.text(BRIEF), &comparison.text(FULL));
}

#[test]
fn sixteen_models_have_50_lines() {
    let mut comparison = sample::comparison();
    comparison.not_compared.clear();
    let label = |i: usize| format!("Meta-Llama-3.1-8B-Instruct-UD-Q{i}_K_XL");
    let pair = comparison.pairs[0].clone();
    let models = (0..16).map(|i| {
        let times = 1.0 + i as f64 / 8.0;
        let mut model = ComparedModel {
            ratio_to_best: (i > 0).then(|| RatioToBest {
                ratio: sample::ratio(times, 0.03),
                p_holm: Some(0.3),
            }),
            indistinguishable_from_best: i < 8,
            pareto: i % 3 == 0,
            ..sample::model(&label(i), 9_000_000_000 - 100_000_000 * i as u64, times)
        };
        model.result.summary.identical_output = None;
        model.result.breakdown.by_span.clear();
        model
    });
    comparison.models = models.collect();
    let pairs = [(PairKind::Best, 0), (PairKind::Size, 1)];
    let pairs = pairs.into_iter().flat_map(|(kind, next)| {
        let pair = pair.clone();
        (1..16).map(move |i| ComparedPair {
            kind,
            a: label(i),
            b: label(next * (i - 1)),
            paired: Paired {
                ratio: Some(sample::ratio(1.5, 0.03)),
                ..pair.paired
            },
        })
    });
    comparison.pairs = pairs.collect();
    check(50, &comparison.text(BRIEF), &comparison.text(FULL));
    assert!(comparison.text(BRIEF).contains("\n  and 10 more: --full\n"));
}
