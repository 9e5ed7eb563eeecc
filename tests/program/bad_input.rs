//! Bad input: one clear line, and nothing is lost.

use std::fs;

use crate::session::{Run, Session, fixture, short_text};

#[test]
fn wrong_use_is_exit_code_2() {
    let session = Session::new();
    session.fails("-m @f16", 2, &["-t TEXT", "-r REF"]);
    session.fails("-m @f16 -t a", 2, &["-w REF"]);
    session.fails("-m @f16 -w a", 2, &["-t"]);
    session.fails("-m @f16 -t a -w b -c 0", 2, &["--n-ctx"]);
    session.fails("-m @f16 -t a -w b -c 1", 2, &["--n-ctx"]);
    assert_eq!(session.kl("-r a").code, 2, "clap's own errors too");
    assert_eq!(session.kl("-m a -r b --confidence 95").code, 2);
    assert_eq!(session.files(), [""; 0]);
}

#[test]
fn files_that_are_not_causal_models_are_refused() {
    let session = Session::new();
    session.write("text.txt", "Once upon a time there was a cat.");
    session.write("noise.gguf", [7u8; 1000]);
    session.write("empty.gguf", "");
    let whole = fs::read(fixture("q2")).unwrap();
    session.write("cut.gguf", &whole[..whole.len() / 2]);
    session.write("stub.gguf", &whole[..100]);
    let cases = "
        noise.gguf => GGUF
        empty.gguf => empty.gguf
        cut.gguf => download
        stub.gguf => stub.gguf
        @hostile/bert.gguf => causal
        @hostile/dream.gguf => causal
        @hostile/gemma-embedding.gguf => causal
        @hostile/t5.gguf => encoder
        @hostile/t5encoder.gguf => encoder";
    session.fails_each(1, "-t text.txt -w r.gz -q -m", cases);
    assert!(!session.exists("r.gz"));
}

#[test]
fn a_text_that_is_not_utf8_is_read_with_a_warning() {
    let session = Session::new();
    let text = b"Once upon a time there was a caf\xe9 and a cat.";
    session.write("latin1.txt", text);
    let run = session.ok("-m @f16 -t latin1.txt -w r.gz -c 64 -q");
    run.warns(&["latin1.txt: 1 byte is not", "UTF-8", "byte 32"]);
}

#[test]
fn what_editors_on_windows_add_to_a_text_is_a_warning() {
    let session = Session::new();
    let dos = "\u{feff}Once upon a time\r\nthere was a cat.\r\n";
    session.write("dos.txt", dos);
    let run = session.ok("-m @f16 -t dos.txt -w r.gz -c 64 -q");
    run.warns(&["dos.txt: 2 lines end with CR LF", r"tr -d '\r' < dos.txt"]);
    run.warns(&[
        "dos.txt: begins with a byte order mark",
        "tail -c +4 dos.txt",
    ]);
    // And of few windows.
    assert_eq!(run.stderr.lines().count(), 3);
    let is_of_lines = |text: &str| text.contains("CR LF") || text.contains("byte order mark");
    // Neither is in prompts that are lines, nor in other texts.
    let prompts = session.ok("-m @f16 --prompts dos.txt --no-chat-template -w p.gz -q");
    assert!(!is_of_lines(&prompts.stderr), "{}", prompts.stderr);
    session.write(
        "unix.txt",
        dos.replace('\r', "").trim_start_matches('\u{feff}'),
    );
    let unix = session.ok("-m @f16 -t unix.txt -w u.gz -c 64 -q");
    assert!(!is_of_lines(&unix.stderr), "{}", unix.stderr);
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
fn a_truncated_reference_is_refused_at_once_with_the_position() {
    let session = Session::new();
    session.reference("");
    let whole = session.read("ref.gz");
    for length in [whole.len() - 1, whole.len() / 2, 30, 1] {
        session.write("cut.gz", &whole[..length]);
        session.fails("-m @q8 -r cut.gz -q", 1, &["cut.gz"]);
    }
    session.write("cut.gz", &whole[..whole.len() / 2]);
    session.fails("-m @q8 -r cut.gz -q", 1, &["window", "byte"]);
}

#[test]
fn a_corrupt_reference_is_located_and_gives_no_numbers() {
    let session = Session::new();
    session.reference("");
    let mut bytes = session.read("ref.gz");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    session.write("bad.gz", bytes);
    let run = session.fails("-m @q8 -r bad.gz -q", 1, &["window", "byte"]);
    assert_eq!(run.stdout, "");
    assert!(
        !session.exists("tiny-q8_0@ref.kls"),
        "no sidecar of half a run"
    );
}

#[test]
fn a_model_that_fails_does_not_stop_the_others() {
    let session = Session::new();
    session.reference("");
    let run = session.kl("-m @q8 -m none.gguf -m @q2 -r ref.gz -q --json o.json");
    assert_eq!(run.code, 1);
    run.warns(&["none.gguf"]);
    run.warns(&["1 of 3"]);
    let json = session.read_json("o.json");
    assert_eq!(json["models"].as_array().unwrap().len(), 2);
    let failed = json["failed"][0]["path"].as_str().unwrap();
    assert!(failed.contains("none.gguf"), "{failed}");
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
