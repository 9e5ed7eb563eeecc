//! References of hidden states, read by every command: rows are computed from them.

use serde_json::{Value, json};

use crate::session::{Session, has};

/// References of one model and one text: the rows in `f32.gz`, their hidden states in `hidden.gz`.
fn both(model: &str, more: &str) -> Session {
    let session = Session::new();
    for encoding in ["f32", "hidden"] {
        let more = format!("{more} --encoding {encoding}");
        session.reference_of(model, &format!("{encoding}.gz"), &more);
    }
    session
}

/// Every number of every token, which JSON gives to the bit.
#[track_caller]
fn tokens(session: &Session, line: &str) -> Value {
    let mut result = session.result(&format!("{line} --json-tokens --no-sidecar"));
    let tokens = result["tokens"].take();
    assert!(!tokens["kld"].as_array().unwrap().is_empty());
    tokens
}

#[test]
fn a_model_is_exactly_its_own_reference() {
    for (model, state_type) in [("@f16", "f16"), ("@q8", "f32"), ("@q4", "f32")] {
        let session = both(model, "");
        let report = session.json(&format!("-m {model} -r hidden.gz"));
        assert_eq!(report["models"][0]["kld"]["max"], 0.0, "{model}");
        let here =
            json!({"device": "CPU", "is_exact": true, "shares_model_head": true, "n_rows": 8});
        let states = json!({"type": state_type, "error": {"max_kld": 0}, "here": here});
        has(&report["reference"]["states"], &states);
    }
}

#[test]
fn a_quant_gets_the_bits_that_stored_rows_give_in_batches_of_any_size() {
    for written in ["", "-b 48 -ub 16", "-b 7"] {
        let session = both("@f16", written);
        for read in [
            "",
            "-b 1",
            "-b 7",
            "-b 64 -ub 5",
            "--contexts 2",
            "-n 100",
            "--shard 1/3",
        ] {
            let of = |encoding: &str| tokens(&session, &format!("-m @q4 -r {encoding}.gz {read}"));
            assert_eq!(of("hidden"), of("f32"), "{written}, {read}");
        }
    }
}

#[test]
fn conversions_and_comparisons_are_those_of_stored_rows() {
    let session = both("@f16", "--score all");
    session.reference_of("@q2", "q2.gz", "--score all --encoding hidden");
    session.ok("convert hidden.gz rows.gz --format kl --encoding f32 -q");
    assert!(session.read("rows.gz") == session.read("f32.gz"));
    for format in ["kl", "kl.py", "llama.cpp"] {
        let convert = |from: &str| {
            let line = format!("convert {from}.gz out --format {format} --force -q");
            session.ok(&line);
            session.read("out")
        };
        assert!(convert("hidden") == convert("f32"), "{format}");
    }
    let evaluated = tokens(&session, "-m @q2 -r f32.gz");
    for reference in ["f32", "hidden"] {
        let mut compared = tokens(&session, &format!("compare {reference}.gz q2.gz"));
        // A comparison has no vocabulary to name tokens with.
        compared["text"] = evaluated["text"].clone();
        assert_eq!(compared, evaluated, "{reference}");
    }
    let hidden = "convert f32.gz no --format kl --encoding hidden";
    session.fails(hidden, 2, &["only a run of the model"]);
}
