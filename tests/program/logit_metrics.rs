//! `--stats logits`: distances in logit space, symmetric and smoothed divergences.

use serde_json::Value;

use crate::numbers::number;
use crate::session::Session;

#[test]
fn logits_are_compared_as_float64_does() {
    let session = Session::new();
    session.reference("--encoding f32");
    session.reference_of("@q2", "q2.gz", "--encoding f32");
    let (reference, evaluated) = (session.rows("ref.gz"), session.rows("q2.gz"));
    let n = reference.len() as f64;
    let (mut mean_abs_diff, mut cosine_distance) = (0.0, 0.0);
    for (l, m) in reference.iter().zip(&evaluated) {
        let pairs = || l.iter().zip(m).map(|(&l, &m)| (f64::from(l), f64::from(m)));
        let sum = |of: fn((f64, f64)) -> f64| pairs().map(of).sum::<f64>();
        mean_abs_diff += sum(|(l, m)| (l - m).abs()) / l.len() as f64 / n;
        let norms = sum(|(l, _)| l * l) * sum(|(_, m)| m * m);
        cosine_distance += (1.0 - sum(|(l, m)| l * m) / norms.sqrt()) / n;
    }

    let result = session.result("-m @q2 -r ref.gz --stats logits");
    let ratio = |value: &Value, exact: f64| (number(value) / exact - 1.0).abs();
    let mean = |key: &str| &result["logits"][key]["mean"]["value"];
    assert!(ratio(mean("mean_abs_diff"), mean_abs_diff) < 1e-9);
    assert!(ratio(mean("cosine_distance"), cosine_distance) < 1e-9);
    let kld = number(&result["kld"]["mean"]["value"]);
    assert!(ratio(&result["smoothed_kld"]["mean"]["value"], kld) < 1e-4);
    assert!(number(&result["jensen_shannon"]["max"]) > 0.0);
    assert!(result.get("logits_not_available").is_none());

    let run = session.ok("-m @q2 -r ref.gz --stats logits -q");
    run.prints(&["Jensen-Shannon divergence"]);
    let run = session.ok("-m @q2 -r ref.gz -q");
    assert!(!run.stdout.contains("Jensen-Shannon divergence"));
}

#[test]
fn a_base_file_has_no_logits_to_compare() {
    let session = Session::new();
    // Nor has a file converted from it.
    session.ok("convert @base of-base.gz --format kl --bos 1 -q");
    for reference in ["@base", "of-base.gz"] {
        let json = session.json(&format!("-m @q2 -r {reference} --stats logits"));
        let result = &json["models"][0];
        assert_eq!(json["reference"]["log_probabilities"], true);
        assert!(result["logits"].is_null());
        assert_eq!(result["logits_not_available"], "log_probabilities_only");
        assert!(number(&result["jensen_shannon"]["mean"]["value"]) > 0.0);
    }
}
