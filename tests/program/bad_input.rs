//! Bad input: one clear line, and nothing is lost.

use std::fs;

use crate::session::{Run, Session, fixture, short_text};

#[test]
fn what_is_not_plain_utf8_in_a_text_is_a_warning() {
    let session = Session::new();
    session.write(
        "latin1.txt",
        b"Once upon a time there was a caf\xe9 and a cat.",
    );
    let dos = "\u{feff}Once upon a time\r\nthere was a cat.\r\n";
    session.write("dos.txt", dos);
    let unix = dos.replace('\r', "");
    session.write("unix.txt", unix.trim_start_matches('\u{feff}'));
    let write = |input: &str| session.ok(&format!("-m @f16 {input} -w r.gz --force -q"));
    write("-t latin1.txt -c 64").warns(&["latin1.txt: 1 byte is not", "UTF-8", "byte 32"]);
    let run = write("-t dos.txt -c 64");
    run.warns(&["dos.txt: 2 lines end with CR LF", r"tr -d '\r' < dos.txt"]);
    run.warns(&[
        "dos.txt: begins with a byte order mark",
        "tail -c +4 dos.txt",
    ]);
    // And of few windows.
    assert_eq!(run.stderr.lines().count(), 3);
    // Neither is in prompts that are lines, nor in other texts.
    for input in ["--prompts dos.txt --no-chat-template", "-t unix.txt -c 64"] {
        write(input).warns_not("CR LF").warns_not("byte order mark");
    }
}

#[test]
fn an_existing_output_is_refused_before_the_model_is_loaded() {
    let session = Session::new();
    session.write("text.txt", "Once upon a time there was a cat.");
    session.write("ref.gz", "precious");
    let write = "-m none.gguf -t text.txt -w";
    session.fails(&format!("{write} ref.gz"), 1, &["ref.gz", "--force"]);
    session.fails(&format!("{write} no/ref.gz"), 1, &["no/ref.gz", "created"]);
    session.fails(&format!("{write} ."), 1, &["folder"]);
    assert_eq!(session.read("ref.gz"), b"precious");

    session.reference("--force");
    session.write("out.json", "precious");
    let read = "-m none.gguf -r ref.gz";
    let to_json = format!("{read} --json out.json");
    session.fails(&to_json, 1, &["out.json", "--force"]);
    session.write("none@ref.kls", "precious");
    session.fails(read, 1, &["none@ref.kls", "exists already", "--force"]);
    assert_eq!(session.read("out.json"), b"precious");
    assert_eq!(session.read("none@ref.kls"), b"precious");
}

#[test]
fn damage_is_located_and_gives_no_numbers() {
    let session = Session::with_reference("");
    session.reference_of("@f16", "hidden.gz", "--encoding hidden");
    let lines = [
        "info bad.gz --verify -q",
        "info bad.gz --verify --json -q",
        "-m @q8 -r bad.gz -q --no-sidecar",
        "convert bad.gz out --format kl.py --force -q",
    ];
    let refused = |lines: &[&str], what: &[&str]| {
        for line in lines {
            let run = session.fails(line, 1, &[&["bad.gz"], what].concat());
            run.prints_not("whole");
            assert!(line.starts_with("info") || run.stdout.is_empty());
        }
    };
    // Somewhere in the header, in the head, and in the states.
    for share in [0.001, 0.125, 0.75] {
        session.flip("hidden.gz", "bad.gz", share);
        refused(&lines, &[]);
    }
    session.cut("ref.gz", "bad.gz", 0.5);
    refused(&lines, &["window", "byte"]);
    for n_bytes in [session.length("ref.gz") as usize - 1, 30, 1] {
        session.change("ref.gz", "bad.gz", |bytes| bytes.truncate(n_bytes));
        refused(&lines, &[]);
    }
    // In a window; a later fault is not the one that is reported.
    let starts = window_starts(&session.read("ref.gz"));
    let (_, last) = *starts.last().unwrap();
    for pair in starts[1..].windows(2).take(3) {
        let ((window, _), (_, next)) = (pair[0], pair[1]);
        session.change("ref.gz", "bad.gz", |bytes| {
            bytes[next - 100] ^= 1;
            bytes[last + 60] ^= 1;
        });
        refused(&lines[..2], &[&format!("window {window}, byte ")]);
        // It is seen only if everything is read.
        session.ok("info bad.gz");
    }

    session.ok("-m @q8 -r ref.gz -q --sidecar q8.kls");
    session.flip("q8.kls", "bad.kls", 0.5);
    session.flip("@klpy", "bad-kl_py.gz", 0.5);
    let n_bytes = session.length("@base") as usize;
    session.change("@base", "cut.kld", |base| base.truncate(n_bytes - 1));
    // Pages that never reached the disk.
    session.change("@base", "torn.kld", |base| base[n_bytes - 5000..].fill(0));
    session.ok("info torn.kld");
    let cases = "
        bad.kls => record | byte
        bad-kl_py.gz => corrupt | window
        cut.kld => 1 of 2 windows
        torn.kld => torn.kld | window 1 | row 60 | not to 1";
    session.fails_each(1, "info --verify -q", cases);
}

/// Each window's number in a native reference, and its first byte: that of the member with its
/// tokens (see `formats/LOGITS.md`).
fn window_starts(reference: &[u8]) -> Vec<(u32, usize)> {
    let field = |at: usize| u32::from_le_bytes(reference[at..at + 4].try_into().unwrap());
    let (mut starts, mut at) = (Vec::new(), 0);
    while at < reference.len() {
        let (member_bytes, kind, window) = (field(at + 16), field(at + 24), field(at + 28));
        if kind == 1 {
            starts.push((window, at));
        }
        at += member_bytes as usize;
    }
    starts
}

#[cfg(unix)]
#[test]
fn no_name_forges_a_line() {
    let session = Session::new();
    let forged = "x\nkl: warning: forged\u{1b}[31m\u{2028}";
    let folder = session.path(forged);
    fs::create_dir(&folder).unwrap();
    for (file, name) in [("f16", "o.gguf"), ("q8", "a.gguf"), ("q2", "b.gguf")] {
        fs::copy(fixture(file), folder.join(name)).unwrap();
    }
    fs::write(folder.join("t.txt"), short_text()).unwrap();
    fs::write(folder.join("notes"), "notes").unwrap();
    // `%` stands for the folder.
    let shown = |line: &str| {
        let words = line
            .split(' ')
            .map(|word| word.replace('%', &format!("{forged}/")));
        let run = Run::from(session.command("").args(words).output().unwrap());
        for output in [&run.stdout, &run.stderr] {
            let is_forged = |line: &str| line.starts_with("kl: warning: forged");
            assert!(!output.lines().any(is_forged), "{line}: {output}");
            assert!(!output.contains(['\u{1b}', '\u{2028}']), "{line}: {output}");
        }
        run
    };
    assert_eq!(shown("-m %o.gguf -t %t.txt -c 64 -w %ref.gz").code, 0);
    assert_eq!(shown("-m %a.gguf -m %b.gguf -r %ref.gz").code, 0);
    for line in [
        "-m %a.gguf -r %ref.gz -ctk q8_0 --no-sidecar",
        "-m %a.gguf --ref-model %o.gguf -t %t.txt -c 64 --no-sidecar --breakdown",
        "-m %a.gguf -r %none.gz",
        "-m %notes -r %ref.gz",
        "-m %a.gguf -r %ref.gz --json %ref.gz",
        "-m %a.gguf -r %ref.gz --fail-if %x>1",
        "-m %a.gguf -r %ref.gz --sidecar %none/x.kls",
        "-m %a.gguf %b.gguf -r %ref.gz",
        "-m % -t %t.txt -w %new.gz",
        "-m %none* -r %ref.gz",
        "info %ref.gz %a.gguf %none --verify",
        "info a@ref.kls b@ref.kls",
        "report %none.kls",
        "report .",
        "report . --markdown",
        "report a@ref.kls",
        "report a@ref.kls b@ref.kls --pair",
        "compare %ref.gz %ref.gz --no-sidecar",
        "convert %ref.gz %kl.py --format kl.py",
        "merge %all.gz %ref.gz",
    ] {
        shown(line);
    }
}

/// What has no end is not read to its end, and what has no beginning is not waited for.
#[cfg(unix)]
#[test]
fn devices_and_pipes_are_refused_in_one_line() {
    let session = Session::with_reference("");
    session.ok("-m @q8 -r ref.gz --sidecar a.kls -q");
    session.write("prompts.txt", "Once upon a time\n");
    std::os::unix::fs::symlink("/dev/zero", session.path("zero")).unwrap();
    let limited = |line: &str, what: &[&str]| {
        // Far less than what a gigabyte of zeros would take.
        let run = session.in_shell("ulimit -v 3000000; exec \"$@\"", line);
        let lines: Vec<&str> = run.stderr.lines().collect();
        assert_eq!((run.code, lines.len()), (1, 1), "kl {line}: {lines:#?}");
        for what in what {
            assert!(lines[0].contains(what), "kl {line}: {}", lines[0]);
        }
    };
    let write = "-m @f16 -w none.gz -q";
    limited(
        &format!("{write} -t zero"),
        &["zero: not a text", "byte 0 is 0"],
    );
    limited(&format!("{write} --prompts zero"), &["zero: not a text"]);
    let template = "--prompts prompts.txt --chat-template-file";
    limited(
        &format!("{write} {template} zero"),
        &["zero: not a chat template"],
    );
    limited(&format!("{write} {template} ."), &[".: is a folder"]);
    limited("report a.kls --floor zero", &["zero: is not whole JSON"]);
    limited("report a.kls --floor .", &[".: is a folder"]);
    let mut mkfifo = std::process::Command::new("mkfifo");
    assert!(mkfifo.arg(session.path("p")).status().unwrap().success());
    limited(
        &format!("{write} -t p"),
        &["p: is a pipe that nothing writes to"],
    );
    // One that something writes to is read.
    let script = "cat short.txt > p & \"$@\"";
    let run = session.in_shell(script, "-m @f16 -t p -c 64 -w piped.gz -q --force");
    assert_eq!(run.code, 0, "{}", run.stderr);
}

#[test]
fn a_floor_that_cannot_be_read_says_what_is_wrong_and_where() {
    let session = Session::with_reference("");
    session.ok("-m @q8 -r ref.gz --sidecar a.kls -q");
    for (json, what) in [
        ("", "floor.json: is empty"),
        (
            "{\"floor\":\n  {\"kld\": 1",
            "floor.json: is not whole JSON (EOF while parsing an object at line 2 column 11)",
        ),
        ("{\"floor\": }", "expected value at line 1 column 11"),
        ("{\"kl_version\": 1}", "floor.json: holds no floor"),
        ("{\"floor\": null}", "floor.json: holds no floor"),
        (
            "{\"floor\": 3}",
            "floor.json: its floor cannot be used (invalid type: integer `3`",
        ),
    ] {
        session.write("floor.json", json);
        session.fails("report a.kls --floor floor.json", 1, &[what]);
    }
}

/// What a header states is no reason to take memory for it.
#[cfg(unix)]
#[test]
fn windows_that_are_not_there_take_no_memory() {
    let session = Session::with_text();
    let header = |n_ctx: u32, n_windows: u32| {
        let counts = [n_ctx, 1024, n_windows].map(u32::to_le_bytes);
        [&b"_logits_"[..], &counts.concat()].concat()
    };
    session.write("empty.kld", header(1 << 26, 0));
    let limited = |line: &str, code: i32, what: &str| {
        let run = session.in_shell("ulimit -v 3000000; exec \"$@\"", line);
        assert!(
            run.code == code && run.stderr.contains(what),
            "kl {line}: {}",
            run.stderr
        );
    };
    limited(
        "-m @q8 -r empty.kld --no-sidecar -q",
        1,
        "empty.kld: holds no windows",
    );
    limited("info empty.kld --verify -q", 0, "");
    limited(
        "compare empty.kld empty.kld -q --no-sidecar",
        1,
        "empty.kld",
    );
}
