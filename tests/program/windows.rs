//! Which tokens are decoded together and which positions are scored.

use kl_formats::sidecar::TokenRecord;

use crate::session::{Session, short_text};

#[test]
fn sliding_windows_score_every_position_or_only_the_new_ones() {
    let session = Session::with_reference("--stride 16 --max-windows 5 --score new");
    let json = session.json("-m @q8 -r ref.gz");
    assert_eq!(json["reference"]["stride"], 16);
    assert_eq!(json["models"][0]["n_tokens"], 64 + 4 * 16);
    let records = session.records("tiny-q8_0@ref.kls");
    let mut later = records.iter().filter(|record| record.window > 0);
    assert!(later.all(|record| record.position >= 48));

    session.reference("--stride 16 --max-windows 5 --score all --force");
    let run = session.ok("-m @q8 -r ref.gz -q --force --json -");
    run.warns(&["windows overlap", "16 of 64"]);
    assert_eq!(run.json()["models"][0]["n_tokens"], 5 * 64);

    let gaps = "-m @f16 -t @eval -w no.gz -c 64 --stride 64";
    session.fails(gaps, 1, &["--stride 64"]);
}

#[test]
fn the_row_after_a_bos_is_scored_only_on_request() {
    let session = Session::new();
    let first_scored = |more: &str| {
        session.reference(more);
        let specs = session.specs("ref.gz").into_iter();
        let mut firsts: Vec<u32> = specs.map(|spec| spec.first_scored).collect();
        firsts.dedup();
        firsts
    };
    assert_eq!(first_scored(""), [1]);
    assert_eq!(session.header("ref.gz").first_scored, Some(1));
    session.ok("-m @q4 -r ref.gz -q");
    let records = session.records("tiny-q4_K_M@ref.kls");
    assert!(records.iter().all(|record| record.position > 0));
    assert_eq!(first_scored("--score all --force"), [0]);
    // kl.py's file has no other rows.
    assert_eq!(first_scored("--format kl.py --force"), [0]);
}

#[test]
fn score_and_n_tokens_choose_what_is_scored() {
    let session = Session::with_reference("--score half");
    let result = session.result("-m @q8 -r ref.gz --sidecar half.kls");
    let records = session.records("half.kls");
    let mut positions = records.iter().map(|record| record.position);
    assert!(positions.all(|position| (32..64).contains(&position)));
    assert_eq!(result["n_tokens"], records.len());

    session.reference("-n 100 --force");
    let json = session.json("-m @q8 -r ref.gz");
    assert_eq!(json["models"][0]["n_tokens"], 100);
    assert_eq!(json["reference"]["seed"], 123);

    session.reference("--force");
    let text = |record: &TokenRecord| format!("{record:?}");
    let read = |name: &str, more: &str| {
        session.ok(&format!("-m @q8 -r ref.gz -q --sidecar {name} {more}"));
        session.records(name)
    };
    let (whole, part) = (read("whole.kls", ""), read("n.kls", "-n 200"));
    assert_eq!(part.len(), 200);
    let windows: Vec<u32> = part
        .iter()
        .step_by(64)
        .map(|record| record.window)
        .collect();
    assert_ne!(windows, [0, 1, 2, 3], "a sample, not the start of the text");
    // As text, so that the NaN of a window's last row equals itself.
    let whole: Vec<String> = whole.iter().map(text).collect();
    assert!(part.iter().all(|record| whole.contains(&text(record))));
    let last = part[199].next_token();
    assert!(last.is_some(), "the token after the last row is known");
}

#[test]
fn texts_and_prompts_are_read_from_stdin() {
    let session = Session::new();
    session.write("short.txt", short_text());
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
