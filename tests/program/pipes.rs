//! References that come through a pipe: what they give is what their files give, and nobody waits for ever.

use std::fs::File;
use std::io::Write as _;
use std::process::Command;
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use serde_json::Value;

use crate::session::{Session, send, wait_until};

/// A session with `f16.kld` and `q4.kld`, base files of the short text, and a named pipe `p`.
fn session() -> Session {
    let session = Session::new();
    for (model, name) in [("@f16", "f16.kld"), ("@q4", "q4.kld")] {
        session.reference_of(model, name, "--format llama.cpp");
    }
    make_pipe(&session, "p");
    session
}

fn make_pipe(session: &Session, name: &str) {
    let mut mkfifo = Command::new("mkfifo");
    assert!(mkfifo.arg(session.path(name)).status().unwrap().success());
}

/// Writes bytes into a pipe, once something reads from it, and holds it open for a while.
fn feed(session: &Session, pipe: &str, bytes: Vec<u8>, and_holds: Duration) -> JoinHandle<()> {
    let path = session.path(pipe);
    thread::spawn(move || {
        let mut pipe = File::options().write(true).open(path).unwrap();
        // A reader that has enough closes its end.
        let _ = pipe.write_all(&bytes);
        sleep(and_holds);
    })
}

/// A document without what differs from run to run, and without the names of files.
fn numbers(mut json: Value) -> Value {
    json["reference"]["path"].take();
    let model = &mut json["models"][0];
    for key in ["timing", "label", "model", "sidecar"] {
        model[key].take();
    }
    json
}

#[test]
fn a_pipe_gives_what_its_file_gives() {
    let session = session();
    make_pipe(&session, "r");
    let [f16, q4] = ["f16.kld", "q4.kld"].map(|name| session.read(name));
    let compare = "--no-sidecar --json-tokens";
    let expected = numbers(session.json(&format!("compare f16.kld q4.kld {compare}")));
    assert!(expected["models"][0]["n_tokens"].as_u64() > Some(100));

    for (line, pipes) in [
        ("compare f16.kld p", vec![("p", &q4)]),
        ("compare p q4.kld", vec![("p", &f16)]),
        ("compare r p", vec![("p", &q4), ("r", &f16)]),
    ] {
        let writers = pipes.iter().map(|(pipe, bytes)| {
            // The writer stays: nothing waits for it to close the pipe.
            feed(&session, pipe, bytes.to_vec(), Duration::from_secs(1))
        });
        let writers: Vec<_> = writers.collect();
        let found = numbers(session.json(&format!("{line} {compare}")));
        assert_eq!(found, expected, "{line}");
        writers.into_iter().for_each(|of| of.join().unwrap());
    }

    let script = "cat q4.kld | \"$@\"";
    let stdin = "compare f16.kld /dev/stdin -q --no-sidecar --json - --json-tokens";
    assert_eq!(numbers(session.in_shell(script, stdin).json()), expected);

    let against = "--no-sidecar -c 64";
    let expected = numbers(session.json(&format!("-m @q8 -r f16.kld {against}")));
    let writer = feed(&session, "p", f16, Duration::ZERO);
    let found = numbers(session.json(&format!("-m @q8 -r p {against}")));
    writer.join().unwrap();
    assert_eq!(found, expected);
}

/// `-n` takes the first windows, and ends the writer.
#[test]
fn a_part_of_a_pipe_is_its_beginning() {
    let session = session();
    let f16 = session.read("f16.kld");
    let writer = feed(&session, "p", f16, Duration::ZERO);
    let part = session.json("-m @q8 -r p -n 60 --no-sidecar --json-tokens");
    writer.join().unwrap();
    let windows = part["models"][0]["tokens"]["window"].as_array().unwrap();
    assert_eq!(
        (windows.len(), &windows[0], &windows[59]),
        (60, &0.into(), &1.into())
    );
}

#[test]
fn references_of_kl_py_are_evaluated_through_a_pipe() {
    let session = Session::new();
    session.reference("--score all");
    session.ok("convert ref.gz klpy.gz --format kl.py -q");
    make_pipe(&session, "p");
    let expected = numbers(session.json("-m @q8 -r klpy.gz --no-sidecar"));
    let writer = feed(&session, "p", session.read("klpy.gz"), Duration::ZERO);
    assert_eq!(numbers(session.json("-m @q8 -r p --no-sidecar")), expected);
    writer.join().unwrap();
}

#[test]
fn a_pipe_that_cannot_be_used_is_refused_in_one_line() {
    let session = session();
    session.reference("");
    let fails = |line: &str, bytes: Vec<u8>, what: &[&str]| {
        let writer = feed(&session, "p", bytes, Duration::ZERO);
        session.fails(line, 1, what);
        writer.join().unwrap();
    };
    let q4 = session.read("q4.kld");
    let part = |n: usize| q4[..n].to_vec();
    let ended = "p: its writer ended too early: ";
    let compare = "compare f16.kld p -q";
    fails(compare, Vec::new(), &[ended, "it has written nothing"]);
    fails(compare, part(12), &[ended, "within its header, at byte 12"]);
    fails(
        compare,
        part(100),
        &[ended, "within its tokens, at byte 100"],
    );
    let missing = format!("{} bytes are missing", q4.len() / 2);
    let half = part(q4.len().div_ceil(2));
    fails(compare, half.clone(), &[ended, &missing]);
    fails("compare p q4.kld -q", half, &[ended, &missing]);
    let kinds = "p: is a pipe with a file of kind kl, which is not read from its start to its end";
    let reference = session.read("ref.gz");
    fails(compare, reference.clone(), &[kinds]);
    fails(
        "-m @q8 -r p -q",
        reference,
        &[kinds, "base files of llama-perplexity and"],
    );
    fails(
        compare,
        b"No such model".to_vec(),
        &["p: not a reference: it is a text"],
    );

    // Nothing writes here, and nothing is waited for.
    let once = "which can be read once";
    session.fails("compare p q4.kld f16.kld -q", 1, &["p: is a pipe", once]);
    session.fails("-m @q8 -m @q4 -r p -q", 1, &["-r p: is a pipe", once]);
    session.fails(
        "compare p p -q --no-sidecar",
        1,
        &["p: is a pipe that is named twice"],
    );
    session.ok("compare f16.kld q4.kld -q --sidecar p@f16.kls");
    session.fails(compare, 1, &["p@f16.kls: is there already", "--force"]);
    session.fails(
        "info p",
        1,
        &["p: a reference must be a regular file: save it first"],
    );
}

/// The windows that came before a writer ended are kept, and left out of what comes through another pipe.
#[test]
fn an_evaluation_is_continued_through_another_pipe() {
    let session = session();
    let f16 = session.read("f16.kld");
    let half = f16[..f16.len() / 2].to_vec();
    let line = "-m @q8 -r p -q --sidecar out.kls";
    let writer = feed(&session, "p", half, Duration::ZERO);
    let run = session.ends(line, 1);
    run.warns(&[
        "its writer ended too early",
        "out.kls.partial keeps",
        "--resume continues it",
    ]);
    writer.join().unwrap();
    let writer = feed(&session, "p", f16, Duration::ZERO);
    let resumed = session.json(&format!("{line} --resume"));
    writer.join().unwrap();
    assert!(resumed["models"][0]["n_resumed"].as_u64() > Some(0));
    let whole = session.json("-m @q8 -r f16.kld --no-sidecar");
    assert_eq!(resumed["models"][0]["kld"], whole["models"][0]["kld"]);
}

/// A signal is heard where nobody writes, and where a writer falls silent.
#[test]
fn a_signal_ends_every_wait() {
    let session = session();
    let stopped = |line: &str| {
        let mut child = session.spawn(line);
        // It says what it waits for after two seconds.
        sleep(Duration::from_millis(2500));
        wait_until(&mut child, || true);
        send("-TERM", child.id());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), None, "{line}: ended by the signal");
        String::from_utf8(output.stderr).unwrap()
    };
    let nobody = stopped("compare f16.kld p");
    let waiting = "p: waiting for a program that opens this pipe to write to it (Ctrl-C stops)";
    assert!(nobody.contains(waiting), "{nobody}");

    let q4 = session.read("q4.kld");
    let silent = Duration::from_secs(6);
    let writer = feed(&session, "p", Vec::new(), silent);
    let before_rows = stopped("compare f16.kld p");
    assert!(
        before_rows.contains("p: waiting for the first rows in this pipe"),
        "{before_rows}"
    );
    writer.join().unwrap();

    let writer = feed(&session, "p", q4[..q4.len() / 2].to_vec(), silent);
    let between_rows = stopped("compare f16.kld p");
    assert!(between_rows.contains("kl: interrupted"), "{between_rows}");
    writer.join().unwrap();
}
