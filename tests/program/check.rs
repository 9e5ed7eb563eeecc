//! `kl check` on the fixtures' models.

use serde_json::json;

use crate::numbers::number;
use crate::session::{Session, has};

const FEW: &str = "--threads 2 -c 64 -n 256";

#[test]
fn the_cpu_computes_the_models_of_all_kinds() {
    let session = Session::new();
    for model in [
        "gpt2",
        "mamba",
        "mixtral-q4_0",
        "gemma2",
        "lfm2",
        "longrope",
    ] {
        let n_ctx = if model == "gpt2" { 48 } else { 64 };
        let check = format!("check -m @architectures/{model}.gguf -t @eval --threads 2");
        let found = session.json(&format!("{check} -c {n_ctx} -n 192"));
        has(&found, &json!({"verdict": "ok", "skipped": []}));
        assert!(number(&found["noise"]["kld"]) > 0.0, "{model}: {found}");
    }
}

#[test]
fn a_floor_is_found_and_a_report_shows_it() {
    let session = Session::with_reference("-n 200");
    session.ok("-m @q4 -r ref.gz");
    let run = session.ok(&format!("check -m @q4 {FEW} --json floor.json"));
    run.prints(&[
        "This build computes the model: 8 settings agree to rounding.",
        "The floor of your settings",
        "CPU     single tokens",
        "4 windows at once",
        "yours: batches of 64",
    ]);
    let floor = session.read_json("floor.json")["floor"]["kld"].take();
    assert!((1e-9..1e-3).contains(&number(&floor)), "{floor}");
    let report = "report tiny-q4_K_M@ref.kls --floor";
    let found = session.json(&format!("{report} floor.json --html page.html"));
    assert_eq!(found["floor"]["kld"], floor);
    let page = session.read_text("page.html");
    assert!(page.contains("Rounding alone moves the set-up"), "{page}");
    session.write("none.json", "{}");
    for (file, what) in [
        ("none.json", &["holds no floor", "kl check --json"][..]),
        ("tiny-q4_K_M@ref.kls", &["is not whole JSON"]),
    ] {
        session.fails(&format!("{report} {file}"), 1, &[&[file], what].concat());
    }
}

#[test]
fn what_cannot_be_checked_is_refused_in_one_line() {
    let session = Session::new();
    session.write("floor.json", "{}");
    let cases = "
        -m @eval => not a GGUF
        -m none.gguf => none.gguf
        -m @q4 -n 256 -t none.txt => none.txt
        -m @q4 -n 256 -dev CUDA7 => CUDA7
        => exit 2 | --model
        -m @q4 -n 1 => exit 2 | --n-tokens | from 2
        -m @q4 --json floor.json => floor.json | --force";
    session.fails_each(1, "check", cases);
}
