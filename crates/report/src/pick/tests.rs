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
    pick_beside(false, memory, max_kld, is_original)
}

/// The same beside a quant that `stopped` early.
fn pick_beside(
    stopped: bool,
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
    let stopped = stopped.then(|| {
        let mut result = comparison.models[0].result.clone();
        result.label = "X-Q2_K_S".to_owned();
        StoppedModel {
            result,
            stopped: Interrupted {
                n_windows: 20,
                of: Some(200),
                why: Some("X-Q2_K_L is smaller, faster and surely nearer".to_owned()),
            },
        }
    });
    Pick::new(comparison, wishes, Vec::from_iter(stopped), left_out)
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
    let pick = pick_beside(true, Some(1_450_000), None, true);
    let text = pick.text(View::BRIEF);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    insta::assert_snapshot!(text);
    let json: serde_json::Value = serde_json::from_str(&pick.json().unwrap()).unwrap();
    let stopped = &json["stopped"][0];
    assert_eq!(stopped["label"], "X-Q2_K_S");
    assert_eq!(stopped["stopped"]["n_windows"], 20);
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
