//! `kl info`: what each kind of file records, and whether it is whole.

use std::fs;

use serde_json::Value;

use crate::session::{Session, fixture};

#[test]
fn every_kind_is_recognised_and_described() {
    let session = Session::new();
    session.reference("-n 100 --score half");
    session.ok("-m @q4 -r ref.gz -q");

    let native = session.info("ref.gz");
    assert_eq!(native["kind"], "kl");
    assert_eq!(native["n_rows"], 100);
    assert_eq!(native["first_scored"], 32);
    assert_eq!(native["seed"], 123);
    assert_eq!(native["encoding"], "u16");
    assert_eq!(native["model"]["name"], "tiny stories");
    assert_eq!(native["text"]["name"], "short.txt");
    assert_eq!(native["backend"]["n_batch"], 64);
    assert_eq!(native["verified"], Value::Null);
    assert_eq!(native["file_bytes"], session.length("ref.gz"));

    let kl_py = session.info("@klpy");
    assert_eq!(kl_py["kind"], "kl.py");
    assert_eq!(kl_py["n_ctx"], 256);
    assert_eq!(kl_py["n_vocab"], 1024);
    assert_eq!(kl_py["model_path"], "tiny-f16.gguf");

    let base = session.info("@base");
    assert_eq!(base["kind"], "llama.cpp");
    assert_eq!(base["n_windows"], 2);
    assert_eq!(base["n_rows"], 126);
    assert_eq!(base["first_scored"], 64);

    let sidecar = session.info("tiny-q4_K_M@ref.kls");
    assert_eq!(sidecar["kind"], "sidecar");
    assert_eq!(sidecar["n_rows"], 100);
    assert_eq!(sidecar["reference"]["file_name"], "ref.gz");

    for (file, what) in [
        ("ref.gz", "in random order, seed 123"),
        ("@klpy", "256 tokens at most"),
        ("@base", "log-probabilities"),
        ("tiny-q4_K_M@ref.kls", "ref.gz (kl)"),
    ] {
        let run = session.ok(&format!("info {file}"));
        run.prints(&[what]);
        assert_eq!(run.stderr, "");
    }
}

#[test]
fn several_files_are_described_and_one_that_cannot_be_does_not_stop_the_others() {
    let session = Session::new();
    session.reference("");
    let both = session.ok("info ref.gz @q4 --json").stdout;
    let both: Value = serde_json::from_str(&both).unwrap();
    let [reference, model] = &both.as_array().unwrap()[..] else {
        panic!("a list of two");
    };
    assert_eq!(*reference, session.info("ref.gz"));
    assert_eq!(*model, session.info("@q4"));
    let one = session.ok("info ref.gz --verify").stdout;
    let text = session.ok("info ref.gz ref.gz --verify").stdout;
    assert_eq!(text, format!("{one}\n{one}"));
    let run = session.kl("info none.gz ref.gz");
    assert_eq!(run.code, 1);
    run.prints(&["ref.gz\n"]);
    run.warns(&["kl: none.gz: cannot open"]);
    run.warns(&["kl: 1 of 2 files could not be read"]);
}

#[test]
fn verify_finds_whole_files_whole() {
    let session = Session::new();
    session.reference("");
    session.ok("-m @q8 -r ref.gz -q");
    for (file, checks) in [
        ("ref.gz", "checksums"),
        ("@klpy", "gzip"),
        ("@base", "length-and-tokens"),
        ("tiny-q8_0@ref.kls", "checksums"),
    ] {
        let verified = session.info(&format!("{file} --verify"))["verified"].take();
        assert_eq!(verified["checks"], checks, "{file}");
        let n_rows = verified["n_rows"].as_u64().unwrap();
        assert!(n_rows > 100, "{file}: {verified}");
        let run = session.ok(&format!("info {file} --verify -q"));
        run.prints(&["whole: every byte"]);
    }
}

#[test]
fn a_flipped_bit_is_found_with_its_window() {
    let session = Session::new();
    session.reference("");
    let whole = session.read("ref.gz");
    let starts = window_starts(&whole);
    assert!(starts.len() > 3);
    let (_, last) = *starts.last().unwrap();
    for pair in starts[1..].windows(2).take(3) {
        let [(window, _), (_, next)] = *pair else {
            unreachable!()
        };
        let mut bytes = whole.clone();
        bytes[next - 100] ^= 1;
        // A later fault is not the one that is reported.
        bytes[last + 60] ^= 1;
        session.write("bad.gz", &bytes);
        let window = format!("window {window}, byte ");
        for flags in ["--verify -q", "--verify --json -q"] {
            let run = session.fails(&format!("info bad.gz {flags}"), 1, &[&window]);
            run.prints_not("whole");
        }
        // It is seen only if everything is read.
        session.ok("info bad.gz");
    }

    session.ok("-m @q8 -r ref.gz -q");
    let mut sidecar = session.read("tiny-q8_0@ref.kls");
    let len = sidecar.len();
    sidecar[len / 2] ^= 4;
    session.write("bad.kls", &sidecar);
    session.fails("info bad.kls --verify", 1, &["record", "byte"]);

    let mut kl_py = fs::read(fixture("klpy")).unwrap();
    let middle = kl_py.len() / 2;
    kl_py[middle] ^= 16;
    session.write("bad-kl_py.gz", &kl_py);
    let line = "info bad-kl_py.gz --verify -q";
    session.fails(line, 1, &["corrupt", "window"]);

    let mut base = fs::read(fixture("base")).unwrap();
    session.write("cut.kld", &base[..base.len() - 1]);
    session.fails("info cut.kld", 1, &["1 of 2 windows"]);
    // Pages that never reached the disk.
    let torn = base.len() - 5000;
    base[torn..].fill(0);
    session.write("torn.kld", base);
    session.ok("info torn.kld");
    let what = ["torn.kld", "window 1", "row 60", "not to 1"];
    session.fails("info torn.kld --verify -q", 1, &what);
}

#[test]
fn wrong_use_and_files_of_other_kinds_are_one_line() {
    let session = Session::new();
    session.fails("info", 2, &["FILE", "kl info --help"]);
    session.fails("info a --no-such-flag", 2, &["--no-such-flag"]);
    session.fails("info no-such-file", 1, &["no-such-file"]);
    session.fails("info @eval", 1, &["not a reference: it is a text"]);
    session.fails("info @f16 --verify", 1, &["has no checksums", "sha256sum"]);
    session.ok("info --help").prints(&["--verify"]);
    // A file may have a subcommand's name.
    session.fails("-m info -r convert", 1, &["convert: cannot open"]);
}

#[test]
fn a_model_is_described_without_loading_it() {
    let session = Session::new();
    session.reference("");
    let of_run = session.json("-m @q4 -r ref.gz --no-sidecar")["models"][0]["model"].take();
    let info = session.info("@q4");
    assert_eq!(info["kind"], "model");
    for key in ["name", "size_bytes", "n_params"] {
        assert_eq!(info["model"][key], of_run[key], "{key}");
    }
    assert_eq!(info["model"]["architecture"], "llama");
    assert_eq!(
        info["file_bytes"],
        fs::metadata(fixture("q4")).unwrap().len()
    );
    assert_eq!(info["n_ctx"], 512);
    assert_eq!(info["n_vocab"], 1024);
    let gguf = &info["gguf"];
    assert_eq!(gguf["bpw"], of_run["bpw"]);
    assert_eq!(gguf["file_type"], "Q4_K_M");
    assert_eq!(gguf["n_files"], 1);
    assert_eq!(gguf["chat_template_bytes"], Value::Null);
    let types = gguf["types"].as_array().unwrap();
    let n_params = types.iter().map(|one| one["n_params"].as_u64().unwrap());
    assert_eq!(info["model"]["n_params"], n_params.sum::<u64>());
    let run = session.ok("info @q4");
    insta::assert_snapshot!(
        run.stdout
            .replace(&fixture("q4").display().to_string(), "q4")
    );
    assert_eq!(run.stderr, "");
}

/// Each window's number in a native reference, and its first byte: that of the member with its
/// tokens (see `formats/LOGITS.md`).
fn window_starts(reference: &[u8]) -> Vec<(u32, usize)> {
    let field = |at: usize| u32::from_le_bytes(reference[at..at + 4].try_into().unwrap());
    let mut starts = Vec::new();
    let mut at = 0;
    while at < reference.len() {
        let (member_bytes, kind, window) = (field(at + 16), field(at + 24), field(at + 28));
        if kind == 1 {
            starts.push((window, at));
        }
        at += member_bytes as usize;
    }
    starts
}

#[test]
fn prompts_and_answers_are_printed_as_text() {
    let session = Session::new();
    let line = |group: &str, text: &str| {
        let messages = format!(r#"[{{"role": "user", "content": "{text}"}}]"#);
        format!(r#"{{"group": "{group}", "messages": {messages}}}"#)
    };
    let lines = [line("a", "Where is\\tthe red ball?"), line("b", "Who?")];
    session.write("chat.jsonl", lines.join("\n"));
    session.write("chat.jinja", "{{ messages[0].content }}\n\nOnce{{ '' }}");
    let write =
        "-m @f16 --prompts chat.jsonl --chat-template-file chat.jinja --generate 6 -w ref.gz -q";
    session.ok(write);
    session.fails(
        "info ref.gz --prompts",
        1,
        &["ref.gz: holds tokens", "tiny-f16.gguf", "-m"],
    );
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

    let json = session.ok("info ref.gz --prompts --json");
    let info: Value = serde_json::from_str(&json.stdout).unwrap();
    let first = &info["prompt_texts"][0];
    assert_eq!(first["prompt"], "<s> Where is\tthe red ball?\n\nOnce");
    assert_eq!(first["n_answer_tokens"], 6);
    let answer = first["answer"].as_str().unwrap();
    assert!(!answer.is_empty() && texts.contains(answer), "{answer}");

    let other = "info ref.gz --prompts --model @hostile/other-vocab.gguf";
    session.fails(other, 1, &["tokenizer"]);
    session.reference("--force");
    session.fails("info ref.gz --prompts", 1, &["ref.gz", "not prompts"]);
}
