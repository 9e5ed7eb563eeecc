//! The prompts that come with `kl`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::session::{Session, has};

/// The prompts as they stand in the repository.
fn lines() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/measure/prompts/starter.jsonl");
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[test]
fn a_reference_of_the_starter_prompts_names_them_and_has_their_groups() {
    let session = Session::new();
    let line = "-m @f16 --prompts starter --max-windows 12 --generate 2 --no-chat-template -q";
    session.ok(&format!("{line} -w ref.gz"));
    let info = session.info("ref.gz --verify");
    let expected = json!({"text": {"name": "starter-1"}, "prompts": {"n_prompts": 12}});
    has(&info, &expected);
    let lines = lines();
    let names = |of: &[Value], key: &str| -> BTreeSet<String> {
        let names = of.iter().map(|of| of[key].as_str().unwrap().to_owned());
        names.collect()
    };
    let groups = info["groups"].as_array().unwrap();
    assert_eq!(names(groups, "name"), names(&lines[..12], "group"));

    let prompts = session.result("-m @q4 -r ref.gz")["prompts"].take();
    for (prompt, line) in prompts.as_array().unwrap().iter().zip(&lines) {
        assert_eq!(prompt["prompt"], line["prompt"]);
    }
    session.ok("-m @q2 -r ref.gz -q");
    let run = session.ok("report tiny-q4_K_M@ref.kls tiny-q2_K@ref.kls");
    run.prints(&["tokens of starter-1 in 12 prompts"]);
}

#[test]
fn a_file_called_starter_is_read_by_its_path() {
    let session = Session::new();
    session.write("starter", "One prompt of my own.\n");
    let line = "-m @f16 --no-chat-template --max-windows 1 -q --prompts";
    session.ok(&format!("{line} ./starter -w own.gz"));
    assert_eq!(session.info("own.gz")["text"]["name"], "starter");
    // Without a path it is not an input, and may be replaced.
    session.ok(&format!("{line} starter -w starter --force"));
    assert_eq!(session.info("starter")["text"]["name"], "starter-1");
}

#[test]
fn the_starter_text_needs_no_file_and_has_groups() {
    let session = Session::new();
    session.ok("-m @f16 -t starter -c 128 --max-windows 2 -w ref.gz -q");
    let info = session.info("ref.gz --verify");
    has(&info, &json!({"text": {"name": "starter-text-1"}}));
    let groups = info["groups"].as_array().unwrap();
    let names: Vec<&str> = groups
        .iter()
        .map(|group| group["name"].as_str().unwrap())
        .collect();
    let expected = [
        "prose",
        "technical",
        "code",
        "dialogue",
        "languages",
        "tables",
    ];
    assert_eq!(names, expected);
    assert_eq!(info["n_windows"], 12);

    // A file of that name is another text, and other formats hold no groups.
    session.write("starter", "One text of my own, which is long enough.\n");
    session.ok("-m @f16 -t ./starter -c 16 -w own.gz -q");
    assert_eq!(session.info("own.gz")["text"]["name"], "starter");
    let line = "-m @f16 -t starter -w base.kld --format llama.cpp";
    session.fails(line, 2, &["-t starter, needs --format kl"]);
}

#[test]
fn maps_and_checks_accept_the_starter_text() {
    let session = Session::new();
    session.ok("sensitivity -m @f16 -t starter -c 32 -n 64 --tensors attn_v -w map.jsonl -q");
    session.ok("check -m @q8 -t starter -c 32 -n 64 -q");
}
