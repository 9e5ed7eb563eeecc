//! `--stats llama-perplexity`: the block that llama-perplexity prints, against its own printing and
//! against a plain float64 computation from both models' rows.

mod common;

use std::fs::{self, File};
use std::path::Path;

use common::{Session, fixture};
use kl_formats::{LlamaCppWriter, NativeReader, llamacpp};
use serde_json::Value;

const BASE: &str = "@peers/llama-perplexity-f16-c128.kld";
const STATS: [&str; 2] = ["--stats", "llama-perplexity"];

/// A number agrees within this share of it, or this much as printed: nats, and percent. On the kind
/// of machine that wrote the fixtures every digit is the same; another CPU computes logits to other
/// last bits, and the tails move.
const OTHER_CPU: (f64, f64, f64) = (0.1, 5e-4, 0.05);

/// The same for perplexities and the correlation, which move less.
const PERPLEXITY: (f64, f64, f64) = (2e-3, 2e-3, 0.1);

/// Lines of the block: name, numbers.
fn block(text: &str) -> Vec<(String, Vec<f64>)> {
    let text = &text[text.find("====== Perplexity").unwrap()..];
    let line = |line: &str| {
        let (name, values) = line.rsplit_once(": ").unwrap_or((line, ""));
        let values = values.split([' ', '%', '±']);
        let numbers = values.filter_map(|word| word.replace("-nan", "0").parse().ok());
        (name.to_owned(), numbers.collect())
    };
    text.trim_end().lines().map(line).collect()
}

#[test]
fn the_block_is_what_llama_perplexity_printed() {
    let session = Session::new();
    for quant in ["f16", "q8_0", "q4_K_M", "q2_K"] {
        let model = format!("@tiny-{quant}.gguf");
        let args = ["-m", model.as_str(), "-r", BASE, "-q", "--no-sidecar"];
        let ours = session.ok(&[&args, &STATS[..]].concat()).stdout;
        let why = ours.lines().find(|line| line.contains("renormalises"));
        assert!(why.is_some(), "{ours}");
        let name = format!("peers/llama-perplexity-kld-{quant}.txt");
        let theirs = fs::read_to_string(fixture(&name)).unwrap();
        let (ours, theirs) = (block(&ours), block(&theirs));
        assert_eq!(ours.len(), 39);
        assert_eq!(ours.len(), theirs.len());
        for ((name, ours), (their_name, theirs)) in ours.iter().zip(&theirs) {
            assert_eq!((name, ours.len()), (their_name, theirs.len()));
            for (ours, theirs) in ours.iter().zip(theirs) {
                let is_percent = name.contains(" p") || name.contains("Δp") || name.contains("Cor");
                let (share, nats, percent) = match name.contains("PPL") {
                    true => PERPLEXITY,
                    false => OTHER_CPU,
                };
                let bound = share * theirs.abs() + if is_percent { percent } else { nats };
                assert!(
                    (ours - theirs).abs() <= bound,
                    "{quant}, {name}: {ours}, llama-perplexity {theirs}"
                );
            }
        }
    }
}

/// What `model` gives for the short text, exactly: `name`, scored as llama-perplexity scores.
fn rows(session: &Session, model: &str, name: &str) -> NativeReader {
    session.write(
        "text.txt",
        &fs::read_to_string(fixture("eval.txt")).unwrap()[..3000],
    );
    let files = ["-m", model, "-t", "text.txt", "-w", name, "-q", "-c", "128"];
    session.ok(&[&files, &["--score", "half", "--encoding", "f32"][..]].concat());
    NativeReader::open(&session.path(name)).unwrap()
}

/// Each whole window's tokens, and its rows but the last, which llama-perplexity does not score.
fn windows(reader: &NativeReader) -> Vec<(Vec<u32>, Vec<Vec<f32>>)> {
    let mut windows = Vec::new();
    for place in 0..reader.windows().len() {
        let head = reader.head(place).unwrap();
        let mut rows = Vec::new();
        for piece in 0..reader.n_pieces(place) {
            let block = reader.piece(place, piece, None).unwrap();
            for row in 0..block.n_rows() {
                rows.push(
                    (0..block.n_vocab())
                        .map(|i| block.row(row).get(i))
                        .collect(),
                );
            }
        }
        rows.pop();
        if head.tokens.len() == 128 {
            windows.push((head.tokens, rows));
        }
    }
    windows
}

/// The base file that llama-perplexity would have written of these rows.
fn write_base(path: &Path, n_vocab: u32, windows: &[(Vec<u32>, Vec<Vec<f32>>)]) {
    let tokens: Vec<u32> = windows
        .iter()
        .flat_map(|(tokens, _)| tokens.clone())
        .collect();
    let file = File::create(path).unwrap();
    let mut writer = LlamaCppWriter::create(file, path, 128, n_vocab, &tokens).unwrap();
    let mut bytes = vec![0; llamacpp::row_bytes(n_vocab as usize).unwrap()];
    for row in windows.iter().flat_map(|(_, rows)| rows) {
        llamacpp::encode_row(row, &mut bytes);
        writer.append(&bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// ln p as the base file holds it, in float64.
fn stored(row: &[f32]) -> Vec<f64> {
    let mut bytes = vec![0; llamacpp::row_bytes(row.len()).unwrap()];
    llamacpp::encode_row(row, &mut bytes);
    let float = |at: usize| f64::from(f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
    let codes = bytes[8..].chunks_exact(2).take(row.len());
    codes
        .map(|code| float(0) * f64::from(u16::from_le_bytes([code[0], code[1]])) + float(4))
        .collect()
}

fn log_sum(row: &[f32]) -> f64 {
    row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln()
}

fn value<'j>(json: &'j Value, key: &str) -> &'j Value {
    let number = &json["models"][0]["llama_perplexity"][key];
    number.get("value").unwrap_or(number)
}

fn close(json: &Value, key: &str, expected: f64, bound: f64) {
    let got = value(json, key).as_f64().unwrap();
    assert!(
        (got - expected).abs() <= bound,
        "{key}: {got}, not {expected}"
    );
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

#[test]
fn a_base_file_is_scored_as_stored_and_a_reference_of_ours_truly() {
    let session = Session::new();
    let reference = rows(&session, "@tiny-f16.gguf", "ref.gz");
    let evaluated = windows(&rows(&session, "@tiny-q2_K.gguf", "eval.gz"));
    let base = windows(&reference);
    write_base(&session.path("base.kld"), reference.header().n_vocab, &base);

    let (mut kld, mut base_nll, mut eval_nll) = (Vec::new(), Vec::new(), Vec::new());
    let mut least: f64 = 0.0;
    for ((tokens, base), (_, evaluated)) in base.iter().zip(&evaluated) {
        for (place, (base, evaluated)) in base.iter().zip(evaluated).enumerate() {
            let (ln_p, log_sum) = (stored(base), log_sum(evaluated));
            let next = tokens[64 + place + 1] as usize;
            least = ln_p.iter().copied().fold(least, f64::min);
            let terms = ln_p
                .iter()
                .zip(evaluated)
                .filter(|(ln_p, _)| **ln_p > -16.0);
            kld.push(
                terms
                    .map(|(p, m)| p.exp() * (p - f64::from(*m) + log_sum))
                    .sum(),
            );
            base_nll.push(-ln_p[next]);
            eval_nll.push(log_sum - f64::from(evaluated[next]));
        }
    }
    assert!(
        kld.len() > 300 && least < -16.0,
        "{} tokens, {least}",
        kld.len()
    );

    let args = |reference| [&["-m", "@tiny-q2_K.gguf", "-r", reference], &STATS[..]].concat();
    let json = session.json(&args("base.kld"));
    close(&json, "mean_kld", mean(&kld), 1e-7);
    close(
        &json,
        "maximum_kld",
        kld.iter().copied().fold(0.0, f64::max),
        1e-5,
    );
    close(&json, "mean_ppl_base", mean(&base_nll).exp(), 1e-5);
    close(&json, "mean_ppl_q", mean(&eval_nll).exp(), 1e-5);
    let changes = base_nll
        .iter()
        .zip(&eval_nll)
        .map(|(b, e): (&f64, &f64)| (-e).exp() - (-b).exp());
    close(
        &json,
        "mean_delta_p",
        mean(&changes.collect::<Vec<_>>()),
        1e-7,
    );

    // Of a reference of ours the block says what the report says.
    let json = session.json(&args("ref.gz"));
    let summary = &json["models"][0];
    for (key, own) in [
        ("mean_ppl_q", &summary["perplexity"]["eval"]),
        ("mean_ppl_base", &summary["perplexity"]["ref"]),
        ("mean_ppl_ratio", &summary["perplexity"]["ratio"]["value"]),
        (
            "mean_ln_ppl_ratio",
            &summary["perplexity"]["ln_ratio"]["value"],
        ),
        (
            "mean_ppl_difference",
            &summary["perplexity"]["difference"]["value"],
        ),
        ("cor_ln_ppl", &summary["perplexity"]["correlation"]),
        ("mean_delta_p", &summary["delta_p"]["mean"]["value"]),
        ("rms_delta_p", &summary["delta_p"]["rms"]["value"]),
        ("minimum_delta_p", &summary["delta_p"]["min"]),
        ("delta_p_99", &summary["delta_p"]["quantiles"][9]["value"]),
    ] {
        close(&json, key, own.as_f64().unwrap(), 1e-12);
    }
}

#[test]
fn asked_for_or_not_the_rest_of_the_report_is_the_same() {
    let session = Session::new();
    let args = ["-m", "@tiny-q4_K_M.gguf", "-r", BASE];
    let mut with = session.json(&[&args, &STATS[..]].concat());
    let mut without = session.json(&args);
    assert_eq!(without["models"][0]["llama_perplexity"], Value::Null);
    assert!(with["models"][0]["llama_perplexity"].is_object());
    for json in [&mut with, &mut without] {
        json["models"][0]["timing"] = Value::Null;
        json["models"][0]["llama_perplexity"] = Value::Null;
    }
    assert_eq!(with, without);
    let plain = session.ok(&[&args[..], &["--stats", "kl", "-q"]].concat());
    assert!(!plain.stdout.contains("======"));
}

#[test]
fn of_too_few_tokens_there_is_no_block() {
    let session = Session::new();
    let args = ["-m", "@tiny-q4_K_M.gguf", "-r", BASE, "-n", "99", "-q"];
    let run = session.ok(&[&args, &STATS[..]].concat());
    assert!(run.stderr.contains("fewer than 100"), "{}", run.stderr);
    assert!(!run.stdout.contains("======"));
    session.fails(&[&args, &["--stats", "none"][..]].concat(), 2, &[]);
}
