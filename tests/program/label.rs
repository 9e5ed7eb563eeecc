//! `--label`: one model evaluated in two ways is two rows.

use crate::session::{Session, labels};

#[test]
fn one_model_with_two_kv_caches_is_two_rows() {
    let session = Session::new();
    session.reference("");
    let plain = session.result("-m @q4 -r ref.gz -n 100");
    assert_eq!(plain["label"], "tiny-q4_K_M");
    let labelled = session.result("-m @q4 -r ref.gz -n 100 -ctk q8_0 --label 'q4, q8 keys'");
    assert_eq!(labelled["label"], "q4, q8 keys");
    assert_eq!(
        session.files(),
        [
            "q4, q8 keys@ref.kls",
            "ref.gz",
            "short.txt",
            "tiny-q4_K_M@ref.kls"
        ]
    );
    assert_eq!(
        session.info("'q4, q8 keys@ref.kls'")["label"],
        "q4, q8 keys"
    );
    assert!(session.info("tiny-q4_K_M@ref.kls").get("label").is_none());
    let run = session.ok("-m @q4 -r ref.gz -n 100 --label small --no-sidecar");
    run.prints(&["small (", "tiny-q4_K_M.gguf) against ref.gz"]);
    let info = session.ok("info 'q4, q8 keys@ref.kls'");
    info.prints(&["label", "q4, q8 keys"]);
}

#[test]
fn several_models_have_a_label_each_in_their_order() {
    let session = Session::new();
    session.reference("");
    let run = "-m @q8 -m @q4 -r ref.gz --label large --label small";
    assert_eq!(labels(&session.json(run)), ["large", "small"]);
    assert!(session.exists("large@ref.kls") && session.exists("small@ref.kls"));
    session.reference_of("@q8", "q8.gz", "");
    session.reference_of("@q4", "q4.gz", "");
    let compared = "compare ref.gz q8.gz q4.gz --label rows8 --label rows4";
    assert_eq!(labels(&session.json(compared)), ["rows8", "rows4"]);
    assert!(session.exists("rows8@ref.kls") && session.exists("rows4@ref.kls"));
}

#[test]
fn a_label_that_no_file_can_have_is_refused() {
    let session = Session::new();
    for label in ["a/b", "..", "a\u{7}"] {
        let line = format!("-m @q4 -r ref.gz --label {label}");
        session.fails(&line, 2, &["--label"]);
    }
    session.fails("-m @q4 -r ref.gz --label ''", 2, &["empty"]);
    let long = "x".repeat(201);
    session.fails(&format!("-m @q4 -r ref.gz --label {long}"), 2, &["200"]);
    session.fails(
        "-m @q4 -m @q8 -r ref.gz --label x",
        2,
        &["1 label for 2 evaluations"],
    );
    let twice = "-m @q4 -m @q8 -r ref.gz --label x --label x";
    session.fails(twice, 2, &["--label x: names two"]);
    assert_eq!(session.files(), [""; 0]);
}
