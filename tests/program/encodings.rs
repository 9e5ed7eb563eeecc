//! Masked logits, in `u16` and in other kinds of file, and base files without a floor.

use serde_json::json;

use crate::numbers::{Window, close, log_softmax, max, number};
use crate::session::{Session, has};

/// Writes `masked.gz`: the logits of `ref.gz`, each row changed by `mask`, as f32.
fn masked(session: &Session, mask: impl Fn(usize, &mut [f32])) {
    session.reference("--encoding f32 --score all");
    session.rewrite("ref.gz", "masked.gz", |_, row, mut logits| {
        mask(row, &mut logits);
        logits
    });
}

#[test]
fn u16_costs_no_more_than_a_millionth_of_a_nat_whatever_the_mask() {
    let session = Session::new();
    let mean = |reference: &str| {
        let result = session.result(&format!("-m @q8 -r {reference} --no-sidecar"));
        assert_eq!(result["n_excluded"], 0);
        number(&result["kld"]["mean"]["value"])
    };
    for mask in [-1e4, -65504.0, f32::MIN] {
        masked(&session, |_, logits| logits[700..764].fill(mask));
        let run = session.ok("convert masked.gz u16.gz --format kl --force");
        run.warns_not("stored exactly");
        session.ok("info u16.gz --verify -q");
        close(mean("u16.gz"), mean("masked.gz"), 1e-6, "mean KLD");
        session.remove("ref.gz");
    }
}

#[test]
fn rows_that_u16_cannot_hold_are_stored_exactly_with_a_warning() {
    let session = Session::new();
    masked(&session, |row, logits| match row {
        3 => (logits[8], logits[9]) = (-1e4, -2e4),
        5 => logits[8] = f32::NAN,
        _ => {}
    });
    let n_windows = session.specs("ref.gz").len();
    let run = session.ok("convert masked.gz u16.gz --format kl");
    let what = format!("{} of ", 2 * n_windows);
    run.warns(&[&what, "stored exactly", "--encoding f32"]);
    session.ok("info u16.gz --verify -q");
    let bits = |name: &str| {
        let rows = session.windows(name).into_iter().flat_map(|window| {
            let kept = [window.rows[3].clone(), window.rows[5].clone()];
            kept.concat().into_iter().map(f32::to_bits)
        });
        rows.collect::<Vec<_>>()
    };
    assert_eq!(bits("u16.gz"), bits("masked.gz"));
}

#[test]
fn minus_infinity_is_kept_where_a_file_can_hold_it() {
    let session = Session::new();
    masked(&session, |_, logits| {
        logits[700..764].fill(f32::NEG_INFINITY)
    });
    session.ok("convert masked.gz u16.gz --format kl -q");
    session.ok("convert u16.gz klpy.gz --format kl.py -q");
    let coded = session.rows("u16.gz");
    assert_eq!(coded, session.rows("klpy.gz"));
    let is_kept = |row: &Vec<f32>| row[700..764] == [f32::NEG_INFINITY; 64] && row[764].is_finite();
    assert!(coded.iter().all(is_kept));
    // A base file raises it to the floor, as llama-perplexity does.
    session.ok("convert u16.gz base.kld --format llama.cpp -q");
    session.ok("info base.kld --verify -q");
    for row in session.rows("base.kld") {
        let least = row.iter().copied().fold(f32::MAX, f32::min);
        assert_eq!(row[700..764], [least; 64]);
    }
}

/// A row of beellama.cpp, as LLAMACPP.md describes it.
fn logits2_row(row: &[f32]) -> Vec<u8> {
    let finite = || row.iter().copied().filter(|x| x.is_finite());
    let least = finite().fold(f32::MAX, f32::min);
    let most = finite().fold(f32::MIN, f32::max);
    let sum: f64 = finite().map(|x| f64::from(x - most).exp()).sum();
    let scale = (most - least) / 65534.0;
    let code = |x: &f32| match x.is_finite() {
        true => 1 + ((x - least) * (1.0 / scale)).round() as u16,
        false => 0,
    };
    let min_log_prob = least - most - sum.ln() as f32;
    let mut bytes = [scale, min_log_prob].map(f32::to_le_bytes).concat();
    bytes.extend(row.iter().flat_map(|x| code(x).to_le_bytes()));
    bytes
}

/// A `_logits2` file of windows of 64 tokens, with the rows of positions 32 to 62.
fn logits2(windows: &[Window], n_vocab: u32) -> Vec<u8> {
    let counts = [64, n_vocab, windows.len() as u32].map(u32::to_le_bytes);
    let mut bytes = [b"_logits2".as_slice(), &counts.concat()].concat();
    let tokens = windows.iter().flat_map(|window| &window.spec.tokens);
    bytes.extend(tokens.flat_map(|token| token.to_le_bytes()));
    let rows = windows.iter().flat_map(|window| &window.rows[32..63]);
    bytes.extend(rows.flat_map(|row| logits2_row(row)));
    bytes
}

#[test]
fn a_base_file_of_beellama_cpp_is_described_evaluated_converted_and_compared() {
    let session = Session::with_reference("--encoding f32 --score all");
    let mut windows = session.windows("ref.gz");
    windows.retain(|window| window.spec.tokens.len() == 64);
    windows[0].rows[32][9] = f32::NEG_INFINITY;
    let n_vocab = session.header("ref.gz").n_vocab;
    session.write("bee.kld", logits2(&windows, n_vocab));

    let info = session.info("bee.kld --verify");
    has(
        &info,
        &json!({"kind": "llama.cpp", "log_probabilities": true}),
    );
    for (window, found) in windows.iter().zip(session.windows("bee.kld")) {
        assert_eq!(found.spec.tokens, window.spec.tokens);
        assert_eq!((found.spec.first_scored, found.rows.len()), (32, 31));
        for (row, found) in window.rows[32..].iter().zip(&found.rows) {
            let expected = log_softmax(row);
            let finite = expected.iter().copied().filter(|x| x.is_finite());
            let half_a_step = (max(&expected) - finite.fold(0.0, f64::min)) / 131_068.0;
            for (expected, &found) in expected.iter().zip(found) {
                let found = f64::from(found);
                let is_close = (found - expected).abs() < half_a_step + 2e-5;
                assert!(is_close || found == *expected, "{found} {expected}");
            }
        }
    }
    // Nothing is floored, so the model's KLD is the one against its logits.
    session.ok("-m @q2 -fa off -r ref.gz -q --sidecar ref.kls");
    session.ok("-m @q2 -fa off -r bee.kld -q --sidecar bee.kls");
    let all = session.records("ref.kls");
    let found = session.records("bee.kls");
    assert_eq!(found.len(), 31 * windows.len());
    for record in &found[1..] {
        let at = (record.window, record.position);
        let mut all = all.iter();
        let expected = all.find(|of| (of.window, of.position) == at).unwrap();
        // Half a step is 2.5e-4 nats.
        close(record.kld, expected.kld, 1e-4, "KLD");
        close(record.ref_nll, expected.ref_nll, 1e-3, "NLL");
    }

    let run = session.ok("convert bee.kld f32.gz --format kl --encoding f32");
    run.warns(&["the rows stay log-probabilities"]);
    assert_eq!(session.rows("f32.gz"), session.rows("bee.kld"));
    assert!(session.header("f32.gz").log_probabilities && !session.header("f32.gz").floored);
    session.ok("convert bee.kld u16.gz --format kl -q");
    assert_eq!(session.rows("u16.gz")[0][9], f32::NEG_INFINITY);
    session.ok("compare bee.kld f32.gz -q");
    session.ok("convert bee.kld base.kld --format llama.cpp -q");
    assert!(session.read("base.kld").starts_with(b"_logits_"));
    session.ok("convert base.kld floored.gz --format kl -q");
    assert!(session.header("floored.gz").floored);
}
