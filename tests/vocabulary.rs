//! Vocabularies of different size: refused, or cut to what is asked for and renormalised.

mod common;

use common::{Session, rewrite};
use kl_formats::NativeReader;

/// KL(softmax p ‖ softmax q) of two rows of logits, in float64.
fn kld(p: &[f32], q: &[f32]) -> f64 {
    let ln_sum = |row: &[f32]| {
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row
            .iter()
            .map(|&x| (f64::from(x) - f64::from(max)).exp())
            .sum();
        sum.ln() + f64::from(max)
    };
    let (ln_p, ln_q) = (ln_sum(p), ln_sum(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let (p, q) = (f64::from(p) - ln_p, f64::from(q) - ln_q);
        p.exp() * (p - q)
    });
    terms.sum()
}

#[test]
fn the_common_part_is_renormalised() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    // The text's own tokens have to be there.
    let reader = NativeReader::open(&session.path("ref.gz")).unwrap();
    let heads = (0..reader.windows().len()).map(|place| reader.head(place).unwrap());
    let cut = 1 + heads.flat_map(|head| head.tokens).max().unwrap() as usize;
    assert!(cut < 1024);
    rewrite(&session, "ref.gz", "short.gz", |_, _, mut logits| {
        logits.truncate(cut);
        logits
    });
    session.fails(
        &["-m", "@tiny-q2_K.gguf", "-r", "short.gz"],
        1,
        &[
            "vocabulary of 1024",
            &format!("rows of {cut}"),
            "--vocab common",
        ],
    );
    let args = ["-m", "@tiny-q2_K.gguf", "-r", "short.gz", "--vocab"];
    session.fails(
        &[&args[..], &["tokenizer"]].concat(),
        1,
        &["uses 1024 entries"],
    );
    let json = session.json(&[&args[..], &["common"]].concat());
    assert_eq!(json["models"][0]["n_vocab_compared"], cut);

    session.reference_of("@tiny-q2_K.gguf", "q2.gz", &["--encoding", "f32"]);
    let klds: Vec<f64> = session
        .rows("short.gz")
        .iter()
        .zip(session.rows("q2.gz"))
        .map(|(p, q)| kld(p, &q[..cut]))
        .collect();
    let expected = klds.iter().sum::<f64>() / klds.len() as f64;
    let mean = json["models"][0]["kld"]["mean"]["value"].as_f64().unwrap();
    assert!((mean / expected - 1.0).abs() < 1e-9, "{mean} {expected}");
}

#[test]
fn padding_in_the_reference_changes_nothing() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    rewrite(&session, "ref.gz", "long.gz", |_, row, mut logits| {
        logits.extend([3.0 + row as f32; 37]);
        logits
    });
    let numbers = |args: &[&str]| {
        let json = session.json(&[&["-m", "@tiny-q2_K.gguf", "--no-sidecar"], args].concat());
        (
            json["models"][0]["kld"].clone(),
            json["models"][0]["n_vocab_compared"].clone(),
        )
    };
    let same = numbers(&["-r", "ref.gz"]);
    for vocabulary in ["common", "tokenizer"] {
        assert_eq!(numbers(&["-r", "long.gz", "--vocab", vocabulary]), same);
    }
}
