//! `kl info`: what each kind of file records, and whether it is whole.

use std::fs;

use serde_json::{Map, Value, json};

use crate::session::{Session, fixture, has};

#[test]
fn every_kind_is_recognised_described_and_found_whole() {
    let session = Session::with_reference("-n 100 --score half");
    session.ok("-m @q4 -r ref.gz -q");
    for (file, shown, checks, expected) in [
        (
            "ref.gz",
            "in random order, seed 123",
            "checksums",
            json!({"kind": "kl", "n_rows": 100, "first_scored": 32, "seed": 123, "encoding": "u16",
                "model": {"name": "tiny stories"}, "text": {"name": "short.txt"},
                "backend": {"n_batch": 64}, "file_bytes": session.length("ref.gz")}),
        ),
        (
            "@klpy",
            "256 tokens at most",
            "gzip",
            json!({"kind": "kl.py", "n_ctx": 256, "n_vocab": 1024, "model_path": "tiny-f16.gguf"}),
        ),
        (
            "@base",
            "log-probabilities",
            "length-and-tokens",
            json!({"kind": "llama.cpp", "n_windows": 2, "n_rows": 126, "first_scored": 64}),
        ),
        (
            "tiny-q4_K_M@ref.kls",
            "ref.gz (kl)",
            "checksums",
            json!({"kind": "sidecar", "n_rows": 100, "reference": {"file_name": "ref.gz"}}),
        ),
        (
            "@peers/mlx-kld-q2_K.npz",
            "f32 log-probabilities",
            "zip",
            json!({"kind": "npz", "n_rows": 64, "model_path": "tiny-q2_K", "encoding": "f32"}),
        ),
        (
            "@peers/safetensors-bf16",
            "bf16 logits",
            "lengths",
            json!({"kind": "safetensors", "log_probabilities": false, "holds_tokens": true}),
        ),
        (
            "@safetensors",
            "token ids     none",
            "lengths",
            json!({"log_probabilities": true, "holds_tokens": false}),
        ),
    ] {
        let info = session.info(file);
        has(&info, &expected);
        assert!(info["verified"].is_null(), "{file}");
        let run = session.ok(&format!("info {file}"));
        run.prints(&[shown]);
        assert_eq!(run.stderr, "");
        let verified = session.info(&format!("{file} --verify"))["verified"].take();
        assert_eq!(verified["checks"], checks, "{file}");
        assert!(verified["n_rows"].as_u64().unwrap() >= 10, "{file}");
        let run = session.ok(&format!("info {file} --verify -q"));
        run.prints(&["whole: every "]);
    }
}

#[test]
fn several_files_are_described_and_one_that_cannot_be_does_not_stop_the_others() {
    let session = Session::with_reference("");
    let both = session.ok("info ref.gz @q4 --json").stdout;
    let both: Value = serde_json::from_str(&both).unwrap();
    assert_eq!(
        both,
        json!(["ref.gz", "@q4"].map(|file| session.info(file)))
    );
    let one = session.ok("info ref.gz --verify").stdout;
    let text = session.ok("info ref.gz ref.gz --verify").stdout;
    assert_eq!(text, format!("{one}\n{one}"));
    let run = session.ends("info none.gz ref.gz", 1);
    run.prints(&["ref.gz\n"]);
    run.warns(&["kl: none.gz: cannot open"]);
    run.warns(&["kl: 1 of 2 files could not be read"]);
    let cases = "
        => exit 2 | FILE | kl info --help
        a --no-such-flag => exit 2 | --no-such-flag
        @eval => not a reference: it is a text";
    session.fails_each(1, "info", cases);
    // A file may have a subcommand's name.
    session.fails("-m info -r convert", 1, &["convert: cannot open"]);
}

#[test]
fn a_model_is_described_without_loading_it() {
    let session = Session::with_reference("");
    let of_run = session.result("-m @q4 -r ref.gz --no-sidecar")["model"].take();
    let info = session.info("@q4");
    let same = ["name", "size_bytes", "n_params"].map(|key| (key.to_owned(), of_run[key].clone()));
    let expected = json!({"kind": "model", "model": Value::Object(Map::from_iter(same)),
        "file_bytes": session.length("@q4"), "n_ctx": 512, "n_vocab": 1024,
        "gguf": {"bpw": of_run["bpw"], "file_type": "Q4_K_M", "n_files": 1,
            "chat_template_bytes": null}});
    has(&info, &expected);
    assert_eq!(info["model"]["architecture"], "llama");
    let types = info["gguf"]["types"].as_array().unwrap();
    let n_params = types.iter().map(|one| one["n_params"].as_u64().unwrap());
    assert_eq!(info["model"]["n_params"], n_params.sum::<u64>());
    let run = session.ok("info @q4");
    let path = fixture("q4").display().to_string();
    insta::assert_snapshot!(run.stdout.replace(&path, "q4"));
    assert_eq!(run.stderr, "");
}

#[test]
fn prompts_and_answers_are_printed_as_text() {
    let session = Session::new();
    let line = |group: &str, text: &str| {
        let messages = json!([{"role": "user", "content": text}]);
        json!({"group": group, "messages": messages}).to_string()
    };
    let lines = [line("a", "Where is\tthe red ball?"), line("b", "Who?")];
    session.write("chat.jsonl", lines.join("\n"));
    session.write("chat.jinja", "{{ messages[0].content }}\n\nOnce{{ '' }}");
    let input = "--prompts chat.jsonl --chat-template-file chat.jinja --generate 6";
    session.ok(&format!("-m @f16 {input} -w ref.gz -q"));
    let missing = ["ref.gz: holds tokens", "tiny-f16.gguf", "-m"];
    session.fails("info ref.gz --prompts", 1, &missing);
    // The model that wrote it is found by its name; any file with its vocabulary does.
    fs::copy(fixture("f16"), session.path("tiny-f16.gguf")).unwrap();
    let run = session.ok("info ref.gz --prompts");
    assert_eq!(run.stderr, "");
    let of_quant = session.ok("info ref.gz --prompts --model @q2");
    assert_eq!(run.stdout, of_quant.stdout);
    let (_, texts) = run.stdout.split_once("\n\nprompt ").unwrap();
    let shown = "0, group a: 14 tokens\n    <s> Where is\tthe red ball?\n\n    Once\nanswer: 6 tokens\n    ";
    assert!(texts.starts_with(shown), "{texts}");
    assert!(texts.contains("\n\nprompt 1, group b: "), "{texts}");

    let first = session.info("ref.gz --prompts")["prompt_texts"][0].take();
    let prompt = "<s> Where is\tthe red ball?\n\nOnce";
    has(&first, &json!({"prompt": prompt, "n_answer_tokens": 6}));
    let answer = first["answer"].as_str().unwrap();
    assert!(!answer.is_empty() && texts.contains(answer), "{answer}");

    let other = "info ref.gz --prompts --model @hostile/other-vocab.gguf";
    session.fails(other, 1, &["tokenizer"]);
    session.reference("--force");
    session.fails("info ref.gz --prompts", 1, &["ref.gz", "not prompts"]);
}
