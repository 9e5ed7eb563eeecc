//! Bad input gets one clear line, and nothing is lost.

mod common;

use std::fs;

use common::{Session, fixture};

#[test]
fn wrong_use_is_exit_code_2() {
    let session = Session::new();
    session.fails(&["-m", "@tiny-f16.gguf"], 2, &["-t TEXT", "-r REF"]);
    session.fails(&["-m", "@tiny-f16.gguf", "-t", "a"], 2, &["-w REF"]);
    session.fails(&["-m", "@tiny-f16.gguf", "-w", "a"], 2, &["-t"]);
    session.fails(
        &["-m", "@tiny-f16.gguf", "-t", "a", "-w", "b", "-c", "0"],
        2,
        &["--n-ctx"],
    );
    session.fails(
        &["-m", "@tiny-f16.gguf", "-t", "a", "-w", "b", "-c", "1"],
        2,
        &["--n-ctx"],
    );
    assert_eq!(session.kl(&["-r", "a"]).code, 2, "clap's own errors too");
    assert_eq!(
        session
            .kl(&["-m", "a", "-r", "b", "--confidence", "95"])
            .code,
        2
    );
    assert_eq!(session.files(), [""; 0]);
}

#[test]
fn missing_and_unreadable_files() {
    let session = Session::new();
    session.write("text.txt", "Once upon a time there was a cat.");
    let none = "No such file";
    session.fails(
        &["-m", "none.gguf", "-t", "text.txt", "-w", "r.gz"],
        1,
        &["none.gguf", none],
    );
    session.fails(
        &["-m", "@tiny-f16.gguf", "-t", "none.txt", "-w", "r.gz"],
        1,
        &["none.txt", none],
    );
    session.fails(
        &["-m", "@tiny-f16.gguf", "-r", "none.gz"],
        1,
        &["none.gz", none],
    );
    session.fails(&["-m", ".", "-t", "text.txt", "-w", "r.gz"], 1, &["."]);
    session.fails(
        &["-m", "@tiny-f16.gguf", "-t", ".", "-w", "r.gz"],
        1,
        &["directory"],
    );
    session.fails(&["-m", "@tiny-f16.gguf", "-r", "."], 1, &["."]);
    assert_eq!(session.files(), ["text.txt"], "nothing is left behind");
}

#[test]
fn what_is_no_model() {
    let session = Session::new();
    session.write("text.txt", "Once upon a time there was a cat.");
    session.write("noise.gguf", [7u8; 1000]);
    session.write("empty.gguf", "");
    let whole = fs::read(fixture("tiny-q2_K.gguf")).unwrap();
    session.write("cut.gguf", &whole[..whole.len() / 2]);
    session.write("stub.gguf", &whole[..100]);
    for (model, what) in [
        ("noise.gguf", "GGUF"),
        ("empty.gguf", "empty.gguf"),
        ("cut.gguf", "download"),
        ("stub.gguf", "stub.gguf"),
        ("@hostile/bert.gguf", "causal"),
        ("@hostile/t5.gguf", "encoder"),
        ("@hostile/t5encoder.gguf", "encoder"),
    ] {
        session.fails(
            &["-m", model, "-t", "text.txt", "-w", "r.gz", "-q"],
            1,
            &[what],
        );
    }
    assert!(!session.path("r.gz").exists());
}

#[test]
fn texts_that_give_nothing_to_score() {
    let session = Session::new();
    session.write("empty.txt", "");
    session.write("short.txt", "a");
    let write = |text: &str, more: &[&str], what: &str| {
        let args = ["-m", "@tiny-f16.gguf", "-t", text, "-w", "r.gz", "-q"];
        session.fails(&[&args, more].concat(), 1, &[text, what]);
    };
    write("empty.txt", &[], "empty");
    write("short.txt", &[], "two");
    session.write("half.txt", "Once upon a time there was a cat.");
    write("half.txt", &["--score", "half"], "--score half");
    assert_eq!(session.files(), ["empty.txt", "half.txt", "short.txt"]);
}

#[test]
fn a_text_that_is_not_utf8_is_read_with_a_warning() {
    let session = Session::new();
    session.write(
        "latin1.txt",
        b"Once upon a time there was a caf\xe9 and a cat.",
    );
    let run = session.ok(&[
        "-m",
        "@tiny-f16.gguf",
        "-t",
        "latin1.txt",
        "-w",
        "r.gz",
        "-c",
        "64",
        "-q",
    ]);
    assert!(
        run.stderr
            .contains("latin1.txt: 1 bytes that are no UTF-8, the first at byte 32"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_window_longer_than_the_model_was_trained_for_is_a_warning() {
    let session = Session::new();
    let run = session.ok(&[
        "-m",
        "@tiny-f16.gguf",
        "-t",
        "@eval.txt",
        "-w",
        "r.gz",
        "-c",
        "600",
        "-n",
        "650",
        "-q",
    ]);
    assert!(
        run.stderr.contains("600") && run.stderr.contains("512"),
        "{}",
        run.stderr
    );
}

#[test]
fn an_output_that_exists_is_refused_before_the_model_is_loaded() {
    let session = Session::new();
    session.write("text.txt", "Once upon a time there was a cat.");
    session.write("ref.gz", "precious");
    session.fails(
        &["-m", "none.gguf", "-t", "text.txt", "-w", "ref.gz"],
        1,
        &["ref.gz", "--force"],
    );
    session.fails(
        &["-m", "none.gguf", "-t", "text.txt", "-w", "no/ref.gz"],
        1,
        &["no/ref.gz", "created"],
    );
    session.fails(
        &["-m", "none.gguf", "-t", "text.txt", "-w", "."],
        1,
        &["folder"],
    );
    assert_eq!(fs::read(session.path("ref.gz")).unwrap(), b"precious");

    session.reference(&["--force"]);
    session.write("out.json", "precious");
    session.fails(
        &["-m", "none.gguf", "-r", "ref.gz", "--json", "out.json"],
        1,
        &["out.json", "--force"],
    );
    session.write("none.gguf.kls", "precious");
    session.fails(
        &["-m", "none.gguf", "-r", "ref.gz"],
        1,
        &["none.gguf.kls", "--force"],
    );
    assert_eq!(fs::read(session.path("out.json")).unwrap(), b"precious");
    assert_eq!(
        fs::read(session.path("none.gguf.kls")).unwrap(),
        b"precious"
    );
}

#[test]
fn a_sidecar_of_an_earlier_run_is_replaced() {
    let session = Session::new();
    session.reference(&[]);
    session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-q", "-n", "70"]);
    let part = fs::metadata(session.path("tiny-q8_0.gguf.kls"))
        .unwrap()
        .len();
    session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-q"]);
    assert!(
        fs::metadata(session.path("tiny-q8_0.gguf.kls"))
            .unwrap()
            .len()
            > part
    );
}

#[test]
fn a_reference_of_another_vocabulary() {
    let session = Session::new();
    session.reference(&[]);
    session.fails(
        &["-m", "@hostile/small-vocab.gguf", "-r", "ref.gz", "-q"],
        1,
        &["512", "1024"],
    );
    session.fails(
        &["-m", "@hostile/other-vocab.gguf", "-r", "ref.gz", "-q"],
        1,
        &["other-vocab.gguf", "tokenizer", "ref.gz"],
    );
}

#[test]
fn what_is_no_reference() {
    let session = Session::new();
    session.write("text.txt", "Once upon a time");
    session.write("empty.gz", "");
    session.fails(
        &["-m", "@tiny-q8_0.gguf", "-r", "text.txt", "-q"],
        1,
        &["text.txt"],
    );
    session.fails(
        &["-m", "@tiny-q8_0.gguf", "-r", "empty.gz", "-q"],
        1,
        &["empty"],
    );
    session.fails(
        &["-m", "@tiny-q8_0.gguf", "-r", "@tiny-f16.gguf", "-q"],
        1,
        &["model", "-m"],
    );
}

#[test]
fn a_truncated_reference_is_refused_at_once_and_says_where() {
    let session = Session::new();
    let whole = fs::read(session.reference(&[])).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 30, 1] {
        session.write("cut.gz", &whole[..length]);
        session.fails(
            &["-m", "@tiny-q8_0.gguf", "-r", "cut.gz", "-q"],
            1,
            &["cut.gz"],
        );
    }
    session.write("cut.gz", &whole[..whole.len() / 2]);
    session.fails(
        &["-m", "@tiny-q8_0.gguf", "-r", "cut.gz", "-q"],
        1,
        &["window", "byte"],
    );
}

#[test]
fn a_corrupt_reference_is_located_and_gives_no_numbers() {
    let session = Session::new();
    let mut bytes = fs::read(session.reference(&[])).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    session.write("bad.gz", bytes);
    let run = session.fails(
        &["-m", "@tiny-q8_0.gguf", "-r", "bad.gz", "-q"],
        1,
        &["window", "byte"],
    );
    assert_eq!(run.stdout, "");
    assert!(
        !session.path("tiny-q8_0.gguf.kls").exists(),
        "no sidecar of half a run"
    );
}

#[test]
fn a_model_that_fails_does_not_keep_the_others_from_it() {
    let session = Session::new();
    session.reference(&[]);
    let run = session.kl(&[
        "-m",
        "@tiny-q8_0.gguf",
        "-m",
        "none.gguf",
        "-m",
        "@tiny-q2_K.gguf",
        "-r",
        "ref.gz",
        "-q",
        "--json",
        "o.json",
    ]);
    assert_eq!(run.code, 1);
    assert!(
        run.stderr.contains("none.gguf") && run.stderr.contains("1 of 3"),
        "{}",
        run.stderr
    );
    let json = session.read_json("o.json");
    assert_eq!(json["models"].as_array().unwrap().len(), 2);
    assert!(
        json["failed"][0]["path"]
            .as_str()
            .unwrap()
            .contains("none.gguf")
    );
}

#[test]
fn a_window_size_that_is_not_the_references() {
    let session = Session::new();
    session.reference(&[]);
    session.fails(
        &["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-c", "128", "-q"],
        1,
        &["128", "64"],
    );
    session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-c", "64", "-q"]);
}
