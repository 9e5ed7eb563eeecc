//! `--list-devices`.

use std::net::TcpListener;

use crate::session::Session;

#[test]
fn devices_are_listed_without_a_model() {
    let listed = Session::new().ok("--list-devices").stdout;
    assert!(listed.starts_with("Available devices:\n"), "{listed}");
    assert!(listed.contains("\n  CPU: "), "{listed}");
}

#[test]
fn doctor_fails_where_it_finds_a_problem() {
    let session = Session::new();
    let whole = session.kl("doctor");
    let has_problem = whole.stdout.contains("\nPROBLEM ");
    assert_eq!(whole.code, i32::from(has_problem), "{}", whole.stdout);
    // A port that nobody listens on any more.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let found = "see each line that starts with PROBLEM";
    let run = session.fails(&format!("doctor --rpc {port}"), 1, &["problem", found]);
    run.prints(&[
        &format!("\nPROBLEM      --rpc {port}: cannot be reached"),
        "\nmemory ",
    ]);
}

#[test]
fn more_threads_than_can_run_at_once_are_a_warning() {
    let session = Session::new();
    session.reference("");
    let available = std::thread::available_parallelism().unwrap().get();
    let line = "-m @q8 -r ref.gz --no-sidecar -n 63 --threads";
    let enough = session.ok(&format!("{line} {available}"));
    enough.warns_not("may run only");
    let more = available + 1;
    let json = session.json(&format!("{line} {more}"));
    let warnings = json["warnings"].as_array().unwrap();
    let mut kinds = warnings.iter().map(|warning| &warning["kind"]);
    assert!(kinds.any(|kind| kind == "many_threads"), "{warnings:?}");
    for n in ["0", "513", "100000"] {
        session.fails(&format!("{line} {n}"), 2, &["--threads", "from 1 to 512"]);
    }
}
