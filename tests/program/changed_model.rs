//! A model's file that changes while it is used.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::gguf::Gguf;
use crate::session::{Run, Session, fixture, send, wait_until};

/// A session with a text that takes a while, a reference, and a copy of a model. Its weights are in f16, which
/// ggml never copies into another order.
fn session() -> Session {
    let session = Session::new();
    let text = fs::read_to_string(fixture("eval")).unwrap();
    session.write("text.txt", text.repeat(3));
    session.ok("-m @q8 -t text.txt -c 64 -w ref.gz -q --encoding u16");
    copy(&session);
    session
}

fn copy(session: &Session) {
    fs::copy(fixture("f16"), session.path("m.gguf")).unwrap();
}

/// Runs the program until the file `begun` has some bytes, and lets `change` happen while it is halted.
fn changed(session: &Session, line: &str, begun: &str, change: impl FnOnce(&Path)) -> Run {
    let mut child = session.spawn(line);
    wait_until(&mut child, || session.length(begun) > 0);
    send("-STOP", child.id());
    change(&session.path("m.gguf"));
    send("-CONT", child.id());
    Run::from(child.wait_with_output().unwrap())
}

/// Slightly other weights in one tensor, as from another importance matrix: 64 samples of the file may be the
/// same.
fn rewrite(path: &Path) {
    let mut model = Gguf::read(fs::read(path).unwrap());
    let data = model.data("blk.1.ffn_down.weight");
    data.iter_mut().step_by(2).for_each(|byte| *byte ^= 1);
    let whole = model.whole();
    // In its place, not as another file of the same name.
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&whole, 0).unwrap();
}

fn shorten(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(1_000_000).unwrap();
}

fn replace(path: &Path) {
    let other = path.with_extension("other");
    fs::copy(fixture("q2"), &other).unwrap();
    fs::rename(other, path).unwrap();
}

const EVALUATE: &str = "-m m.gguf -r ref.gz -q";
const SIDECAR: &str = "m@ref.kls.partial";

/// Other runs of the model, each with the file whose beginning shows that it has begun.
const WRITES: [(&str, &str); 3] = [
    ("-m m.gguf -t text.txt -c 64 -q -w new.gz", "new.gz.partial"),
    (
        "-m m.gguf --prompts @prompts --generate 200 -q -w new.gz",
        "new.gz.answers.partial",
    ),
    (
        "-m f16.gguf --ref-model m.gguf -t text.txt -c 64 -q --sidecar both.kls",
        "both.kls.partial",
    ),
];

#[test]
fn numbers_of_half_one_model_and_half_another_are_not_kept() {
    let session = session();
    let run = changed(&session, EVALUATE, SIDECAR, rewrite);
    assert_eq!(run.code, 1, "{}", run.stderr);
    let what = "m.gguf: changed while it was read: wait until it is complete, and try again";
    assert!(run.stderr.contains(what), "{}", run.stderr);
    assert!(!session.exists(SIDECAR) && !session.exists("m@ref.kls"));
    // Nothing of the first model is in what a later run measures.
    let resumed = session.result(&format!("{EVALUATE} --resume"));
    let anew = session.result(&format!("{EVALUATE} --sidecar anew.kls"));
    assert_eq!(resumed["kld"], anew["kld"]);
}

#[test]
fn a_model_that_was_loaded_whole_may_change() {
    let session = session();
    let alone = session.result(&format!("{EVALUATE} --no-sidecar"));
    for change in [rewrite, shorten] {
        copy(&session);
        let line = format!("{EVALUATE} --no-mmap --force --json out.json");
        let run = changed(&session, &line, SIDECAR, change);
        assert_eq!(run.code, 0, "{}", run.stderr);
        let what = "m.gguf: was written to after it was loaded: the numbers are those of the file";
        assert!(run.stderr.contains(what), "{}", run.stderr);
        let found = session.read_json("out.json")["models"][0].take();
        assert_eq!(found["kld"], alone["kld"]);
        session.remove("out.json");
    }
}

#[test]
fn a_model_whose_name_another_file_gets_is_evaluated_to_its_end() {
    let session = session();
    let alone = session.result(&format!("{EVALUATE} --no-sidecar"));
    let line = format!("{EVALUATE} --json out.json");
    let run = changed(&session, &line, SIDECAR, replace);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let what = "m.gguf: was replaced or removed after it was loaded";
    assert!(run.stderr.contains(what), "{}", run.stderr);
    let found = session.read_json("out.json")["models"][0].take();
    assert_eq!(found["kld"], alone["kld"]);
}

#[test]
fn a_model_that_becomes_shorter_is_one_line() {
    let session = session();
    fs::copy(fixture("f16"), session.path("f16.gguf")).unwrap();
    for (line, begun) in [(EVALUATE, SIDECAR)].into_iter().chain(WRITES) {
        copy(&session);
        let run = changed(&session, line, begun, shorten);
        let what = "kl: m.gguf: became shorter while it was read: wait until it is complete, and try again\n";
        assert_eq!(run.code, 1, "{line}: {}", run.stderr);
        assert!(run.stderr.ends_with(what), "{line}: {}", run.stderr);
        for left in ["new.gz.partial", "new.gz.answers.partial"] {
            let _ = fs::remove_file(session.path(left));
        }
    }
}

#[test]
fn nothing_is_written_of_a_model_that_changes() {
    let session = session();
    fs::copy(fixture("f16"), session.path("f16.gguf")).unwrap();
    for (line, begun) in WRITES {
        copy(&session);
        let before = session.files();
        let run = changed(&session, line, begun, rewrite);
        assert_eq!(run.code, 1, "{line}: {}", run.stderr);
        assert!(
            run.stderr.contains("m.gguf: changed while it was read"),
            "{}",
            run.stderr
        );
        assert_eq!(session.files(), before, "{line}");
    }
}

#[test]
fn a_map_of_a_model_that_changes_is_not_kept() {
    let session = session();
    let before = session.files();
    let line = "sensitivity -m m.gguf -t text.txt -c 64 -n 500 -w map.jsonl -q";
    let run = changed(&session, line, "map.jsonl.partial", rewrite);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(
        run.stderr.contains("m.gguf: changed while it was read"),
        "{}",
        run.stderr
    );
    assert_eq!(session.files(), before);
}
