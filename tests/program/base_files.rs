//! Base files of peaked rows with a wide vocabulary, and files converted from them: an entry at the
//! floor has no known probability, and counts for nothing. Base files without a floor.

use kl_formats::{Kind, Values, WindowSpec};
use serde_json::{Value, json};

use crate::numbers::{Window, close, kld, log_softmax, mean, number};
use crate::session::{Session, has};

const N_VOCAB: u32 = 100_352;
const N_CTX: u32 = 16;

/// Windows, each of 7 rows in a base file: llama-perplexity's block needs 100.
const N_WINDOWS: u32 = 15;

/// Entries whose probability a base file records, from token 0 on.
const N_KNOWN: usize = 50;

/// A token whose probability it does not record, and the window in which it follows a scored
/// position.
const UNKNOWN: (u32, u32) = (60_000, 3);

/// Uniform in [0, 1): the same for a window, row, entry and seed.
fn uniform(window: u32, row: u32, entry: usize, seed: u64) -> f32 {
    let mut x = (u64::from(window) << 40) ^ (u64::from(row) << 32) ^ entry as u64 ^ (seed << 56);
    // The finaliser of splitmix64.
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 40) as f32 / (1 << 24) as f32
}

/// A top token with most of the probability, some others, and the rest 17 or more below it.
fn reference(window: u32, row: u32) -> Vec<f32> {
    let entry = |i: usize| match i {
        0 => 20.0,
        1..N_KNOWN => 17.0 - 12.0 * uniform(window, row, i, 1),
        _ => 3.0 - 8.0 * uniform(window, row, i, 1),
    };
    (0..N_VOCAB as usize).map(entry).collect()
}

/// The same with noise.
fn evaluated(window: u32, row: u32) -> Vec<f32> {
    let mut logits = reference(window, row);
    for (i, logit) in logits.iter_mut().enumerate() {
        *logit += 0.3 * (uniform(window, row, i, 2) - 0.5);
    }
    logits
}

fn specs() -> Vec<WindowSpec> {
    let tokens = |window: u32| {
        let mut tokens: Vec<u32> = (0..N_CTX).map(|i| (i * 7 + window) % 50).collect();
        if window == UNKNOWN.1 {
            tokens[12] = UNKNOWN.0;
        }
        tokens
    };
    let spec = |window| WindowSpec {
        window,
        tokens: tokens(window),
        first_scored: N_CTX / 2,
        n_rows: N_CTX / 2 - 1,
    };
    (0..N_WINDOWS).map(spec).collect()
}

/// Writes `base.kld` of the reference's rows, `f16.gz` of the same exactly, and `quant.gz`.
fn session() -> Session {
    let session = Session::new();
    let write = |name: &str, kind: Kind, of_row: fn(u32, u32) -> Vec<f32>| {
        let window = |spec: WindowSpec| {
            let rows = 0..spec.n_rows;
            let rows = rows.map(|row| of_row(spec.window, row)).collect();
            Window { spec, rows }
        };
        let windows: Vec<_> = specs().into_iter().map(window).collect();
        session.write_windows(name, kind, Values::Logits, N_CTX, &windows);
    };
    write("base.kld", Kind::LlamaCpp, reference);
    write("f16.gz", Kind::Kl, reference);
    write("quant.gz", Kind::Kl, evaluated);
    session
}

fn mean_kld(result: &Value) -> f64 {
    number(&result["kld"]["mean"]["value"])
}

#[track_caller]
fn near(ours: f64, exact: f64, what: &str) {
    let bound = (0.02 * exact).max(1e-5);
    assert!((ours - exact).abs() < bound, "{what}: {ours}, not {exact}");
}

#[test]
fn a_base_file_of_peaked_rows_gives_the_divergence_of_the_model_that_wrote_it() {
    let session = session();

    let exact: Vec<f64> = (0..N_WINDOWS)
        .flat_map(|window| (0..N_CTX / 2 - 1).map(move |row| (window, row)))
        .map(|(window, row)| {
            let [p, q] = [reference(window, row), evaluated(window, row)];
            kld(&log_softmax(&p), &log_softmax(&q))
        })
        .collect();
    let exact = mean(&exact);
    let result = session.result("compare f16.gz quant.gz");
    assert!((mean_kld(&result) - exact).abs() < 1e-9);
    assert!(exact > 5e-4, "{exact}");

    let line = "compare base.kld quant.gz --stats llama-perplexity --sidecar out.kls";
    let of_base = session.result(line);
    near(mean_kld(&of_base), exact, "against the f32 reference");
    let theirs = &of_base["llama_perplexity"]["mean_kld"];
    let theirs = number(theirs.get("value").unwrap_or(theirs));
    near(mean_kld(&of_base), theirs, "against llama-perplexity's own");

    // At the floor the unknown entries would weigh about 1 %, and add 0.05 nats.
    let records = session.records("out.kls");
    assert_eq!(records.len(), (N_WINDOWS * (N_CTX / 2 - 1)) as usize);
    for record in &records {
        assert!(
            (0.005..0.02).contains(&record.ref_unknown_p),
            "{}",
            record.ref_unknown_p
        );
        let is_unknown = (record.token, record.window) == UNKNOWN;
        assert_eq!(record.ref_nll.is_nan(), is_unknown);
        assert!(record.eval_nll.is_finite() && !record.is_excluded());
    }
    let n_unknown = records.iter().filter(|r| r.ref_nll.is_nan()).count();
    assert_eq!(n_unknown, 1);

    let said = session.ok("compare base.kld f16.gz -q --no-sidecar");
    said.prints(&["without 1 token that the base file does not know"]);
    let own = session.result("compare base.kld f16.gz");
    assert!(mean_kld(&own) < 1e-5, "{}", mean_kld(&own));
    assert_eq!(number(&own["agreement"]["ref_top1"]["value"]).round(), 1.0);
    // The other way round, the evaluated rows are the floored ones.
    let swapped = session.result("compare quant.gz base.kld");
    let reverse = number(&swapped["reverse_kld"]["mean"]["value"]);
    near(reverse, exact, "the base file evaluated");
    assert_eq!(swapped["n_excluded"], 0);
    assert_eq!(swapped["perplexity"]["n_unknown"], 1);
    let itself = session.result("compare base.kld base.kld");
    assert_eq!(itself["kld"]["max"], 0.0);
}

#[test]
fn files_converted_from_a_base_file_give_its_numbers() {
    let session = session();
    let of_base = mean_kld(&session.result("compare base.kld quant.gz --no-sidecar"));
    for format in ["f32", "u16"] {
        session.ok(&format!(
            "convert base.kld converted.gz --format kl --encoding {format} --bos none -q --force"
        ));
        let result = session.result("compare converted.gz quant.gz --sidecar out.kls --force");
        let converted = mean_kld(&result);
        assert!((converted / of_base - 1.0).abs() < 1e-6, "{format}");
        let again = "convert converted.gz again.kld --format llama.cpp -q";
        session.fails(again, 1, &["floored", "use the original"]);
        let records = session.records("out.kls");
        assert!(records.iter().all(|record| record.ref_unknown_p > 0.005));
        assert_eq!(records.iter().filter(|r| r.ref_nll.is_nan()).count(), 1);
        let result = session.result("compare converted.gz base.kld --no-sidecar");
        assert!(number(&result["kld"]["max"]) < 1e-9, "{format}");
    }
    // kl.py's file needs a row for each token, which a base file does not have: this one is made of the rows
    // that a base file holds.
    let floored = Values::FlooredLogProbabilities;
    for (from, to, kind, values) in [
        ("base.kld", "klpy.gz", Kind::KlPy, floored),
        ("quant.gz", "short.gz", Kind::Kl, Values::Logits),
    ] {
        let mut windows = session.windows(from);
        for Window { spec, .. } in &mut windows {
            spec.tokens = spec.tokens[8..15].to_vec();
            spec.first_scored = 0;
        }
        session.write_windows(to, kind, values, N_CTX, &windows);
    }
    let klpy = mean_kld(&session.result("compare klpy.gz short.gz --no-sidecar"));
    assert!((klpy / of_base - 1.0).abs() < 1e-9, "{klpy} {of_base}");
}

/// A row of beellama.cpp, as LLAMACPP.md describes it.
fn logits2_row(row: &[f32]) -> Vec<u8> {
    let finite = || row.iter().copied().filter(|x| x.is_finite());
    let least = finite().fold(f32::MAX, f32::min);
    let most = finite().fold(f32::MIN, f32::max);
    let sum: f64 = finite().map(|x| f64::from(x - most).exp()).sum();
    let scale = (most - least) / 65534.0;
    let code = |x: &f32| {
        let steps = ((x - least) * (1.0 / scale)).round();
        if x.is_finite() { 1 + steps as u16 } else { 0 }
    };
    let min_log_prob = least - most - sum.ln() as f32;
    let mut bytes = [scale, min_log_prob].map(f32::to_le_bytes).concat();
    bytes.extend(row.iter().flat_map(|x| code(x).to_le_bytes()));
    bytes
}

/// A `_logits2` file of windows of 64 tokens, with the rows of positions 32 to 62.
fn logits2(windows: &[Window]) -> Vec<u8> {
    let n_vocab = windows[0].rows[0].len() as u32;
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
    session.write("bee.kld", logits2(&windows));
    let expected = json!({"kind": "llama.cpp", "log_probabilities": true});
    has(&session.info("bee.kld --verify"), &expected);

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
        assert_eq!(record.token, expected.token);
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
