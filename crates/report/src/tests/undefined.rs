//! No output shows a NaN, an infinity or a division by 0, whatever finite numbers the records hold.

use kl_formats::{Kind, TokenRecord};
use kl_stats::stats::{
    ClusterRule, Clusters, Confidence, LlamaPerplexity, Paired, PartNames, Run, TokenTable,
    usable_klds,
};
use serde_json::json;

use super::{BRIEF, FULL};
use crate::comparison::{ComparedModel, ComparedPair, Comparison, InDepth, PairKind, RatioToBest};
use crate::layout::View;
use crate::testing::{made_up, sample, schema};
use crate::{ModelReport, ModelResult, json_text, page, text_report};

const RULE: ClusterRule = ClusterRule::Auto;

/// Records of `n_windows` windows of `n_rows` rows, whose KLDs and NLLs `of` gives by index.
fn records(n_windows: u32, n_rows: u32, of: impl Fn(usize) -> (f64, f64)) -> Vec<TokenRecord> {
    let mut records = made_up::records(n_windows, n_rows);
    for (i, record) in records.iter_mut().enumerate() {
        let (kld, nll) = of(i);
        (record.kld, record.reverse_kld) = (kld, kld);
        record.group = record.window % 2;
        if record.next_token().is_some() {
            (record.ref_nll, record.eval_nll) = (nll, nll + kld);
        }
    }
    records
}

/// Records that make a statistic undefined: what they are, and those of some models.
fn cases() -> Vec<(&'static str, Vec<Vec<TokenRecord>>)> {
    let zeros = |n, rows| records(n, rows, |_| (0.0, 0.0));
    let equal = |n, rows| records(n, rows, |_| (0.25, 1.0));
    let some = |n, rows| records(n, rows, |i| ((i % 7) as f64 / 64.0, (i % 5) as f64));
    let tiny = records(40, 30, |i| (1e-300 * i as f64, 1e-300));
    let huge = |kld: f64| records(40, 30, move |i| (kld * (i % 9) as f64, 700.0 + i as f64));
    vec![
        ("all KLDs are 0", vec![zeros(40, 30); 3]),
        (
            "the best is at 0",
            vec![zeros(40, 30), some(40, 30), some(40, 30)],
        ),
        (
            "all tie",
            [vec![equal(40, 30); 2], vec![some(40, 30); 2]].concat(),
        ),
        (
            "one window",
            vec![zeros(1, 120), equal(1, 120), some(1, 120)],
        ),
        ("one token", vec![zeros(1, 1), equal(1, 1)]),
        ("two tokens", vec![zeros(2, 1), equal(2, 1)]),
        ("no token", vec![Vec::new(); 2]),
        ("tiny", vec![tiny, zeros(40, 30)]),
        ("1e39", vec![huge(1e39), huge(2e39), some(40, 30)]),
        ("1e300", vec![huge(1e300), huge(2e300), some(40, 30)]),
    ]
}

/// The comparison of models with these records, the first of which is the best. Two of each three
/// have the same size.
fn comparison(records: &[Vec<TokenRecord>]) -> Comparison {
    let groups = ["a".to_owned(), "b".to_owned()];
    let names = PartNames {
        groups: &groups,
        ..PartNames::default()
    };
    let mut models = Vec::new();
    let mut pairs = Vec::new();
    let confidence = Confidence::default();
    let clusters = sample::clusters(&records[0]);
    for (i, model_records) in records.iter().enumerate() {
        let estimator = clusters.estimator(&Run::from_records(model_records), confidence);
        let [own_klds, best_klds] =
            [model_records, &records[0]].map(|records| usable_klds(records));
        let paired = Paired::compare(&estimator, &own_klds, &best_klds);
        let paired = paired.filter(|_| i > 0);
        let label = format!("q{i}");
        if let Some(paired) = &paired {
            for kind in [PairKind::Best, PairKind::Size] {
                pairs.push(ComparedPair {
                    kind,
                    a: label.clone(),
                    b: "q0".to_owned(),
                    paired: *paired,
                });
            }
        }
        let table = TokenTable::from_records(model_records);
        let own_clusters = Clusters::by_rule(&table.windows(), RULE);
        let statistics = table.summarise(&own_clusters, names, confidence);
        let model = sample::model(&label, 1_000_000 * (1 + i as u64 / 2), 1.0);
        models.push(ComparedModel {
            result: ModelResult {
                summary: statistics.summary,
                breakdown: statistics.breakdown,
                ..model.result
            },
            ccdf: statistics.ccdf,
            by_window: table.windows().means(),
            ratio_to_best: paired.and_then(|paired| {
                let (ratio, p_holm) = (paired.ratio?, paired.ratio?.p);
                Some(RatioToBest { ratio, p_holm })
            }),
            difference_to_best: paired.map(|paired| paired.difference),
            indistinguishable_from_best: i % 2 == 0,
            pareto: true,
            ..model
        });
    }
    Comparison {
        models,
        pairs,
        ..sample::comparison()
    }
}

/// Checks that a text holds nothing that is not a number.
#[track_caller]
fn check(case: &str, output: &str, text: &str) {
    let is_none = |word: &str| ["nan", "inf", "infinity"].contains(&word.to_lowercase().as_str());
    for line in text.lines() {
        let mut words = line.split(|c: char| !c.is_alphanumeric());
        assert!(!words.any(is_none), "{case}: {output} shows: {line}");
    }
}

/// A page without the libraries that draw its charts.
fn without_scripts(page: &str) -> String {
    let (first, scripts) = page.split_once("<script>").unwrap();
    let after = |part: &str| part.split_once("</script>").unwrap().1.to_owned();
    first.to_owned() + &scripts.split("<script>").map(after).collect::<String>()
}

#[test]
fn no_output_shows_a_number_that_is_none() {
    for (case, records) in cases() {
        let comparison = comparison(&records);
        let with_breakdown = View {
            breakdown: true,
            ..FULL
        };
        check(case, "the text", &comparison.text(BRIEF));
        check(case, "the text in full", &comparison.text(with_breakdown));
        check(case, "the Markdown", &comparison.markdown(true));
        check(case, "the model card", &comparison.model_card());
        check(case, "the CSV", &comparison.csv());
        let page = without_scripts(&page::html(&comparison).unwrap());
        let is_whole = page.len() < 500_000 && page.contains("The answer in short");
        assert!(is_whole, "{case}");
        check(case, "the page", &page);
        // What a logarithmic scale cannot show is named.
        let is_drawn = !case.starts_with("all KLDs") && page.contains("data-chart=\"size\"");
        let mut means = comparison
            .models
            .iter()
            .filter_map(|comparison| comparison.mean_kld());
        let has_0 = means.any(|mean| mean.value == 0.0);
        let names_it = page.contains("a logarithmic scale cannot show a KLD of 0");
        assert_eq!(names_it, is_drawn && has_0, "{case}");
        let json = json_text(&comparison).unwrap();
        check(case, "the JSON", &json);
        schema::check::<Comparison>(&json);
        let in_depth = sample::in_depth(&comparison, [&records[0], &records[1]]);
        if let Some(in_depth) = in_depth {
            check(case, "the pair", &in_depth.text(BRIEF));
            check(case, "the pair in full", &in_depth.text(FULL));
            let json = json_text(&in_depth).unwrap();
            check(case, "the JSON of the pair", &json);
            schema::check::<InDepth>(&json);
        }
        for model_records in &records {
            let report = ModelReport {
                llama_perplexity: LlamaPerplexity::of_records(model_records),
                logits: Some(made_up::logits(model_records, false)),
                prompts: Some(made_up::prompts(model_records)),
                result: made_up::result("q.gguf", 1_250_000, model_records, &["a", "b"]),
                ..ModelReport::default()
            };
            let reference = made_up::foreign_reference("ref.gz", Kind::KlPy);
            check(case, "the report", &text_report(&report, &reference, BRIEF));
            let full = text_report(&report, &reference, FULL);
            check(case, "the report in full", &full);
            let document = json!({"models": [report], "reference": reference});
            check(case, "the report's JSON", &document.to_string());
        }
    }
}
