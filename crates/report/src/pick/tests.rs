//! A pick of a comparison that was built by hand.

use kl_formats::{Pace, Speed};

use super::*;
use crate::layout::View;
use crate::result::ContextMemory;
use crate::testing::sample;

/// A comparison whose models have memory, and speeds by their sizes.
fn comparison() -> Comparison {
    let mut comparison = sample::comparison();
    comparison.warnings.clear();
    for model in &mut comparison.models {
        let Some(weights) = model.model.shown_bytes() else {
            continue;
        };
        model.memory = Some(ContextMemory {
            context: 8192,
            weights,
            kv_cache: 200_000,
            compute: Some(50_000),
        });
        let pace = |n_tokens, tokens_per_s: f64| Pace {
            n_tokens,
            tokens_per_s,
            lo: 0.98 * tokens_per_s,
            hi: 1.01 * tokens_per_s,
        };
        let speed = 1e8 / weights as f64;
        model.speed = Some(Speed {
            prompt: pace(512, 20.0 * speed),
            generation: pace(64, speed),
            waited: Some(0.0),
        });
    }
    comparison
}

fn pick(memory: Option<u64>, max_kld: Option<f64>, is_original: bool) -> Pick {
    pick_beside(&[], memory, max_kld, is_original)
}

/// The same beside quants that stopped early, which have the mean KLDs of models at these places.
fn pick_beside(
    stopped: &[(&str, usize)],
    memory: Option<u64>,
    max_kld: Option<f64>,
    is_original: bool,
) -> Pick {
    let wishes = Wishes {
        context: 8192,
        limits: Limits { memory, max_kld },
        is_original,
    };
    let left_out = vec![LeftOut::new(
        Path::new("quants/X-Q3_NEW.gguf"),
        "quants/X-Q3_NEW.gguf: has a type that is too new",
    )];
    let comparison = comparison();
    let stopped = stopped.iter().map(|&(label, place)| {
        let mut result = comparison.models[place].result.clone();
        result.label = label.to_owned();
        StoppedModel {
            result,
            stopped: Interrupted {
                n_windows: 20,
                of: Some(200),
                why: Some("X-Q2_K_L is smaller, faster and surely nearer".to_owned()),
            },
        }
    });
    let stopped = stopped.collect();
    Pick::new(comparison, wishes, stopped, left_out)
}

#[test]
fn text_of_the_pick() {
    let text = pick(Some(1_450_000), None, true).text(View::BRIEF);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    insta::assert_snapshot!(text);
}

#[test]
fn what_stopped_has_a_row_and_a_reason() {
    let stopped = [("X-Q2_K", 1), ("X-Q2_K_S", 0)];
    let pick = pick_beside(&stopped, Some(1_450_000), None, true);
    let text = pick.text(View::BRIEF);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    insta::assert_snapshot!(text);
    let json: serde_json::Value = serde_json::from_str(&pick.json().unwrap()).unwrap();
    let [nearer, farther] = [0, 1].map(|i| &json["stopped"][i]);
    assert_eq!(
        [&nearer["label"], &farther["label"]],
        ["X-Q2_K_S", "X-Q2_K"]
    );
    assert_eq!(nearer["stopped"]["n_windows"], 20);
}

/// Beside speeds, text leaves out what Markdown has room for.
#[test]
fn a_report_shows_speeds_in_the_width_of_a_terminal() {
    let comparison = comparison();
    let text = comparison.text(View::BRIEF);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(text.contains("t/s") && !text.contains("BPW"), "{text}");
    let markdown = comparison.markdown(false);
    let titles = ["BPW", "PPL ratio", "prompt t/s", "gen. t/s"];
    assert!(
        titles.iter().all(|title| markdown.contains(title)),
        "{markdown}"
    );
}

#[test]
fn each_outcome_has_its_sentences() {
    let cases = [
        pick(None, None, true),
        pick(Some(1_499_999), None, false),
        pick(Some(1_450_000), Some(1.5), true),
        pick(Some(1_450_000), Some(0.9), true),
        pick(Some(1_200_000), None, true),
        pick(Some(1_000_000), None, true),
        pick(None, Some(0.01), true),
    ];
    let sentences = cases.iter().map(|pick| pick.sentences().join("\n"));
    insta::assert_snapshot!(Vec::from_iter(sentences).join("\n\n"));
}

/// The sentences of a pick of these models, whatever their memory.
fn sentences_of(change: impl FnOnce(&mut Vec<ComparedModel>)) -> String {
    let mut comparison = comparison();
    change(&mut comparison.models);
    let wishes = Wishes {
        context: 8192,
        limits: Limits::default(),
        is_original: true,
    };
    let pick = Pick::new(comparison, wishes, Vec::new(), Vec::new());
    pick.sentences().join("\n")
}

#[test]
fn one_window_does_not_decide() {
    let said = sentences_of(|models| {
        let summaries = models.iter_mut().map(|model| &mut model.result.summary);
        summaries.for_each(|summary| summary.n_windows = 1);
    });
    let expected = "1 window does not decide which of tiny-q4_K_M and tiny-iq4_xs is nearest";
    assert!(said.contains(expected), "{said}");
}

/// More text would show no difference.
#[test]
fn copies_are_named_as_such() {
    for [first, copy] in [[1, 2], [2, 1]] {
        let said = sentences_of(|models| {
            models[copy].same_as = Some(models[first].label.clone());
        });
        let expected = "have the same KLD at every token, as copies of one file do.";
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("decide"), "{said}");
    }
}

#[test]
fn one_model_is_the_only_one_that_was_measured() {
    let said = sentences_of(|models| models.truncate(2));
    let expected = "it is the only quant that was measured.";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn the_json_and_the_csv_say_what_the_text_says() {
    let pick = pick(Some(1_450_000), None, true);
    crate::testing::schema::check::<Pick>(&pick.json().unwrap());
    let csv = pick.csv();
    let n_columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == n_columns));
    let picked: Vec<&str> = csv.lines().filter(|line| line.ends_with(",true")).collect();
    let label = &pick.pick.as_ref().unwrap().label;
    assert!(
        matches!(&picked[..], [only] if only.starts_with(&**label)),
        "{csv}"
    );
}
