//! Runs that are killed, interrupted or stopped by a full disk: resumed, they make the very files
//! that an uninterrupted run makes. `scripts/kill.sh` kills thousands of times.

use std::fs;
use std::process::Command;
use std::sync::LazyLock;

use kl_formats::native;
use serde_json::{Value, json};

use crate::session::{Run, Session, fixture, has};

const WRITE: &str = "-m @f16 -t long.txt -w ref.gz -c 64 -q";
const READ: &str = "-m @q8 -r ref.gz -q";
const SIDECAR: &str = "tiny-q8_0@ref.kls";
const PARTIAL: &str = "tiny-q8_0@ref.kls.partial";

/// The reference that an uninterrupted run writes, shared by all tests.
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let session = session();
    session.ok(WRITE);
    session.read("ref.gz")
});

/// A text of some pieces of rows, each of six windows.
fn session() -> Session {
    let session = Session::new();
    let text = fs::read_to_string(fixture("eval")).unwrap();
    session.write("long.txt", text.repeat(3));
    session
}

fn session_with_reference() -> Session {
    let session = session();
    session.write("ref.gz", &*WHOLE);
    session
}

/// Starts a run and sends it a signal once a file has grown to `bytes`.
fn cut_off(session: &Session, line: &str, signal: &str, file: &str, bytes: u64) -> Option<Run> {
    session.cut_off(line, signal, || session.length(file) >= bytes)
}

/// Kills a run each time that its partial file has grown by one of so many parts, and then lets it end:
/// it makes the same bytes.
fn kill_again_and_again(session: &Session, line: &str, file: &str, whole: &[u8], parts: u64) {
    let resumed = format!("{line} --resume");
    let partial = format!("{file}.partial");
    let kills = (1..parts).filter_map(|part| {
        let bytes = whole.len() as u64 * part / parts;
        cut_off(session, &resumed, "-KILL", &partial, bytes)
    });
    assert!(kills.count() >= 1);
    session.ok(&resumed);
    assert!(session.read(file) == whole);
}

#[test]
fn a_write_that_is_killed_again_and_again_makes_the_same_file() {
    let session = session();
    // 4 MiB go to the disk at once.
    kill_again_and_again(&session, WRITE, "ref.gz", &WHOLE, 9);
    let again = session.ok(&format!("{WRITE} --resume"));
    again.warns(&["already complete"]);
    assert_eq!(session.files(), ["long.txt", "ref.gz"]);
}

/// Of a window that was cut off nothing is kept: its KV cache is gone.
#[test]
fn long_windows_are_resumed_after_the_last_whole_one() {
    let (line, session) = (WRITE.replace("-c 64", "-c 2048"), session());
    session.ok(&line);
    session.ok(READ);
    let (whole, evaluated) = (session.read("ref.gz"), session.read(SIDECAR));
    let write = line.replace("ref.gz", "again.gz");
    kill_again_and_again(&session, &write, "again.gz", &whole, 4);
    let read = format!("{READ} --sidecar again.kls");
    kill_again_and_again(&session, &read, "again.kls", &evaluated, 4);
}

#[test]
fn an_interrupted_write_prints_how_to_resume() {
    let (session, whole) = (session(), &*WHOLE);
    let run = cut_off(&session, WRITE, "-TERM", "ref.gz.partial", 1).unwrap();
    let kept = native::count_windows(&session.path("ref.gz.partial")).unwrap();
    assert!(kept > 0);
    run.warns(&["ref.gz.partial", "--resume", &format!("keeps {kept} of ")]);
    // Without --resume it is named and not touched.
    let left = session.read("ref.gz.partial");
    session.fails(WRITE, 1, &["ref.gz.partial", "--resume", "--force"]);
    let run = session.ok(&format!("{WRITE} --resume").replace(" -q", ""));
    run.warns(&[&format!("{kept} whole window")]);
    assert!(session.read("ref.gz") == *whole);
    assert!(whole.starts_with(&left[..left.len() / 2]));
    // --force starts over.
    session.write("ref.gz.partial", left);
    session.ok(&format!("{WRITE} --force"));
    assert!(session.read("ref.gz") == *whole);
}

#[test]
fn a_write_is_resumed_with_its_own_settings_only() {
    let session = session();
    session.write("ref.gz.partial", &WHOLE[..WHOLE.len() / 2]);
    let other = "Once upon a time there was another text, of other words.";
    session.write("other.txt", other);
    // Another model of the same name and header: requantized, perhaps.
    fs::create_dir(session.path("other")).unwrap();
    session.change("@f16", "other/tiny-f16.gguf", |weights| {
        let half = weights.len() / 2;
        let changed = weights[half..].iter_mut().step_by(2);
        changed.for_each(|byte| *byte ^= 1);
    });
    let cases = "
        -m @q8 -t long.txt -c 64 => model.
        -m @f16 -t other.txt -c 64 => text.
        -m @f16 -t long.txt -c 65 => n_ctx
        -m other/tiny-f16.gguf -t long.txt -c 64 => model.sample_sha256
        -m @f16 -t long.txt -c 64 --encoding f32 => encoding
        -m @f16 -t long.txt -c 64 -b 32 => the batch
        -m @f16 -t long.txt -c 64 -fa off => flash attention
        -m @f16 -t long.txt -c 64 -n 500 => seed";
    let cases = cases.replace("=>", "=> ref.gz.partial | another run | --force |");
    session.fails_each(1, "-w ref.gz -q --resume", &cases);
    let left = &WHOLE[..WHOLE.len() / 2];
    assert!(session.read("ref.gz.partial") == left, "not touched");
    // A file that is not a reference belongs to somebody else.
    session.write("ref.gz.partial", "notes");
    session.fails(&format!("{WRITE} --resume"), 1, &["ref.gz.partial"]);
    assert_eq!(session.read("ref.gz.partial"), b"notes");
}

/// Runs `kl` with a limit on the size of files, in units of 512 bytes.
fn limited(session: &Session, line: &str, blocks: u64) -> Run {
    session.in_shell(&format!("ulimit -f {blocks}; exec \"$@\""), line)
}

#[test]
fn a_write_that_meets_a_full_disk_again_and_again_makes_the_same_file() {
    let (session, whole) = (session(), &*WHOLE);
    let blocks = whole.len() as u64 / 512;
    let resumed = format!("{WRITE} --resume");
    // The last byte too.
    for limit in [blocks / 5, blocks / 3, blocks * 4 / 5, blocks] {
        let run = limited(&session, &resumed, limit);
        assert_eq!(run.code, 1, "{}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        run.warns(&["cannot", "ref.gz.partial keeps"]);
    }
    session.ok(&resumed);
    assert!(session.read("ref.gz") == *whole);
    // Other kinds, which cannot be resumed, leave nothing.
    for kind in ["kl.py", "llama.cpp"] {
        let run = limited(&session, &format!("{WRITE} --format {kind} --force"), 100);
        assert_eq!(run.code, 1);
        run.warns(&["cannot write"]);
        assert_eq!(session.files(), ["long.txt", "ref.gz"]);
    }
}

/// On a file system of its own, where the machine lets anybody mount one.
#[cfg(target_os = "linux")]
#[test]
fn a_write_to_a_full_file_system_is_resumed_when_it_has_room() {
    let session = session_with_reference();
    fs::create_dir(session.path("disk")).unwrap();
    let mut mount = Command::new("unshare");
    mount.args(["-rm", "mount", "-t", "tmpfs", "none", "disk"]);
    let may_mount = mount.current_dir(session.folder.path()).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("no file system of its own here: not tested");
        return;
    }
    // Another program uses up the room while the reference is written.
    let script = "exec unshare -rm sh -c '
        mount -t tmpfs -o size=40m none disk && cp long.txt disk && cd disk || exit 9
        \"$@\" & kl=$!
        until [ -s ref.gz.partial ]; do kill -0 $kl || exit 7; sleep 0.01; done
        cat /dev/zero > taken 2>/dev/null
        wait $kl && exit 8
        rm taken && \"$@\" && cmp ref.gz ../ref.gz && ls' sh \"$@\"";
    let run = session.in_shell(script, &format!("{WRITE} --resume"));
    assert_eq!(run.code, 0, "{}", run.stderr);
    run.warns(&["No space left on device"])
        .warns(&["ref.gz.partial keeps"]);
    assert_eq!(run.stdout, "long.txt\nref.gz\n");
}

#[test]
fn numbers_survive_a_disk_without_room_for_them() {
    let session = session_with_reference();
    let whole = session.ok(READ);
    let sidecar = session.read(SIDECAR);
    session.remove(SIDECAR);
    let blocks = sidecar.len() as u64 / 512;
    let table = |run: &Run| run.stdout.split("\n  time ").next().unwrap().to_owned();
    // What is whole is kept, and continued each time; the last byte is one of the trailer.
    let mut line = READ.to_owned();
    for limit in [blocks / 5, blocks / 2, blocks] {
        let run = limited(&session, &line, limit);
        assert_eq!(run.code, 1, "{}", run.stderr);
        run.warns(&["cannot write", &format!("{PARTIAL} keeps "), "--resume"]);
        assert!(session.length(PARTIAL) > 512 * limit * 9 / 10);
        assert_eq!(session.files(), ["long.txt", "ref.gz", PARTIAL]);
        if line == READ {
            assert_eq!(table(&run), table(&whole));
        } else {
            run.prints(&["measured by an earlier run"]);
        }
        line = format!("{READ} --resume");
    }
    session.ok(&line);
    assert!(session.read(SIDECAR) == sidecar);
    // Without room for a single window, nothing is left behind.
    session.remove(SIDECAR);
    let run = limited(&session, READ, 2);
    assert_eq!((run.code, table(&run)), (1, table(&whole)));
    assert_eq!(session.files(), ["long.txt", "ref.gz"]);
}

/// A model's result without what an interruption changes.
fn numbers(mut result: Value) -> Value {
    let keys = result.as_object_mut().unwrap();
    keys.remove("timing").unwrap();
    keys.remove("n_resumed");
    result
}

#[test]
fn an_evaluation_that_is_killed_again_and_again_gives_the_same_numbers() {
    let session = session_with_reference();
    let whole = numbers(session.result(READ));
    let sidecar = session.read(SIDECAR);
    session.remove(SIDECAR);
    session.write(PARTIAL, &sidecar[..sidecar.len() / 9]);
    session.fails(READ, 1, &[PARTIAL, "--resume", "--force"]);
    session.remove(PARTIAL);
    kill_again_and_again(&session, READ, SIDECAR, &sidecar, 9);
    // A torn record, and all that follow it, are measured again.
    let mut torn = sidecar.clone();
    torn[sidecar.len() * 2 / 3..].fill(0);
    session.remove(SIDECAR);
    session.write(PARTIAL, torn);
    let result = session.result(&format!("{READ} --resume"));
    assert!(result["n_resumed"].as_u64().unwrap() > 0);
    assert_eq!(numbers(result), whole);
    assert!(session.read(SIDECAR) == sidecar);
}

/// kl.py's file does not state how many rows it has, so its sidecar's records are counted last.
#[test]
fn an_evaluation_against_a_stream_is_resumed() {
    let session = session();
    session.ok(&format!("{WRITE} --format kl.py"));
    let whole = numbers(session.result(READ));
    let sidecar = session.read(SIDECAR);
    let resumed = format!("{READ} --resume");
    // In the middle, and within its trailer, where it holds every record.
    for n_bytes in [sidecar.len() / 2, sidecar.len() - 3] {
        session.remove(SIDECAR);
        session.write(PARTIAL, &sidecar[..n_bytes]);
        let result = session.result(&resumed);
        assert!(session.read(SIDECAR) == sidecar);
        assert!(result["n_resumed"].as_u64().unwrap() > 0);
        let is_all = result["n_resumed"] == result["n_tokens"];
        assert_eq!(is_all, n_bytes > sidecar.len() / 2);
        assert_eq!(result["kld"], whole["kld"]);
    }
    // A part that was all that was asked for is not taken for the whole.
    session.ok(&format!("{READ} -n 70 --force"));
    let part = [SIDECAR, "(n_records: 70 there, none here)", "--force"];
    session.fails(&resumed, 1, &part);
    assert_eq!(numbers(session.result(&format!("{READ} --force"))), whole);
}

#[test]
fn an_interrupted_evaluation_reports_on_what_it_has() {
    let session = session_with_reference();
    let models = "-m @q4 --json j -m @q8 -r ref.gz -q";
    let run = cut_off(&session, models, "-TERM", PARTIAL, 60_000).unwrap();
    run.warns(&[PARTIAL, "keeps"]);
    run.prints(&["PARTIAL"]);
    let json = session.read_json("j");
    has(&json, &json!({"complete": false}));
    assert_eq!(json["models"][0].get("interrupted"), None);
    let second = &json["models"][1];
    let done = second["interrupted"]["n_windows"].as_u64().unwrap();
    assert!(done > 0 && done < second["interrupted"]["of"].as_u64().unwrap());
    has(second, &json!({"n_windows": done, "timing": null}));
    // A run over the same models skips the first and resumes the second.
    // It replaces its own result, not another run's.
    let again = format!("{models} --resume");
    session.ok(&again);
    let resumed = session.read_json("j");
    assert_eq!(resumed["complete"], true);
    let first = &resumed["models"][0];
    let recalled = json!({"timing": null, "n_resumed": first["n_tokens"]});
    has(first, &recalled);
    let n_resumed = &resumed["models"][1]["n_resumed"];
    assert_eq!(*n_resumed, second["n_tokens"]);
    session.write("j", "{}");
    session.fails(&again, 1, &["j: exists"]);

    // With its own settings only.
    let logits = format!("{READ} --stats logits --no-sidecar");
    let whole = session.result(&logits);
    session.cut(SIDECAR, PARTIAL, 0.3);
    session.remove(SIDECAR);
    let left = session.read(PARTIAL);
    session.ok("convert ref.gz f32.gz --format kl --encoding f32 -q");
    let cases = "
        -r ref.gz -b 32 => the batch
        -r ref.gz -n 9000 => 9000 here
        -r f32.gz --sidecar tiny-q8_0@ref.kls => (reference.";
    let cases = cases.replace("=>", &format!("=> {PARTIAL} |"));
    session.fails_each(1, "-m @q8 -q --resume", &cases);
    assert!(session.read(PARTIAL) == left, "not touched");
    // What the records do not hold is measured again, with a note.
    let run = session.ok(&format!("{READ} --resume --stats logits --json k"));
    run.warns(&["evaluated from the start"]);
    let model = session.read_json("k")["models"][0].take();
    for key in ["logits", "kld"] {
        assert_eq!(model[key], whole[key], "{key}");
    }
}
