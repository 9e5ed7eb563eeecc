//! What is done stays done: runs that are killed, interrupted or stopped by a full disk go on to the
//! very files that an uninterrupted run makes. `scripts/kill.sh` kills thousands of times.
#![cfg(unix)]

mod common;

use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Run, Session, fixture};
use kl_formats::native;
use serde_json::Value;

const WRITE: [&str; 9] = [
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
const READ: [&str; 5] = ["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-q"];
const SIDECAR: &str = "tiny-q8_0.gguf.kls";

/// Six windows a piece of rows, and some hundred of them.
fn session() -> Session {
    let session = Session::new();
    let text = fs::read_to_string(fixture("eval.txt")).unwrap();
    session.write("long.txt", text.repeat(5));
    session
}

/// With the reference that an uninterrupted run writes.
fn session_with_reference() -> Session {
    let session = session();
    session.ok(&WRITE);
    session
}

/// Starts a run and ends it by a signal once a file has grown to so many bytes. Gives what it did,
/// if it was not too fast. Not by SIGINT, which a shell's background jobs are born to ignore.
fn cut_off(session: &Session, args: &[&str], signal: &str, file: &str, bytes: u64) -> Option<Run> {
    let mut child = session
        .command(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let length = || fs::metadata(session.path(file)).map_or(0, |metadata| metadata.len());
    let deadline = Instant::now() + Duration::from_secs(60);
    while length() < bytes && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "{file} does not grow");
        std::thread::sleep(Duration::from_millis(1));
    }
    let id = child.id().to_string();
    let _ = Command::new("kill")
        .args([signal, &id])
        .stderr(Stdio::null())
        .status();
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    let status = child.wait().unwrap();
    (!status.success()).then_some(Run {
        code: -1,
        stdout,
        stderr,
    })
}

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

#[test]
fn a_write_that_is_killed_again_and_again_is_the_same_file() {
    let session = session_with_reference();
    let whole = fs::read(session.path("ref.gz")).unwrap();
    fs::remove_file(session.path("ref.gz")).unwrap();
    let resumed = with(&WRITE, &["--resume"]);
    let mut kills = 0;
    // 4 MiB go to the disk at once.
    for part in 1..=8 {
        let bytes = whole.len() as u64 * part / 9;
        kills += u32::from(cut_off(&session, &resumed, "-KILL", "ref.gz.partial", bytes).is_some());
    }
    assert!(kills >= 4, "{kills} kills");
    session.ok(&resumed);
    assert!(fs::read(session.path("ref.gz")).unwrap() == whole);
    let again = session.ok(&resumed);
    assert!(again.stderr.contains("whole already"), "{}", again.stderr);
    assert_eq!(session.files(), ["long.txt", "ref.gz"]);
}

#[test]
fn an_interrupted_write_says_how_to_go_on() {
    let session = session_with_reference();
    let whole = fs::read(session.path("ref.gz")).unwrap();
    fs::remove_file(session.path("ref.gz")).unwrap();
    let run = cut_off(&session, &WRITE, "-TERM", "ref.gz.partial", 1).unwrap();
    let said = run.stderr.lines().last().unwrap();
    assert!(said.contains("ref.gz.partial keeps"), "{said}");
    assert!(said.contains("--resume"), "{said}");
    let kept = native::count_windows(&session.path("ref.gz.partial")).unwrap();
    assert!(
        kept > 0 && said.contains(&format!("keeps {kept} of ")),
        "{said}"
    );
    // Without --resume it is named and not touched.
    let left = fs::read(session.path("ref.gz.partial")).unwrap();
    session.fails(&WRITE, 1, &["ref.gz.partial", "--resume", "--force"]);
    let run = session.ok(&with(&WRITE[..8], &["--resume"]));
    assert!(
        run.stderr.contains(&format!("the {kept} windows")),
        "{}",
        run.stderr
    );
    assert!(fs::read(session.path("ref.gz")).unwrap() == whole);
    assert!(whole.starts_with(&left[..left.len() / 2]));
    // --force begins anew.
    session.write("ref.gz.partial", left);
    session.ok(&with(&WRITE, &["--force"]));
    assert!(fs::read(session.path("ref.gz")).unwrap() == whole);
}

#[test]
fn a_write_goes_on_with_its_own_settings_alone() {
    let session = session();
    cut_off(&session, &WRITE, "-TERM", "ref.gz.partial", 1).unwrap();
    let left = fs::read(session.path("ref.gz.partial")).unwrap();
    session.write(
        "other.txt",
        "Once upon a time there was another text, of other words.",
    );
    let replaced = |from: &str, to: &'static str| -> Vec<&str> {
        let args = WRITE.iter().map(|&arg| if arg == from { to } else { arg });
        args.chain(["--resume"]).collect()
    };
    for (args, what) in [
        (replaced("@tiny-f16.gguf", "@tiny-q8_0.gguf"), "model."),
        (replaced("long.txt", "other.txt"), "text."),
        (replaced("64", "65"), "n_ctx"),
        (with(&WRITE, &["--resume", "--encoding", "f32"]), "encoding"),
        (with(&WRITE, &["--resume", "-b", "32"]), "backend.n_batch"),
        (
            with(&WRITE, &["--resume", "-fa", "off"]),
            "backend.flash_attn",
        ),
        (with(&WRITE, &["--resume", "-n", "500"]), "seed"),
    ] {
        session.fails(
            &args,
            1,
            &["ref.gz.partial", "another run", what, "--force"],
        );
    }
    assert!(
        fs::read(session.path("ref.gz.partial")).unwrap() == left,
        "not touched"
    );
    // Another model of the same name and header: requantized, perhaps.
    fs::create_dir(session.path("other")).unwrap();
    let mut weights = fs::read(fixture("tiny-f16.gguf")).unwrap();
    let start = weights.len() / 2;
    let changed = weights[start..].iter_mut().step_by(2);
    changed.for_each(|byte| *byte ^= 1);
    session.write("other/tiny-f16.gguf", weights);
    let args = replaced("@tiny-f16.gguf", "other/tiny-f16.gguf");
    session.fails(&args, 1, &["another run", "model.sample_sha256"]);
    // What is no reference at all is somebody else's.
    session.write("ref.gz.partial", "notes");
    session.fails(
        &with(&WRITE, &["--resume"]),
        1,
        &["ref.gz.partial", "nothing to go on with"],
    );
    assert_eq!(fs::read(session.path("ref.gz.partial")).unwrap(), b"notes");
}

/// Runs `kl` with a limit on the size of files, in units of 512 bytes.
fn limited(session: &Session, args: &[&str], blocks: u64) -> Run {
    let kl = session.command(args);
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -f {blocks}; exec \"$@\""), "sh"])
        .arg(kl.get_program())
        .args(kl.get_args())
        .current_dir(session.folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Run {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_write_that_meets_a_full_disk_again_and_again_is_the_same_file() {
    let session = session_with_reference();
    let whole = fs::read(session.path("ref.gz")).unwrap();
    fs::remove_file(session.path("ref.gz")).unwrap();
    let blocks = whole.len() as u64 / 512;
    let resumed = with(&WRITE, &["--resume"]);
    // The last byte too.
    for limit in [blocks / 5, blocks / 3, blocks * 4 / 5, blocks] {
        let run = limited(&session, &resumed, limit);
        assert_eq!(run.code, 1, "{}", run.stderr);
        let said: Vec<&str> = run.stderr.lines().collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("cannot"), "{said:?}");
        assert!(said[0].contains("ref.gz.partial keeps"), "{said:?}");
    }
    session.ok(&resumed);
    assert!(fs::read(session.path("ref.gz")).unwrap() == whole);
    // Other kinds, which cannot be gone on with, leave nothing.
    for kind in ["kl.py", "llama.cpp"] {
        let args = with(&WRITE, &["--format", kind, "--force"]);
        let run = limited(&session, &args, 100);
        assert_eq!(run.code, 1);
        assert!(run.stderr.contains("cannot write"), "{}", run.stderr);
        assert_eq!(session.files(), ["long.txt", "ref.gz"]);
    }
}

/// On a file system of its own, where the machine lets anybody mount one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_file_system_is_gone_on_with_when_it_has_room() {
    let session = session_with_reference();
    fs::create_dir(session.path("disk")).unwrap();
    let mut mount = Command::new("unshare");
    mount.args(["-rm", "mount", "-t", "tmpfs", "none", "disk"]);
    let may_mount = mount.current_dir(session.folder.path()).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("no file system of its own here: not tested");
        return;
    }
    let kl = session.command(&with(&WRITE, &["--resume"]));
    // Another program takes the room while the reference is written.
    let script = "mount -t tmpfs -o size=60m none disk && cp long.txt disk && cd disk || exit 9
        \"$@\" & kl=$!
        until [ -s ref.gz.partial ]; do kill -0 $kl || exit 7; sleep 0.01; done
        cat /dev/zero > taken 2>/dev/null
        wait $kl && exit 8
        rm taken && \"$@\" && cmp ref.gz ../ref.gz && ls";
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "sh"])
        .arg(kl.get_program())
        .args(kl.get_args())
        .current_dir(session.folder.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{:?}: {stderr}", output.status);
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert!(stderr.contains("ref.gz.partial keeps"), "{stderr}");
    assert_eq!(output.stdout, b"long.txt\nref.gz\n");
}

#[test]
fn numbers_survive_a_disk_without_room_for_them() {
    let session = session_with_reference();
    let whole = session.ok(&READ);
    fs::remove_file(session.path(SIDECAR)).unwrap();
    let run = limited(&session, &READ, 100);
    assert_eq!(run.code, 1);
    assert!(
        run.stderr.contains("tiny-q8_0.gguf.kls.partial"),
        "{}",
        run.stderr
    );
    let table = |run: &Run| run.stdout.split("\nTime").next().unwrap().to_owned();
    assert_eq!(table(&run), table(&whole));
    assert_eq!(
        session.files(),
        ["long.txt", "ref.gz"],
        "no part of a sidecar"
    );
}

/// A model's result without what an interruption changes.
fn numbers(json: &Value) -> Value {
    let mut model = json["models"][0].clone();
    let model = model.as_object_mut().unwrap();
    model.remove("timing").unwrap();
    model.remove("n_resumed");
    Value::Object(std::mem::take(model))
}

#[test]
fn an_evaluation_that_is_killed_again_and_again_is_the_same() {
    let session = session_with_reference();
    let whole = session.json(&READ);
    let sidecar = fs::read(session.path(SIDECAR)).unwrap();
    fs::remove_file(session.path(SIDECAR)).unwrap();
    let partial = format!("{SIDECAR}.partial");
    let resumed = with(&READ, &["--resume"]);
    let mut kills = 0;
    for part in 1..=8 {
        let bytes = sidecar.len() as u64 * part / 9;
        kills += u32::from(cut_off(&session, &resumed, "-KILL", &partial, bytes).is_some());
    }
    assert!(kills >= 4, "{kills} kills");
    session.fails(&READ, 1, &[&partial, "--resume", "--force"]);
    let json = session.json(&resumed);
    assert!(fs::read(session.path(SIDECAR)).unwrap() == sidecar);
    assert_eq!(numbers(&json), numbers(&whole));
    assert!(json["models"][0]["n_resumed"].as_u64().unwrap() > 0);
    // A record that was torn, and what comes behind it, is measured again.
    let mut torn = sidecar.clone();
    let place = torn.len() * 2 / 3;
    torn[place..].fill(0);
    fs::remove_file(session.path(SIDECAR)).unwrap();
    session.write(&partial, torn);
    assert_eq!(numbers(&session.json(&resumed)), numbers(&whole));
    assert!(fs::read(session.path(SIDECAR)).unwrap() == sidecar);
}

#[test]
fn an_interrupted_evaluation_reports_on_what_it_has() {
    let session = session_with_reference();
    let partial = format!("{SIDECAR}.partial");
    let models = with(&["-m", "@tiny-q4_K_M.gguf", "--json", "j"], &READ);
    let run = cut_off(&session, &models, "-TERM", &partial, 60_000).unwrap();
    assert!(
        run.stderr.contains(&format!("{partial} keeps")),
        "{}",
        run.stderr
    );
    assert!(run.stdout.contains("PARTIAL"), "{}", run.stdout);
    let json = session.read_json("j");
    assert_eq!(json["complete"], false);
    assert_eq!(json["models"][0].get("interrupted"), None);
    let second = &json["models"][1];
    let done = second["interrupted"]["n_windows"].as_u64().unwrap();
    assert!(done > 0 && done < second["interrupted"]["of"].as_u64().unwrap());
    assert_eq!(second["n_windows"], done);
    assert_eq!(second["timing"], Value::Null);
    // A run over the same models goes past the first and on with the second.
    // Its result is replaced, and nobody else's.
    let again = with(&models, &["--resume"]);
    session.ok(&again);
    let json = session.read_json("j");
    let first = &json["models"][0];
    assert_eq!(
        (&first["timing"], &first["n_resumed"]),
        (&Value::Null, &first["n_tokens"])
    );
    assert_eq!(json["models"][1]["n_resumed"], second["n_tokens"]);
    assert_eq!(json["complete"], true);
    session.write("j", "{}");
    session.fails(&again, 1, &["j: exists already"]);
}

#[test]
fn an_evaluation_goes_on_with_its_own_settings_alone() {
    let session = session_with_reference();
    let partial = format!("{SIDECAR}.partial");
    cut_off(&session, &READ, "-TERM", &partial, 60_000).unwrap();
    let left = fs::read(session.path(&partial)).unwrap();
    let resumed = with(&READ, &["--resume"]);
    session.fails(
        &with(&resumed, &["-b", "32"]),
        1,
        &[&partial, "backend.n_batch"],
    );
    session.fails(
        &with(&resumed, &["-n", "9000"]),
        1,
        &[&partial, "n_records"],
    );
    session.ok(&with(&WRITE, &["--force", "--encoding", "f32"]));
    session.fails(&resumed, 1, &[&partial, "reference.fingerprint"]);
    assert!(
        fs::read(session.path(&partial)).unwrap() == left,
        "not touched"
    );
    session.ok(&with(&WRITE, &["--force"]));
    // What records do not hold is measured anew, and said to be.
    let logits = with(&READ, &["--stats", "logits", "--no-sidecar"]);
    let whole = numbers(&session.json(&logits));
    let run = session.ok(&with(&resumed, &["--stats", "logits", "--json", "j"]));
    assert!(run.stderr.contains("measured anew"), "{}", run.stderr);
    let json = session.read_json("j");
    assert_eq!(json["models"][0]["logits"], whole["logits"]);
    assert_eq!(json["models"][0]["kld"], whole["kld"]);
}
