//! Other architectures than llama: every command on a small model of each.

use std::fs;
use std::path::Path;

use llama_cpp_2::{LogOptions, send_logs_to_tracing};

use crate::numbers::number;
use crate::session::{Session, fixture, short_text};

#[path = "../../fixtures/quantize.rs"]
#[allow(dead_code)]
mod quantize;

/// The models of `fixtures/architectures`.
const MODELS: [&str; 9] = [
    "gemma2",
    "qwen2",
    "command-r",
    "phi2",
    "mixtral",
    "mamba",
    "falcon-h1",
    "lfm2",
    "gpt2",
];

/// Four windows, the last one short, in which a batch of 64 tokens is less than a window. `gpt2` has
/// 48 positions.
fn windows(model: &str) -> &str {
    match model {
        "gpt2" => "-t text.txt -c 48 -q",
        _ => "-t text.txt -c 96 -q",
    }
}

/// Quantizes a model into the session's folder, and returns the file's name.
fn quantized(session: &Session, model: &Path, kind: &str) -> String {
    send_logs_to_tracing(LogOptions::default().with_logs_enabled(false));
    let name = format!("{kind}.gguf");
    let [from, to] = [model, &session.path(&name)].map(|path| path.to_str().unwrap().to_owned());
    quantize::quantize(&from, &to, kind).unwrap();
    name
}

/// For each model, a folder with `f16.gguf`, the same in Q8_0 as `q8_0.gguf`, and a text.
fn each(check: impl Fn(&Session, &str)) {
    for model in MODELS {
        let session = Session::new();
        session.write("text.txt", &short_text()[..300]);
        let path = fixture(&format!("architectures/{model}.gguf"));
        fs::copy(&path, session.path("f16.gguf")).unwrap();
        quantized(&session, &path, "q8_0");
        check(&session, model);
    }
}

/// The largest KLD of the f16 model against a reference.
#[track_caller]
fn largest(session: &Session, reference: &str, flags: &str) -> f64 {
    let line = format!("-m f16.gguf -r {reference} {flags} --no-sidecar");
    let result = session.result(&line);
    assert_eq!(result["n_excluded"], 0);
    number(&result["kld"]["max"])
}

/// Rows and the hidden states that give their bits, in batches of any size.
#[test]
fn rows_and_hidden_states_are_exactly_the_models_in_batches_of_any_size() {
    each(|session, model| {
        let windows = windows(model);
        for batch in ["-b 1", "-b 7", "-b 64", ""] {
            let records = ["f32", "hidden"].map(|of| {
                let write = format!("-m f16.gguf {windows} {batch} -w {of}.gz --force");
                session.ok(&format!("{write} --encoding {of}"));
                let own = largest(session, &format!("{of}.gz"), batch);
                assert_eq!(own, 0.0, "{model} {batch} {of}");
                let read = format!("-m q8_0.gguf -r {of}.gz {batch} --force -q");
                session.ok(&format!("{read} --sidecar {of}.kls"));
                session.record_bits(&format!("{of}.kls"))
            });
            assert_eq!(records[0], records[1], "{model} {batch}");
            // Nothing is lost or left over between one call and the next.
            let other = largest(session, "f32.gz", "-b 96 -ub 96");
            assert!(other < 1e-4, "{model} {batch}: {other}");
        }
        session.ok("info hidden.gz --verify -q");
        session.ok("convert hidden.gz rows.gz --format kl --encoding f32 -q");
        let (rows, stored) = (session.windows("rows.gz"), session.windows("f32.gz"));
        assert!(rows == stored, "{model}");
        for line in ["compare hidden.gz f32.gz", "compare f32.gz hidden.gz"] {
            let result = session.result(&format!("{line} --no-sidecar"));
            assert_eq!(result["kld"]["max"], 0.0, "{model} {line}");
        }
    });
}

#[test]
fn windows_are_decoded_together_unless_layers_are_recurrent() {
    each(|session, model| {
        let windows = windows(model);
        let write = format!("-m f16.gguf {windows} -w ref.gz --encoding f32 -b 512 -ub 512");
        if ["mamba", "falcon-h1", "lfm2"].contains(&model) {
            let refused = ["f16.gguf: -np 4", "recurrent layers", "leave out -np"];
            session.fails(&format!("{write} -np 4"), 1, &refused);
            session.ok(&format!("{write} -np 1"));
            session.fails("-m f16.gguf -r ref.gz -np 2 --no-sidecar", 1, &refused[1..]);
            return;
        }
        session.ok(&format!("{write} -np 4"));
        let together = session.info("ref.gz")["backend"]["n_seq"].clone();
        assert_eq!(together, 4, "{model}");
        assert_eq!(largest(session, "ref.gz", ""), 0.0, "{model}");
        let alone = largest(session, "ref.gz", "-np 1");
        assert!(alone < 1e-4, "{model}: {alone}");
    });
}

#[test]
fn prompts_and_generated_tokens_are_evaluated_from_rows_and_hidden_states() {
    each(|session, model| {
        session.write("prompts.txt", "Once upon a time\nThe cat lived\nShe\n");
        for generated in ["", "--generate 6", "--generate 6 --score all -b 3"] {
            let records = ["f32", "hidden"].map(|of| {
                let write = format!("-m f16.gguf --prompts prompts.txt {generated} -q --force");
                session.ok(&format!("{write} -w {of}.gz --encoding {of}"));
                session.ok(&format!(
                    "-m q8_0.gguf -r {of}.gz --sidecar {of}.kls --force -q"
                ));
                session.record_bits(&format!("{of}.kls"))
            });
            assert_eq!(records[0], records[1], "{model} {generated}");
            let own = largest(session, "hidden.gz", "");
            assert_eq!(own, 0.0, "{model} {generated}");
            // Generated tokens are decoded one at a time, and evaluated all at once.
            let other = largest(session, "f32.gz", "-b 96 -ub 96");
            assert!(other < 1e-4, "{model} {generated}: {other}");
        }
    });
}

#[test]
fn stored_rows_are_converted_compared_and_verified() {
    each(|session, model| {
        let windows = windows(model);
        session.ok(&format!("-m f16.gguf {windows} -w ref.gz --encoding f32"));
        session.ok(&format!("-m q8_0.gguf {windows} -w q8.gz --encoding f32"));
        session.ok("info ref.gz --verify -q");
        for (name, format) in [
            ("u16.gz", "kl"),
            ("klpy.gz", "kl.py"),
            ("base.kld", "llama.cpp"),
        ] {
            session.ok(&format!("convert ref.gz {name} --format {format} -q"));
            session.ok(&format!("info {name} --verify -q"));
        }
        let compared = |a: &str, b: &str| session.result(&format!("compare {a} {b} --no-sidecar"));
        assert_eq!(compared("ref.gz", "klpy.gz")["kld"]["max"], 0.0, "{model}");
        let coded = number(&compared("ref.gz", "u16.gz")["kld"]["max"]);
        assert!(coded < 1e-6, "{model}: {coded}");
        // From stored rows the same as from the model's own, in a run of two models.
        let models = session.json("-m q8_0.gguf -m f16.gguf -r ref.gz")["models"].take();
        let stored = compared("ref.gz", "q8.gz")["kld"].take();
        assert_eq!(stored, models[0]["kld"], "{model}");
        let klds = [0, 1].map(|i| number(&models[i]["kld"]["mean"]["value"]));
        assert!(klds[0] > 1e-5 && klds[0] < 0.1, "{model}: {klds:?}");
        assert_eq!(klds[1], 0.0, "{model}");
        let report = session.json("report f16@ref.kls q8_0@ref.kls");
        assert_eq!(report["models"].as_array().unwrap().len(), 2, "{model}");
    });
}

/// The smallest that gives the rows: for a quantized head, f32, whatever the architecture.
#[test]
fn states_have_the_smallest_type_that_gives_the_rows() {
    let check = |session: &Session, model: &str, windows: &str, head: &str, states: &str| {
        session.ok(&format!(
            "-m {model} {windows} -w hidden.gz --encoding hidden --force"
        ));
        let result = session.json(&format!("-m {model} -r hidden.gz --no-sidecar"));
        assert_eq!(result["models"][0]["kld"]["max"], 0.0, "{model} {head}");
        let of = &result["reference"]["states"];
        assert_eq!(of["type"], states, "{model} {head}");
        let kind = of["head"]["type"].as_str().unwrap();
        assert!(kind.eq_ignore_ascii_case(head), "{kind}, not {head}");
    };
    each(|session, model| check(session, "q8_0.gguf", windows(model), "q8_0", "f32"));
    let session = Session::new();
    session.write("text.txt", &short_text()[..300]);
    for (head, states) in [
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("f32", "f32"),
        ("q6_K", "f32"),
    ] {
        let model = quantized(&session, &fixture("architectures/gemma2.gguf"), head);
        check(&session, &model, "-t text.txt -c 96 -q", head, states);
    }
}

#[test]
fn a_reference_model_in_memory_gives_the_bits_of_stored_rows() {
    each(|session, model| {
        session.write("prompts.txt", "Once upon a time\nThe cat lived\nShe\n");
        let windows = windows(model);
        for input in [windows, "--prompts prompts.txt --score all -b 7 -q"] {
            session.ok(&format!(
                "-m f16.gguf {input} -w ref.gz --encoding f32 --force"
            ));
            session.ok("-m q8_0.gguf -r ref.gz --sidecar file.kls --force -q");
            let both = format!("-m q8_0.gguf --ref-model f16.gguf {input} --force");
            session.ok(&format!("{both} --sidecar memory.kls"));
            let [file, memory] = ["file.kls", "memory.kls"].map(|name| session.record_bits(name));
            assert_eq!(file, memory, "{model} {input}");
        }
    });
}

#[test]
fn what_an_architecture_cannot_do_is_said_in_a_line() {
    let session = Session::new();
    session.write("text.txt", "Once upon a time there was a dog.");
    // Heads of 16 numbers are not blocks of 32. Without attention there is no cache to quantize.
    let write = "-t text.txt -w ref.gz -c 48 -ctk q8_0 -q";
    session.fails(&format!("-m @gpt2 {write}"), 1, &["gpt2.gguf", "q8_0"]);
    assert_eq!(session.files(), ["text.txt"]);
    session.ok(&format!("-m @mamba {write}"));
    let sweep = "-m @mamba -r ref.gz -q --sweep ctk=q8_0 ctv=f16";
    session.fails(sweep, 1, &["mamba.gguf: has no KV cache to sweep"]);
}
