//! Other architectures than llama: every command on a small model of each.

use std::fs;
use std::path::Path;

use llama_cpp_2::{LogOptions, send_logs_to_tracing};
use serde_json::json;

use crate::numbers::number;
use crate::session::{Session, fixture, has, labels, short_text};

#[path = "../../fixtures/quantize.rs"]
#[allow(dead_code)]
mod quantize;

/// The models of `fixtures/architectures`.
const MODELS: &str = "gemma2 qwen2 command-r phi2 mixtral mamba falcon-h1 lfm2 gpt2";

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
    for model in MODELS.split(' ') {
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

/// Rows, the hidden states that give their bits, and a second model in memory, in batches of any size.
#[test]
fn rows_are_exactly_the_models_wherever_they_come_from() {
    each(|session, model| {
        session.write("prompts.txt", "Once upon a time\nThe cat lived\nShe\n");
        let prompts = "--prompts prompts.txt -q";
        for (input, more) in [
            (windows(model), "-b 1"),
            (windows(model), "-b 7"),
            (windows(model), "-b 64"),
            (prompts, ""),
            (prompts, "--score all -b 7"),
            (prompts, "--generate 6"),
            (prompts, "--generate 6 --score all -b 3"),
            (windows(model), ""),
        ] {
            let records = ["f32", "hidden"].map(|of| {
                let write = format!("-m f16.gguf {input} {more} -w {of}.gz --force");
                session.ok(&format!("{write} --encoding {of}"));
                let own = largest(session, &format!("{of}.gz"), "");
                assert_eq!(own, 0.0, "{model} {input} {more} {of}");
                let read = format!("-m q8_0.gguf -r {of}.gz --force -q");
                session.ok(&format!("{read} --sidecar {of}.kls"));
                session.record_bits(&format!("{of}.kls"))
            });
            assert_eq!(records[0], records[1], "{model} {input} {more}");
            // Nothing is lost or left over between one call and the next, and tokens that were generated
            // one at a time are evaluated all at once.
            let other = largest(session, "f32.gz", "-b 96 -ub 96");
            assert!(other < 1e-4, "{model} {input} {more}: {other}");
            if !more.contains("--generate") {
                let both = format!("-m q8_0.gguf --ref-model f16.gguf {input} {more}");
                session.ok(&format!("{both} --sidecar memory.kls --force"));
                let in_memory = session.record_bits("memory.kls");
                assert_eq!(in_memory, records[0], "{model} {input} {more}");
            }
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
fn stored_rows_are_converted_compared_and_verified() {
    each(|session, model| {
        let windows = windows(model);
        session.ok(&format!("-m f16.gguf {windows} -w ref.gz --encoding f32"));
        session.ok(&format!(
            "-m q8_0.gguf {windows} -w q8.gz --encoding hidden"
        ));
        session.ok("info ref.gz --verify -q");
        for format in ["kl", "kl.py", "llama.cpp"] {
            session.ok(&format!("convert ref.gz of.{format} --format {format} -q"));
            session.ok(&format!("info of.{format} --verify -q"));
        }
        let compared = |with: &str| {
            let mut result = session.result(&format!("compare ref.gz {with} --no-sidecar"));
            result["kld"].take()
        };
        assert_eq!(compared("of.kl.py")["max"], 0.0, "{model}");
        let coded = number(&compared("of.kl")["max"]);
        assert!(coded < 1e-6, "{model}: {coded}");
        // From stored states the same as from the model's own rows, in a run of two models.
        let models = session.json("-m q8_0.gguf -m f16.gguf -r ref.gz")["models"].take();
        assert_eq!(compared("q8.gz"), models[0]["kld"], "{model}");
        let klds = [0, 1].map(|i| number(&models[i]["kld"]["mean"]["value"]));
        assert!(klds[0] > 1e-5 && klds[0] < 0.1, "{model}: {klds:?}");
        assert_eq!(klds[1], 0.0, "{model}");
        let report = session.json("report f16@ref.kls q8_0@ref.kls");
        assert_eq!(labels(&report), ["f16", "q8_0"], "{model}");
    });
}

/// The smallest that gives the rows: for a quantized head, f32.
#[test]
fn states_have_the_smallest_type_that_gives_the_rows() {
    let session = Session::new();
    session.write("text.txt", &short_text()[..300]);
    let gemma2 = |kind: &str| quantized(&session, &fixture("architectures/gemma2.gguf"), kind);
    for (model, head, states) in [
        ("@f16", "f16", "f16"),
        ("@q4", "q6_K", "f32"),
        ("@q8", "q8_0", "f32"),
        (&gemma2("f16"), "f16", "f16"),
        (&gemma2("bf16"), "bf16", "bf16"),
        (&gemma2("f32"), "f32", "f32"),
        (&gemma2("q6_K"), "q6_K", "f32"),
    ] {
        let write = format!("-m {model} -t text.txt -c 96 -q -w hidden.gz --force");
        session.ok(&format!("{write} --encoding hidden"));
        let result = session.json(&format!("-m {model} -r hidden.gz --no-sidecar"));
        let here = json!({"device": "CPU", "is_exact": true, "shares_model_head": true});
        let expected = json!({"type": states, "error": {"max_kld": 0}, "here": here});
        let states = &result["reference"]["states"];
        has(states, &expected);
        has(&result["models"][0]["kld"], &json!({"max": 0}));
        let kind = states["head"]["type"].as_str().unwrap();
        assert!(kind.eq_ignore_ascii_case(head), "{kind}, not {head}");
    }
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

/// llama.cpp chooses the factors of LongRoPE by the context that is allocated to a sequence: of windows that
/// share one cache, by all of it.
#[test]
fn a_row_of_longrope_does_not_depend_on_what_shares_its_call() {
    let session = Session::new();
    session.write("text.txt", short_text());
    let model = fixture("architectures/longrope.gguf");
    fs::copy(&model, session.path("f16.gguf")).unwrap();
    let write = |n_ctx: u32, flags: &str, name: &str| {
        let text = format!("-m f16.gguf -t text.txt -c {n_ctx} -n 800 -q --encoding f32");
        session.ok(&format!("{text} {flags} -w {name}"));
    };
    for n_ctx in [100, 250, 300] {
        for n in [1, 2, 4, 7] {
            let name = format!("{n_ctx}-{n}.gz");
            write(n_ctx, &format!("-np {n} -b 2048"), &name);
            for flags in ["-np 1", "-np 4", "-np 4 -b 2048", "-np 4 -b 2048 -ub 64"] {
                let own = largest(&session, &name, flags);
                assert!(own < 1e-3, "{name} {flags}: {own}");
            }
        }
    }
}

/// The reference's n_ctx decides, whatever the longest of its windows is.
#[test]
fn answers_of_longrope_are_evaluated_as_they_were_generated() {
    let session = Session::new();
    session.write(
        "prompts.txt",
        "Once upon a time\nThe cat lived\nShe\nOne day\n",
    );
    let model = fixture("architectures/longrope.gguf");
    fs::copy(&model, session.path("f16.gguf")).unwrap();
    for n_ctx in ["", "-c 200", "-c 600"] {
        let mut answers = Vec::new();
        for n in [1, 2, 4] {
            let name = format!("answers{n}.gz");
            let prompts = "--prompts prompts.txt --generate 20 --encoding f32 -q --force";
            session.ok(&format!("-m f16.gguf {prompts} {n_ctx} -np {n} -w {name}"));
            for flags in ["-np 1", "-np 4 -b 2048"] {
                let result = session.result(&format!("-m f16.gguf -r {name} {flags} --no-sidecar"));
                let own = number(&result["kld"]["max"]);
                assert!(own < 1e-3, "{n_ctx} {n} {flags}: {own}");
                // Each answer is what the rows give.
                let same = &result["identical_output"]["same_to_the_end"];
                assert_eq!(number(&same["value"]), 1.0, "{n_ctx} {n} {flags}: {result}");
            }
            answers.push(session.specs(&name));
        }
        assert!(answers.iter().all(|of| *of == answers[0]), "{n_ctx}");
    }
    // The factors matter: the same prompts in long contexts have other rows.
    for n_ctx in [200, 600] {
        let prompts = "--prompts prompts.txt --score all --encoding f32 -q";
        session.ok(&format!("-m f16.gguf {prompts} -c {n_ctx} -w {n_ctx}.gz"));
        // kl.py's files keep n_ctx.
        session.ok(&format!(
            "convert {n_ctx}.gz {n_ctx}.klpy --format kl.py -q"
        ));
        let own = largest(&session, &format!("{n_ctx}.klpy"), "");
        assert!(own < 1e-3, "{n_ctx}: {own}");
    }
    let moved = session.result("compare 200.gz 600.gz --no-sidecar");
    assert!(number(&moved["kld"]["max"]) > 0.01, "{moved}");
}
