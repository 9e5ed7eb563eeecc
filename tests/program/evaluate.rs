//! The main job, end to end: a reference is written, models are evaluated against it.

use kl_formats::sidecar::SidecarReader;

use serde_json::json;

use crate::session::{Session, has};

#[test]
fn a_reference_is_written_and_a_quant_evaluated_against_it() {
    let session = Session::with_text();
    let write = session.ok("-m @f16 -t short.txt -w ref.gz -c 64");
    assert_eq!(write.stdout, "", "nothing but results on stdout");
    for what in "model|windows|scored from position|at most|free|wrote ref.gz".split('|') {
        write.warns(&[what]);
    }

    let read = session.ok("-m @q4 -r ref.gz");
    read.prints(&["mean", "by window (8 clusters)", "99.9 %", "maximum"]);
    read.prints(&["same top token", "PPL ratio", "BPW", "tokens/s"]);
    let n_lines = |text: &str| text.lines().count();
    assert!(n_lines(&read.stdout) <= 30, "{}", read.stdout);
    let full = session.ok("-m @q4 -r ref.gz --full -q");
    full.prints(&["effective tokens", "reverse KLD", "RMS"]);
    assert!(n_lines(&full.stdout) > n_lines(&read.stdout));
    let files = ["ref.gz", "short.txt", "tiny-q4_K_M@ref.kls"];
    assert_eq!(session.files(), files);
    // With -q nothing but results, and with -v llama.cpp's log.
    session.reference("-c 16 --force");
    assert_eq!(session.ok("-m @q8 -r ref.gz -q --force").stderr, "");
    let verbose = session.ok("-m @q8 -r ref.gz -v");
    verbose.warns(&["model buffer size"]);
}

/// What another KV cache costs is not noise.
#[test]
fn the_references_model_with_another_cache_is_a_row_like_any_other() {
    let session = Session::with_reference("");
    for (flags, is_floor) in [("", true), ("-ctk q8_0", false)] {
        let line = format!("-m @f16 -r ref.gz --json o.json --force --no-sidecar {flags}");
        let report = session.ok(&line);
        let model = session.read_json("o.json")["models"][0].take();
        let marks = json!({"is_reference_model": true, "is_noise_floor": is_floor});
        has(&model, &marks);
        assert_eq!(report.stdout.contains("noise floor"), is_floor);
        if !is_floor {
            report.prints(&["own model, another KV cache"]);
        }
    }
    // Nor in the table of a run, with sidecars or without.
    for sidecar in ["--no-sidecar", "--force"] {
        let line = format!("-m @f16 -m @q8 -r ref.gz -q -ctk q8_0 {sidecar}");
        session.ok(&line).prints_not("noise floor");
    }
}

#[test]
fn results_are_the_same_bits_in_every_run_and_any_order_of_models() {
    let session = Session::with_reference("");
    session.ok("-m @f16 -t short.txt -w again.gz -c 64 -q");
    assert!(session.read("again.gz") == session.read("ref.gz"));
    session.ok("-m @q4 -r ref.gz --sidecar a.kls -q");
    for others in ["-m @q2 -m @q4", "-m @q4 --contexts 2"] {
        session.ok(&format!("{others} -r ref.gz -q"));
        let again = session.read("tiny-q4_K_M@ref.kls");
        assert!(session.read("a.kls") == again, "{others}");
    }
}

#[test]
fn special_tokens_are_marked_and_every_token_has_its_text() {
    let session = Session::new();
    session.write("s.txt", "Once <s> upon a time </s> there was a dog.");
    session.ok("-m @f16 -t s.txt -w ref.gz -q --parse-special");
    session.ok("-m @q4 -r ref.gz -q");
    let reader = SidecarReader::open(&session.path("tiny-q4_K_M@ref.kls"));
    let texts = reader.unwrap().texts().unwrap();
    let records = session.records("tiny-q4_K_M@ref.kls");
    let special = records.iter().filter(|record| record.is_special());
    let special: Vec<String> = special.map(|record| texts.text(&[record.token])).collect();
    assert_eq!(special, ["<s>", "</s>"]);
    let next: Vec<u32> = records.iter().filter_map(|r| r.next_token()).collect();
    assert!(texts.text(&next).ends_with(" there was a dog."));
    for record in &records {
        assert!(texts.get(record.ref_top).is_some() && texts.get(record.eval_top).is_some());
    }
}
