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

#[test]
fn only_a_model_with_a_kv_cache_is_swept() {
    for model in ["mamba", "falcon-h1"] {
        let session = Session::new();
        session.write("text.txt", &short_text()[..300]);
        let path = fixture(&format!("architectures/{model}.gguf"));
        fs::copy(&path, session.path("f16.gguf")).unwrap();
        session.ok("-m f16.gguf -w ref.gz -t text.txt -c 96 -q");
        let sweep = "-m f16.gguf -r ref.gz -q --sweep ctk=q8_0 ctv=f16";
        if model == "mamba" {
            session.fails(sweep, 1, &["f16.gguf: has no KV cache to sweep"]);
        } else {
            session.ok(sweep);
        }
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

#[test]
fn a_model_is_exactly_its_own_reference_in_batches_of_any_size() {
    each(|session, model| {
        let windows = windows(model);
        for batch in ["-b 1", "-b 7", "-b 64", ""] {
            let write = format!("-m f16.gguf {windows} {batch} -w ref.gz --encoding f32 --force");
            session.ok(&write);
            assert_eq!(largest(session, "ref.gz", batch), 0.0, "{model} {batch}");
            // Nothing is lost or left over between one call and the next.
            let other = largest(session, "ref.gz", "-b 96 -ub 96");
            assert!(other < 1e-4, "{model} {batch}: {other}");
        }
    });
}

#[test]
fn windows_are_decoded_together_unless_layers_are_recurrent() {
    each(|session, model| {
        let windows = windows(model);
        let write =
            format!("-m f16.gguf {windows} -w ref.gz --encoding f32 --force -b 512 -ub 512");
        if ["mamba", "falcon-h1", "lfm2"].contains(&model) {
            let refused = ["f16.gguf: -np 4", "recurrent layers", "leave out -np"];
            session.fails(&format!("{write} -np 4"), 1, &refused);
            assert!(!session.exists("ref.gz"), "{model}");
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
fn two_models_in_a_run_are_reported() {
    each(|session, model| {
        let windows = windows(model);
        session.ok(&format!("-m f16.gguf {windows} -w ref.gz --encoding f32"));
        let both = session.json("-m q8_0.gguf -m f16.gguf -r ref.gz");
        let klds = [0, 1].map(|i| number(&both["models"][i]["kld"]["mean"]["value"]));
        assert!(klds[0] > 1e-5 && klds[0] < 0.1, "{model}: {klds:?}");
        assert_eq!(klds[1], 0.0, "{model}");
        let report = session.ok("report . --json - -q").json();
        assert_eq!(report["models"].as_array().unwrap().len(), 2, "{model}");
        assert_eq!(report["not_compared"].as_array().unwrap().len(), 0);
    });
}

#[test]
fn prompts_and_generated_tokens_are_evaluated() {
    each(|session, model| {
        session.write("prompts.txt", "Once upon a time\nThe cat lived\nShe\n");
        for generated in ["", "--generate 6", "--generate 6 --score all -b 3"] {
            let prompts = format!("--prompts prompts.txt {generated}");
            session.ok(&format!(
                "-m f16.gguf {prompts} -w ref.gz --encoding f32 -q --force"
            ));
            // Generated tokens are decoded one at a time, and evaluated all at once.
            let other = largest(session, "ref.gz", "-b 96 -ub 96");
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
        session.ok("convert ref.gz u16.gz --format kl -q");
        session.ok("convert ref.gz klpy.gz --format kl.py -q");
        session.ok("convert ref.gz base.kld --format llama.cpp -q");
        for file in ["ref.gz", "u16.gz", "klpy.gz", "base.kld"] {
            session.ok(&format!("info {file} --verify -q"));
        }
        let compared = |a: &str, b: &str| session.result(&format!("compare {a} {b} --no-sidecar"));
        assert_eq!(compared("ref.gz", "klpy.gz")["kld"]["max"], 0.0, "{model}");
        let coded = number(&compared("ref.gz", "u16.gz")["kld"]["max"]);
        assert!(coded < 1e-6, "{model}: {coded}");
        // From stored rows the same as from the model's own.
        let evaluated = session.result("-m q8_0.gguf -r ref.gz --no-sidecar");
        assert_eq!(
            compared("ref.gz", "q8.gz")["kld"],
            evaluated["kld"],
            "{model}"
        );
    });
}

#[test]
fn hidden_states_give_the_bits_of_stored_rows() {
    each(|session, model| {
        let windows = windows(model);
        for batch in ["-b 1", "-b 7", "-b 64", ""] {
            for encoding in ["f32", "hidden"] {
                session.ok(&format!(
                    "-m f16.gguf {windows} {batch} -w {encoding}.gz --encoding {encoding} --force"
                ));
                session.ok(&format!(
                    "-m q8_0.gguf -r {encoding}.gz {batch} --sidecar {encoding}.kls --force -q"
                ));
            }
            let own = largest(session, "hidden.gz", batch);
            assert_eq!(own, 0.0, "{model} {batch}");
            let [rows, states] = ["f32.kls", "hidden.kls"].map(|name| session.record_bits(name));
            assert_eq!(rows, states, "{model} {batch}");
        }
        session.ok("info hidden.gz --verify -q");
        session.ok("convert hidden.gz rows.gz --format kl --encoding f32 -q");
        assert_eq!(
            session.windows("rows.gz"),
            session.windows("f32.gz"),
            "{model}"
        );
        for line in ["compare hidden.gz f32.gz", "compare f32.gz hidden.gz"] {
            let result = session.result(&format!("{line} --no-sidecar"));
            assert_eq!(result["kld"]["max"], 0.0, "{model} {line}");
        }
    });
}

#[test]
fn hidden_states_of_a_quantized_head_are_f32() {
    each(|session, model| {
        let windows = windows(model);
        session.ok(&format!(
            "-m q8_0.gguf {windows} -w hidden.gz --encoding hidden"
        ));
        let result = session.json("-m q8_0.gguf -r hidden.gz --no-sidecar");
        assert_eq!(result["models"][0]["kld"]["max"], 0.0, "{model}");
        assert_eq!(result["reference"]["states"]["type"], "f32", "{model}");
    });
}

#[test]
fn states_have_the_smallest_type_that_gives_the_rows() {
    let session = Session::new();
    session.write("text.txt", &short_text()[..300]);
    for (head, states) in [
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("f32", "f32"),
        ("q8_0", "f32"),
        ("q6_K", "f32"),
    ] {
        let model = quantized(&session, &fixture("architectures/gemma2.gguf"), head);
        session.ok(&format!(
            "-m {model} -t text.txt -c 96 -w {head}.gz --encoding hidden -q"
        ));
        let result = session.json(&format!("-m {model} -r {head}.gz --no-sidecar"));
        assert_eq!(result["models"][0]["kld"]["max"], 0.0, "{head}");
        assert_eq!(result["reference"]["states"]["type"], states, "{head}");
        let kind = result["reference"]["states"]["head"]["type"].as_str();
        assert_eq!(kind.map(str::to_lowercase), Some(head.to_lowercase()));
    }
}

#[test]
fn hidden_states_of_prompts_and_generated_tokens_give_the_bits_of_stored_rows() {
    each(|session, model| {
        session.write("prompts.txt", "Once upon a time\nThe cat lived\nShe\n");
        for generated in ["", "--generate 6 --score all -b 3"] {
            for encoding in ["f32", "hidden"] {
                session.ok(&format!(
                    "-m f16.gguf --prompts prompts.txt {generated} -w {encoding}.gz \
                     --encoding {encoding} -q --force"
                ));
                session.ok(&format!(
                    "-m q8_0.gguf -r {encoding}.gz --sidecar {encoding}.kls --force -q"
                ));
            }
            assert_eq!(
                largest(session, "hidden.gz", ""),
                0.0,
                "{model} {generated}"
            );
            let [rows, states] = ["f32.kls", "hidden.kls"].map(|name| session.record_bits(name));
            assert_eq!(rows, states, "{model} {generated}");
        }
    });
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
}
