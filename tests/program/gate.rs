//! Output for scripts: conditions and their exit code, the worst tokens, every token's values.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::numbers::{Window, close, log_softmax, number};
use crate::session::{Session, short_text};

#[test]
fn conditions_decide_the_exit_code() {
    let session = Session::new();
    session.reference("");
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
    assert!(!passes.stdout.contains("passed"), "results alone on stdout");
    let top1 = &model["agreement"]["ref_top1"]["lo"];
    assert_eq!(
        model["conditions"],
        json!([
            {"expression": "kld.mean > 0.1", "value": value, "failed": false},
            {"expression": "agreement.ref_top1.lo<0.5", "value": top1, "failed": false},
        ])
    );

    // One of two conditions on one of two models is enough; both models are evaluated.
    let fails = session.kl(
        "-m @q2 -m @q4 -r ref.gz -q --fail-if 'kld.mean > 0.003' --fail-if kld.median<0 \
         --json fail.json",
    );
    assert_eq!(fails.code, 3, "{}", fails.stderr);
    let lines = fails.stderr.lines();
    let n_outcomes = lines.filter(|line| !line.contains("warning")).count();
    assert_eq!(n_outcomes, 1, "with -q only what failed: {}", fails.stderr);
    fails.warns(&["tiny-q2_K.gguf", "failed", "kld.mean > 0.003", ": 0.00"]);
    fails.prints(&["2 models against ref.gz"]);
    let json = session.read_json("fail.json");
    let failed = |model: usize, condition: usize| {
        json["models"][model]["conditions"][condition]["failed"].clone()
    };
    assert_eq!(
        [failed(0, 0), failed(0, 1), failed(1, 0), failed(1, 1)],
        [true, false, false, false]
    );
    assert_eq!(json["failed"], json!([]));
}

#[test]
fn a_condition_may_name_any_number_of_the_json() {
    let session = Session::new();
    session.reference("");
    let names: HashMap<&str, &str> = HashMap::from([
        ("kld.mean", "/kld/mean/value"),
        ("kld.mean.value", "/kld/mean/value"),
        ("kld.mean.hi", "/kld/mean/hi"),
        ("kld.mean.cluster_hi", "/kld/mean/cluster_hi"),
        ("kld.max", "/kld/max"),
        ("kld.median", "/kld/quantiles/0/value"),
        ("kld.q50", "/kld/quantiles/0/value"),
        ("kld.q99", "/kld/quantiles/3/value"),
        ("kld.q50.hi", "/kld/quantiles/0/hi"),
        ("kld.q99.9", "/kld/quantiles/4/value"),
        ("agreement.ref_top1.lo", "/agreement/ref_top1/lo"),
        ("perplexity.ln_ratio", "/perplexity/ln_ratio/value"),
        ("perplexity.eval", "/perplexity/eval"),
        ("delta_p.rms", "/delta_p/rms/value"),
        ("delta_p.q0.1", "/delta_p/quantiles/0/value"),
        ("model.bpw", "/model/bpw"),
        ("n_tokens", "/n_tokens"),
        ("timing.tokens_per_s", "/timing/tokens_per_s"),
    ]);
    let conditions = names.keys().map(|name| format!("--fail-if={name}>1e300"));
    let conditions = conditions.collect::<Vec<_>>().join(" ");
    let model = session.result(&format!("-m @q4 -r ref.gz {conditions}"));
    let verdicts = model["conditions"].as_array().unwrap();
    assert_eq!(verdicts.len(), names.len());
    for verdict in verdicts {
        let expression = verdict["expression"].as_str().unwrap();
        let (name, _) = expression.split_once('>').unwrap();
        let value = model.pointer(names[name]).unwrap().as_f64();
        assert!(value.is_some(), "{name}");
        assert_eq!(verdict["value"].as_f64(), value, "{name}");
    }
}

#[test]
fn a_report_judges_each_of_its_models() {
    let session = Session::new();
    session.reference("");
    session.ok("-m @q2 -m @q8 -r ref.gz -q");
    let gate = "--fail-if 'kld.mean > 0.003'";
    let run = session.kl(&format!(
        "report tiny-q2_K@ref.kls tiny-q8_0@ref.kls {gate} --json o.json -q"
    ));
    assert_eq!(run.code, 3, "{}", run.stderr);
    run.warns(&["tiny-q2_K@ref.kls: failed: kld.mean > 0.003 holds"]);
    let json = session.read_json("o.json");
    let failed = [0, 1].map(|model| json["models"][model]["conditions"][0]["failed"].clone());
    assert_eq!(
        failed,
        [json!(false), json!(true)],
        "the best model comes first"
    );
    let alone = session.ok(&format!("report tiny-q8_0@ref.kls {gate}"));
    alone.warns(&["tiny-q8_0@ref.kls: passed"]);
    let of_two = "report . --fail-if 'ratio.upper > 1'";
    session.fails(of_two, 2, &["add --pair"]);
    session.fails(&format!("report . --pair {gate}"), 2, &["leave --pair out"]);
}

#[test]
fn a_condition_on_a_missing_number_has_failed() {
    let session = Session::new();
    session.reference("");
    // One window alone has no clustered interval.
    let run = session.kl("-m @q4 -r ref.gz -q -n 60 --json out.json \
         --fail-if 'kld.mean.cluster_hi > 1000'");
    assert_eq!(run.code, 3, "{}", run.stderr);
    run.warns(&["failed", "kld.mean.cluster_hi > 1000", "no such value"]);
    let condition = &session.read_json("out.json")["models"][0]["conditions"][0];
    assert_eq!(condition["value"], Value::Null);
    assert_eq!(condition["failed"], true);
}

#[test]
fn tokens_that_are_left_out_fail_every_condition() {
    let session = Session::new();
    session.reference_with_nan();
    let line = "-m @q8 -r bad.gz -q --fail-if 'kld.mean > 1'";
    assert_eq!(session.kl(&line.replace("bad", "ref")).code, 0);
    let run = session.kl(&format!("{line} --json fail.json"));
    assert_eq!(run.code, 3, "{}", run.stderr);
    let what = "does not hold, but 1 token with a row that is not finite is left out";
    run.warns(&["kld.mean > 1", what, "--allow-excluded"]);
    let verdict = session.read_json("fail.json")["models"][0]["conditions"][0].take();
    assert_eq!(verdict["failed"], true);
    assert_eq!(verdict["reason"], "left_out");
    assert!(number(&verdict["value"]) < 1.0);
    session.ok(&format!("{line} --allow-excluded"));
    // What holds, holds.
    let holds = line.replace("> 1", "< 1");
    assert_eq!(session.kl(&format!("{holds} --allow-excluded")).code, 3);
    let alone = "-m @q8 -r bad.gz --allow-excluded";
    session.fails(alone, 2, &["--fail-if"]);
}

#[test]
fn errors_come_before_conditions() {
    let session = Session::new();
    session.reference("");
    session.write("bad.gguf", "no model");
    let run = session.kl("-m bad.gguf -m @q2 -r ref.gz -q --fail-if 'kld.mean > 0'");
    assert_eq!(run.code, 1, "{}", run.stderr);
    run.warns(&["failed", "kld.mean > 0", ": 0.00"]);
}

#[test]
fn wrong_use_is_reported_before_any_file_is_opened() {
    let session = Session::new();
    let reading = "
        --fail-if 'kld.meen > 1' => kld.mean
        --fail-if 'kld.mean > x' => 'kld.mean > x'
        --fail-if kld.mean => 'kld.mean > 0.01'
        --top-k 0 => --top-k
        --top-k -3 => -3
        --json-tokens => --json PATH";
    session.fails_each(2, "-m none.gguf -r none.gz", reading);
    let writing = "
        --fail-if 'kld.mean > 1' => --fail-if | cannot be used with
        --top-k 3 => --top-k | needs --temp
        --json-tokens => --json-tokens | cannot be used with";
    session.fails_each(2, "-m none.gguf -t none.txt -w ref.gz", writing);
}

#[test]
fn the_worst_tokens_are_the_sidecars_with_the_models_own_probabilities() {
    let session = Session::new();
    // ln p by window and position.
    let rows = |name: &str| -> HashMap<(u32, u32), Vec<f64>> {
        let windows = session.windows(name).into_iter();
        let rows = windows.flat_map(|window| {
            let Window { spec, rows } = window;
            let positions = spec.first_scored..;
            let at = positions.map(move |position| (spec.window, position));
            at.zip(rows)
        });
        rows.map(|(at, row)| (at, log_softmax(&row))).collect()
    };
    for encoding in ["f32", "u16"] {
        session.reference(&format!("--encoding {encoding} --force"));
        let top_k = "-m @q4 -r ref.gz --top-k 12 --sidecar out.kls --contexts 2 --force";
        let result = session.result(top_k);
        session.reference_of("@q4", "eval.gz", "--encoding f32 --force");

        let mut worst = session.records("out.kls");
        worst.sort_by(|a, b| b.kld.total_cmp(&a.kld));
        let (reference, evaluated) = (rows("ref.gz"), rows("eval.gz"));
        let listed = result["top"].as_array().unwrap();
        assert_eq!(listed.len(), 12);
        for (token, record) in listed.iter().zip(&worst) {
            let at = (record.window, record.position);
            assert_eq!(token["window"], record.window);
            assert_eq!(token["position"], record.position);
            assert_eq!(number(&token["kld"]), record.kld);
            let next = record.next_token().map_or(Value::Null, Value::from);
            assert_eq!(token["token"], next);
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
    let session = Session::new();
    session.reference("");
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
    // Without the flags there are none of these keys.
    let plain = session.result("-m @q4 -r ref.gz");
    for key in ["top", "tokens", "conditions"] {
        assert!(plain.get(key).is_none(), "{key}");
    }
    let all = session.result("-m @q4 -r ref.gz --top-k 4294967295");
    assert_eq!(all["n_tokens"], all["top"].as_array().unwrap().len());
}

#[test]
fn the_json_lists_every_token_on_request() {
    let session = Session::new();
    session.reference("");
    let result = session.result("-m @q4 -r ref.gz --json-tokens --sidecar out.kls");
    let tokens = &result["tokens"];
    let records = session.records("out.kls");
    for (key, column) in tokens.as_object().unwrap() {
        assert_eq!(column.as_array().unwrap().len(), records.len(), "{key}");
    }
    for (i, record) in records.iter().enumerate() {
        let whole = |key: &str| tokens[key][i].as_u64().map(|value| value as u32);
        assert_eq!(whole("window"), Some(record.window));
        assert_eq!(whole("position"), Some(record.position));
        assert_eq!(whole("token"), record.next_token());
        assert_eq!(tokens["text"][i].is_string(), record.next_token().is_some());
        assert_eq!(whole("ref_top"), Some(record.ref_top));
        assert_eq!(whole("eval_top"), Some(record.eval_top));
        assert_eq!(whole("ref_top_rank"), Some(record.ref_top_rank));
        assert_eq!(whole("eval_top_rank"), Some(record.eval_top_rank));
        for (key, value) in [
            ("kld", record.kld),
            ("reverse_kld", record.reverse_kld),
            ("ref_nll", record.ref_nll),
            ("eval_nll", record.eval_nll),
            ("ref_entropy", record.ref_entropy),
        ] {
            let is_equal = match tokens[key][i].as_f64() {
                Some(float) => float == value,
                None => tokens[key][i].is_null() && value.is_nan(),
            };
            assert!(is_equal, "{key}: {record:?}");
        }
    }
    let mut nexts = records.iter().map(|record| record.next_token());
    assert!(
        nexts.any(|next| next.is_none()),
        "the last row of a window has no next token"
    );
}
