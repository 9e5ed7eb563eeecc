//! `kl report --pair --fail-if`: a new build against one that is known to be good, for CI.

use serde_json::{Value, json};

use crate::numbers::number;
use crate::session::Session;

/// The conditions that the guide recommends.
const GATE: &str = "--fail-if 'ratio.upper > 1.05' --fail-if 'agreement.difference.lo < -0.005' \
                    --fail-if 'q99.9.ratio > 1.5'";

/// A session with a reference of 182 windows, and the sidecar of a good build.
fn session() -> Session {
    let session = Session::new();
    session.ok("-m @f16 -t @eval -w ref.gz -c 24 -q");
    session.ok("-m @q4 -r ref.gz --sidecar good.kls -q");
    session
}

/// Whether each condition has failed, and why.
fn outcomes(json: &Value) -> Vec<(bool, &str)> {
    let conditions = json["conditions"].as_array().unwrap().iter();
    let outcome = |of: &'_ Value| of["failed"].as_bool().unwrap();
    conditions
        .map(|of| (outcome(of), of["reason"].as_str().unwrap_or_default()))
        .collect()
}

#[test]
fn the_same_build_passes_and_a_worse_one_fails() {
    let session = session();
    // The same build, the same build in other calls, and a better one.
    session.ok("-m @q4 -r ref.gz --sidecar same.kls -q");
    assert_eq!(session.read("same.kls"), session.read("good.kls"));
    session.ok("-m @q4 -r ref.gz -b 16 -ub 16 --sidecar calls.kls -q");
    session.ok("-m @q8 -r ref.gz --sidecar better.kls -q");
    for new in ["same", "calls", "better"] {
        let run = session.ok(&format!("report {new}.kls good.kls --pair {GATE}"));
        run.warns(&[&format!("{new}.kls: passed: ratio.upper > 1.05 does not")]);
        run.warns(&["passed: q99.9.ratio > 1.5 does not hold"]);
        assert!(!run.stdout.contains("passed"), "results alone on stdout");
    }
    let same = session.ok(&format!("report same.kls good.kls --pair {GATE} --json -"));
    let same = same.json();
    let of = |name: &str, value: f64| json!({"expression": name, "value": value, "failed": false});
    assert_eq!(
        same["conditions"],
        json!([
            of("ratio.upper > 1.05", 1.0),
            of("agreement.difference.lo < -0.005", 0.0),
            of("q99.9.ratio > 1.5", 1.0),
        ])
    );

    session.ok("-m @q2 -r ref.gz --sidecar worse.kls -q");
    let line = format!("report worse.kls good.kls --pair -q {GATE} --json gate.json");
    let run = session.ends(&line, 3);
    run.warns(&["worse.kls: failed: ratio.upper > 1.05 holds: "]);
    let gate = session.read_json("gate.json");
    assert_eq!(outcomes(&gate), [(true, "holds"); 3]);
    assert_eq!(gate["conditions"][0]["value"], gate["ratio"]["upper"]);
    // One-sided: nearer to the ratio than the upper end of the interval is.
    let [value, upper, hi] = ["value", "upper", "hi"].map(|key| number(&gate["ratio"][key]));
    assert!(value < upper && upper < hi, "{value} {upper} {hi}");
    // The other way around, the good one is better than the worse.
    session.ok(&format!("report good.kls worse.kls --pair -q {GATE}"));

    // Quantiles are those of each evaluation.
    let quantiles = gate["quantiles"].as_array().unwrap();
    for (side, file) in [("a", "worse.kls"), ("b", "good.kls")] {
        let alone = session.ok(&format!("report {file} --json -")).json();
        let alone = alone["models"][0]["kld"]["quantiles"].clone();
        for (of_pair, alone) in quantiles.iter().zip(alone.as_array().unwrap()) {
            assert_eq!(
                (&of_pair["p"], &of_pair[side]),
                (&alone["p"], &alone["value"])
            );
            let ratio = number(&of_pair["a"]) / number(&of_pair["b"]);
            assert_eq!(number(&of_pair["ratio"]), ratio);
        }
    }
    assert_eq!(quantiles.last().unwrap()["p"], 0.999);
    assert_eq!(
        gate["conditions"][2]["value"],
        quantiles.last().unwrap()["ratio"]
    );
}

#[test]
fn few_windows_fail_a_gate_on_the_ratio() {
    let session = session();
    for (name, more) in [("few", ""), ("few_too", " -b 16 -ub 16")] {
        let sidecar = format!("--sidecar {name}.kls -q{more}");
        session.ok(&format!("-m @q4 -r ref.gz -n 900 {sidecar}"));
    }
    let pair = format!("report few.kls few_too.kls --pair -q {GATE} --json gate.json");
    let needs = "few.kls: failed: ratio.upper > 1.05 needs at least 100 windows";
    session.fails(&pair, 3, &[needs, "of 40"]);
    let gate = session.read_json("gate.json");
    assert_eq!(gate["n_windows"], 40);
    let passed = (false, "");
    assert_eq!(outcomes(&gate), [(true, "few_windows"), passed, passed]);
}

#[test]
fn tokens_that_are_left_out_fail_a_gate() {
    let session = Session::new();
    session.reference_with_nan();
    session.ok("-m @q8 -r bad.gz --sidecar new.kls -q");
    session.ok("-m @q4 -r bad.gz --sidecar good.kls -q");
    let line = "report new.kls good.kls --pair -q --fail-if 'q99.ratio > 1'";
    let what = [
        "q99.ratio > 1 does not hold, but 1 token",
        "--allow-excluded",
    ];
    session.fails(line, 3, &what);
    session.ok(&format!("{line} --allow-excluded"));
}
