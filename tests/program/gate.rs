//! Output for scripts: conditions and their exit code, of a model and of a new build against one that is
//! known to be good; the worst tokens, every token's values.

use std::collections::HashMap;

use serde_json::json;

use crate::numbers::{Window, close, log_softmax, number};
use crate::session::{Session, has, short_text};

#[test]
fn conditions_decide_the_exit_code() {
    let session = Session::with_reference("");
    let passes = session.ok(
        "-m @q4 -r ref.gz --fail-if 'kld.mean > 0.1' --fail-if=agreement.ref_top1.lo<0.5 \
         --json pass.json",
    );
    let model = session.read_json("pass.json")["models"][0].take();
    let value = number(&model["kld"]["mean"]["value"]);
    passes.warns(&["tiny-q4_K_M.gguf", "passed", "kld.mean > 0.1"]);
    let mut lines = passes.stderr.lines();
    let line = lines.find(|line| line.contains("kld.mean > 0.1")).unwrap();
    let (_, printed) = line.rsplit_once(' ').unwrap();
    assert_eq!(printed.parse(), Ok(value), "{line}");
    passes.prints_not("passed");
    let top1 = &model["agreement"]["ref_top1"]["lo"];
    let expected = json!([
        {"expression": "kld.mean > 0.1", "value": value, "failed": false},
        {"expression": "agreement.ref_top1.lo<0.5", "value": top1, "failed": false},
    ]);
    assert_eq!(model["conditions"], expected);

    // One of two conditions on one of two models is enough; both models are evaluated.
    let two = "-m @q2 -m @q4 -r ref.gz -q --fail-if 'kld.mean > 0.003' --fail-if kld.median<0";
    let fails = session.ends(&format!("{two} --json fail.json"), 3);
    let lines = fails.stderr.lines();
    let n_outcomes = lines.filter(|line| !line.contains("warning")).count();
    assert_eq!(n_outcomes, 1, "with -q only what failed: {}", fails.stderr);
    fails.warns(&["tiny-q2_K.gguf", "failed", "kld.mean > 0.003", ": 0.00"]);
    fails.prints(&["2 models against ref.gz"]);
    let json = session.read_json("fail.json");
    let failed = [(0, 0), (0, 1), (1, 0), (1, 1)]
        .map(|(model, of)| json["models"][model]["conditions"][of]["failed"].clone());
    assert_eq!(failed, [true, false, false, false]);
    assert_eq!(json["failed"], json!([]));

    // A condition that holds is seen among many models.
    let loud = session.ends(&two.replace("-q ", "--force "), 3);
    loud.warns(&["kl: --fail-if: 1 of 2 models fail"]);
    loud.warns_not("passed");
    let none = session.ok("-m @q8 -m @q4 -r ref.gz --fail-if kld.mean>1 --force");
    none.warns(&["--fail-if: none of 2 models fails"]);
    // A report judges each of its models, the best first.
    let line = "report tiny-q2_K@ref.kls tiny-q8_0@ref.kls --fail-if 'kld.mean > 0.003'";
    let what = ["tiny-q2_K@ref.kls: failed: kld.mean > 0.003 holds"];
    session.fails(&format!("{line} --json o.json -q"), 3, &what);
    let json = session.read_json("o.json");
    let failed = [0, 1].map(|model| json["models"][model]["conditions"][0]["failed"].clone());
    assert_eq!(failed, [false, true]);
    let alone = session.ok(&line.replace("tiny-q2_K@ref.kls ", ""));
    alone.warns(&["tiny-q8_0@ref.kls: passed"]);
    // A condition on a missing number has failed: one window alone has no clustered interval.
    let line = "-m @q4 -r ref.gz -q -n 60 --json out.json --fail-if 'kld.mean.cluster_hi > 1000'";
    let what = ["failed", "kld.mean.cluster_hi > 1000", "no such value"];
    session.fails(&format!("{line} --no-sidecar"), 3, &what);
    let condition = &session.read_json("out.json")["models"][0]["conditions"][0];
    has(condition, &json!({"value": null, "failed": true}));
    // An error comes before conditions.
    session.write("bad.gguf", "no model");
    let line = "-m bad.gguf -m @q2 -r ref.gz -q --fail-if 'kld.mean > 0' --no-sidecar";
    let run = session.ends(line, 1);
    run.warns(&["failed", "kld.mean > 0", ": 0.00"]);
}

/// The conditions that the guide recommends.
const GATE: &str = "--fail-if 'ratio.upper > 1.05' --fail-if 'agreement.difference.lo < -0.005' \
                    --fail-if 'q99.9.ratio > 1.5'";

#[test]
fn a_pair_of_the_same_build_passes_and_a_worse_one_fails() {
    let session = Session::new();
    // Of 182 windows.
    session.ok("-m @f16 -t @eval -w ref.gz -c 24 -q");
    session.ok("-m @q4 -r ref.gz --sidecar good.kls -q");
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
    let outcomes = json!([
        {"expression": "ratio.upper > 1.05", "value": 1, "failed": false},
        {"expression": "agreement.difference.lo < -0.005", "value": 0, "failed": false},
        {"expression": "q99.9.ratio > 1.5", "value": 1, "failed": false},
    ]);
    has(&same.json()["conditions"], &outcomes);

    session.ok("-m @q2 -r ref.gz --sidecar worse.kls -q");
    let line = format!("report worse.kls good.kls --pair -q {GATE} --json gate.json");
    let run = session.ends(&line, 3);
    run.warns(&["worse.kls: failed: ratio.upper > 1.05 holds: "]);
    let gate = session.read_json("gate.json");
    let holds = json!({"failed": true, "reason": "holds"});
    has(&gate["conditions"], &json!([holds, holds, holds]));
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
            has(of_pair, &json!({"p": alone["p"], side: alone["value"]}));
            let ratio = number(&of_pair["a"]) / number(&of_pair["b"]);
            assert_eq!(number(&of_pair["ratio"]), ratio);
        }
    }
    let last = json!({"p": 0.999, "ratio": gate["conditions"][2]["value"]});
    has(quantiles.last().unwrap(), &last);

    // Few windows fail a gate on the ratio.
    for (name, more) in [("few", ""), ("few_too", " -b 16 -ub 16")] {
        let sidecar = format!("--sidecar {name}.kls -q{more}");
        session.ok(&format!("-m @q4 -r ref.gz -n 900 {sidecar}"));
    }
    let pair = format!("report few.kls few_too.kls --pair -q {GATE} --json gate.json");
    let needs = "few.kls: failed: ratio.upper > 1.05 needs at least 100 windows";
    session.fails(&pair, 3, &[needs, "of 40"]);
    let gate = session.read_json("gate.json");
    let [failed, passed] = [true, false].map(|is| json!({"failed": is}));
    let outcomes = json!({"n_windows": 40, "conditions": [failed, passed, passed]});
    has(&gate, &outcomes);
    assert_eq!(gate["conditions"][0]["reason"], "few_windows");
}

#[test]
fn tokens_that_are_left_out_fail_every_condition() {
    let session = Session::new();
    session.reference_with_nan();
    let line = "-m @q8 -r bad.gz -q --fail-if 'kld.mean > 1'";
    session.ok(&line.replace("bad", "ref"));
    let run = session.ends(&format!("{line} --json fail.json"), 3);
    let what =
        "does not hold, but 1 token with a row of the reference that is not finite is left out";
    run.warns(&["kld.mean > 1", what, "--allow-excluded"]);
    let verdict = session.read_json("fail.json")["models"][0]["conditions"][0].take();
    has(&verdict, &json!({"failed": true, "reason": "left_out"}));
    assert!(number(&verdict["value"]) < 1.0);
    session.ok(&format!("{line} --allow-excluded"));
    // What holds, holds.
    let holds = line.replace("> 1", "< 1");
    session.ends(&format!("{holds} --allow-excluded"), 3);
    // So it is with a pair.
    session.ok("-m @q4 -r bad.gz --sidecar good.kls -q");
    let line = "report tiny-q8_0@bad.kls good.kls --pair -q --fail-if 'q99.ratio > 1'";
    let what = "q99.ratio > 1 does not hold, but 1 token";
    session.fails(line, 3, &[what, "--allow-excluded"]);
    session.ok(&format!("{line} --allow-excluded"));
}

#[test]
fn the_worst_tokens_are_the_sidecars_with_the_models_own_probabilities() {
    let session = Session::new();
    // ln p by window and position.
    let rows = |name: &str| -> HashMap<(u32, u32), Vec<f64>> {
        let windows = session.windows(name).into_iter();
        let rows = windows.flat_map(|Window { spec, rows }| {
            let at = (spec.first_scored..).map(move |position| (spec.window, position));
            at.zip(rows)
        });
        rows.map(|(at, row)| (at, log_softmax(&row))).collect()
    };
    session.reference_of("@q4", "eval.gz", "--encoding f32");
    let evaluated = rows("eval.gz");
    for encoding in ["f32", "u16"] {
        session.reference(&format!("--encoding {encoding} --force"));
        let top_k = "-m @q4 -r ref.gz --top-k 12 --sidecar out.kls --contexts 2 --force";
        let result = session.result(top_k);
        let mut worst = session.records("out.kls");
        worst.sort_by(|a, b| b.kld.total_cmp(&a.kld));
        let reference = rows("ref.gz");
        let listed = result["top"].as_array().unwrap();
        assert_eq!(listed.len(), 12);
        for (token, record) in listed.iter().zip(&worst) {
            let at = (record.window, record.position);
            let same = json!({"window": at.0, "position": at.1, "kld": record.kld,
                "token": record.next_token()});
            has(token, &same);
            for (top, row, entry) in [
                (&token["ref_top"], &reference[&at], record.ref_top),
                (&token["eval_top"], &evaluated[&at], record.eval_top),
            ] {
                assert_eq!(top["token"], entry);
                let exact = row[entry as usize].exp();
                close(number(&top["p"]), exact, 1e-9 * exact, "p");
            }
        }
    }
}

#[test]
fn the_worst_tokens_are_shown_in_context() {
    let session = Session::with_reference("");
    let run = session.ok("-m @q4 -r ref.gz -q --full --top-k 5 --json out.json");
    let (_, shown) = run.stdout.split_once("Largest KL divergences").unwrap();
    let lines: Vec<&str> = shown.lines().skip(1).collect();
    assert_eq!(lines.len(), 15, "three lines each: {shown}");

    let text = short_text();
    let json = session.read_json("out.json");
    let listed = json["models"][0]["top"].as_array().unwrap();
    for (token, lines) in listed.iter().zip(lines.chunks(3)) {
        let position = format!("window {}, position {}", token["window"], token["position"]);
        assert!(lines[0].contains(&position), "{lines:#?}");
        let context = token["context"].as_str().unwrap();
        assert!(context.chars().count() <= 40, "{context:?}");
        // The BOS that begins a window is not in the text.
        let context = context.rsplit('>').next().unwrap();
        if let Some(next) = token["token_text"].as_str() {
            let both = format!("{context}{next}");
            assert!(text.contains(both.trim_start()), "{both:?}");
        }
        for top in ["ref_top", "eval_top"] {
            let p = format!("{:.2} %", 100.0 * number(&token[top]["p"]));
            assert!(lines[2].contains(&p), "{lines:#?}");
        }
    }
    let all = session.result("-m @q4 -r ref.gz --top-k 4294967295");
    assert_eq!(all["n_tokens"], all["top"].as_array().unwrap().len());
}

#[test]
fn the_json_lists_every_token_on_request() {
    let session = Session::with_reference("");
    let result = session.result("-m @q4 -r ref.gz --json-tokens --sidecar out.kls");
    let tokens = &result["tokens"];
    let records = session.records("out.kls");
    for (key, column) in tokens.as_object().unwrap() {
        assert_eq!(column.as_array().unwrap().len(), records.len(), "{key}");
    }
    for (i, of) in records.iter().enumerate() {
        let next = of.next_token();
        // A NaN, which JSON lacks, is null.
        let expected = json!({"window": of.window, "position": of.position, "token": next,
            "ref_top": of.ref_top, "eval_top": of.eval_top, "ref_top_rank": of.ref_top_rank,
            "eval_top_rank": of.eval_top_rank, "kld": of.kld, "reverse_kld": of.reverse_kld,
            "ref_nll": of.ref_nll, "eval_nll": of.eval_nll, "ref_entropy": of.ref_entropy});
        for (key, expected) in expected.as_object().unwrap() {
            has(&tokens[key][i], expected);
        }
        assert_eq!(tokens["text"][i].is_string(), next.is_some());
    }
    let last = records.iter().any(|record| record.next_token().is_none());
    assert!(last, "the last row of a window has no next token");
}
