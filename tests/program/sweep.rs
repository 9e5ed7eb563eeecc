//! `--sweep`: a model with each pair of types of the KV cache.

use serde_json::{Value, json};

use crate::session::{Session, has, labels};

const CELLS: [(&str, &str); 4] = [
    ("f16", "f16"),
    ("f16", "q4_0"),
    ("q8_0", "f16"),
    ("q8_0", "q4_0"),
];

/// The bytes of one cell: 256 tokens, as llama.cpp pads 64, in 3 layers of 4 heads of 32 elements.
fn bytes((k, v): (&str, &str)) -> u64 {
    let block = |kind| match kind {
        "f16" => 64,
        "q8_0" => 34,
        _ => 18,
    };
    256 * 3 * 4 * (block(k) + block(v))
}

fn name((k, v): (&str, &str)) -> String {
    format!("tiny-q4_K_M-k_{k}-v_{v}@ref.kls")
}

const SWEEP: &str = "-m @q4 -r ref.gz --sweep ctk=f16,q8_0 ctv=f16,q4_0";

#[test]
fn each_cell_is_the_evaluation_of_its_types() {
    let session = Session::with_reference("");
    let run = session.ok(&format!("{SWEEP} --json s.json"));
    run.warns_not("warning: the type").warns(&["[4/4] tiny-q4"]);
    let (_, table) = run.stdout.split_once("\nKV caches of tiny-q4_K_M").unwrap();
    let shown = table.lines().filter(|line| line.contains(" %")).count();
    assert!(shown >= 4, "{table}");
    run.prints_not("drafts");
    // What the run prints is what kl report prints later.
    assert_eq!(run.stdout, session.ok("report . -q").stdout);
    let markdown = session.ok("report . --markdown -q");
    markdown.prints(&[r"KV caches of tiny-q4\_K\_M"]);
    let json = session.read_json("s.json");
    let models = json["models"].as_array().unwrap();
    assert_eq!(models.len(), 4);
    for (model, cell) in models.iter().zip(CELLS) {
        let (k, v) = cell;
        let set_up = json!({"type_k": k, "type_v": v, "kv_cache_bytes": bytes(cell)});
        has(model, &json!({"set_up": set_up, "sidecar": name(cell)}));
    }
    // Other types give other numbers.
    let mean = |of: &Value| of["kld"]["mean"]["value"].as_f64().unwrap();
    let mut means: Vec<f64> = models.iter().map(mean).collect();
    means.sort_by(f64::total_cmp);
    means.dedup();
    assert_eq!(means.len(), 4, "{means:?}");
    // Alone, each has the same sidecar to the byte.
    for cell in CELLS {
        let (file, (k, v)) = (name(cell), cell);
        let swept = session.read(&file);
        session.remove(&file);
        let alone = format!("-ctk {k} -ctv {v} --label tiny-q4_K_M-k_{k}-v_{v}");
        session.ok(&format!("-m @q4 -r ref.gz -q {alone}"));
        assert!(session.read(&file) == swept, "{file}");
    }
}

#[test]
fn a_sweep_is_judged_by_its_caches_and_at_a_context() {
    let session = Session::with_reference("");
    let run = session.ok(&format!("{SWEEP} -q"));
    run.prints(&[
        "cache: that of the KV cache for 1,000 tokens",
        "KiB smaller for 1,000 tokens",
    ]);
    // 1,024 tokens, and 32,768.
    let json = session.json("report . -q --for-context 32768");
    assert_eq!(json["for_context"], 32_768);
    let file = json["models"][0]["model"]["file_bytes"].as_u64().unwrap();
    for model in json["models"].as_array().unwrap() {
        let types = [&model["set_up"]["type_k"], &model["set_up"]["type_v"]];
        let [k, v] = types.map(|of| of.as_str().unwrap());
        let memory = json!({
            "context": 32_768, "weights": file, "kv_cache": 128 * bytes((k, v))
        });
        has(&model["memory"], &memory);
        assert!(model["memory"]["compute"].as_u64() > Some(0));
    }
    let text = session.ok("report . -q --for-context 32768").stdout;
    assert!(text.contains("with a cache for 32,768 tokens"), "{text}");
    let one = session.ok(&format!("report {} -q --for-context 1000", name(CELLS[0])));
    one.prints(&[
        "memory",
        "for 1,000 tokens: weights 1.22 MiB, KV cache 1.50 MiB",
    ]);
    let again = session.ok("-m @q4 -r ref.gz --force --for-context 2000 -q --label a");
    again.prints(&["for 2,000 tokens: weights 1.22 MiB, KV cache 3.00 MiB"]);
    session
        .ends("report . --for-context 0", 2)
        .warns(&["--for-context"]);
}

#[test]
fn a_sweep_is_resumed_and_comes_in_parts() {
    let session = Session::with_reference("");
    session.ok(&format!("{SWEEP} -q"));
    let whole = session.ok("report . -q").stdout;
    let removed = session.read(&name(CELLS[2]));
    session.remove(&name(CELLS[2]));
    let resumed = session.ok(&format!("{SWEEP} --resume"));
    let wrote = |stderr: &str| stderr.matches("\nwrote ").count();
    assert_eq!(wrote(&resumed.stderr), 1, "{}", resumed.stderr);
    assert!(session.read(&name(CELLS[2])) == removed);
    assert_eq!(resumed.stdout, whole);
    for cell in CELLS {
        session.remove(&name(cell));
    }
    for part in ["0/2", "1/2"] {
        session.ok(&format!("{SWEEP} --shard {part} -q"));
    }
    assert_eq!(session.ok("report . -q").stdout, whole);
}

#[test]
fn several_models_are_swept_and_a_reference_may_be_a_model() {
    let session = Session::with_reference("");
    for reference in ["-r ref.gz", "--ref-model @f16 -t short.txt -c 64"] {
        let sweep = "--sweep ctk=q8_0,f16 --no-sidecar -q";
        let json = session.json(&format!("-m @q4 -m @f16 {reference} {sweep}"));
        // The original with the reference's own types is the noise floor, with others it is not.
        let cells = [
            "tiny-q4_K_M-k_q8_0-v_f16",
            "tiny-q4_K_M-k_f16-v_f16",
            "tiny-f16-k_q8_0-v_f16",
            "tiny-f16-k_f16-v_f16",
        ];
        assert_eq!(labels(&json), cells);
        let is_floor = |i: usize| json["models"][i]["is_noise_floor"] == true;
        assert_eq!([0, 1, 2, 3].map(is_floor), [false, false, false, true]);
    }
    // A cell that llama.cpp refuses is named.
    session.reference_of("@gpt2", "gpt2.gz", "-c 48");
    // A head has 16 elements, and a block of q8_0 32.
    let run = session.ends("-m @gpt2 -r gpt2.gz --sweep ctk=q8_0,f16 -q --label g", 1);
    run.warns(&["k_q8_0-v_f16: ", "use another --cache-type-k"]);
    run.warns(&["1 of 2 could not be evaluated"]);
    assert!(session.exists("g-k_f16-v_f16@gpt2.kls"));
    assert!(!session.exists("g-k_q8_0-v_f16@gpt2.kls"));
}
