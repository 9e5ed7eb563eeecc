//! What comes from outside a run: signals, pipes and disks that close, two runs at once.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
#[cfg(unix)]
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::session::{Run, Session, fixture, labels, send, wait_until};

/// A text that keeps `kl` busy for some seconds on any machine.
fn long_text(session: &Session) {
    let text = fs::read_to_string(fixture("eval")).unwrap();
    session.write("long.txt", text.repeat(40));
}

const WRITE: &str = "-m @f16 -t long.txt -c 64";

/// A write that has begun: its partial file is there, and rows are on their way.
fn running_write(session: &Session, flags: &str) -> Child {
    let mut child = session.spawn(&format!("{WRITE} -w ref.gz {flags}"));
    // The last line before the work begins names the file.
    let stderr = child.stderr.as_mut().unwrap();
    let mut lines = BufReader::new(stderr).lines();
    let has_begun = lines.any(|line| line.unwrap().starts_with("file "));
    assert!(has_begun);
    child
}

/// Whether this test was started with a signal ignored, which kl inherits and respects.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(unix)]
#[test]
fn a_signal_ends_a_write_as_it_ends_any_program() {
    let session = Session::new();
    long_text(&session);
    for (name, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
        if is_ignored(number) {
            continue;
        }
        // A kind that cannot be resumed leaves nothing.
        let mut child = running_write(&session, "--format kl.py");
        send(name, child.id());
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(number), "a shell's loop ends with it");
        assert_eq!(session.files(), ["long.txt"], "{name}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_a_run_that_waits_for_its_text() {
    if is_ignored(15) {
        return;
    }
    let session = Session::new();
    let mut command = session.command("-m @f16 -t - -w ref.gz");
    let piped = command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    // Waiting for the child would close it.
    let _stdin = child.stdin.take();
    std::thread::sleep(Duration::from_millis(300));
    send("-TERM", child.id());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    assert_eq!(session.files(), [""; 0]);
}

#[cfg(unix)]
#[test]
fn a_signal_ends_generation() {
    if is_ignored(2) {
        return;
    }
    let session = Session::new();
    session.write("prompts.txt", "Once upon a time\n".repeat(9000));
    let mut child = session.spawn("-m @f16 --prompts prompts.txt -w ref.gz --generate 400");
    // The model is loaded when the warning that it lacks a template is printed.
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(stderr.any(|line| line.unwrap().contains("no chat template")));
    send("-INT", child.id());
    assert!(stderr.any(|line| line.unwrap().starts_with("kl: interrupted")));
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    // Answers that were finished are kept.
    let mut files = session.files();
    files.retain(|name| name != "ref.gz.answers.partial");
    assert_eq!(files, ["prompts.txt"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_that_nohup_ignores_stays_ignored() {
    let session = Session::with_text();
    // The shell sends itself a signal that it, and so kl, ignores.
    let script = "trap '' HUP; \"$@\" & kill -HUP $!; wait $!";
    let run = session.in_shell(script, "-m @f16 -t short.txt -w ref.gz");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(session.exists("ref.gz"));
}

#[test]
fn a_closed_stdout_is_no_error_and_stops_neither_the_models_nor_the_json() {
    let session = Session::with_reference("");
    for output in ["-", "o.json"] {
        let line = format!("-m @q8 -m @q2 -r ref.gz -q --force --json {output}");
        let mut child = session.spawn(&line);
        drop(child.stdout.take());
        let run = Run::from(child.wait_with_output().unwrap());
        assert_eq!(run.code, 0, "{}", run.stderr);
        let mut lines = run.stderr.lines();
        assert!(lines.all(|line| line.starts_with("kl: warning")));
    }
    assert_eq!(labels(&session.read_json("o.json")).len(), 2);
    assert!(session.exists("tiny-q2_K@ref.kls"));
}

#[cfg(target_os = "linux")]
#[test]
fn only_a_report_that_a_full_disk_loses_is_an_error() {
    let session = Session::with_reference("");
    let code = |line: &str, redirected: &str| {
        let run = session.in_shell(&format!("\"$@\" {redirected}"), line);
        run.code
    };
    let to_full = code("-m @q8 -r ref.gz --json o.json", ">/dev/full");
    assert_eq!(to_full, 1, "the report is lost");
    assert!(session.exists("o.json"), "the JSON is not");
    let verbose = code("-m @q8 -r ref.gz -v", "2>/dev/full");
    assert_eq!(verbose, 0, "the log is lost, the work is done");
    assert_eq!(code("-m none.gguf -r ref.gz", "2>/dev/full"), 1);
}

#[test]
fn a_sidecar_that_cannot_be_written_loses_no_numbers() {
    let session = Session::with_reference("");
    // The name is free when the run is under way, and taken when it ends.
    let mut child = session.spawn("-m @q8 -r ref.gz --sidecar s.kls");
    wait_until(&mut child, || session.length("s.kls.partial") > 0);
    let taken = fs::File::create_new(session.path("s.kls"));
    let run = Run::from(child.wait_with_output().unwrap());
    if taken.is_ok() {
        assert_eq!(run.code, 1);
        run.warns(&["s.kls.partial"]);
    }
    run.prints(&["mean"]);
}

#[cfg(unix)]
#[test]
fn a_reference_that_is_replaced_between_two_models_is_an_error() {
    let session = Session::new();
    long_text(&session);
    session.ok(&format!("{WRITE} -w ref.gz -n 6000 -q"));
    session.ok(&format!("{WRITE} -w other.gz -n 500 -q"));
    let mut child = session.spawn("-m @q8 -m @q2 -r ref.gz -q");
    wait_until(&mut child, || {
        session.length("tiny-q8_0@ref.kls.partial") > 0
    });
    // The first model's run continues with the file that it has opened.
    fs::rename(session.path("other.gz"), session.path("ref.gz")).unwrap();
    let run = Run::from(child.wait_with_output().unwrap());
    assert_eq!(run.code, 1, "{}", run.stderr);
    run.warns(&["ref.gz", "replaced"]);
    assert!(session.exists("tiny-q8_0@ref.kls"));
    assert!(!session.exists("tiny-q2_K@ref.kls"));
}

#[test]
fn a_server_that_never_answers_is_named() {
    let session = Session::with_reference("");
    // It accepts connections, and that is all.
    let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = frozen.local_addr().unwrap().to_string();
    let line = format!("-m @q8 -r ref.gz --rpc {address}");
    session.fails(&line, 1, &[&address, "does not answer"]);
    assert_eq!(session.files(), ["ref.gz", "short.txt"]);
}
