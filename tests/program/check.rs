//! `kl check` on the fixtures' models.

use serde_json::json;

use crate::session::{Session, fixture, has};

const FEW: &str = "--threads 2 -c 64 -n 256";

#[test]
fn the_cpu_computes_the_models_of_all_kinds() {
    let session = Session::new();
    for model in ["gpt2", "mamba", "mixtral-q4_0", "gemma2", "lfm2"] {
        let path = fixture(&format!("architectures/{model}.gguf"));
        session.write(&format!("{model}.gguf"), std::fs::read(path).unwrap());
        let n_ctx = if model == "gpt2" { 48 } else { 64 };
        let line = format!("check -m {model}.gguf -t @eval --threads 2 -c {n_ctx} -n 192");
        let found = session.json(&line);
        has(&found, &json!({"verdict": "ok", "skipped": []}));
        assert!(
            found["noise"]["kld"].as_f64() > Some(0.0),
            "{model}: {found}"
        );
    }
}

#[test]
fn a_floor_is_found_and_a_report_shows_it() {
    let session = Session::with_reference("-n 200");
    session.ok("-m @q4 -r ref.gz");
    let run = session.ok(&format!("check -m @q4 {FEW} --json floor.json"));
    run.prints(&[
        "This build computes the model: 7 settings agree to rounding.",
        "The floor of your settings",
        "CPU     single tokens",
        "yours: batches of 64",
    ]);
    let floor = session.read_json("floor.json")["floor"]["kld"]
        .as_f64()
        .unwrap();
    assert!((1e-9..1e-3).contains(&floor), "{floor}");
    let report = "report tiny-q4_K_M@ref.kls --floor floor.json --html page.html";
    let found = session.json(report);
    assert_eq!(found["floor"]["kld"].as_f64(), Some(floor));
    let page = String::from_utf8(session.read("page.html")).unwrap();
    assert!(page.contains("Rounding alone moves the set-up"), "{page}");
    session.fails(
        "report tiny-q4_K_M@ref.kls --floor tiny-q4_K_M@ref.kls",
        1,
        &["tiny-q4_K_M@ref.kls", "holds no floor", "kl check --json"],
    );
}

#[test]
fn what_cannot_be_checked_is_refused_in_one_line() {
    let session = Session::new();
    session.fails("check -m @eval", 1, &["not a GGUF"]);
    session.fails("check -m none.gguf", 1, &["none.gguf"]);
    session.fails(&format!("check -m @q4 {FEW} -t none.txt"), 1, &["none.txt"]);
    session.fails(&format!("check -m @q4 {FEW} -dev CUDA7"), 1, &["CUDA7"]);
    session.fails("check", 2, &["--model"]);
    session.fails("check -m @q4 -n 1", 2, &["--n-tokens", "from 2"]);
    session.write("floor.json", "{}");
    session.fails(
        "check -m @q4 --json floor.json",
        1,
        &["floor.json", "--force"],
    );
}
