//! Servers that die while they compute: one clear error, and `--resume` continues.

use std::fs;
use std::time::Duration;

use kl_formats::native;

use crate::device::{Server, has_servers, rpc_flags};
use crate::session::{Run, Session, fixture, labels, send, wait_until};

const WRITE: &str = "-m @f16 -t long.txt -w ref.gz -c 64 --encoding f32 -q -ngl 99";
const READ: &str = "-m @q8 -r ref.gz -q -ngl 99";
const SIDECAR: &str = "tiny-q8_0@ref.kls";

/// A text of some pieces of rows, each of some windows.
fn long_session() -> Session {
    let session = Session::new();
    let text = fs::read_to_string(fixture("eval")).unwrap();
    session.write("long.txt", text.repeat(2));
    session
}

fn two_servers() -> [Server; 2] {
    [Server::start(), Server::start()]
}

/// Runs `kl` on two new servers; it has to succeed.
#[track_caller]
fn ok(session: &Session, line: &str) -> Run {
    let servers = two_servers();
    session.ok(&format!("{line} {}", rpc_flags(&servers)))
}

/// Runs `kl`, and kills the second of its servers once a file has `bytes` bytes.
fn cut_off(session: &Session, line: &str, file: &str, bytes: u64) -> (Run, String) {
    let mut servers = two_servers();
    let mut child = session.spawn(&format!("{line} {}", rpc_flags(&servers)));
    wait_until(&mut child, || session.length(file) >= bytes);
    servers[1].kill();
    let run = Run::from(child.wait_with_output().unwrap());
    (run, servers[1].address.clone())
}

/// Checks that a run has failed in one line that names the server.
#[track_caller]
fn check_error((run, address): &(Run, String)) {
    assert_eq!(run.code, 1, "{}", run.stderr);
    // On a busy machine, a model that was evaluated before may have a warning of its own.
    let lines = run.stderr.lines();
    let errors = lines.filter(|line| !line.starts_with("kl: warning: "));
    assert_eq!(errors.count(), 1, "{}", run.stderr);
    run.warns(&[
        "kl: the connection to a server is lost",
        address,
        "--resume",
    ]);
}

#[test]
fn runs_whose_server_dies_are_resumed_to_the_same_bytes() {
    if !has_servers() {
        return;
    }
    let session = long_session();
    ok(&session, WRITE);
    let whole = session.read("ref.gz");
    session.remove("ref.gz");
    // Whole blocks go to the disk as they are made, the first after some windows.
    let bytes = whole.len() as u64 / 4;
    check_error(&cut_off(&session, WRITE, "ref.gz.partial", bytes));
    assert_eq!(session.files(), ["long.txt", "ref.gz.partial"]);
    let kept = native::count_windows(&session.path("ref.gz.partial")).unwrap();
    assert!(kept > 0);
    // The new servers listen on other ports, which no file records.
    ok(&session, &format!("{WRITE} --resume"));
    assert!(session.read("ref.gz") == whole);
    assert_eq!(session.files(), ["long.txt", "ref.gz"]);

    let both = format!("-m @q4 {READ} --json report.json");
    ok(&session, &both);
    let whole = session.read(SIDECAR);
    for name in [SIDECAR, "report.json", "tiny-q4_K_M@ref.kls"] {
        session.remove(name);
    }
    let partial = format!("{SIDECAR}.partial");
    check_error(&cut_off(&session, &both, &partial, whole.len() as u64 / 4));
    // What was evaluated before is kept.
    assert_eq!(labels(&session.read_json("report.json")), ["tiny-q4_K_M"]);
    ok(&session, &format!("{both} --resume"));
    assert!(session.read(SIDECAR) == whole);
}

/// A decode call on a frozen server never ends by itself: ggml sets no time limit.
#[cfg(unix)]
#[test]
fn a_signal_ends_a_run_whose_server_is_frozen() {
    use std::os::unix::process::ExitStatusExt;
    if !has_servers() {
        return;
    }
    let session = long_session();
    ok(&session, WRITE);
    let whole = session.read("ref.gz");
    session.remove("ref.gz");
    let servers = two_servers();
    let mut child = session.spawn(&format!("{WRITE} {}", rpc_flags(&servers)));
    let bytes = whole.len() as u64 / 4;
    wait_until(&mut child, || session.length("ref.gz.partial") >= bytes);
    send("-STOP", servers[1].id());
    // What was sent to the server before may still be answered.
    std::thread::sleep(Duration::from_millis(200));
    // Unlike SIGINT, it is not ignored in a script's background job.
    send("-TERM", child.id());
    let output = child.wait_with_output().unwrap();
    // A shell's loop ends with it.
    assert_eq!(output.status.signal(), Some(15));
    let run = Run::from(output);
    let address = &servers[1].address;
    run.warns(&["kl: stopping after this decode call, or in 5 s", address]);
    let waited = "kl: interrupted while it waited for an answer from";
    run.warns(&[waited, address, "--resume"]);
    assert_eq!(session.files(), ["long.txt", "ref.gz.partial"]);
    ok(&session, &format!("{WRITE} --resume"));
    assert!(session.read("ref.gz") == whole);
}
