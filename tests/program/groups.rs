//! Texts of several groups in one reference, and prompts with groups.

use serde_json::json;

use crate::session::{Session, has, short_text};

/// A session with two texts and a reference of both.
fn session(more: &str) -> Session {
    let session = Session::new();
    let text = short_text();
    session.write("wiki.txt", &text);
    session.write("code.txt", &text[700..1100]);
    session.ok(&format!(
        "-m @f16 -t wiki=wiki.txt -t code=code.txt -w ref.gz -c 64 -q {more}"
    ));
    session
}

#[test]
fn a_reference_of_two_texts_records_both() {
    let session = session("");
    let info = session.info("ref.gz --verify");
    let n_windows = |group: usize| info["groups"][group]["n_windows"].as_u64().unwrap();
    assert_eq!(info["n_windows"], n_windows(0) + n_windows(1));
    assert_eq!(info["text"]["name"], "wiki=wiki.txt, code=code.txt");
    let shown = session.ok("info ref.gz");
    shown.prints(&["groups", "wiki (", "code ("]);

    let json = session.json("-m @q4 -r ref.gz");
    assert_eq!(json["reference"]["groups"], json!(["wiki", "code"]));
    let (header, records) = session.sidecar("tiny-q4_K_M@ref.kls");
    assert_eq!(header.groups, ["wiki", "code"]);
    let first_of_code = n_windows(0) as u32;
    for record in &records {
        assert_eq!(record.group, u32::from(record.window >= first_of_code));
    }
    let info = session.ok("info tiny-q4_K_M@ref.kls");
    info.prints(&["groups", "wiki, code"]);

    // A text without a scored token is named.
    let what = ["no token of code is scored", "raise -n"];
    let write = "-m @f16 -t wiki=wiki.txt -t code=code.txt -c 64 -q -w few.gz";
    session.ok(&format!("{write} -n 100")).warns(&what);
    let read = "-m @q4 -r ref.gz -q --no-sidecar";
    session.ok(&format!("{read} -n 100")).warns(&what);
    session.ok(read).warns_not("no token of");
}

#[test]
fn prompts_have_groups_too() {
    let session = Session::new();
    let prompts = [
        json!({"prompt": "Once upon a time there was a dog.", "group": "stories"}),
        json!({"prompt": "She said that it was late.", "group": "speech"}),
        json!({"prompt": "One day the cat went home.", "group": "stories"}),
    ];
    let lines = prompts.map(|prompt| format!("{prompt}\n")).concat();
    session.write("p.jsonl", &lines);
    session.ok("-m @f16 --prompts p.jsonl -w ref.gz -q");
    let groups = json!([{"name": "stories", "n_windows": 2}, {"name": "speech", "n_windows": 1}]);
    assert_eq!(session.info("ref.gz")["groups"], groups);
    session.ok("-m @q4 -r ref.gz -q");
    let records = session.records("tiny-q4_K_M@ref.kls");
    assert!(records.iter().all(|r| r.group == u32::from(r.window == 1)));

    session.write("p.jsonl", lines + r#"{"prompt": "And one more."}"#);
    let what = ["p.jsonl", "line 4", "has no group"];
    session.fails("-m @f16 --prompts p.jsonl -w other.gz -q", 1, &what);
}

#[test]
fn a_conversion_keeps_groups_or_says_that_they_are_lost() {
    let session = session("--score all");
    session.ok("convert ref.gz f32.gz --format kl --encoding f32 -q");
    let [of, converted] = ["ref.gz", "f32.gz"].map(|name| session.info(name));
    for key in ["groups", "text"] {
        assert_eq!(of[key], converted[key]);
    }
    for format in ["kl.py", "llama.cpp"] {
        let run = session.ok(&format!("convert ref.gz other --format {format} --force"));
        run.warns(&["loses the groups"]);
        assert!(session.info("other").get("groups").is_none());
    }
    session.ok("compare f32.gz ref.gz -q");
    let (header, _) = session.sidecar("ref@f32.kls");
    assert_eq!(header.groups, ["wiki", "code"]);
}

#[test]
fn a_file_that_is_named_like_a_group_is_a_path() {
    let session = Session::new();
    session.write("wiki=a.txt", short_text());
    session.ok("-m @f16 -t wiki=a.txt -w ref.gz -c 64 -q");
    let path = json!({"groups": null, "text": {"name": "wiki=a.txt"}});
    has(&session.info("ref.gz"), &path);
    let cases = "
        wiki=none.txt => none.txt: cannot
        folder/a=none.txt => folder/a=none.txt: cannot";
    session.fails_each(1, "-m @f16 -w b.gz -q -t", cases);
}
