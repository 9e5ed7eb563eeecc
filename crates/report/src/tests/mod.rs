//! Golden tests of text report and table: the files under `snapshots` show them in full.
//!
//! After an intended change, `INSTA_UPDATE=always cargo test --release -p kl-report` rewrites them;
//! read the difference before you commit it.

mod budgets;
mod undefined;

use insta::assert_snapshot;
use kl_formats::{Kind, TokenRecord};
use kl_stats::stats::{ClusterKind, LlamaPerplexity, UntilInfo};

use super::*;
use crate::check::Check;
use crate::comparison::{Comparison, InDepth};
use crate::layout::{View, WIDTH};
use crate::pick::Pick;
use crate::testing::made_up::{foreign_reference, full, interrupted, plain, records, reference};
use crate::testing::{made_up, sample, schema};

pub const BRIEF: View = View::BRIEF;
pub const FULL: View = View::FULL;

/// Everything that a run over text can print.
#[test]
fn text_report_of_a_text() {
    let mut records = records(3, 80);
    made_up::exclude(&mut records, 5);
    let report = full("models/tiny-q4_K_M.gguf", &records);
    assert_snapshot!(text_report(&report, &reference(), FULL));
}

/// Groups, of which one has a long name and one no tokens, special tokens and an infinite KLD.
#[test]
fn text_report_with_a_breakdown() {
    let mut records = records(24, 80);
    for record in &mut records {
        record.group = u32::from(record.window >= 9);
        record.ref_top_p = f64::from(record.position % 20) / 20.0;
        record.flags = match record.position % 40 {
            17 => TokenRecord::NEXT_IS_SPECIAL,
            _ => 0,
        };
    }
    records[7].kld = f64::INFINITY;
    let groups = ["wiki", "a long name\nin two lines", "none"];
    let report = ModelReport {
        result: made_up::result("tiny-q2_K.gguf", 1_250_000, &records, &groups),
        ..ModelReport::default()
    };
    let view = View {
        breakdown: true,
        ..FULL
    };
    let text = text_report(&report, &reference(), view);
    let tables = text.lines().skip_while(|line| !line.contains("by group"));
    let width = tables.map(|line| line.chars().count()).max();
    assert!(width <= Some(WIDTH), "{text}");
    assert_snapshot!(text);
}

/// Prompts, and an evaluation that was resumed and then interrupted.
#[test]
fn text_report_of_prompts() {
    let records = records(2, 60);
    let logits = made_up::logits(&records, true);
    let mut report = ModelReport {
        llama_perplexity: LlamaPerplexity::of_records(&records),
        logits: Some(logits),
        interrupted: interrupted(2, Some(9)),
        n_resumed: 1234,
        prompts: Some(made_up::prompts(&records)),
        ..plain("tiny-f16.gguf", &records)
    };
    report.result.is_reference_model = true;
    report.result.is_noise_floor = true;
    assert_snapshot!(text_report(&report, &made_up::reference_of_prompts(), FULL));
}

/// Greedy answers: how many differ comes first.
#[test]
fn text_report_of_greedy_answers() {
    let differ_at: Vec<u32> = (0..40).map(|i| 4 + i * 7 % 50).collect();
    let report = plain("tiny-q4_K_M.gguf", &made_up::greedy(40, &differ_at, 30));
    let text = text_report(&report, &made_up::reference_of_prompts(), FULL);
    let first = text.split("\nOther numbers").next();
    assert_snapshot!(first.unwrap());
}

/// One window of a base file, from a model of unknown size.
#[test]
fn text_report_of_one_window() {
    let records = records(1, 120);
    let mut report = ModelReport {
        llama_perplexity: LlamaPerplexity::of_records(&records),
        interrupted: interrupted(1, None),
        ..plain("tiny-q2_K.gguf", &records)
    };
    let model = &mut report.result.model;
    (model.size_bytes, model.file_bytes, model.bpw) = (None, None, None);
    let reference = foreign_reference("base.kld", Kind::LlamaCpp);
    assert_snapshot!(text_report(&report, &reference, FULL));
}

/// Hidden states: how exact their rows are, where they were written and where they are computed.
#[test]
fn lines_about_hidden_states() {
    let report = plain("q4.gguf", &records(2, 20));
    let mut reference = made_up::reference_of_states();
    let lines = |reference: &ReferenceInfo| {
        let text = text_report(&report, reference, FULL);
        let mut lines = text.lines().map(str::trim);
        let first = lines.find(|line| line.starts_with("reference rows"));
        let after = lines.take_while(|line| !line.starts_with("tokens"));
        first.into_iter().chain(after).map(str::to_owned).collect()
    };
    let spaced = |name: &str, text: &str| format!("{name:<34} {text}");
    let computed = spaced("reference rows", "computed on CUDA0 from f16 states");
    let shown_lines: Vec<String> = lines(&reference);
    let off = "off by 0.0000100 nats, 0.000123 at most";
    let error = spaced("error of the encoding", "7.63e-6 nats, 0.0000610 at most");
    assert_eq!(shown_lines, [&computed[..], off, &error]);
    let states = reference.states.as_mut().unwrap();
    let rows = states.here.as_mut().unwrap();
    (rows.is_exact, states.error.max_kld) = (Some(true), 0.0);
    let exact = "to the bit as the model gave them";
    assert_eq!(lines(&reference), [&computed[..], exact]);
    let states = reference.states.as_mut().unwrap();
    states.here.as_mut().unwrap().is_exact = None;
    let unchecked = "not checked: it holds no row to check with";
    assert_eq!(lines(&reference)[1], unchecked);
    reference.states.as_mut().unwrap().here = None;
    assert_eq!(lines(&reference), [""; 0]);
}

/// A text of fewer windows than `--until` looks at, and one that is too short.
#[test]
fn lines_about_until() {
    let mut report = plain("q4.gguf", &records(2, 20));
    report.result.until = Some(UntilInfo {
        target: 0.05,
        reached: false,
        relative_half_width: Some(0.08),
        of: Some(60),
    });
    report.result.summary.n_windows = 60;
    let line = |report: &ModelReport| {
        let text = text_report(report, &reference(), FULL);
        let (_, line) = text.split_once("\n  until ").unwrap();
        let (line, _) = line.split_once("\n  intervals").unwrap();
        Vec::from_iter(line.split_whitespace()).join(" ")
    };
    assert_eq!(
        line(&report),
        "--until needs at least 100 windows, and there are 60; the mean is known to ±8.0 %"
    );
    report.result.summary.n_windows = 150;
    assert_eq!(
        line(&report),
        "the mean is known to ±8.0 %: --until 5% is not reached after all 150 windows"
    );
    report.result.summary.clusters.kind = ClusterKind::Block;
    assert_eq!(
        line(&report),
        "the mean is known to ±8.0 %: neighbouring windows resemble each other, so --until needs at \
         least 450 windows, and there are 150"
    );
}

/// Stored rows without token ids.
#[test]
fn text_report_without_token_ids() {
    let mut records = records(2, 20);
    made_up::without_next_tokens(&mut records);
    let report = ModelReport {
        not_available: vec![NotAvailable::WITHOUT_TOKEN_IDS],
        ..plain("other.npz", &records)
    };
    let reference = foreign_reference("ref.npz", Kind::Npz);
    assert_snapshot!(text_report(&report, &reference, FULL));
}

/// A model that gives no finite row.
#[test]
fn text_report_without_counted_tokens() {
    let mut records = records(1, 1);
    made_up::exclude(&mut records, 0);
    let report = ModelReport {
        logits: Some(made_up::logits(&[], false)),
        prompts: Some(Vec::new()),
        top: Some(Vec::new()),
        ..plain("broken.gguf", &records)
    };
    assert_snapshot!(text_report(&report, &reference(), FULL));
}

/// A document with every key.
#[test]
fn the_json_is_as_its_schema_states() {
    let mut records = records(3, 80);
    made_up::exclude(&mut records, 5);
    let condition: Condition = "kld.mean > 0.01".parse().unwrap();
    let mut report = ModelReport {
        interrupted: interrupted(2, Some(9)),
        n_resumed: 7,
        not_available: vec![NotAvailable::WITHOUT_TOKEN_IDS],
        prompts: Some(made_up::prompts(&records)),
        tokens: Some(made_up::tokens(&records)),
        ..full("q4.gguf", &records)
    };
    report.result.until = Some(UntilInfo {
        target: 0.05,
        reached: false,
        relative_half_width: Some(0.08),
        of: Some(9),
    });
    report.conditions = judge(&[condition], &report, false);
    let logits = made_up::logits(&records, true);
    let without_logits = ModelReport {
        logits: Some(logits),
        ..plain("q2.gguf", &records)
    };
    let report = Report {
        versions: made_up::VERSIONS,
        reference: ReferenceInfo {
            states: made_up::reference_of_states().states,
            ..made_up::reference_of_prompts()
        },
        complete: true,
        models: vec![report, without_logits],
        failed: vec![Failure {
            path: "none.gguf".to_owned(),
            error: "cannot be read".to_owned(),
        }],
        warnings: vec![Warning::new("no_chat_template", "")],
        unwritten: Vec::new(),
    };
    schema::check::<Report>(&report.json().unwrap());
}

/// The values of every token are too many for a line each.
#[test]
fn json_is_indented_unless_it_holds_every_token() {
    let records = records(1, 3);
    let mut report = Report {
        versions: made_up::VERSIONS,
        models: vec![plain("q4.gguf", &records)],
        reference: reference(),
        ..Report::default()
    };
    let indented = report.json().unwrap();
    assert!(
        indented.starts_with("{\n  \"kl_version\": \"0\",\n  \"json_version\": 2,\n"),
        "{indented}"
    );
    assert!(indented.ends_with("}\n"));
    report.models[0].tokens = Some(made_up::tokens(&records));
    assert_eq!(report.json().unwrap().lines().count(), 1);
}

#[test]
fn the_json_of_a_comparison_is_as_its_schema_states() {
    let json = json_text(&sample::comparison()).unwrap();
    schema::check::<Comparison>(&json);
    assert!(json.ends_with("}\n"));
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["models"][0]["ccdf"][0], serde_json::json!([0.0, 1.0]));
}

#[test]
fn text_of_the_comparison() {
    let text = sample::comparison().text(FULL);
    for line in text.lines() {
        assert!(
            line.chars().count() <= 80 || line.starts_with("    "),
            "{line}"
        );
    }
    insta::assert_snapshot!(text);
}

#[test]
fn schemas_are_those_of_the_types() {
    for (file, schema) in [
        ("evaluation.json", schema::schema::<Report>("Evaluation")),
        ("report.json", schema::schema::<Comparison>("Report")),
        ("pair.json", schema::schema::<InDepth>("Pair")),
        ("pick.json", schema::schema::<Pick>("Pick")),
        ("info.json", schema::schema::<Info>("Info")),
        ("check.json", schema::schema::<Check>("Check")),
    ] {
        schema::check_published(file, &schema);
    }
}
