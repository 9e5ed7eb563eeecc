//! Devices and threads: `--list-devices`, `kl doctor`, `-ngl`, `--threads`.

use std::net::TcpListener;

use crate::session::Session;

#[test]
fn devices_are_listed_and_layers_without_one_are_a_warning() {
    let session = Session::with_reference("");
    let listed = session.ok("--list-devices").stdout;
    assert!(listed.starts_with("Available devices:\n"), "{listed}");
    assert!(listed.contains("\n  CPU: "), "{listed}");
    let devices = listed.lines().filter(|line| line.ends_with(" MiB free)"));
    if devices.count() > 1 {
        println!("skipped: this kl has a device besides the CPU");
        return;
    }
    let run = session.ok("-m @q8 -r ref.gz -ngl 99 -q --no-sidecar");
    run.warns(&["-ngl 99 has no effect", "docs/GPU.md"]);
    let other = "-m @q8 -r ref.gz -dev CUDA0 -q";
    session.fails(other, 1, &["no device 'CUDA0'", "'none'", "--list-devices"]);
}

#[test]
fn doctor_fails_where_it_finds_a_problem() {
    let session = Session::new();
    let whole = session.kl("doctor");
    let has_problem = whole.stdout.contains("\nPROBLEM ");
    assert_eq!(whole.code, i32::from(has_problem), "{}", whole.stdout);
    // A port that nobody listens on any more.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap();
    drop(listener);
    let found = "see each line that starts with PROBLEM";
    let run = session.fails(&format!("doctor --rpc {port}"), 1, &["problem", found]);
    let problem = format!("\nPROBLEM      --rpc {port}: cannot be reached");
    run.prints(&[&problem, "\nmemory "]);
}

#[test]
fn more_threads_than_can_run_at_once_are_a_warning() {
    let session = Session::with_reference("");
    let available = std::thread::available_parallelism().unwrap().get();
    let line = "-m @q8 -r ref.gz --no-sidecar -n 63 --threads";
    let enough = session.ok(&format!("{line} {available}"));
    enough.warns_not("may run only");
    let more = session.ok(&format!("{line} {}", available + 1));
    more.warns(&["may run only"]);
    let cases = "
        0 => --threads | from 1 to 512
        513 => --threads | from 1 to 512
        100000 => --threads | from 1 to 512";
    session.fails_each(2, line, cases);
}
