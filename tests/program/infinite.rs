//! Tokens that a model excludes: logits of −∞, and large finite ones in their place. Rows with NaN or
//! infinite logits: left out, counted, located, never turned into numbers.

use std::collections::BTreeSet;
use std::fs;

use kl_formats::Encoding;
use serde_json::json;

use crate::numbers::{accurate, close, kld, log_softmax, mean, number};
use crate::session::{Session, fixture, has};

const MASK: f32 = f32::NEG_INFINITY;

/// CRC-32 as zip uses it (ISO 3309), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    !bytes.iter().fold(!0, byte)
}

/// Copies mlx-kld's npz, with some logits of every row set anew.
fn rewrite_npz(session: &Session, to: &str, logits: &[(usize, f32)]) {
    const N_VOCAB: usize = 1024;
    const HEADER: usize = 128;
    let mut bytes = fs::read(fixture("npz")).unwrap();
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|&at| bytes[at..].starts_with(b"\x93NUMPY"))
        .collect();
    // The first array is the metadata.
    for &start in &starts[1..] {
        let end = start + HEADER + 32 * N_VOCAB * 4;
        let old = crc32(&bytes[start..end]).to_le_bytes();
        for row in bytes[start + HEADER..end].chunks_exact_mut(4 * N_VOCAB) {
            for (token, logit) in logits {
                row[4 * token..][..4].copy_from_slice(&logit.to_le_bytes());
            }
        }
        let new = crc32(&bytes[start..end]).to_le_bytes();
        // In the zip's local header and in its directory.
        let stated: Vec<usize> = (0..bytes.len() - 3)
            .filter(|&at| bytes[at..at + 4] == old)
            .collect();
        assert_eq!(stated.len(), 2);
        for at in stated {
            bytes[at..at + 4].copy_from_slice(&new);
        }
    }
    session.write(to, bytes);
}

/// Without the entries that are masked.
fn unmasked(row: &[f32]) -> Vec<f32> {
    row.iter().copied().filter(|x| *x > MASK).collect()
}

#[test]
fn a_column_masked_on_both_sides_leaves_statistics_over_all_rows() {
    let session = Session::new();
    rewrite_npz(&session, "ref.npz", &[(700, MASK)]);
    let other = [(10, -2.0), (11, -3.0), (500, -4.0)];
    rewrite_npz(&session, "whole.npz", &other);
    let masked = [&other[..], &[(700, MASK)]].concat();
    rewrite_npz(&session, "other.npz", &masked);
    let result = session.result("compare ref.npz other.npz --stats logits");
    has(&result, &json!({"n_tokens": 64, "n_excluded": 0}));
    let (p, q) = (session.rows("ref.npz"), session.rows("other.npz"));
    let klds = p.iter().zip(&q);
    let klds = klds.map(|(p, q)| kld(&log_softmax(&unmasked(p)), &log_softmax(&unmasked(q))));
    let exact = mean(&klds.collect::<Vec<_>>());
    accurate(number(&result["kld"]["mean"]["value"]), exact, "mean");
    let smoothed = number(&result["smoothed_kld"]["mean"]["value"]);
    assert!((smoothed / exact - 1.0).abs() < 1e-3, "{smoothed}");
    assert!(number(&result["jensen_shannon"]["mean"]["value"]) > 0.0);
    // The same as without the column.
    let whole = session.result("compare @npz whole.npz");
    let whole = number(&whole["kld"]["mean"]["value"]);
    assert!((exact / whole - 1.0).abs() < 0.1, "{whole}");
}

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
        session.rewrite_as(Encoding::U16, "ref.gz", "u16.gz", masked);
        assert!(session.length("u16.gz") < session.length("f32.gz") * 6 / 10);
        let of_reference = |reference: &str| {
            let line = format!("compare {reference} eval.gz --no-sidecar");
            let result = session.result(&line);
            assert_eq!(result["n_excluded"], 0);
            number(&result["kld"]["mean"]["value"])
        };
        let (exact, coded) = (of_reference("f32.gz"), of_reference("u16.gz"));
        close(coded, exact, 1e-6, &format!("{mask}"));
        let kept = |row: &[f32]| -> Vec<f32> {
            let entries = row.iter().copied();
            entries.filter(|x| *x != mask).collect()
        };
        let (p, q) = (session.rows("f32.gz"), session.rows("eval.gz"));
        let klds = p
            .iter()
            .zip(&q)
            .map(|(p, q)| kld(&log_softmax(&kept(p)), &log_softmax(&kept(q))));
        accurate(exact, mean(&klds.collect::<Vec<_>>()), "mean");
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
    assert_eq!(result["n_excluded"], 2);
    let n_tokens = result["n_tokens"].as_u64().unwrap();
    assert_eq!(whole["n_tokens"], n_tokens + 2);
    let excluded = json!([{"window": 1, "position": 7}, {"window": 1, "position": 8}]);
    for i in 0..2 {
        has(&result["excluded"][i], &excluded[i]);
    }
    assert_eq!(result["excluded"][0]["which"], "ref");

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
