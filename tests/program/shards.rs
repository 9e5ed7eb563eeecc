//! Parts of a run, joined: the bytes of one run.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::session::{Session, fixture, short_text};

/// The sidecar of `@q4`, whole.
const WHOLE: &str = "tiny-q4_K_M@ref.kls";

fn of_part(part: usize, parts: usize) -> String {
    format!("tiny-q4_K_M@ref.{part}-of-{parts}.kls")
}

/// Windows enough for seven parts.
fn session() -> Session {
    let session = Session::new();
    session.write("short.txt", short_text());
    session
}

/// Writes `whole.gz` in one run and in parts, and joins those. `input`: flags for the input.
fn check_reference(session: &Session, input: &str, parts: usize) {
    let write = format!("-m @f16 {input} -q");
    session.ok(&format!("{write} -w whole.gz --force"));
    let mut names = Vec::new();
    for part in 0..parts {
        names.push(format!("ref.{part}.gz"));
        session.ok(&format!(
            "{write} -w ref.{part}.gz --shard {part}/{parts} --force"
        ));
    }
    // In any order.
    names.reverse();
    session.ok(&format!("merge joined.gz {} --force -q", names.join(" ")));
    assert!(
        session.read("joined.gz") == session.read("whole.gz"),
        "{input} in {parts} parts"
    );
}

/// Evaluates against `whole.gz` in one run and in parts, and joins those.
fn check_evaluation(session: &Session, more: &str, parts: usize) {
    let read = format!("-m @q4 -r whole.gz -q --force {more}");
    session.ok(&read);
    for part in 0..parts {
        session.ok(&format!("{read} --shard {part}/{parts}"));
    }
    let against_whole = |name: &str| name.replace("@ref", "@whole");
    let names = (0..parts).map(|part| against_whole(&of_part(part, parts)));
    let names: Vec<String> = names.collect();
    session.ok(&format!("merge joined.kls {} --force -q", names.join(" ")));
    assert!(
        session.read("joined.kls") == session.read(&against_whole(WHOLE)),
        "{more} in {parts} parts"
    );
}

#[test]
fn parts_make_the_bytes_of_one_run() {
    let session = session();
    session.write("code.txt", short_text().to_uppercase());
    for (input, parts) in [
        ("-t short.txt -c 64", [1, 3, 7].as_slice()),
        // The last window of a sample is cut short.
        ("-t short.txt -c 64 -n 440", &[1, 3, 7]),
        ("-t wiki=short.txt -t code=code.txt -c 64", &[3]),
        ("-t wiki=short.txt -t code=code.txt -c 64 -n 700", &[3]),
        ("--prompts @prompts", &[3]),
        ("--prompts @prompts --generate 3", &[1, 3]),
        ("--prompts @prompts --generate 9 --span she=e..a", &[2]),
        ("--prompts @prompts --generate 3 --score all -n 40", &[2]),
    ] {
        for &parts in parts {
            check_reference(&session, input, parts);
            check_evaluation(&session, "", parts);
        }
    }
    check_reference(&session, "-t short.txt -c 64", 3);
    check_evaluation(&session, "-n 500", 3);
}

#[test]
fn a_part_says_that_it_is_one() {
    let session = session();
    session.reference("");
    session.reference_of("@f16", "part.gz", "--shard 1/3");
    let run = session.ok("-m @q4 -r ref.gz --shard 1/3 -q --json o.json");
    run.prints(&["PART", "part 1 of 3 (from 0)", "kl merge"]);
    let shard = session.read_json("o.json")["models"][0]["shard"].take();
    let whole = session.info("ref.gz");
    assert_eq!((&shard["index"], &shard["count"]), (&1.into(), &3.into()));
    for key in ["n_windows", "n_rows"] {
        assert_eq!(shard[key], whole[key], "{key}");
    }
    for part in ["part.gz", &of_part(1, 3)] {
        assert_eq!(session.info(part)["shard"], shard, "{part}");
        session.ok(&format!("info {part}")).prints(&["part 1 of 3"]);
        session.ok(&format!("info {part} --verify"));
    }
    assert!(whole["shard"].is_null());
    // A part is a reference of its windows.
    let run = session.ok("-m @f16 -r part.gz --no-sidecar");
    run.warns(&["part 1 of 3", "kl merge"]);
    // Converted to another encoding, it stays a part; another kind cannot be one.
    session.ok("convert part.gz f32.gz --format kl --encoding f32 -q");
    assert_eq!(session.info("f32.gz")["shard"], shard);
    let run = session.ok("convert part.gz part.kld --format llama.cpp");
    run.warns(&["one part"]);
}

#[test]
fn a_part_that_is_cut_off_resumes_to_the_same_bytes() {
    let session = session();
    session.reference("");
    session.reference_of("@f16", "part.gz", "--shard 1/3");
    let whole = session.read("part.gz");
    session.write("part.gz.partial", &whole[..whole.len() * 2 / 3]);
    session.remove("part.gz");
    session.fails(
        "-m @f16 -t short.txt -c 64 -w part.gz --shard 0/3 --resume -q",
        1,
        &["another run", "shard"],
    );
    session.reference_of("@f16", "part.gz", "--shard 1/3 --resume");
    assert!(session.read("part.gz") == whole);

    let read = "-m @q4 -r ref.gz -q --shard 1/3";
    session.ok(read);
    let whole = session.read(&of_part(1, 3));
    let partial = format!("{}.partial", of_part(1, 3));
    session.remove(&of_part(1, 3));
    session.write(&partial, &whole[..whole.len() / 2]);
    session.ok(&format!("{read} --resume"));
    assert!(session.read(&of_part(1, 3)) == whole);
    assert!(!session.exists(&partial));
}

#[test]
fn what_cannot_be_joined_is_named() {
    let session = session();
    session.reference("");
    for part in 0..3 {
        let write = format!("ref.{part}.gz");
        session.reference_of("@f16", &write, &format!("--shard {part}/3"));
        session.ok(&format!("-m @q4 -r ref.gz -q --shard {part}/3"));
        session.ok(&format!("-m @q8 -r ref.gz -q --shard {part}/3"));
    }
    session.reference_of("@q8", "other.2.gz", "--shard 2/3");
    session.reference_of("@f16", "half.0.gz", "--shard 0/2");
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
        ref.0.gz ref.1.gz ref.2.gz => ref.0.gz | exists";
    session.fails_each(1, "merge", &cases.replace("Q4", "tiny-q4_K_M"));
    assert!(!session.exists("o.gz") && !session.exists("o.kls"));
    session.fails(
        "merge ref.0.gz ref.0.gz ref.1.gz",
        2,
        &["ref.0.gz", "output"],
    );
    // A damaged part is found before the output has its name.
    let mut bytes = session.read("ref.1.gz");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    session.write("bad.gz", bytes);
    session.fails(
        "merge o.gz ref.0.gz bad.gz ref.2.gz -q",
        1,
        &["bad.gz", "window"],
    );
    assert!(!session.exists("o.gz") && !session.exists("o.gz.partial"));
}

#[test]
fn parts_that_were_not_computed_alike_are_joined_with_a_warning() {
    let session = session();
    session.reference("");
    let read = "-m @q4 -r ref.gz -q";
    session.ok(&format!("{read} --shard 0/2"));
    session.ok(&format!("{read} --shard 1/2 -ub 16"));
    let run = session.ok(&format!(
        "merge o.kls {} {} -q",
        of_part(0, 2),
        of_part(1, 2)
    ));
    run.warns(&["the physical batch", "16", &of_part(1, 2)]);
    session.ok(&read.replace("-q", "-q --sidecar whole.kls"));
    let header = |name| session.info(name)["backend"].take();
    assert_eq!(header("o.kls"), header("whole.kls"));
    // Another type of cache is another evaluation.
    session.ok(&format!("{read} --shard 1/2 -ctk q8_0 --force"));
    let merge = format!("merge p.kls {} {} -q", of_part(0, 2), of_part(1, 2));
    session.fails(&merge, 1, &["cached keys", "q8_0"]);
}

#[test]
fn parts_that_cannot_be_made_are_refused() {
    let session = session();
    session.reference("");
    let n_windows = session.info("ref.gz")["n_windows"].as_u64().unwrap();
    let at_most = format!("more parts than windows: use at most {n_windows}");
    session.fails("-m @q4 -r ref.gz --shard 0/99 -q", 1, &["99", &at_most]);
    let write = "-m @f16 -t short.txt -c 64 -w o.gz -q";
    session.fails(&format!("{write} --shard 0/99"), 1, &["99", &at_most]);
    assert!(!session.exists("o.gz") && !session.exists("o.gz.partial"));
    session.fails("-m @q4 -r @klpy --shard 0/2 -q", 1, &["kl convert"]);
    session.fails("-m @q4 -r ref.gz --shard 2/2 -q", 2, &["0 to N-1"]);
    session.fails(
        "-m @q4 -r ref.gz --shard 0/2 --until 5% -q",
        2,
        &["--until"],
    );
    session.fails(
        &format!("{write} --shard 0/2 --format kl.py"),
        2,
        &["kl convert"],
    );
    // A base file's rows can be read anywhere.
    session.ok("-m @q4 -r @base --shard 1/2 -q --no-sidecar");
}

/// The shell blocks of the recipes, in their order.
fn recipes() -> Vec<&'static str> {
    let page = include_str!("../../docs/MANY_MACHINES.md");
    let blocks = page.split("```sh\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap())
        .collect()
}

/// A folder with the files that the recipes name.
fn machine() -> Session {
    let session = session();
    for (model, name) in [("f16", "fp16.gguf"), ("q4", "q4.gguf"), ("q8", "q8.gguf")] {
        fs::copy(fixture(model), session.path(name)).unwrap();
    }
    let text = fs::read_to_string(fixture("eval")).unwrap();
    session.write("wiki.txt", text);
    session
}

fn sh(session: &Session, script: &str, environment: &[(&str, String)]) {
    let kl = Path::new(env!("CARGO_BIN_EXE_kl")).parent().unwrap();
    let path = format!("{}:{}", kl.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", script]).env("PATH", path);
    shell.envs(environment.iter().cloned());
    let shell = shell
        .current_dir(session.folder.path())
        .stdin(Stdio::null());
    let output = shell.output().unwrap();
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
    let is_there = Command::new("parallel").arg("--version").output();
    if !is_there.is_ok_and(|run| run.stdout.starts_with(b"GNU parallel")) {
        eprintln!("skipped: GNU parallel is not installed");
        return;
    }
    let session = machine();
    for recipe in recipes().iter().filter(|recipe| !recipe.starts_with("#!")) {
        // The threads of all tests are more than this machine's cores.
        sh(&session, &recipe.replace(" -q ", " -q --threads 1 "), &[]);
    }
    check_recipes(&session);
}

#[cfg(unix)]
#[test]
fn the_recipes_for_slurm_work() {
    let session = machine();
    let recipes = recipes();
    let scripts: Vec<&str> = recipes
        .into_iter()
        .filter(|recipe| recipe.starts_with("#!"))
        .collect();
    let [write, evaluate, quants] = scripts.as_slice() else {
        panic!("three scripts")
    };
    let array = |script: &str| {
        for task in 0..3 {
            let environment = [
                ("SLURM_ARRAY_TASK_ID", task.to_string()),
                ("SLURM_ARRAY_TASK_COUNT", "3".to_owned()),
            ];
            sh(
                &session,
                &script.replace(" -q", " -q --threads 1"),
                &environment,
            );
        }
    };
    array(write);
    sh(&session, "kl merge --resume ref.gz ref.*.gz", &[]);
    array(evaluate);
    // A task that is submitted again, alone.
    session.remove("q4@ref.2-of-3.kls");
    let again = [
        ("SLURM_ARRAY_TASK_ID", "2".to_owned()),
        ("SLURM_ARRAY_TASK_COUNT", "1".to_owned()),
        ("PARTS", "3".to_owned()),
    ];
    sh(
        &session,
        &evaluate.replace(" -q", " -q --threads 1"),
        &again,
    );
    let merge = "kl merge --resume q4@ref.kls q4@ref.*-of-*.kls";
    sh(&session, merge, &[]);
    array(quants);
    check_recipes(&session);
    // All of it again, when all is done.
    let bytes = || {
        let files = session.files().into_iter();
        let files = files.filter(|name| name.ends_with(".gz") || name.ends_with(".kls"));
        files
            .map(|name| (session.read(&name), name))
            .collect::<Vec<_>>()
    };
    let before = bytes();
    array(write);
    sh(&session, "kl merge --resume ref.gz ref.*.gz", &[]);
    array(evaluate);
    sh(&session, merge, &[]);
    array(quants);
    assert!(bytes() == before);
}

#[test]
fn a_report_joins_parts_to_the_numbers_of_the_whole() {
    let session = session();
    session.reference("");
    for model in ["q8", "q4"] {
        let read = format!("-m @{model} -r ref.gz -q");
        session.ok(&format!("{read} --sidecar whole.{model}.kls"));
        for part in 0..3 {
            let sidecar = format!("--sidecar {model}.{part}.kls");
            session.ok(&format!("{read} --shard {part}/3 {sidecar}"));
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
    // Without one of its parts, a model is listed apart.
    let report = report("q8.0.kls q8.1.kls q8.2.kls q4.0.kls q4.2.kls");
    assert_eq!(report["models"].as_array().unwrap().len(), 1);
    let why = report["not_compared"][0]["why"].as_str().unwrap();
    assert!(why.contains("part 1 of 3 is missing"), "{why}");
}
