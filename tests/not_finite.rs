//! Rows with NaN or infinite logits: left out, counted, located, never turned into numbers.

mod common;

use common::{Session, rewrite};
use kl_formats::sidecar::SidecarReader;

/// Writes `ref.gz` again as `bad.gz`, every logit as it was but for the rows that `spoil` chooses
/// by window and row.
fn spoiled(session: &Session, spoil: impl Fn(u32, usize) -> bool) {
    session.reference(&["--encoding", "f32"]);
    rewrite(session, "ref.gz", "bad.gz", |window, row, mut logits| {
        if spoil(window, row) {
            logits[500] = if row % 2 == 0 {
                f32::NAN
            } else {
                f32::INFINITY
            };
        }
        logits
    });
}

#[test]
fn some_rows_are_left_out_counted_and_located() {
    let session = Session::new();
    spoiled(&session, |window, row| {
        window == 1 && (row == 7 || row == 8)
    });
    let whole = session.json(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "--no-sidecar"]);
    let json = session.json(&[
        "-m",
        "@tiny-q8_0.gguf",
        "-r",
        "bad.gz",
        "--sidecar",
        "bad.kls",
    ]);
    let (whole, model) = (&whole["models"][0], &json["models"][0]);
    assert_eq!(model["n_excluded"], 2);
    assert_eq!(
        model["n_tokens"].as_u64().unwrap() + 2,
        whole["n_tokens"].as_u64().unwrap()
    );
    let located: Vec<_> = model["excluded"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["window"].as_u64().unwrap(),
                row["position"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(located, [(1, 7), (1, 8)]);
    assert_eq!(model["excluded"][0]["which"], "ref");

    let records = SidecarReader::open(&session.path("bad.kls"))
        .unwrap()
        .read_all()
        .unwrap();
    assert_eq!(
        records.iter().filter(|record| record.is_excluded()).count(),
        2
    );
    assert!(records[64 + 7].kld.is_nan());

    let run = session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "bad.gz", "-q"]);
    assert!(run.stdout.contains("2 left out"), "{}", run.stdout);
    assert!(
        run.stderr.contains("warning: 2 tokens were left out"),
        "{}",
        run.stderr
    );
}

#[test]
fn no_finite_row_at_all_gives_no_number() {
    let session = Session::new();
    spoiled(&session, |_, _| true);
    let run = session.kl(&["-m", "@tiny-q8_0.gguf", "-r", "bad.gz", "-q", "--json", "-"]);
    assert_eq!(run.code, 1);
    assert!(
        run.stderr.contains("no token could be scored"),
        "{}",
        run.stderr
    );
    let json: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let model = &json["models"][0];
    assert_eq!(model["n_tokens"], 0);
    for key in ["kld", "agreement", "perplexity", "delta_p"] {
        assert!(model[key].is_null(), "{key}: {}", model[key]);
    }
    assert_eq!(
        model["excluded"].as_array().unwrap().len(),
        100,
        "the first of them"
    );
}
