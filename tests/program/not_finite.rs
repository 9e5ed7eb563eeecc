//! Rows with NaN or infinite logits: left out, counted, located, never turned into numbers.

use crate::session::Session;

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
    let result = session.result("-m @q8 -r bad.gz --sidecar bad.kls");
    assert_eq!(result["n_excluded"], 2);
    let n_tokens = result["n_tokens"].as_u64().unwrap();
    assert_eq!(whole["n_tokens"], n_tokens + 2);
    let excluded = result["excluded"].as_array().unwrap();
    let located = excluded.iter().map(|row| {
        let [window, position] = ["window", "position"].map(|key| row[key].as_u64().unwrap());
        (window, position)
    });
    assert!(located.eq([(1, 7), (1, 8)]), "{excluded:?}");
    assert_eq!(excluded[0]["which"], "ref");

    let records = session.records("bad.kls");
    let n_excluded = records.iter().filter(|record| record.is_excluded()).count();
    assert_eq!(n_excluded, 2);
    assert!(records[64 + 7].kld.is_nan());

    let run = session.ok("-m @q8 -r bad.gz -q");
    run.prints(&["2 left out"]);
    run.warns(&["warning", "2 tokens", "left out"]);
}

#[test]
fn without_a_finite_row_there_is_no_number() {
    let session = Session::new();
    spoiled(&session, |_, _| true);
    let run = session.kl("-m @q8 -r bad.gz -q --json -");
    assert_eq!(run.code, 1);
    run.warns(&["no token could be scored"]);
    let result = run.json()["models"][0].take();
    assert_eq!(result["n_tokens"], 0);
    for key in ["kld", "agreement", "perplexity", "delta_p"] {
        assert!(result[key].is_null(), "{key}: {}", result[key]);
    }
    let located = result["excluded"].as_array().unwrap();
    assert_eq!(located.len(), 100, "the first of them");
}
