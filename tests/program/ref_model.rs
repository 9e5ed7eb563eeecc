//! A second model in place of a reference file: the numbers of writing and reading one.

use serde_json::Value;

use crate::session::{Session, fixture, short_text};

fn session() -> Session {
    let session = Session::new();
    session.write("short.txt", short_text());
    session
}

/// A report without times, paths and what names the reference.
fn numbers(mut report: Value) -> Value {
    let mut forget = |pointer: &str, keys: &[&str]| {
        let object = report
            .pointer_mut(pointer)
            .unwrap()
            .as_object_mut()
            .unwrap();
        keys.iter().for_each(|&key| drop(object.remove(key)));
    };
    forget("/reference", &["path", "kind", "encoding"]);
    forget("/models/0", &["timing", "sidecar"]);
    report
}

/// Evaluates in both ways, `input` and `both` being flags for the input and for both runs.
fn check(session: &Session, model: &str, input: &str, both: &str) {
    session.ok(&format!(
        "-m @f16 {input} {both} -w ref.gz --encoding f32 -q --force"
    ));
    let evaluate = format!("-m {model} {both} --force");
    let read = session.json(&format!("{evaluate} -r ref.gz --sidecar read.kls"));
    let computed = format!("{evaluate} --ref-model @f16 {input} --sidecar computed.kls");
    let computed = session.json(&computed);
    let what = format!("{model} {input} {both}");
    assert!(numbers(computed) == numbers(read), "{what}: other numbers");
    let is_same = session.record_bits("computed.kls") == session.record_bits("read.kls");
    assert!(is_same, "{what}: other records");
}

#[test]
fn the_numbers_are_those_of_a_file_whatever_the_model_and_the_batch() {
    let session = session();
    for (model, batch) in [
        ("@f16", ""),
        ("@q8", "-b 1"),
        ("@q4", "-b 7"),
        ("@q4", "-b 64"),
        ("@q2", "-b 40 -ub 16"),
    ] {
        check(&session, model, "-t short.txt -c 64", batch);
    }
}

#[test]
fn the_numbers_are_those_of_a_file_whatever_the_windows() {
    let session = session();
    session.write(
        "chat.jsonl",
        "{\"prompt\": \"Once\"}\n{\"prompt\": \"The little dog\"}\n",
    );
    for (input, both) in [
        ("-t short.txt -c 64 --stride 20 --score new", ""),
        ("-t short.txt -c 100 --score half", "-b 16"),
        ("-t short.txt -c 64", "-n 200"),
        ("-t a=short.txt -t b=short.txt -c 50 --max-windows 3", ""),
        ("--prompts chat.jsonl --no-chat-template", ""),
        ("--prompts chat.jsonl --no-chat-template --generate 5", ""),
    ] {
        check(&session, "@q4", input, both);
    }
}

#[test]
fn a_model_against_itself_is_exactly_0() {
    let session = session();
    let run = "-m @f16 -m @q4 --ref-model @f16 -t short.txt -c 64 --no-sidecar";
    let report = session.json(run);
    let [itself, quant] = &report["models"].as_array().unwrap()[..] else {
        panic!("two models")
    };
    assert_eq!(itself["kld"]["max"], 0.0);
    assert_eq!(itself["is_reference_model"], true);
    assert!(quant["kld"]["mean"]["value"].as_f64().unwrap() > 0.0);
    assert_eq!(report["reference"]["kind"], "model");
    session.ok(run).warns(&[
        "memory",
        "of the reference model",
        "one of 2 models at a time",
    ]);
}

#[test]
fn sidecars_of_separate_runs_are_compared_and_parts_are_joined() {
    let session = session();
    let run = "--ref-model @f16 -t short.txt -c 64 -q";
    session.ok(&format!("-m @q8 {run}"));
    session.ok(&format!("-m @q4 {run}"));
    let report = session.ok("report tiny-q8_0@tiny-f16.kls tiny-q4_K_M@tiny-f16.kls");
    report.prints(&["2 models against", "tiny-f16.gguf"]);
    for part in 0..3 {
        session.ok(&format!("-m @q4 {run} --shard {part}/3"));
    }
    let parts: Vec<String> = (0..3)
        .map(|part| format!("tiny-q4_K_M@tiny-f16.{part}-of-3.kls"))
        .collect();
    session.ok(&format!("merge joined.kls {} -q", parts.join(" ")));
    assert!(session.read("joined.kls") == session.read("tiny-q4_K_M@tiny-f16.kls"));

    // A file of the same rows is another reference.
    session.reference("--encoding f32");
    session.ok("-m @q2 -r ref.gz -q");
    let report =
        session.ok("report tiny-q8_0@tiny-f16.kls tiny-q4_K_M@tiny-f16.kls tiny-q2_K@ref.kls");
    report.prints(&[", a file, not a model"]);
}

#[test]
fn an_evaluation_resumes_where_it_was_cut_off() {
    let session = session();
    let run = "-m @q4 --ref-model @f16 -t short.txt -c 64 -q";
    session.ok(run);
    let whole = session.read("tiny-q4_K_M@tiny-f16.kls");
    session.remove("tiny-q4_K_M@tiny-f16.kls");
    session.write(
        "tiny-q4_K_M@tiny-f16.kls.partial",
        &whole[..whole.len() / 2],
    );
    let report = session.result(&format!("{run} --resume"));
    assert!(report["n_resumed"].as_u64().unwrap() > 0);
    assert!(session.read("tiny-q4_K_M@tiny-f16.kls") == whole);
    // Another text is another evaluation.
    session.remove("tiny-q4_K_M@tiny-f16.kls");
    session.write(
        "tiny-q4_K_M@tiny-f16.kls.partial",
        &whole[..whole.len() / 2],
    );
    session.write("short.txt", short_text().repeat(2));
    session.fails(&format!("{run} --resume"), 1, &["another", "reference"]);
}

#[test]
fn what_a_cache_type_changes_is_measured_against_f16() {
    let session = session();
    let run = session.ok("-m @f16 --ref-model @f16 -t short.txt -c 64 -ctk q8_0 --no-sidecar");
    let what = "the type of cached keys is q8_0 here and f16 for the reference: the KLD includes what that loses";
    run.warns(&[what]);
    let mean = "kld.mean > 0";
    let line = "-m @f16 --ref-model @f16 -t short.txt -c 64 -ctk q8_0 --no-sidecar -q";
    let run = session.kl(&format!("{line} --fail-if '{mean}'"));
    assert_eq!(run.code, 3, "{}", run.stderr);
}

#[test]
fn another_measurement_is_refused_before_anything_is_loaded() {
    let session = session();
    session.write("chat.txt", "Once\nThe little dog\n");
    let run = "-m @q8 -m @q4 --ref-model @f16 --prompts chat.txt --no-chat-template";
    session.ok(&format!("{run} --generate 5 -q"));
    let [q8, q4] = ["tiny-q8_0@tiny-f16.kls", "tiny-q4_K_M@tiny-f16.kls"];
    let before = [q8, q4].map(|name| session.read(name));
    session.write("chat.txt", "Once\nThe big dog\n");
    let refused = session.kl(&format!("{run} --generate 5"));
    assert_eq!(refused.code, 1);
    let another = "against another reference, tiny-f16.gguf (chat.txt by tiny-f16.gguf), which has another text";
    refused.warns(&[q8, another]);
    refused.warns(&[q4, another]);
    assert!(!refused.stderr.contains("memory "), "{}", refused.stderr);
    assert!([q8, q4].map(|name| session.read(name)) == before);
    // The others continue.
    session.remove(q8);
    let run = session.kl(&format!("{run} --generate 5 -q --json o.json"));
    assert_eq!(run.code, 1);
    assert_eq!(
        session.read_json("o.json")["models"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert!(session.exists(q8) && session.read(q4) == before[1]);
    // Another vocabulary, too.
    let other =
        "-m @q4 -m @gpt2 --ref-model @f16 --prompts chat.txt --no-chat-template --generate 5";
    let run = session.kl(&format!("{other} --force"));
    let at = |what: &str| run.stderr.find(what).expect(what);
    assert!(
        at("gpt2.gguf: has a vocabulary") < at("memory "),
        "{}",
        run.stderr
    );
}

#[test]
fn models_that_do_not_go_together_are_refused_in_one_line() {
    let session = session();
    session.write("no.gguf", "no model");
    for (line, what) in [
        ("-m @q4 --ref-model no.gguf -t short.txt -q", "no.gguf"),
        ("-m no.gguf --ref-model @f16 -t short.txt -q", "no.gguf"),
        (
            "-m @q4 --ref-model missing.gguf -t short.txt -q",
            "missing.gguf",
        ),
        ("-m @q4 --ref-model @f16 -t missing.txt -q", "missing.txt"),
        (
            "-m @q4 --ref-model @f16 -t short.txt -c 64 --shard 0/90 -q",
            "--shard",
        ),
    ] {
        session.fails(line, 1, &[what]);
    }
    // Another vocabulary.
    let other = fixture("architectures/gpt2.gguf");
    let line = format!(
        "-m @q4 --ref-model {} -t short.txt -c 40 -q",
        other.display()
    );
    session.fails(&line, 1, &["vocabulary", "gpt2.gguf"]);
    assert_eq!(session.files(), ["no.gguf", "short.txt"]);
}
