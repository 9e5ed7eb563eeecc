//! Parts of a run, joined, and a run that was cut off and resumed: the bytes of one run.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::conversations::stopping_conversations;
use crate::session::{Session, can_run, fixture, program, short_text};

fn of_part(part: usize, parts: usize) -> String {
    format!("tiny-q4_K_M@ref.{part}-of-{parts}.kls")
}

/// Makes `whole.EXT` in one run and in parts, which are joined in any order: the same bytes. The last part
/// is cut off and resumed, to the same bytes too.
pub fn check_parts(session: &Session, run: &str, name: &str, parts: usize) {
    session.ok(&format!("{run} whole.{name} --force -q"));
    let mut names = Vec::new();
    for part in 0..parts {
        let part_name = format!("part.{part}.{name}");
        session.ok(&format!(
            "{run} {part_name} --shard {part}/{parts} --force -q"
        ));
        names.insert(0, part_name);
    }
    let names = names.join(" ");
    session.ok(&format!("merge joined.{name} {names} --force -q"));
    let whole = session.read(&format!("whole.{name}"));
    let is_whole = session.read(&format!("joined.{name}")) == whole;
    assert!(is_whole, "{run} in {parts} parts");
    let last = format!("part.{}.{name}", parts - 1);
    let (bytes, partial) = (session.read(&last), format!("{last}.partial"));
    for fifths in [2, 4] {
        session.write(&partial, &bytes[..bytes.len() * fifths / 5]);
        session.remove(&last);
        let shard = format!("--shard {}/{parts}", parts - 1);
        session.ok(&format!("{run} {last} {shard} --resume -q"));
        assert!(session.read(&last) == bytes, "{run} {shard}");
        assert!(!session.exists(&partial));
    }
}

/// The same for a reference of some input, and for a model's evaluation against it.
fn check(session: &Session, input: &str, more: &str, parts: usize) {
    check_parts(session, &format!("-m @f16 {input} -w"), "gz", parts);
    let read = format!("-m @q4 -r whole.gz {more} --sidecar");
    check_parts(session, &read, "kls", parts);
    // A part's own sidecar may be replaced, as a whole one may.
    let first = session.read("part.0.kls");
    session.ok(&format!("{read} part.0.kls --shard 0/{parts} -q"));
    assert!(session.read("part.0.kls") == first, "{input} {more}");
}

#[test]
fn parts_make_the_bytes_of_one_run() {
    let session = Session::with_text();
    session.write("code.txt", short_text().to_uppercase());
    stopping_conversations(&session);
    let chat = "--prompts chat.jsonl --generate 6 --chat-template-file";
    for (input, more, parts) in [
        ("-t short.txt -c 64", "", 1),
        ("-t short.txt -c 64", "-n 500", 3),
        ("-t short.txt -c 64 --encoding hidden", "", 7),
        // The last window of a sample is cut short.
        ("-t short.txt -c 64 -n 440", "", 7),
        ("-t short.txt -c 20 -n 300 --encoding hidden", "", 3),
        ("-t wiki=short.txt -t code=code.txt -c 64", "", 3),
        ("-t wiki=short.txt -t code=code.txt -c 64 -n 700", "", 3),
        ("--prompts @prompts", "", 3),
        ("--prompts @prompts --generate 3", "", 1),
        ("--prompts @prompts --generate 3 --encoding hidden", "", 3),
        ("--prompts @prompts --generate 9 --span she=e..a", "", 2),
        ("--prompts @prompts --generate 3 --score all -n 40", "", 2),
        (&format!("{chat} free.jinja"), "", 2),
        // Two conversations end early.
        (&format!("{chat} chat.jinja --encoding f32"), "", 3),
    ] {
        check(&session, input, more, parts);
    }
    let in_memory = "-m @q4 --ref-model @f16 -t short.txt -c 64 --sidecar";
    check_parts(&session, in_memory, "kls", 3);
}

#[test]
fn a_part_says_that_it_is_one() {
    let session = Session::with_reference("");
    session.reference_of("@f16", "part.gz", "--shard 1/3");
    let run = session.ok("-m @q4 -r ref.gz --shard 1/3 -q --json o.json");
    run.prints(&["PART", "part 1 of 3 (from 0)", "kl merge"]);
    let shard = session.read_json("o.json")["models"][0]["shard"].take();
    let whole = session.info("ref.gz");
    let expected = json!({"index": 1, "count": 3, "n_windows": whole["n_windows"],
        "n_rows": whole["n_rows"]});
    assert_eq!(shard, expected);
    // Converted to another encoding, it stays a part; another kind cannot be one.
    session.ok("convert part.gz f32.gz --format kl --encoding f32 -q");
    for part in ["part.gz", "f32.gz", &of_part(1, 3)] {
        assert_eq!(session.info(part)["shard"], shard, "{part}");
        session
            .ok(&format!("info {part} --verify"))
            .prints(&["part 1 of 3"]);
    }
    assert!(whole["shard"].is_null());
    // A part is a reference of its windows.
    let run = session.ok("-m @f16 -r part.gz --no-sidecar");
    run.warns(&["part 1 of 3", "kl merge"]);
    let run = session.ok("convert part.gz part.kld --format llama.cpp");
    run.warns(&["one part"]);
}

#[test]
fn what_cannot_be_joined_is_named() {
    let session = Session::with_reference("");
    for part in 0..3 {
        let write = format!("ref.{part}.gz");
        session.reference_of("@f16", &write, &format!("--shard {part}/3"));
        session.ok(&format!("-m @q4 -m @q8 -r ref.gz -q --shard {part}/3"));
    }
    session.reference_of("@q8", "other.2.gz", "--shard 2/3");
    session.reference_of("@f16", "half.0.gz", "--shard 0/2");
    // A damaged part is found before the output has its name.
    session.flip("ref.1.gz", "bad.gz", 0.5);
    let cases = "
        o.gz ref.0.gz ref.2.gz => part 1 of 3 | --shard 1/3
        o.gz ref.2.gz => parts 0, 1 of 3
        o.gz ref.0.gz ref.1.gz ref.1.gz => ref.1.gz | part 1
        o.gz ref.0.gz ref.1.gz other.2.gz => other.2.gz | model
        o.gz ref.0.gz half.0.gz => half.0.gz | parts
        o.gz ref.0.gz ref.gz => ref.gz | whole
        o.gz ref.0.gz @klpy => kl.py | kl_py
        o.gz ref.0.gz Q4@ref.0-of-3.kls => ref.0.gz | Q4@ref.0-of-3.kls
        o.kls Q4@ref.0-of-3.kls Q4@ref.2-of-3.kls => part 1 of 3
        o.kls Q4@ref.0-of-3.kls Q4@ref.1-of-3.kls Q4@ref.1-of-3.kls => Q4@ref.1-of-3.kls | part 1
        o.kls Q4@ref.0-of-3.kls Q4@ref.1-of-3.kls tiny-q8_0@ref.2-of-3.kls => tiny-q8_0@ref.2-of-3.kls | model
        o.gz none.gz => none.gz
        o.gz ref.0.gz bad.gz ref.2.gz -q => bad.gz | window
        ref.0.gz ref.1.gz ref.2.gz => ref.0.gz | exists
        ref.0.gz ref.0.gz ref.1.gz => exit 2 | ref.0.gz | output";
    session.fails_each(1, "merge", &cases.replace("Q4", "tiny-q4_K_M"));
}

#[test]
fn parts_that_were_not_computed_alike_are_joined_with_a_warning() {
    let session = Session::with_reference("");
    let read = "-m @q4 -r ref.gz -q";
    session.ok(&format!("{read} --shard 0/2"));
    session.ok(&format!("{read} --shard 1/2 -ub 16"));
    let [first, second] = [0, 1].map(|part| of_part(part, 2));
    let run = session.ok(&format!("merge o.kls {first} {second} -q"));
    run.warns(&["the physical batch", "16", &second]);
    session.ok(&format!("{read} --sidecar whole.kls"));
    let header = |name| session.info(name)["backend"].take();
    assert_eq!(header("o.kls"), header("whole.kls"));
    // Another type of cache is another evaluation.
    session.ok(&format!("{read} --shard 1/2 -ctk q8_0 --force"));
    let merge = format!("merge p.kls {first} {second} -q");
    session.fails(&merge, 1, &["cached keys", "q8_0"]);
}

#[test]
fn parts_that_cannot_be_made_are_refused() {
    let session = Session::with_reference("");
    let n_windows = session.info("ref.gz")["n_windows"].as_u64().unwrap();
    let cases = "
        -m @q4 -r ref.gz --shard 0/99 => 99 | more parts than windows: use at most N
        -m @f16 -t short.txt -c 64 -w o.gz --shard 0/99 => 99 | more parts than windows: use at most N
        -m @q4 --ref-model @f16 -t short.txt -c 64 --shard 0/99 => --shard
        -m @q4 -r @klpy --shard 0/2 => kl convert
        -m @q4 -r ref.gz --shard 2/2 => exit 2 | 0 to N-1
        -m @q4 -r ref.gz --shard 0/2 --until 5% => exit 2 | --until
        -m @f16 -t short.txt -w o.gz --shard 0/2 --format kl.py => exit 2 | kl convert";
    let at_most = format!("at most {n_windows}");
    session.fails_each(1, "-q", &cases.replace("at most N", &at_most));
    // A base file's rows can be read anywhere.
    session.ok("-m @q4 -r @base --shard 1/2 -q --no-sidecar");
}

/// The shell blocks of the recipes, in their order: scripts for Slurm, or not.
fn recipes(are_scripts: bool) -> Vec<&'static str> {
    let page = include_str!("../../docs/MANY_MACHINES.md");
    let blocks = page.split("```sh\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap());
    blocks
        .filter(|block| block.starts_with("#!") == are_scripts)
        .collect()
}

/// A folder with the files that the recipes name.
fn machine() -> Session {
    let session = Session::with_text();
    for (model, name) in [("f16", "fp16.gguf"), ("q4", "q4.gguf"), ("q8", "q8.gguf")] {
        fs::copy(fixture(model), session.path(name)).unwrap();
    }
    session.write("wiki.txt", session.read("@eval"));
    session
}

fn sh(session: &Session, script: &str, environment: &[(&str, &str)]) {
    let program = PathBuf::from(program());
    let folder = program.parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    // The threads of all tests are more than this machine's cores.
    let script = script.replace(" -q", " -q --threads 1");
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &script]).env("PATH", path);
    shell.envs(environment.iter().copied());
    let shell = shell.current_dir(session.folder.path());
    let output = shell.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}{stderr}");
}

/// Writes the reference and the sidecar of one run under other names, and compares.
fn check_recipes(session: &Session) {
    session.ok("-m fp16.gguf -t wiki.txt -w one.gz -q");
    assert!(session.read("one.gz") == session.read("ref.gz"));
    session.ok("-m q4.gguf -r ref.gz -q --sidecar one.kls");
    assert!(session.read("one.kls") == session.read("q4@ref.kls"));
    assert!(session.exists("q8@ref.kls"));
}

#[cfg(unix)]
#[test]
fn the_recipes_for_gnu_parallel_work() {
    if !can_run("sh", &["-c", "parallel --version | grep '^GNU parallel'"]) {
        return;
    }
    let session = machine();
    for recipe in recipes(false) {
        sh(&session, recipe, &[]);
    }
    check_recipes(&session);
}

#[cfg(unix)]
#[test]
fn the_recipes_for_slurm_work() {
    let session = machine();
    let [write, evaluate, quants] = recipes(true)[..] else {
        panic!("three scripts")
    };
    let array = |script: &str| {
        for task in ["0", "1", "2"] {
            let count = ("SLURM_ARRAY_TASK_COUNT", "3");
            sh(&session, script, &[("SLURM_ARRAY_TASK_ID", task), count]);
        }
    };
    let merge = |line: &str| sh(&session, &format!("kl merge --resume {line}"), &[]);
    array(write);
    merge("ref.gz ref.*.gz");
    array(evaluate);
    // A task that is submitted again, alone.
    session.remove("q4@ref.2-of-3.kls");
    let again = [
        ("SLURM_ARRAY_TASK_ID", "2"),
        ("SLURM_ARRAY_TASK_COUNT", "1"),
        ("PARTS", "3"),
    ];
    sh(&session, evaluate, &again);
    merge("q4@ref.kls q4@ref.*-of-*.kls");
    array(quants);
    check_recipes(&session);
    // All of it again, when all is done.
    let bytes = || {
        let mut files = session.files();
        files.retain(|name| name.ends_with(".gz") || name.ends_with(".kls"));
        Vec::from_iter(files.iter().map(|name| session.read(name)))
    };
    let before = bytes();
    array(write);
    merge("ref.gz ref.*.gz");
    array(evaluate);
    merge("q4@ref.kls q4@ref.*-of-*.kls");
    array(quants);
    assert!(bytes() == before);
}

#[test]
fn a_report_joins_parts_to_the_numbers_of_the_whole() {
    let session = Session::with_reference("");
    for model in ["q8", "q4"] {
        let read = format!("-m @{model} -r ref.gz -q --sidecar");
        session.ok(&format!("{read} whole.{model}.kls"));
        for part in 0..3 {
            session.ok(&format!("{read} {model}.{part}.kls --shard {part}/3"));
        }
    }
    let report = |files: &str| {
        let mut report = session.json(&format!("report {files}"));
        for model in report["models"].as_array_mut().unwrap() {
            let model = model.as_object_mut().unwrap();
            model.remove("sidecar");
            model.remove("parts");
        }
        report
    };
    let whole = report("whole.q8.kls whole.q4.kls");
    let parts = "q8.0.kls q8.1.kls q8.2.kls q4.2.kls q4.0.kls q4.1.kls";
    assert_eq!(report(parts), whole);
}
