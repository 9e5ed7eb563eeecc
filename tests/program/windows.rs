//! Which tokens are decoded together and which positions are scored.

use kl_formats::sidecar::TokenRecord;
use serde_json::json;

use crate::session::{Session, has};

#[test]
fn flags_choose_the_positions_that_are_scored() {
    let session = Session::new();
    // The row after a BOS is scored only on request. kl.py's file has no other rows. Of sliding windows, every
    // position or only the new ones.
    for (flags, first, later) in [
        ("", 1, 1),
        ("--score half", 32, 32),
        ("--score all", 0, 0),
        ("--format kl.py", 0, 0),
        ("--stride 16 --max-windows 5 --score new", 0, 48),
        ("--stride 16 --max-windows 5 --score all", 0, 0),
    ] {
        session.reference(&format!("{flags} --force"));
        let run = session.ok("-m @q8 -r ref.gz -q --force --json -");
        let records = session.records("tiny-q8_0@ref.kls");
        has(
            &run.json()["models"][0],
            &json!({"n_tokens": records.len()}),
        );
        let least = |is_first: bool| {
            let records = records.iter().filter(|of| (of.window == 0) == is_first);
            records.map(|record| record.position).min().unwrap()
        };
        assert_eq!((least(true), least(false)), (first, later), "{flags}");
        if flags.ends_with("--score new") {
            assert_eq!(records.len(), 64 + 4 * 16);
            assert_eq!(run.json()["reference"]["stride"], 16);
        } else if flags.starts_with("--stride") {
            assert_eq!(records.len(), 5 * 64);
            run.warns(&["windows overlap", "16 of 64"]);
        }
    }
    let gaps = "-m @f16 -t @eval -w no.gz -c 64 --stride 64";
    session.fails(gaps, 1, &["--stride 64"]);
}

#[test]
fn n_tokens_takes_a_sample() {
    let session = Session::with_reference("-n 100");
    let json = session.json("-m @q8 -r ref.gz");
    assert_eq!(json["models"][0]["n_tokens"], 100);
    assert_eq!(json["reference"]["seed"], 123);

    session.reference("--force");
    // As text, so that the NaN of a window's last row equals itself.
    let text = |record: &TokenRecord| format!("{record:?}");
    let read = |name: &str, more: &str| {
        session.ok(&format!("-m @q8 -r ref.gz -q --sidecar {name} {more}"));
        session.records(name)
    };
    let (whole, part) = (read("whole.kls", ""), read("n.kls", "-n 200"));
    assert_eq!(part.len(), 200);
    let windows = part.iter().step_by(64).map(|record| record.window);
    assert!(!windows.eq(0..4), "a sample, not the start of the text");
    let whole: Vec<String> = whole.iter().map(text).collect();
    assert!(part.iter().all(|record| whole.contains(&text(record))));
    let last = part[199].next_token();
    assert!(last.is_some(), "the token after the last row is known");
}

#[test]
fn texts_and_prompts_are_read_from_stdin() {
    let session = Session::with_text();
    // Of prompts, the flag's name in release 0.1.0.
    for (flags, input) in [
        ("-c 64 -t", "short.txt"),
        ("--no-chat-template --prompts-file", "@prompts"),
    ] {
        let write = format!("-m @f16 -q {flags}");
        let mut command = session.command(&format!("{write} - -w stdin.gz --force"));
        let file = std::fs::File::open(session.path(input)).unwrap();
        assert!(command.stdin(file).status().unwrap().success());
        assert_eq!(session.info("stdin.gz")["text"]["name"], "-");
        session.ok(&format!("{write} {input} -w file.gz --force"));
        assert!(
            session.windows("stdin.gz") == session.windows("file.gz"),
            "{flags}"
        );
    }
}
