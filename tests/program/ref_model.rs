//! A second model in place of a reference file: the numbers of writing and reading one.

use crate::session::{Session, short_text};

fn session() -> Session {
    let session = Session::new();
    session.write("short.txt", short_text());
    session
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
    report.prints(&["--ref-model tiny-f16.gguf"]);
}

#[test]
fn models_that_do_not_go_together_are_refused_in_one_line() {
    let session = session();
    session.write("no.gguf", "no model");
    let cases = "
        -m @q4 --ref-model no.gguf -t short.txt => no.gguf
        -m no.gguf --ref-model @f16 -t short.txt => no.gguf
        -m @q4 --ref-model missing.gguf -t short.txt => missing.gguf
        -m @q4 --ref-model @f16 -t missing.txt => missing.txt
        -m @q4 --ref-model @f16 -t short.txt -c 64 --shard 0/90 => --shard
        -m @q4 --ref-model @gpt2 -t short.txt -c 40 => rows of 1024 | gpt2.gguf";
    session.fails_each(1, "-q", cases);
    assert_eq!(session.files(), ["no.gguf", "short.txt"]);
}
