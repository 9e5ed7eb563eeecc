//! What comes from outside a run: signals, pipes and disks that close, two runs at once.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Session, fixture, short_text};

/// A text that takes `kl` some seconds, whatever the machine.
fn long_text(session: &Session) {
    let text = fs::read_to_string(fixture("eval.txt")).unwrap();
    session.write("long.txt", text.repeat(40));
}

/// A write that has begun: its partial file is there, and rows are on their way.
fn running_write(session: &Session, more: &[&str]) -> Child {
    let args = [
        "-m",
        "@tiny-f16.gguf",
        "-t",
        "long.txt",
        "-w",
        "ref.gz",
        "-c",
        "64",
    ];
    let mut child = session
        .command(&[&args[..], more].concat())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The last line before the work begins says where it goes.
    let stderr = child.stderr.as_mut().unwrap();
    let begun = BufReader::new(stderr)
        .lines()
        .any(|line| line.unwrap().starts_with("file "));
    assert!(begun, "the write has begun");
    child
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
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
    use std::os::unix::process::ExitStatusExt;
    let session = Session::new();
    long_text(&session);
    let signals = [("-INT", 2), ("-TERM", 15), ("-HUP", 1)];
    for (name, number) in signals
        .into_iter()
        .filter(|(_, number)| !is_ignored(*number))
    {
        // A kind that cannot be gone on with leaves nothing.
        let mut child = running_write(&session, &["--format", "kl.py"]);
        signal(&child, name);
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(number), "a shell's loop ends with it");
        assert_eq!(session.files(), ["long.txt"], "{name}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_what_is_generated() {
    use std::os::unix::process::ExitStatusExt;
    if is_ignored(2) {
        return;
    }
    let session = Session::new();
    session.write("prompts.txt", "Once upon a time\n".repeat(9000));
    let args = "-m @tiny-f16.gguf --prompts-file prompts.txt -w ref.gz --generate 400";
    let args: Vec<&str> = args.split(' ').collect();
    let mut child = session
        .command(&args)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The model has been loaded when its want of a template is said.
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(stderr.any(|line| line.unwrap().contains("no chat template")));
    signal(&child, "-INT");
    assert!(stderr.any(|line| line.unwrap() == "kl: interrupted"));
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    assert_eq!(session.files(), ["prompts.txt"]);
}

#[cfg(target_os = "linux")]
#[test]
fn what_nohup_ignores_stays_ignored() {
    let session = Session::new();
    session.write("short.txt", short_text());
    let kl = session.command(&["-m", "@tiny-f16.gguf", "-t", "short.txt", "-w", "ref.gz"]);
    let args: Vec<_> = kl.get_args().collect();
    // The shell sends itself a signal that it, and so kl, ignores.
    let status = Command::new("sh")
        .args(["-c", "trap '' HUP; \"$@\" & kill -HUP $!; wait $!", "sh"])
        .arg(kl.get_program())
        .args(args)
        .current_dir(session.folder.path())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(session.path("ref.gz").exists());
}

#[cfg(unix)]
#[test]
fn stopping_keeps_the_models_that_are_done() {
    let session = Session::new();
    long_text(&session);
    let args = [
        "-m",
        "@tiny-f16.gguf",
        "-t",
        "long.txt",
        "-w",
        "ref.gz",
        "-c",
        "64",
        "-q",
    ];
    session.ok(&[&args[..], &["-n", "20000"]].concat());
    let models = [
        "-m",
        "@tiny-q8_0.gguf",
        "-m",
        "@tiny-q4_K_M.gguf",
        "-r",
        "ref.gz",
        "-q",
    ];
    let mut child = session
        .command(&[&models[..], &["--json", "-"]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    while !session.path("tiny-q8_0.gguf.kls").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "-TERM");
    let mut stdout = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    assert!(!child.wait().unwrap().success());
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let models = json["models"].as_array().unwrap();
    let is_whole = |model: &&serde_json::Value| model.get("interrupted").is_none();
    assert_eq!(models.iter().filter(is_whole).count(), 1);
}

#[test]
fn what_a_killed_run_leaves_is_named_and_not_touched() {
    let session = Session::new();
    long_text(&session);
    let mut child = running_write(&session, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    // A lock ends with its process; what was written stays, and is not touched.
    session.write("ref.gz.partial", "left");
    let args = [
        "-m",
        "@tiny-f16.gguf",
        "-t",
        "long.txt",
        "-w",
        "ref.gz",
        "-n",
        "64",
        "-q",
    ];
    session.fails(&args, 1, &["ref.gz.partial", "cut off", "--force"]);
    session.ok(&[&args[..], &["--force"]].concat());
    // A killed evaluation's too, which keeps no other model from its own.
    session.write("tiny-q8_0.gguf.kls.partial", "left");
    let models = ["-m", "@tiny-q8_0.gguf", "-m", "@tiny-q2_K.gguf"];
    let run = session.kl(&[&models[..], &["-r", "ref.gz", "-q"]].concat());
    assert_eq!(run.code, 1);
    assert!(
        run.stderr.contains("tiny-q8_0.gguf.kls.partial"),
        "{}",
        run.stderr
    );
    assert!(session.path("tiny-q2_K.gguf.kls").exists());
}

#[test]
fn two_runs_never_write_one_file() {
    let session = Session::new();
    long_text(&session);
    let mut first = running_write(&session, &["--force"]);
    let second = [
        "-m",
        "@tiny-q8_0.gguf",
        "-t",
        "long.txt",
        "-w",
        "ref.gz",
        "--force",
        "-q",
    ];
    session.fails(&second, 1, &["ref.gz", "another run"]);
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn no_output_is_an_input_or_written_twice() {
    let session = Session::new();
    let reference = session.reference(&[]);
    let before = fs::read(&reference).unwrap();
    fs::copy(fixture("tiny-q8_0.gguf"), session.path("m.gguf")).unwrap();
    fs::create_dir(session.path("d")).unwrap();
    fs::copy(fixture("tiny-q2_K.gguf"), session.path("d/m.gguf")).unwrap();
    let write = ["-m", "m.gguf", "-t", "short.txt", "--force", "-w"];
    let read = ["-m", "m.gguf", "-r", "ref.gz", "--force"];
    for output in ["short.txt", "m.gguf", "./m.gguf"] {
        session.fails(&[&write[..], &[output]].concat(), 2, &[output, "input"]);
    }
    // kl's own temporary name is an output too.
    fs::copy(&reference, session.path("x.partial")).unwrap();
    let partial = [
        "-m",
        "m.gguf",
        "-r",
        "x.partial",
        "--no-sidecar",
        "--json",
        "x",
    ];
    session.fails(&partial, 2, &["x:", "input"]);
    assert_eq!(fs::read(session.path("x.partial")).unwrap(), before);
    for output in ["ref.gz", "d/../m.gguf"] {
        session.fails(
            &[&read[..], &["--json", output]].concat(),
            2,
            &[output, "input"],
        );
        session.fails(
            &[&read[..], &["--sidecar", output]].concat(),
            2,
            &[output, "input"],
        );
    }
    session.fails(
        &[&read[..], &["--json", "x", "--sidecar", "x"]].concat(),
        2,
        &["twice"],
    );
    session.fails(
        &[&read[..], &["-m", "d/m.gguf"]].concat(),
        2,
        &["m.gguf.kls", "twice"],
    );
    assert_eq!(fs::read(&reference).unwrap(), before);
    assert_eq!(
        fs::read_to_string(session.path("short.txt")).unwrap(),
        short_text()
    );
}

#[test]
fn a_closed_stdout_stops_neither_the_models_nor_the_json() {
    let session = Session::new();
    session.reference(&[]);
    let args = [
        "-m",
        "@tiny-q8_0.gguf",
        "-m",
        "@tiny-q2_K.gguf",
        "-r",
        "ref.gz",
        "-q",
        "--json",
        "o.json",
    ];
    let mut child = session
        .command(&args)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(
        child.wait().unwrap().success(),
        "whoever read it has stopped, which is no error"
    );
    let json = session.read_json("o.json");
    assert_eq!(json["models"].as_array().unwrap().len(), 2);
    assert!(session.path("tiny-q2_K.gguf.kls").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_or_stderr_is_met() {
    let session = Session::new();
    session.reference(&[]);
    let full = || {
        fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    let args = ["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "--json", "o.json"];
    let status = session.command(&args).stdout(full()).status().unwrap();
    assert_eq!(status.code(), Some(1), "the report is lost");
    assert!(session.path("o.json").exists(), "the JSON is not");

    let args = ["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-v"];
    let status = session
        .command(&args)
        .stdout(Stdio::null())
        .stderr(full())
        .status()
        .unwrap();
    assert_eq!(
        status.code(),
        Some(0),
        "nobody reads the log, and the work is done"
    );
    let args = ["-m", "none.gguf", "-r", "ref.gz"];
    let status = session.command(&args).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_sidecar_that_cannot_be_written_loses_no_numbers() {
    let session = Session::new();
    session.reference(&[]);
    // The name is free when the run begins, and taken when it ends.
    let args = [
        "-m",
        "@tiny-q8_0.gguf",
        "-r",
        "ref.gz",
        "--sidecar",
        "s.kls",
    ];
    let child = session
        .command(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !session.path("s.kls.partial").exists() && !session.path("s.kls").exists() {
        std::thread::yield_now();
    }
    let taken = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(session.path("s.kls"));
    let output = child.wait_with_output().unwrap();
    if taken.is_ok() {
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("s.kls.partial"), "{stderr}");
    }
    assert!(String::from_utf8(output.stdout).unwrap().contains("mean"));
}

#[cfg(unix)]
#[test]
fn a_reference_that_is_replaced_between_two_models_is_an_error() {
    let session = Session::new();
    long_text(&session);
    let write = ["-m", "@tiny-f16.gguf", "-t", "long.txt", "-c", "64", "-q"];
    session.ok(&[&write[..], &["-n", "6000", "-w", "ref.gz"]].concat());
    session.ok(&[&write[..], &["-n", "5000", "-w", "other.gz"]].concat());
    let models = ["-m", "@tiny-q8_0.gguf", "-m", "@tiny-q2_K.gguf"];
    let child = session
        .command(&[&models[..], &["-r", "ref.gz", "-q"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let partial = session.path("tiny-q8_0.gguf.kls.partial");
    while fs::metadata(&partial).map_or(0, |metadata| metadata.len()) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The first goes on with the file that it has opened.
    fs::rename(session.path("other.gz"), session.path("ref.gz")).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("ref.gz: was replaced"), "{stderr}");
    assert!(session.path("tiny-q8_0.gguf.kls").exists());
    assert!(!session.path("tiny-q2_K.gguf.kls").exists());
}
