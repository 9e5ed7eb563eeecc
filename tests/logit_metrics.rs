//! Distances in logit space, symmetric and smoothed divergences, as a person asks for them.

mod common;

use common::Session;

#[test]
fn the_logits_of_two_models_are_compared_as_float64_does() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    session.reference_of("@tiny-q2_K.gguf", "q2.gz", &["--encoding", "f32"]);
    let (reference, model) = (session.rows("ref.gz"), session.rows("q2.gz"));
    let n = reference.len() as f64;
    let (mut mean_abs_diff, mut cosine_distance) = (0.0, 0.0);
    for (l, m) in reference.iter().zip(&model) {
        let pairs = || l.iter().zip(m).map(|(&l, &m)| (f64::from(l), f64::from(m)));
        let sum = |of: fn((f64, f64)) -> f64| pairs().map(of).sum::<f64>();
        mean_abs_diff += sum(|(l, m)| (l - m).abs()) / l.len() as f64 / n;
        let norms = sum(|(l, _)| l * l) * sum(|(_, m)| m * m);
        cosine_distance += (1.0 - sum(|(l, m)| l * m) / norms.sqrt()) / n;
    }

    let args = ["-m", "@tiny-q2_K.gguf", "-r", "ref.gz", "--stats", "logits"];
    let json = session.json(&args);
    let model = &json["models"][0];
    let is = |number: &serde_json::Value, expected: f64| {
        let number = number.as_f64().unwrap();
        assert!(
            (number / expected - 1.0).abs() < 1e-9,
            "{number} {expected}"
        );
    };
    is(
        &model["logits"]["mean_abs_diff"]["mean"]["value"],
        mean_abs_diff,
    );
    is(
        &model["logits"]["cosine_distance"]["mean"]["value"],
        cosine_distance,
    );
    let kld = model["kld"]["mean"]["value"].as_f64().unwrap();
    let smoothed = model["smoothed_kld"]["mean"]["value"].as_f64().unwrap();
    assert!((smoothed / kld - 1.0).abs() < 1e-4, "{smoothed} {kld}");
    assert!(model["jensen_shannon"]["max"].as_f64().unwrap() > 0.0);
    assert!(json["models"][0].get("logits_not_available").is_none());

    let run = session.ok(&[&args[..], &["-q"]].concat());
    assert!(run.stdout.contains("Jensen-Shannon divergence"));
    let run = session.ok(&[&args[..4], &["-q"]].concat());
    assert!(!run.stdout.contains("Jensen-Shannon divergence"));
}

#[test]
fn a_base_file_has_no_logits_and_says_so() {
    let session = Session::new();
    let base = "@peers/llama-perplexity-f16-c128.kld";
    // Nor has what was made of it.
    session.ok(&[
        "convert",
        base,
        "of-base.gz",
        "--format",
        "kl",
        "--bos",
        "1",
        "-q",
    ]);
    for reference in [base, "of-base.gz"] {
        let args = [
            "-m",
            "@tiny-q2_K.gguf",
            "-r",
            reference,
            "--stats",
            "logits",
        ];
        let json = session.json(&args);
        let model = &json["models"][0];
        assert_eq!(json["reference"]["log_probabilities"], true);
        assert!(model["logits"].is_null());
        assert_eq!(model["logits_not_available"], "log_probabilities_only");
        assert!(model["jensen_shannon"]["mean"]["value"].as_f64().unwrap() > 0.0);
    }
}
