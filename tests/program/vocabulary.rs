//! Vocabularies of different sizes: refused, or cut to the part asked for and renormalised.

use serde_json::json;

use crate::numbers::{kld, log_softmax, mean, number};
use crate::session::{Session, has};

#[test]
fn the_common_part_is_renormalised() {
    let session = Session::with_reference("--encoding f32");
    // The text's own tokens have to be in it.
    let tokens = session.tokens("ref.gz").concat();
    let cut = 1 + tokens.into_iter().max().unwrap() as usize;
    assert!(cut < 1024);
    session.rewrite("ref.gz", "short.gz", |_, _, mut logits| {
        logits.truncate(cut);
        logits
    });
    let line = "-m @q2 -r short.gz";
    session.fails(line, 1, &["1024", &cut.to_string(), "--vocab common"]);
    let tokenizer = format!("{line} --vocab tokenizer");
    session.fails(&tokenizer, 1, &["1024 entries"]);
    let result = session.result(&format!("{line} --vocab common"));
    assert_eq!(result["n_vocab_compared"], cut);

    session.reference_of("@q2", "q2.gz", "--encoding f32");
    let (reference, evaluated) = (session.rows("short.gz"), session.rows("q2.gz"));
    let rows = reference.iter().zip(&evaluated);
    let klds = rows.map(|(p, q)| kld(&log_softmax(p), &log_softmax(&q[..cut])));
    let klds = Vec::from_iter(klds);
    let (ours, exact) = (number(&result["kld"]["mean"]["value"]), mean(&klds));
    assert!((ours / exact - 1.0).abs() < 1e-9, "{ours} {exact}");
}

#[test]
fn padding_in_a_reference_changes_nothing() {
    let session = Session::with_reference("--encoding f32");
    session.rewrite("ref.gz", "long.gz", |_, row, mut logits| {
        logits.extend([3.0 + row as f32; 37]);
        logits
    });
    let numbers = |reference: &str| {
        let result = session.result(&format!("-m @q2 --no-sidecar -r {reference}"));
        ["kld", "n_vocab_compared"].map(|key| result[key].clone())
    };
    let same = numbers("ref.gz");
    assert_eq!(numbers("long.gz --vocab common"), same);
    assert_eq!(numbers("long.gz --vocab tokenizer"), same);
    // Stored rows have no tokenizer, and may be the longer ones on either side.
    let cases = "
        => long.gz | 1061 | 1024 | --vocab common
        --vocab tokenizer => exit 2 | 'tokenizer' | same, common";
    session.fails_each(1, "compare ref.gz long.gz", cases);
    for files in ["ref.gz long.gz", "long.gz ref.gz"] {
        let result = session.result(&format!("compare {files} --vocab common"));
        let same = json!({"n_vocab_compared": 1024, "kld": {"max": 0}});
        has(&result, &same);
    }
}
