//! What scripts decide by: conditions and their exit code, the worst tokens, every token's values.

mod common;

use std::collections::HashMap;

use common::Session;
use kl_formats::sidecar::{SidecarReader, TokenRecord};
use kl_formats::{NativeReader, Row};
use serde_json::Value;

const Q4: [&str; 5] = ["-m", "@tiny-q4_K_M.gguf", "-r", "ref.gz", "-q"];

fn records(session: &Session, name: &str) -> Vec<TokenRecord> {
    let reader = SidecarReader::open(&session.path(name)).unwrap();
    reader.read_all().unwrap()
}

/// The JSON holds every digit; serde_json may lose the last bits in reading them.
fn same(read: f64, value: f64) -> bool {
    (read - value).abs() <= 1e-14 * value.abs()
}

#[test]
fn conditions_decide_the_exit_code() {
    let session = Session::new();
    session.reference(&[]);
    let passes = session.ok(&[
        "-m",
        "@tiny-q4_K_M.gguf",
        "-r",
        "ref.gz",
        "--fail-if",
        "kld.mean > 0.1",
        "--fail-if=agreement.ref_top1.lo<0.5",
        "--json",
        "pass.json",
    ]);
    let json = session.read_json("pass.json");
    let model = &json["models"][0];
    let value = model["kld"]["mean"]["value"].as_f64().unwrap();
    let said = "tiny-q4_K_M.gguf: passed: kld.mean > 0.1 does not hold: ";
    let (_, said) = passes.stderr.split_once(said).unwrap();
    let said: f64 = said.lines().next().unwrap().parse().unwrap();
    assert!(same(said, value), "{}", passes.stderr);
    assert!(!passes.stdout.contains("passed"), "results alone on stdout");
    assert_eq!(
        model["conditions"],
        serde_json::json!([
            {"expression": "kld.mean > 0.1", "value": value, "failed": false},
            {
                "expression": "agreement.ref_top1.lo<0.5",
                "value": model["agreement"]["ref_top1"]["lo"],
                "failed": false,
            },
        ])
    );

    // One of two conditions on one of two models is enough; both models are evaluated.
    let fails = session.kl(&[
        "-m",
        "@tiny-q2_K.gguf",
        "-m",
        "@tiny-q4_K_M.gguf",
        "-r",
        "ref.gz",
        "-q",
        "--fail-if",
        "kld.mean > 0.003",
        "--fail-if",
        "kld.median<0",
        "--json",
        "fail.json",
    ]);
    assert_eq!(fails.code, 3, "{}", fails.stderr);
    let said: Vec<&str> = fails.stderr.lines().collect();
    assert_eq!(said.len(), 1, "with -q what failed alone: {said:#?}");
    assert!(
        said[0].contains("tiny-q2_K.gguf: failed: kld.mean > 0.003 holds: 0.00"),
        "{said:#?}"
    );
    assert!(
        fails.stdout.contains("* best of its column"),
        "the table is shown"
    );
    let json = session.read_json("fail.json");
    let failed = |model: usize, condition: usize| {
        json["models"][model]["conditions"][condition]["failed"].clone()
    };
    assert_eq!(
        [failed(0, 0), failed(0, 1), failed(1, 0), failed(1, 1)],
        [true, false, false, false]
    );
    assert_eq!(json["failed"], serde_json::json!([]));
}

#[test]
fn any_number_of_the_json_goes() {
    let session = Session::new();
    session.reference(&[]);
    let names: HashMap<&str, &str> = HashMap::from([
        ("kld.mean", "/kld/mean/value"),
        ("kld.mean.value", "/kld/mean/value"),
        ("kld.mean.hi", "/kld/mean/hi"),
        ("kld.mean.cluster_hi", "/kld/mean/cluster_hi"),
        ("kld.max", "/kld/max"),
        ("kld.median", "/kld/quantiles/0/value"),
        ("kld.q50", "/kld/quantiles/0/value"),
        ("kld.q99", "/kld/quantiles/3/value"),
        ("kld.q99.hi", "/kld/quantiles/3/hi"),
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
    let conditions: Vec<String> = names
        .keys()
        .map(|name| format!("--fail-if={name}>1e300"))
        .collect();
    let conditions: Vec<&str> = conditions.iter().map(String::as_str).collect();
    let json = session.json(&[&Q4[..], &conditions].concat());
    let model = &json["models"][0];
    let verdicts = model["conditions"].as_array().unwrap();
    assert_eq!(verdicts.len(), names.len());
    for verdict in verdicts {
        let (name, _) = verdict["expression"]
            .as_str()
            .unwrap()
            .split_once('>')
            .unwrap();
        let value = model.pointer(names[name]).unwrap().as_f64();
        assert!(value.is_some(), "{name}");
        assert_eq!(verdict["value"].as_f64(), value, "{name}");
    }
}

#[test]
fn a_number_that_is_not_there_has_failed() {
    let session = Session::new();
    session.reference(&[]);
    // One window alone has no interval that takes windows as independent.
    let run = session.kl(&[
        &Q4[..],
        &["-n", "60", "--fail-if", "kld.mean.cluster_hi > 1000"],
        &["--json", "out.json"],
    ]
    .concat());
    assert_eq!(run.code, 3, "{}", run.stderr);
    let said = "failed: kld.mean.cluster_hi > 1000 cannot be told: there is no such value";
    assert!(run.stderr.contains(said), "{}", run.stderr);
    let condition = &session.read_json("out.json")["models"][0]["conditions"][0];
    assert_eq!(condition["value"], Value::Null);
    assert_eq!(condition["failed"], true);
}

#[test]
fn errors_come_before_conditions() {
    let session = Session::new();
    session.reference(&[]);
    session.write("bad.gguf", "no model");
    let run = session.kl(&[
        "-m",
        "bad.gguf",
        "-m",
        "@tiny-q2_K.gguf",
        "-r",
        "ref.gz",
        "-q",
        "--fail-if",
        "kld.mean > 0",
    ]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(
        run.stderr.contains("failed: kld.mean > 0 holds: 0.00"),
        "{}",
        run.stderr
    );
}

#[test]
fn wrong_use_is_told_before_anything_is_looked_for() {
    let session = Session::new();
    let none = ["-m", "none.gguf", "-r", "none.gz"];
    for (args, said) in [
        (&["--fail-if", "kld.meen > 1"][..], "kld.mean"),
        (&["--fail-if", "kld.mean > x"], "'kld.mean > x'"),
        (&["--fail-if", "kld.mean"], "'kld.mean > 0.01'"),
        (&["--top-k", "0"], "--top-k"),
        (&["--top-k", "-3"], "-3"),
        (&["--json-tokens"], "--json PATH"),
    ] {
        session.fails(&[&none[..], args].concat(), 2, &[said]);
    }
    for flag in [
        &["--fail-if", "kld.mean > 1"][..],
        &["--top-k", "3"],
        &["--json-tokens"],
    ] {
        let write = ["-m", "none.gguf", "-t", "none.txt", "-w", "ref.gz"];
        session.fails(&[&write[..], flag].concat(), 2, &[flag[0], "-r"]);
    }
}

/// Rows of a reference by window and position.
fn rows(session: &Session, name: &str) -> HashMap<(u32, u32), Vec<f64>> {
    let reader = NativeReader::open(&session.path(name)).unwrap();
    let mut rows = HashMap::new();
    for place in 0..reader.windows().len() {
        let head = reader.head(place).unwrap();
        let mut position = head.first_scored;
        for piece in 0..reader.n_pieces(place) {
            let block = reader.piece(place, piece, None).unwrap();
            for row in 0..block.n_rows() {
                rows.insert((head.window, position), decoded(block.row(row)));
                position += 1;
            }
        }
    }
    rows
}

fn decoded(row: Row<'_>) -> Vec<f64> {
    (0..row.len())
        .map(|entry| f64::from(row.get(entry)))
        .collect()
}

/// softmax(row)[entry].
fn probability(row: &[f64], entry: usize) -> f64 {
    let sum: f64 = row.iter().map(|logit| (logit - row[entry]).exp()).sum();
    1.0 / sum
}

#[test]
fn the_worst_tokens_are_those_of_the_sidecar_with_the_models_own_probabilities() {
    let session = Session::new();
    for encoding in ["f32", "u16"] {
        session.reference(&["--encoding", encoding, "--force"]);
        let top_k = ["--top-k", "12", "--sidecar", "out.kls", "--contexts", "2"];
        let json = session.json(&[&Q4[..4], &top_k].concat());
        let text = ["-t", "short.txt", "-c", "64", "-q", "--encoding", "f32"];
        let write = ["-m", "@tiny-q4_K_M.gguf", "-w", "eval.gz", "--force"];
        session.ok(&[&write[..], &text].concat());

        let mut worst = records(&session, "out.kls");
        worst.sort_by(|a, b| b.kld.total_cmp(&a.kld));
        let (reference, evaluated) = (rows(&session, "ref.gz"), rows(&session, "eval.gz"));
        let top = json["models"][0]["top"].as_array().unwrap();
        assert_eq!(top.len(), 12);
        for (token, record) in top.iter().zip(&worst) {
            let place = (record.window, record.position);
            assert_eq!(token["window"], record.window);
            assert_eq!(token["position"], record.position);
            assert!(same(token["kld"].as_f64().unwrap(), record.kld));
            assert_eq!(
                token["token"],
                record.next_token().map_or(Value::Null, Value::from)
            );
            assert_eq!(token["ref_top"]["token"], record.ref_top);
            assert_eq!(token["eval_top"]["token"], record.eval_top);
            for (choice, row, entry) in [
                (&token["ref_top"], &reference[&place], record.ref_top),
                (&token["eval_top"], &evaluated[&place], record.eval_top),
            ] {
                let (p, exact) = (
                    choice["p"].as_f64().unwrap(),
                    probability(row, entry as usize),
                );
                assert!((p - exact).abs() <= 1e-9 * exact, "{p}, float64 {exact}");
            }
        }
    }
}

#[test]
fn the_worst_tokens_are_shown_in_their_context() {
    let session = Session::new();
    session.reference(&[]);
    let top_k = ["--top-k", "5", "--json", "out.json"];
    let run = session.ok(&[&Q4[..], &top_k].concat());
    let (_, shown) = run.stdout.split_once("Largest KL divergences").unwrap();
    let lines: Vec<&str> = shown.lines().skip(1).collect();
    assert_eq!(lines.len(), 10, "two lines each: {shown}");

    let text = common::short_text();
    let top = session.read_json("out.json")["models"][0]["top"].clone();
    for (token, lines) in top.as_array().unwrap().iter().zip(lines.chunks(2)) {
        let place = format!("window {}, position {}", token["window"], token["position"]);
        assert!(lines[0].contains(&place), "{lines:#?}");
        let context = token["context"].as_str().unwrap();
        assert!(context.chars().count() <= 40, "{context:?}");
        // What a window begins with is not in the text.
        let context = context.rsplit('>').next().unwrap();
        if let Some(next) = token["token_text"].as_str() {
            let both = format!("{context}{next}");
            assert!(text.contains(both.trim_start()), "{both:?}");
        }
        for choice in ["ref_top", "eval_top"] {
            let p = 100.0 * token[choice]["p"].as_f64().unwrap();
            assert!(lines[1].contains(&format!("{p:.2} %")), "{lines:#?}");
        }
    }
    // Nothing of it unless asked for.
    let plain = session.json(&Q4[..4]);
    for key in ["top", "tokens", "conditions"] {
        assert!(plain["models"][0].get(key).is_none(), "{key}");
    }
    let all = session.json(&[&Q4[..4], &["--top-k", "4294967295"]].concat());
    assert_eq!(
        all["models"][0]["top"].as_array().unwrap().len() as u64,
        all["models"][0]["n_tokens"].as_u64().unwrap()
    );
}

#[test]
fn the_json_carries_every_token_if_asked() {
    let session = Session::new();
    session.reference(&[]);
    let more = ["--json-tokens", "--sidecar", "out.kls"];
    let json = session.json(&[&Q4[..4], &more].concat());
    let tokens = &json["models"][0]["tokens"];
    let records = records(&session, "out.kls");
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
            assert!(
                match tokens[key][i].as_f64() {
                    Some(float) => same(float, value),
                    None => tokens[key][i].is_null() && value.is_nan(),
                },
                "{key}: {record:?}"
            );
        }
    }
    let n_ends = records
        .iter()
        .filter(|record| record.next_token().is_none());
    assert!(
        n_ends.count() > 0,
        "the last row of a window has no next token"
    );
}
