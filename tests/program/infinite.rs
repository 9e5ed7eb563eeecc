//! Tokens that a model excludes: logits of −∞, and large finite ones in their place, in files of every
//! kind. Rows with NaN or infinite logits: left out, counted, located, never turned into numbers.

use std::collections::BTreeSet;

use serde_json::json;

use crate::gguf::Gguf;
use crate::numbers::{Window, accurate, close, kld, log_softmax, mean, number};
use crate::session::{Session, has};

const MASK: f32 = f32::NEG_INFINITY;

#[test]
fn a_token_that_only_one_model_excludes_is_infinitely_far() {
    let session = Session::with_reference("--encoding f32 --score all");
    let is_masked = |window, row| window == 1 && [7, 8].contains(&row);
    session.rewrite("ref.gz", "masked.gz", |window, row, mut logits| {
        if is_masked(window, row) {
            logits[500] = MASK;
        }
        logits
    });
    session.kl("compare ref.gz masked.gz -q --sidecar out.kls");
    session.kl("compare masked.gz ref.gz -q --sidecar swapped.kls");
    // A gate does not pass over what its number leaves out.
    let swapped = "compare masked.gz ref.gz -q --no-sidecar --fail-if";
    let said = ["2 tokens with an infinite or unknown value are left out"];
    session.fails(&format!("{swapped} reverse_kld.mean>9"), 3, &said);
    session.ok(&format!("{swapped} kld.mean>9"));
    let records = session.records("out.kls").into_iter();
    for (record, swapped) in records.zip(session.records("swapped.kls")) {
        let infinite = is_masked(record.window, record.position as usize);
        assert!(!record.is_excluded() && !swapped.is_excluded());
        assert_eq!(record.kld == f64::INFINITY, infinite);
        assert_eq!(swapped.reverse_kld == f64::INFINITY, infinite);
        assert!(record.reverse_kld < 0.1 && swapped.kld < 0.1, "{record:?}");
    }
}

#[test]
fn masks_on_both_sides_count_for_nothing_however_they_are_written() {
    let session = Session::with_reference("--encoding f32");
    session.reference_of("@q8", "q8.gz", "--encoding f32");
    session.reference_of("@q2", "q2.gz", "--encoding f32");
    // 64 tokens that the text does not use.
    let used: BTreeSet<u32> = session.tokens("ref.gz").concat().into_iter().collect();
    let unused = (0..1024u32).filter(|token| !used.contains(token));
    let unused: Vec<usize> = unused.take(64).map(|token| token as usize).collect();
    assert_eq!(unused.len(), 64);
    for mask in [-1e4, -65504.0, -f32::MAX, MASK] {
        let masked = |_, _, mut logits: Vec<f32>| {
            unused.iter().for_each(|&token| logits[token] = mask);
            logits
        };
        session.rewrite("ref.gz", "f32.gz", masked);
        session.rewrite("q8.gz", "eval.gz", masked);
        let run = session.ok("convert f32.gz u16.gz --format kl --force");
        run.warns_not("stored exactly");
        assert!(session.length("u16.gz") < session.length("f32.gz") * 6 / 10);
        session.ok("info u16.gz --verify -q");
        let mean_kld = |files: &str| {
            let result = session.result(&format!("compare {files} --no-sidecar"));
            assert_eq!(result["n_excluded"], 0);
            number(&result["kld"]["mean"]["value"])
        };
        // The original alone is masked, or both are.
        for eval in ["q8.gz", "eval.gz"] {
            let [coded, exact] = ["u16.gz", "f32.gz"].map(|of| mean_kld(&format!("{of} {eval}")));
            close(coded, exact, 1e-6, &format!("{mask} {eval}"));
        }
        let kept = |row: &[f32]| -> Vec<f32> {
            let entries = row.iter().copied();
            entries.filter(|x| *x != mask).collect()
        };
        let (p, q) = (session.rows("f32.gz"), session.rows("eval.gz"));
        let rows = p.iter().zip(&q);
        let klds = rows.map(|(p, q)| kld(&log_softmax(&kept(p)), &log_softmax(&kept(q))));
        let exact = mean(&klds.collect::<Vec<_>>());
        accurate(mean_kld("f32.gz eval.gz"), exact, "mean");
        // Nor do they count in the other divergences.
        session.rewrite("q2.gz", "far.gz", masked);
        let result = session.result("compare f32.gz far.gz --stats logits --no-sidecar");
        let means = ["kld", "smoothed_kld", "jensen_shannon"];
        let [kld, smoothed, js] = means.map(|key| number(&result[key]["mean"]["value"]));
        assert!((smoothed / kld - 1.0).abs() < 1e-3, "{smoothed}, not {kld}");
        assert!(js > 0.0 && js < kld, "{js}");
    }
}

#[test]
fn rows_that_u16_cannot_hold_are_stored_exactly_with_a_warning() {
    let session = Session::with_reference("--encoding f32");
    session.rewrite("ref.gz", "odd.gz", |_, row, mut logits| {
        match row {
            3 => (logits[8], logits[9]) = (-1e4, -2e4),
            5 => logits[8] = f32::NAN,
            _ => {}
        }
        logits
    });
    let run = session.ok("convert odd.gz u16.gz --format kl");
    let n_exact = format!("{} of ", 2 * session.specs("ref.gz").len());
    run.warns(&[&n_exact, "stored exactly", "--encoding f32"]);
    session.ok("info u16.gz --verify -q");
    let coded = session.windows("u16.gz").into_iter();
    for (coded, exact) in coded.zip(session.windows("odd.gz")) {
        for row in [3, 5] {
            let bits = |of: &Window| Vec::from_iter(of.rows[row].iter().map(|x| x.to_bits()));
            assert_eq!(bits(&coded), bits(&exact));
        }
    }
}

#[test]
fn minus_infinity_is_kept_where_a_file_can_hold_it() {
    let session = Session::with_reference("--encoding f32 --score all");
    session.rewrite("ref.gz", "masked.gz", |_, _, mut logits| {
        logits[700..764].fill(MASK);
        logits
    });
    session.ok("convert masked.gz u16.gz --format kl -q");
    session.ok("convert u16.gz klpy.gz --format kl.py -q");
    let coded = session.rows("u16.gz");
    assert_eq!(coded, session.rows("klpy.gz"));
    let is_kept = |row: &Vec<f32>| row[700..764] == [MASK; 64] && row[764].is_finite();
    assert!(coded.iter().all(is_kept));
    // A base file raises it to the floor, as llama-perplexity does.
    session.ok("convert u16.gz base.kld --format llama.cpp -q");
    session.ok("info base.kld --verify -q");
    for row in session.rows("base.kld") {
        let least = row.iter().copied().fold(f32::MAX, f32::min);
        assert_eq!(row[700..764], [least; 64]);
    }
}

/// Writes `bad.gz`: the logits of `ref.gz` but for the rows that `spoil` chooses by their window
/// and their index in it.
fn spoiled(session: &Session, spoil: impl Fn(u32, usize) -> bool) {
    session.reference("--encoding f32 --score all");
    session.rewrite("ref.gz", "bad.gz", |window, row, mut logits| {
        if spoil(window, row) {
            logits[500] = [f32::NAN, f32::INFINITY][row % 2];
        }
        logits
    });
}

#[test]
fn rows_that_are_not_finite_are_left_out_counted_and_located() {
    let session = Session::new();
    spoiled(&session, |window, row| window == 1 && [7, 8].contains(&row));
    let whole = session.result("-m @q8 -r ref.gz --no-sidecar");
    let run = session.ok("-m @q8 -r bad.gz --sidecar bad.kls --json out.json -q");
    run.prints(&["2 left out"]);
    run.warns(&["warning", "2 tokens", "left out"]);
    let result = session.read_json("out.json")["models"][0].take();
    let n_tokens = result["n_tokens"].as_u64().unwrap();
    assert_eq!(whole["n_tokens"], n_tokens + 2);
    let excluded = json!([
        {"window": 1, "position": 7, "which": "ref"}, {"window": 1, "position": 8, "which": "ref"},
    ]);
    has(&result, &json!({"n_excluded": 2, "excluded": excluded}));

    let records = session.records("bad.kls");
    let n_excluded = records.iter().filter(|record| record.is_excluded()).count();
    assert_eq!(n_excluded, 2);
    assert!(records[64 + 7].kld.is_nan());
}

#[test]
fn without_a_finite_row_there_is_no_number() {
    let session = Session::new();
    spoiled(&session, |_, _| true);
    let run = session.ends("-m @q8 -r bad.gz -q --json -", 1);
    run.warns(&["no token could be scored"]);
    let result = run.json()["models"][0].take();
    let none = json!({"n_tokens": 0, "kld": null, "agreement": null, "perplexity": null,
        "delta_p": null});
    has(&result, &none);
    let located = result["excluded"].as_array().unwrap();
    assert_eq!(located.len(), 100, "the first of them");
}

#[test]
fn the_side_whose_rows_are_not_finite_is_named() {
    let session = Session::new();
    spoiled(&session, |window, row| window == 1 && [7, 8].contains(&row));
    let run = session.ok("compare bad.gz ref.gz -q --no-sidecar");
    run.warns(&["2 tokens are left out", "the reference's row holds NaN"]);
    let gate = "-q --no-sidecar --fail-if kld.mean>9";
    let whose = ["2 tokens with a row of the reference that is not finite"];
    session.fails(&format!("compare bad.gz ref.gz {gate}"), 3, &whose);
    let run = session.ok("compare ref.gz bad.gz -q --no-sidecar --json out.json");
    run.warns(&["the evaluated model's row holds NaN"]);
    let counts = json!({"n_excluded": 2, "n_excluded_ref": 0, "n_excluded_eval": 2});
    has(&session.read_json("out.json")["models"][0], &counts);
    let whose = ["2 tokens with a row of the evaluated model that is not finite"];
    session.fails(&format!("compare ref.gz bad.gz {gate}"), 3, &whose);

    // A copy says what it copies, and one without a finite row is no reference.
    let run = session.ok("convert bad.gz copy.gz --format kl -q");
    run.warns(&["bad.gz: its row of window 1, position 7 is not finite"]);
    run.warns(&[
        "bad.gz: not finite: 2 of",
        "first in window 1 at position 7",
    ]);
    session.remove("bad.gz");
    session.rewrite("ref.gz", "bad.gz", |_, _, mut logits| {
        logits[3] = f32::NAN;
        logits
    });
    let none = ["bad.gz: none of its", "is finite", "nothing was kept"];
    for target in [
        "--format kl",
        "--format kl.py",
        "--encoding u16 --format kl",
    ] {
        session.fails(&format!("convert bad.gz none.gz {target} -q"), 1, &none);
    }
    let ends = session.ends("compare bad.gz ref.gz -q --no-sidecar", 1);
    ends.warns(&["no token could be scored: the reference's row holds NaN"]);
    let ends = session.ends("compare ref.gz bad.gz -q --no-sidecar", 1);
    ends.warns(&["no token could be scored: the evaluated model's row holds NaN"]);
}

#[test]
fn an_original_without_a_finite_row_writes_nothing() {
    let session = Session::with_text();
    let mut model = Gguf::read(session.read("@f16"));
    model.data("blk.0.attn_norm.weight")[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    session.write("nan.gguf", model.whole());
    let none = ["nan.gguf: none of its", "is finite", "kl info --verify"];
    for how in [
        "",
        "--encoding f32",
        "--encoding hidden",
        "--format kl.py --score all",
        "--format llama.cpp",
    ] {
        let line = format!("-m nan.gguf -t short.txt -c 64 {how} -w none.gz -q");
        let run = session.fails(&line, 1, &none);
        run.warns(&["nan.gguf: its row of window 0, position"]);
    }
    session.write("answers.txt", "Once upon a time\n");
    let line = "-m nan.gguf --prompts answers.txt --generate 4 -w none.gz -q";
    session.fails(line, 1, &["nan.gguf", "the logits are not finite"]);
    let map = "sensitivity -m nan.gguf -t short.txt -c 64 -n 500 -w map.jsonl -q";
    session.fails(map, 1, &["nan.gguf: none of the original's", "is finite"]);
    session.reference_of("@f16", "good.gz", "");
    let line = "-m @f16 --ref-model nan.gguf -t short.txt -c 64 -n 200 -q --no-sidecar";
    session
        .ends(line, 1)
        .warns(&["the reference's row holds NaN"]);
    session
        .ends("-m nan.gguf -r good.gz -q --no-sidecar", 1)
        .warns(&["the evaluated model's row"]);
}
