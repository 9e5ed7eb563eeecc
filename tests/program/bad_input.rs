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
fn a_damaged_reference_is_located_and_gives_no_numbers() {
    let session = Session::with_reference("");
    session.reference_of("@f16", "hidden.gz", "--encoding hidden");
    let whole = session.read("hidden.gz");
    let cases = "
        info bad.gz --verify -q => bad.gz
        -m @q4 -r bad.gz -q --no-sidecar => bad.gz
        convert bad.gz out --format kl -q => bad.gz";
    // Somewhere in the header, in the head, and in the states.
    for at in [60, whole.len() / 8, whole.len() * 3 / 4] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        session.write("bad.gz", damaged);
        session.fails_each(1, "", cases);
    }
    let whole = session.read("ref.gz");
    for length in [whole.len() - 1, 30, 1] {
        session.write("cut.gz", &whole[..length]);
        session.fails("-m @q8 -r cut.gz -q", 1, &["cut.gz"]);
    }
    session.write("cut.gz", &whole[..whole.len() / 2]);
    let mut bytes = whole;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    session.write("bad.gz", bytes);
    for name in ["cut.gz", "bad.gz"] {
        let run = session.fails(
            &format!("-m @q8 -r {name} -q"),
            1,
            &[name, "window", "byte"],
        );
        assert_eq!(run.stdout, "");
    }
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
