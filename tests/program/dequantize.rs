//! `--dequantize`: what a file lost, without the rounding of kernels for quantized weights.

use serde_json::{Value, json};

use crate::session::{Session, has, labels};

fn mean(model: &Value) -> f64 {
    model["kld"]["mean"]["value"].as_f64().unwrap()
}

#[test]
fn the_weights_alone_are_shown_beside_the_file_and_not_ranked() {
    let session = Session::with_reference("");
    let run = session.ok("-m @q4 -m @q8 -r ref.gz --sweep weights=file,f16 --json s.json");
    run.warns(&["dequantized tiny-q4_K_M.gguf: a copy of "]);
    run.warns_not("set_up_differs");
    run.prints(&[
        "What is rounding in kernels",
        "w the weights alone, dequantized",
        "of its KLD is rounding in this machine's kernels; its weights alone are at ",
    ]);
    let json = session.read_json("s.json");
    assert_eq!(
        labels(&json),
        [
            "tiny-q4_K_M",
            "tiny-q4_K_M-dequantized",
            "tiny-q8_0",
            "tiny-q8_0-dequantized"
        ]
    );
    let models = json["models"].as_array().unwrap();
    has(&models[1], &json!({"set_up": {"weights": "f16"}}));
    assert!(models[0]["set_up"].get("weights").is_none());
    assert!(session.exists("tiny-q8_0-dequantized@ref.kls"));
    // The size is the file's, and most of a q8_0's KLD is the kernels'.
    assert_eq!(models[3]["model"], models[2]["model"]);
    assert!(mean(&models[3]) < 0.8 * mean(&models[2]));
    // What the run prints is what kl report prints later.
    let report = session.ok("report . -q --json r.json");
    assert_eq!(run.stdout, report.stdout);
    let report = session.read_json("r.json");
    let pairs = report["pairs"].as_array().unwrap();
    let mut alone = pairs.iter().filter(|pair| pair["kind"] == "weights");
    let pair = alone.find(|pair| pair["a"] == "tiny-q8_0").unwrap();
    assert_eq!(pair["b"], "tiny-q8_0-dequantized");
    let ratio = pair["ratio"]["value"].as_f64().unwrap();
    assert!((ratio - mean(&models[2]) / mean(&models[3])).abs() < 1e-9 * ratio);
    let is_alone = |of: &Value| of["is_weights_alone"] == true;
    let rows = report["models"].as_array().unwrap();
    assert_eq!(rows.iter().filter(|of| is_alone(of)).count(), 2);
    assert!(rows.iter().all(|of| !is_alone(of) || of["pareto"] == false));
    // Alone, each has the same sidecar to the byte.
    let swept = session.read("tiny-q8_0-dequantized@ref.kls");
    session.remove("tiny-q8_0-dequantized@ref.kls");
    session.ok("-m @q8 -r ref.gz -q --dequantize");
    assert!(session.read("tiny-q8_0-dequantized@ref.kls") == swept);
    // Among themselves they are compared as other models are.
    session.remove("tiny-q8_0@ref.kls");
    session.remove("tiny-q4_K_M@ref.kls");
    let alone = session.ok("report . -q");
    alone.prints(&["tiny-q8_0-dequantized is nearest to the original"]);
    alone.prints_not("weights alone");
}

#[test]
fn one_that_may_be_rounding_is_marked() {
    let session = Session::with_reference("");
    let run = session.ok("-m @q4 -m @q8 -m @f16 -r ref.gz --no-sidecar");
    run.prints(&["~ most of it may be rounding in kernels"]);
    let marked = |label: &str| {
        let mut lines = run.stdout.lines();
        let line = lines.find(|line| line.contains(label) && line.contains(" ["));
        line.unwrap().contains('~')
    };
    assert!(marked("tiny-q8_0"));
    assert!(!marked("tiny-f16"));
}

#[test]
fn evaluations_of_file_and_weights_are_two() {
    let session = Session::with_reference("");
    session.ok("-m @q8 -r ref.gz -q --sidecar one.kls");
    let run = session.ends("-m @q8 -r ref.gz -q --sidecar one.kls --dequantize", 1);
    run.warns(&["one.kls: holds another evaluation", "weights"]);
    let run = session.ends("-m @q8 -r ref.gz --dequantize --sweep weights=file", 2);
    run.warns(&["--dequantize sets them: leave it out"]);
    // A reference may be one, and records it.
    session.ok("-m @q8 -t short.txt -c 64 -w weights.gz -q --dequantize");
    let info = session.info("weights.gz");
    has(&info, &json!({"backend": {"weights": "f16"}}));
    let model = session.result("-m @q8 -r weights.gz -q --dequantize --no-sidecar");
    assert!(mean(&model) < 1e-6 && model["is_noise_floor"] == true);
    // The same model as its file is shows what is rounding, not noise.
    let model = session.result("-m @q8 -r weights.gz -q --no-sidecar");
    assert!(mean(&model) > 1e-6 && model["is_noise_floor"] == false);
    let run = session.ok("-m @q8 -r ref.gz -q --no-sidecar --dequantize");
    run.prints(&["its weights dequantized to f16"]);
}

#[test]
fn a_copy_needs_a_folder() {
    let session = Session::with_reference("");
    let run = session.in_shell("TMPDIR=missing \"$@\"", "-m @q8 -r ref.gz -q --dequantize");
    assert_eq!(run.code, 1, "{}", run.stderr);
    run.warns(&["missing", "set TMPDIR to another folder"]);
}
